"""Numerical functions whose results have axes of their own: covariances, differences, integrals, convolution."""

from typing import Any

import jax.numpy as jnp

from haliax._array.named import NamedArray, intern_names, position, require_named, wrap
from haliax._array.plan import permute_to
from haliax._axis.types import Axis, AxisSelector, names_of, reject_duplicates
from haliax._ops.dot import dot
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, AxisSpecError, format_axes


def outer(a: NamedArray, b: NamedArray) -> NamedArray:
    """Multiply every element with every other; axes that both have are batched.

    Raises:
        AxisSizeMismatchError: A common axis has two sizes.

    Example:
        >>> import haliax as hax
        >>> outer(hax.arange(Axis("i", 3)), hax.arange(Axis("j", 2))).tolist()
        [[0, 0], [0, 1], [0, 2]]
    """
    return dot(a, b, axis=())


def diag(a: NamedArray, axis: AxisSelector, new_axis: AxisSelector) -> NamedArray:
    """Put the elements along ``axis`` on the diagonal of a square over ``axis`` and ``new_axis`` (which comes last).

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisCollisionError: ``new_axis`` is there already.

    Example:
        >>> import haliax as hax
        >>> diag(hax.named([1, 2], "i"), "i", "j").tolist()
        [[1, 0], [0, 2]]
    """
    require_named("diag", a)
    index, (name,) = position("diag", a, axis), names_of(new_axis)
    names = (*a.names[:index], *a.names[index + 1 :], a.names[index], name)
    reject_duplicates("diag", names, names)
    last = jnp.moveaxis(a.array, index, -1)
    return wrap(last[..., None] * jnp.eye(last.shape[-1], dtype=last.dtype), intern_names(names))


def cov(a: NamedArray, variable: AxisSelector, observation: AxisSelector, new_axis: AxisSelector, ddof: int = 1) -> Any:
    """Return the covariance matrix of the variables along one axis over the observations along another.

    Args:
        a: Samples; further axes are batched.
        variable: Axis of the variables.
        observation: Axis of the observations; it goes away.
        new_axis: Second axis of the matrix.
        ddof: The sum is divided by the number of observations minus this.

    Returns:
        Axes: those of ``a`` without ``observation``, then ``new_axis``.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisCollisionError: ``new_axis`` is there already.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[0.0, 1.0, 2.0], [0.0, 2.0, 4.0]], "var obs")
        >>> cov(x, "var", "obs", "var2").tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """
    require_named("cov", a)
    (var,), index = names_of(variable), position("cov", a, observation)
    position("cov", a, variable)
    centred = wrap(a.array - jnp.mean(a.array, axis=index, keepdims=True), a.names)
    other = centred.rename({var: names_of(new_axis)[0]})
    return dot(centred, other, axis=observation) / (a.array.shape[index] - ddof)


