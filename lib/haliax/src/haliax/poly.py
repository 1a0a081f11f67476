"""Polynomials with named coefficient axes, highest power first (as `jax.numpy` has them).

The axis of the result is that of the first NamedArray among the arguments, resized; raw arguments alone give an axis
called ``degree``.
"""

from typing import Any

import jax.numpy as jnp

from haliax._array.named import intern_names, raw, wrap
from haliax._axis.types import Axis, AxisSelector, names_of
from haliax._callable import callable_module
from haliax.core import NamedArray
from haliax.errors import AxisSpecError, format_axes

DEFAULT_POLY_AXIS_NAME = "degree"


def _axis_name(operation: str, *arguments: Any) -> str:
    name = None
    for a in arguments:
        if isinstance(a, NamedArray):
            if a.ndim != 1:
                raise AxisSpecError(
                    f"{operation}: coefficients have axes {format_axes(a.names)}; expected exactly one."
                )
            name = name or a.names[0]
    return name or DEFAULT_POLY_AXIS_NAME


def _coefficients(x: Any, name: str) -> NamedArray:
    return wrap(x, intern_names((name,)))


def poly(seq_of_zeros: Any) -> NamedArray:
    """Return the coefficients of the polynomial with these roots.

    Example:
        >>> import haliax as hax
        >>> poly(hax.named([1.0, 2.0], "root")).tolist()
        [1.0, -3.0, 2.0]
    """
    name = _axis_name("poly", seq_of_zeros)
    return _coefficients(jnp.poly(jnp.asarray(raw(seq_of_zeros))), name)


def polyadd(a1: Any, a2: Any) -> NamedArray:
    """Return the sum of two polynomials.

    Example:
        >>> import haliax as hax
        >>> polyadd(hax.named([1.0, 2.0], "c"), hax.named([1.0], "c")).tolist()
        [1.0, 3.0]
    """
    name = _axis_name("polyadd", a1, a2)
    return _coefficients(jnp.polyadd(jnp.asarray(raw(a1)), jnp.asarray(raw(a2))), name)


def polysub(a1: Any, a2: Any) -> NamedArray:
    """Return the difference of two polynomials.

    Example:
        >>> import haliax as hax
        >>> polysub(hax.named([1.0, 2.0], "c"), hax.named([1.0], "c")).tolist()
        [1.0, 1.0]
    """
    name = _axis_name("polysub", a1, a2)
    return _coefficients(jnp.polysub(jnp.asarray(raw(a1)), jnp.asarray(raw(a2))), name)


def polymul(a1: Any, a2: Any) -> NamedArray:
    """Return the product of two polynomials.

    Example:
        >>> polymul([1.0, 1.0], [1.0, -1.0]).tolist()
        [1.0, 0.0, -1.0]
    """
    name = _axis_name("polymul", a1, a2)
    return _coefficients(jnp.polymul(jnp.asarray(raw(a1)), jnp.asarray(raw(a2))), name)


def polydiv(u: Any, v: Any) -> tuple[NamedArray, NamedArray]:
    """Return quotient and remainder of two polynomials.

    Example:
        >>> import haliax as hax
        >>> quotient, rest = polydiv(hax.named([1.0, 3.0, 2.0], "c"), hax.named([1.0, 1.0], "c"))
        >>> quotient.tolist(), rest.tolist()
        ([1.0, 2.0], [0.0, 0.0, 0.0])
    """
    name = _axis_name("polydiv", u, v)
    quotient, remainder = jnp.polydiv(jnp.asarray(raw(u)), jnp.asarray(raw(v)))
    return _coefficients(quotient, name), _coefficients(remainder, name)


def polyint(p: Any, m: int = 1, k: Any = None) -> NamedArray:
    """Return the ``m``-th integral, with constants ``k``.

    Example:
        >>> import haliax as hax
        >>> polyint(hax.named([2.0, 1.0], "c")).tolist()
        [1.0, 1.0, 0.0]
    """
    name = _axis_name("polyint", p)
    return _coefficients(jnp.polyint(jnp.asarray(raw(p)), m, raw(k)), name)


def polyder(p: Any, m: int = 1) -> NamedArray:
    """Return the ``m``-th derivative.

    Example:
        >>> import haliax as hax
        >>> polyder(hax.named([1.0, 3.0, 2.0], "c")).tolist()
        [2.0, 3.0]
    """
    name = _axis_name("polyder", p)
    return _coefficients(jnp.polyder(jnp.asarray(raw(p)), m), name)


def polyval(p: Any, x: Any) -> Any:
    """Evaluate a polynomial; the result has the axes of ``x`` (raw in, raw out).

    Example:
        >>> import haliax as hax
        >>> polyval(hax.named([1.0, 0.0, 1.0], "c"), hax.arange(hax.Axis("x", 3))).tolist()
        [1.0, 2.0, 5.0]
    """
    _axis_name("polyval", p)
    out = jnp.polyval(jnp.asarray(raw(p)), raw(x))
    return wrap(out, x.names) if isinstance(x, NamedArray) else out


def polyfit(
    x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:
    """Fit a polynomial of degree ``deg`` by least squares.

    Args:
        x: Places, 1-D.
        y: Values, 1-D.
        deg: Degree.
        rcond: Relative condition number.
        full: Also return residuals, rank, singular values and rcond (raw).
        w: Weights, 1-D.
        cov: Also return the covariance matrix, with axes (c, c_cov) for coefficients named c.
    """
    name = _axis_name("polyfit", x, y, w)
    out = jnp.polyfit(jnp.asarray(raw(x)), jnp.asarray(raw(y)), deg, rcond=rcond, full=full, w=raw(w), cov=cov)
    if full:
        return (_coefficients(out[0], name), *out[1:])
    if cov:
        return _coefficients(out[0], name), wrap(out[1], intern_names((name, f"{name}_cov")))
    return _coefficients(out, name)


def roots(p: Any, *, strip_zeros: bool = True) -> NamedArray:
    """Return the roots of a polynomial (complex).

    Example:
        >>> import haliax as hax
        >>> roots(hax.named([1.0, 0.0, -4.0], "c")).shape
        {'c': 2}
    """
    name = _axis_name("roots", p)
    return _coefficients(jnp.roots(jnp.asarray(raw(p)), strip_zeros=strip_zeros), name)


def trim_zeros(filt: Any, trim: str = "fb") -> NamedArray:
    """Drop leading ("f") and trailing ("b") zeros; needs concrete values.

    Example:
        >>> import haliax as hax
        >>> trim_zeros(hax.named([0, 1, 2, 0], "c")).tolist()
        [1, 2]
    """
    name = _axis_name("trim_zeros", filt)
    return _coefficients(jnp.trim_zeros(jnp.asarray(raw(filt)), trim), name)


def vander(x: NamedArray, degree: AxisSelector | int, *, increasing: bool = False) -> NamedArray:
    """Return powers of ``x`` along a second axis.

    Args:
        x: Values, 1-D.
        degree: Axis of the powers, or their number.
        increasing: Lowest power first.

    Example:
        >>> import haliax as hax
        >>> vander(hax.named([1, 2], "x"), hax.Axis("degree", 3)).tolist()
        [[1, 1, 1], [4, 2, 1]]
    """
    name = _axis_name("vander", x)
    if isinstance(degree, int):
        degree = Axis(DEFAULT_POLY_AXIS_NAME, degree)
    size = degree.size if isinstance(degree, Axis) else None
    out = jnp.vander(jnp.asarray(raw(x)), size, increasing=increasing)
    return wrap(out, intern_names((name, names_of(degree)[0])))


callable_module(__name__, poly)
