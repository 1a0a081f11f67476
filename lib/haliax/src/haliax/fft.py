"""Discrete Fourier transforms along named axes.

``axis`` may be None (the last axis), a name, an Axis (name and length of the transform; it replaces the array's axis),
or several of them in a sequence or a mapping name to length, which gives the n-dimensional transform in that order.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from haliax._array.named import freeze, intern_names, require_named, wrap
from haliax._array.plan import positions_of
from haliax._axis.types import Axis, AxisSelection, pairs
from haliax._callable import callable_module
from haliax.core import NamedArray
from haliax.errors import AxisNotFoundError, AxisSpecError, format_axes


def _targets(operation: str, a: NamedArray, axis: Any) -> tuple[list[int], list[int | None], list[str], bool]:
    """Return positions, lengths, new names, and whether one axis was given."""
    require_named(operation, a)
    if axis is None:
        if not a.names:
            raise AxisSpecError(f"{operation}: the array has no axes; expected at least one.")
        return [a.ndim - 1], [None], [a.names[-1]], True
    single = isinstance(axis, Axis | str)
    found = (
        [(k, v.size, v.name) if isinstance(v, Axis) else (k, v, k) for k, v in axis.items()]
        if isinstance(axis, Mapping)
        else [(n, s, n) for n, s in pairs(axis)]
    )
    missing = [n for n, _, _ in found if n not in a.names]
    if missing:
        raise AxisNotFoundError(operation, missing, a.axes)
    return [a.names.index(n) for n, _, _ in found], [s for _, s, _ in found], [m for _, _, m in found], single


def _renamed(a: NamedArray, positions: list[int], names: list[str]) -> tuple[str, ...]:
    out = list(a.names)
    for p, n in zip(positions, names, strict=True):
        out[p] = n
    return intern_names(tuple(out))


def _transform(
    operation: str, one: Any, many: Any, a: NamedArray, axis: Any, norm: str | None, halved: str
) -> NamedArray:
    positions, lengths, names, single = _targets(operation, a, axis)
    new = _renamed(a, positions, names)
    if single:
        return wrap(one(a.array, n=lengths[0], axis=positions[0], norm=norm), new)
    if many is None:
        raise AxisSpecError(f"{operation}: {len(positions)} axes {format_axes(names)}; expected a single axis.")
    sizes = [a.array.shape[p] if n is None else n for p, n in zip(positions, lengths, strict=True)]
    if halved == "output" and lengths and lengths[-1] is None:
        sizes[-1] = 2 * (a.array.shape[positions[-1]] - 1)
    return wrap(many(a.array, s=sizes, axes=positions, norm=norm), new)


def fft(a: NamedArray, axis: AxisSelection | None = None, norm: str | None = None) -> NamedArray:
    """Fourier transform; see `jax.numpy.fft.fft` and ``fftn``.

    Example:
        >>> import haliax as hax
        >>> fft(hax.ones({"t": 4}), "t").real.tolist()
        [4.0, 0.0, 0.0, 0.0]
    """
    return _transform("fft", jnp.fft.fft, jnp.fft.fftn, a, axis, norm, "")


def ifft(a: NamedArray, axis: AxisSelection | None = None, norm: str | None = None) -> NamedArray:
    """Inverse of `fft`.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([1.0, 2.0, 3.0], "t")
        >>> hax.fft.ifft(hax.fft(x)).real.tolist()
        [1.0, 2.0, 3.0]
    """
    return _transform("ifft", jnp.fft.ifft, jnp.fft.ifftn, a, axis, norm, "")


def rfft(a: NamedArray, axis: AxisSelection | None = None, norm: str | None = None) -> NamedArray:
    """Fourier transform of real input; the last axis listed gets n // 2 + 1 elements.

    Example:
        >>> import haliax as hax
        >>> rfft(hax.ones({"t": 4, "c": 2}), "t").shape
        {'t': 3, 'c': 2}
    """
    return _transform("rfft", jnp.fft.rfft, jnp.fft.rfftn, a, axis, norm, "input")


def irfft(a: NamedArray, axis: AxisSelection | None = None, norm: str | None = None) -> NamedArray:
    """Inverse of `rfft`; the last axis listed gets 2 (n - 1) elements unless a length is given.

    Example:
        >>> import haliax as hax
        >>> irfft(rfft(hax.named([1.0, 2.0, 3.0, 4.0], "t"))).tolist()
        [1.0, 2.0, 3.0, 4.0]
    """
    return _transform("irfft", jnp.fft.irfft, jnp.fft.irfftn, a, axis, norm, "output")


def hfft(a: NamedArray, axis: AxisSelection | None = None, norm: str | None = None) -> NamedArray:
    """Fourier transform of a signal with Hermitian symmetry, along one axis.

    Raises:
        AxisSpecError: Several axes.

    Example:
        >>> import haliax as hax
        >>> hfft(hax.ones(hax.Axis("f", 3))).shape
        {'f': 4}
    """
    return _transform("hfft", jnp.fft.hfft, None, a, axis, norm, "")


def ihfft(a: NamedArray, axis: AxisSelection | None = None, norm: str | None = None) -> NamedArray:
    """Inverse of `hfft`, along one axis.

    Raises:
        AxisSpecError: Several axes.

    Example:
        >>> import haliax as hax
        >>> ihfft(hax.ones(hax.Axis("t", 4))).shape
        {'t': 3}
    """
    return _transform("ihfft", jnp.fft.ihfft, None, a, axis, norm, "")


def _shift(operation: str, fn: Any, x: NamedArray, axes: AxisSelection | None) -> NamedArray:
    require_named(operation, x)
    positions = None if axes is None else positions_of(operation, x.names, x.array.shape, freeze(axes))
    return wrap(fn(x.array, axes=positions), x.names)


def fftshift(x: NamedArray, axes: AxisSelection | None = None) -> NamedArray:
    """Move the zero frequency to the centre of the axes (None: all).

    Example:
        >>> import haliax as hax
        >>> fftshift(hax.arange(hax.Axis("f", 5)), "f").tolist()
        [3, 4, 0, 1, 2]
    """
    return _shift("fftshift", jnp.fft.fftshift, x, axes)


def ifftshift(x: NamedArray, axes: AxisSelection | None = None) -> NamedArray:
    """Undo `fftshift`.

    Example:
        >>> import haliax as hax
        >>> ifftshift(fftshift(hax.arange(hax.Axis("f", 5)), "f"), "f").tolist()
        [0, 1, 2, 3, 4]
    """
    return _shift("ifftshift", jnp.fft.ifftshift, x, axes)


def fftfreq(axis: Axis, d: float = 1.0) -> NamedArray:
    """Return the frequencies of `fft` for an axis, in cycles per unit of ``d``.

    Example:
        >>> import haliax as hax
        >>> fftfreq(hax.Axis("f", 4)).tolist()
        [0.0, 0.25, -0.5, -0.25]
    """
    return wrap(jnp.fft.fftfreq(axis.size, d), intern_names((axis.name,)))


def rfftfreq(axis: Axis, d: float = 1.0) -> NamedArray:
    """Return the frequencies of `rfft` for a real signal along ``axis`` (n // 2 + 1 of them).

    Example:
        >>> import haliax as hax
        >>> rfftfreq(hax.Axis("f", 4)).tolist()
        [0.0, 0.25, 0.5]
    """
    return wrap(jnp.fft.rfftfreq(axis.size, d), intern_names((axis.name,)))


callable_module(__name__, fft)