def corrcoef(a: NamedArray, variable: AxisSelector, observation: AxisSelector, new_axis: AxisSelector) -> NamedArray:
    """Return the Pearson correlation matrix; arguments and axes as for `cov`.

    Raises:
        AxisNotFoundError: An axis is absent.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[0.0, 1.0, 2.0], [4.0, 2.0, 0.0]], "var obs")
        >>> corrcoef(x, "var", "obs", "var2").tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    matrix = cov(a, variable, observation, new_axis)
    (var,), (new,) = names_of(variable), names_of(new_axis)
    deviation = a.std(observation, ddof=1)
    return matrix / (deviation * deviation.rename({var: new}).broadcast_axis(deviation.resolve_axis(var)))


def gradient(a: NamedArray, axis: AxisSelector, spacing: float = 1.0) -> NamedArray:
    """Return central differences along ``axis`` (one-sided at the ends) over samples ``spacing`` apart.

    Raises:
        AxisNotFoundError: ``axis`` is absent.

    Example:
        >>> import haliax as hax
        >>> gradient(hax.named([0.0, 1.0, 4.0], "x"), "x").tolist()
        [1.0, 2.0, 3.0]
    """
    require_named("gradient", a)
    return wrap(jnp.gradient(a.array, spacing, axis=position("gradient", a, axis)), a.names)


def trapezoid(y: NamedArray, axis: AxisSelector, x: NamedArray | None = None, dx: float = 1.0) -> NamedArray:
    """Integrate ``y`` along ``axis`` by the trapezoidal rule.

    Args:
        y: Samples.
        axis: Axis to integrate over.
        x: Where the samples are, along ``axis`` only; unless given they are ``dx`` apart.
        dx: Distance of the samples.

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSpecError: ``x`` has other axes.

    Example:
        >>> import haliax as hax
        >>> trapezoid(hax.named([0.0, 1.0, 2.0], "t"), "t").item()
        2.0
    """
    require_named("trapezoid", y, "y")
    index = position("trapezoid", y, axis)
    if x is not None and x.names != (y.names[index],):
        raise AxisSpecError(f"trapezoid: x has axes {format_axes(x.names)}; expected just {y.names[index]!r}.")
    raw = jnp.trapezoid(y.array, None if x is None else x.array, dx, axis=index)
    return wrap(raw, intern_names(y.names[:index] + y.names[index + 1 :]))


def convolve(a: NamedArray, kernel: NamedArray, axis: AxisSelector, mode: str = "full") -> NamedArray:
    """Convolve ``a`` along ``axis`` with a one-dimensional kernel; other axes of ``a`` are batched.

    Args:
        a: Signal.
        kernel: Weights, along an axis of any name.
        axis: Axis of ``a``; its size changes as ``mode`` says.
        mode: "full", "same" or "valid", as in `jax.numpy.convolve`.

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSpecError: The kernel has not exactly one axis.

    Example:
        >>> import haliax as hax
        >>> convolve(hax.named([1, 2, 3], "t"), hax.named([1, 1], "k"), "t").tolist()
        [1.0, 3.0, 5.0, 3.0]
    """
    require_named("convolve", a)
    if require_named("convolve", kernel, "kernel").ndim != 1:
        raise AxisSpecError(f"convolve: kernel has axes {format_axes(kernel.names)}; expected exactly one.")
    index = position("convolve", a, axis)
    raw = jnp.apply_along_axis(lambda row: jnp.convolve(row, kernel.array, mode=mode), index, a.array)
    return wrap(raw, a.names)


def argwhere(a: NamedArray, *, size: Axis, new_axis: AxisSelector, fill_value: int = 0) -> NamedArray:
    """Return the coordinates of the true elements, ``size`` of them at most (padded with ``fill_value``).

    Args:
        a: Array; an element counts when it is not 0.
        size: Axis that counts the elements found.
        new_axis: Axis of the coordinates, in storage order of ``a``.
        fill_value: Padding.

    Raises:
        AxisCollisionError: ``size`` and ``new_axis`` have one name.

    Example:
        >>> import haliax as hax
        >>> argwhere(hax.named([[0, 1], [1, 0]], "a b"), size=Axis("n", 2), new_axis="axis").tolist()
        [[0, 1], [1, 0]]
    """
    require_named("argwhere", a)
    names = (size.name, *names_of(new_axis))
    reject_duplicates("argwhere", names, names)
    return wrap(jnp.argwhere(a.array, size=size.size, fill_value=fill_value), intern_names(names))


def put_along_axis(array: NamedArray, indices: NamedArray, values: Any, axis: AxisSelector) -> NamedArray:
    """Return ``array`` with elements along ``axis`` replaced; the inverse of `take_along_axis`.

    Args:
        array: Array.
        indices: Positions along ``axis``, with the axes of ``array`` in any order (``axis`` may differ in size).
        values: Scalar, or NamedArray with the axes of ``indices`` or some of them.
        axis: Axis.

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSpecError: ``indices`` has other axes than ``array``.
        AxisSizeMismatchError: Another axis differs in size.

    Example:
        >>> import haliax as hax
        >>> x, i = hax.zeros({"a": 2, "b": 3}), hax.named([[0], [2]], "a b")
        >>> put_along_axis(x, i, 1.0, "b").tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    require_named("put_along_axis", array)
    index = position("put_along_axis", array, names_of(axis)[0])
    if set(indices.names) != set(array.names):
        raise AxisSpecError(
            f"put_along_axis: indices have axes {format_axes(indices.names)}, the array {format_axes(array.names)}; "
            "expected the same."
        )
    sizes = indices.shape
    if any(sizes[n] != s for i, (n, s) in enumerate(array.shape.items()) if i != index):
        raise AxisSizeMismatchError("put_along_axis", [("array", array.axes), ("indices", indices.axes)])
    if isinstance(values, NamedArray):
        absent = [n for n in values.names if n not in indices.names]
        if absent:
            raise AxisNotFoundError("put_along_axis", absent, indices.axes)
        values = permute_to(values.broadcast_to(indices.axes), array.names)
    raw = jnp.put_along_axis(array.array, permute_to(indices, array.names), values, axis=index, inplace=False)
    return wrap(raw, array.names)
