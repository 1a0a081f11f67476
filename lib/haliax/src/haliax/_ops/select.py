"""Choosing and masking: where, clip, triangles, padding, comparison of whole arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from haliax._array.named import NamedArray, bind, intern_names, position, raw, require_named, wrap
from haliax._array.plan import permute_to
from haliax._axis.types import Axis, AxisSelector, names_of, sized_axes
from haliax._ops.broadcast import aligned_to, broadcast_arrays_and_return_axes
from haliax._ops.elementwise import equal
from haliax._ops.reductions import all as all_
from haliax.errors import AxisError, AxisNotFoundError, AxisSpecError, show


def where(condition: Any, x: Any = None, y: Any = None, fill_value: Any = None, new_axis: Axis | None = None) -> Any:
    """Choose from ``x`` where ``condition`` holds, else from ``y``; or list the places where it holds.

    Args:
        condition: bool, raw scalar or NamedArray.
        x: Value where True (NamedArray or scalar).
        y: Value where False.
        fill_value: For the one-argument form: index that pads the result.
        new_axis: For the one-argument form: axis of the result; its size bounds the number of places.

    Returns:
        An array with the axes of the widest operand; or, without ``x`` and ``y``, a tuple of index arrays.

    Raises:
        AxisSpecError: Exactly one of ``x`` and ``y`` is given.
        BroadcastError: The largest operand lacks an axis of another.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> where(x > 2, x, 0).tolist()
        [[0.0, 0.0], [3.0, 4.0]]
    """
    if (x is None) != (y is None):
        raise AxisSpecError("where: exactly one of x and y was given; expected both or neither.")
    if x is None:
        return _nonzero_places(require_named("where", condition, "condition"), fill_value, new_axis)
    named = [a for a in (condition, x, y) if isinstance(a, NamedArray) and a.names]
    if not named:
        out = jnp.where(raw(condition), raw(x), raw(y))
        return wrap(out, ()) if any(isinstance(a, NamedArray) for a in (condition, x, y)) else out
    if any(getattr(a, "ndim", 0) and not isinstance(a, NamedArray) for a in (condition, x, y)):
        raise AxisSpecError("where: an operand is a raw array with dimensions; expected NamedArrays and scalars.")
    first = named[0].names
    if all(a.names == first and a.array.shape == named[0].array.shape for a in named):
        return wrap(jnp.where(raw(condition), raw(x), raw(y)), first)
    _, axes = broadcast_arrays_and_return_axes(*named, require_subset=True, ensure_order=False)
    names = tuple(a.name for a in axes)
    ordered = next((a.names for a in named if len(a.names) == len(names)), names)
    operands = [aligned_to(a, ordered) for a in (condition, x, y)]
    return wrap(jnp.where(*operands), intern_names(ordered))


def _nonzero_places(condition: NamedArray, fill_value: Any, new_axis: Axis | None) -> tuple[NamedArray, ...]:
    size = new_axis.size if new_axis is not None else None
    name = new_axis.name if new_axis is not None else "index"
    places = jnp.where(condition.array, size=size, fill_value=fill_value if size is not None else None)
    return tuple(wrap(p, intern_names((name,))) for p in places)


def nonzero(array: NamedArray, *, size: Axis, fill_value: Any = 0) -> tuple[NamedArray, ...]:
    """Return the indices of non-zero elements per axis, padded with ``fill_value`` to the axis ``size``.

    Example:
        >>> import haliax as hax
        >>> nonzero(hax.named([0, 5, 6], "a"), size=hax.Axis("n", 2))[0].tolist()
        [1, 2]
    """
    require_named("nonzero", array)
    places = jnp.nonzero(array.array, size=size.size, fill_value=fill_value)
    return tuple(wrap(p, intern_names((size.name,))) for p in places)


def clip(array: Any, a_min: Any = None, a_max: Any = None) -> Any:
    """Limit values to [a_min, a_max]; bounds may be NamedArrays or scalars, None is no bound.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> clip(x, 2, 3).tolist()
        [[2.0, 2.0], [3.0, 3.0]]
    """
    named = [a for a in (array, a_min, a_max) if isinstance(a, NamedArray)]
    if not named:
        return jnp.clip(array, a_min, a_max)
    _, axes = broadcast_arrays_and_return_axes(*named, ensure_order=False)
    names = tuple(a.name for a in axes)
    ordered = next((a.names for a in named if len(a.names) == len(names)), names)
    operands = [None if a is None else aligned_to(a, ordered) for a in (array, a_min, a_max)]
    return wrap(jnp.clip(*operands), intern_names(ordered))


def _matrix_last(
    array: NamedArray, axis1: AxisSelector, axis2: AxisSelector, operation: str
) -> tuple[Any, tuple[str, ...]]:
    first, second = position(operation, array, axis1), position(operation, array, axis2)
    if first == second:
        raise AxisSpecError(
            f"{operation}: axis1 and axis2 are both {array.names[first]!r}; expected two different axes."
        )
    rest = tuple(n for i, n in enumerate(array.names) if i not in (first, second))
    names = intern_names((*rest, array.names[first], array.names[second]))
    return permute_to(array, names), names


def tril(array: NamedArray, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> NamedArray:
    """Zero the elements above the ``k``-th diagonal of (axis1, axis2), which become the last axes.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> tril(x, "a", "b").tolist()
        [[1.0, 0.0], [3.0, 4.0]]
    """
    x, names = _matrix_last(array, axis1, axis2, "tril")
    return wrap(jnp.tril(x, k), names)


def triu(array: NamedArray, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> NamedArray:
    """Zero the elements below the ``k``-th diagonal of (axis1, axis2), which become the last axes.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> triu(x, "a", "b").tolist()
        [[1.0, 2.0], [0.0, 4.0]]
    """
    x, names = _matrix_last(array, axis1, axis2, "triu")
    return wrap(jnp.triu(x, k), names)


def trace(
    array: NamedArray, axis1: AxisSelector, axis2: AxisSelector, offset: int = 0, dtype: Any = None
) -> NamedArray:
    """Sum the diagonal of (axis1, axis2), which go away.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: Both are the same axis.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> trace(x, "a", "b").item()
        5.0
    """
    x, names = _matrix_last(array, axis1, axis2, "trace")
    return wrap(jnp.trace(x, offset=offset, axis1=-2, axis2=-1, dtype=dtype), intern_names(names[:-2]))


def diagonal(array: NamedArray, axis1: AxisSelector, axis2: AxisSelector, new_axis: str, offset: int = 0) -> NamedArray:
    """Return the diagonal of (axis1, axis2) along ``new_axis``, which comes last.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> diagonal(x, "a", "b", "d").tolist()
        [1.0, 4.0]
    """
    x, names = _matrix_last(array, axis1, axis2, "diagonal")
    return NamedArray(jnp.diagonal(x, offset=offset, axis1=-2, axis2=-1), (*names[:-2], new_axis))


def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Tell elementwise whether values are within tolerance; broadcasts by name, scalars welcome.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> isclose(x, 1.0).tolist()
        [[True, False], [False, False]]
    """
    named = [x for x in (a, b) if isinstance(x, NamedArray)]
    if not named:
        return jnp.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
    _, axes = broadcast_arrays_and_return_axes(*named, ensure_order=False)
    names = tuple(x.name for x in axes)
    ordered = next((x.names for x in named if len(x.names) == len(names)), names)
    x, y = aligned_to(a, ordered), aligned_to(b, ordered)
    return wrap(jnp.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan), intern_names(ordered))


def allclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Tell whether all values are within tolerance (needs concrete values).

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> bool(allclose(x, x.rearrange(("b", "a"))))
        True
    """
    return bool(all_(isclose(a, b, rtol, atol, equal_nan)))


def array_equal(a: NamedArray, b: NamedArray) -> bool:
    """Tell whether both have the same axes (in any order) and equal values.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> bool(array_equal(x, x.rearrange(("b", "a"))))
        True
    """
    if not isinstance(a, NamedArray) or not isinstance(b, NamedArray):
        return bool(jnp.array_equal(raw(a), raw(b)))
    if a.shape != b.shape:
        return False
    return bool(jnp.array_equal(a.array, permute_to(b, a.names)))


def array_equiv(a: Any, b: Any) -> bool:
    """Tell whether the arrays are equal after broadcasting; False when they do not broadcast.

    Example:
        >>> import haliax as hax
        >>> bool(array_equiv(hax.ones({"a": 2, "b": 3}), hax.ones({"b": 3})))
        True
    """
    try:
        return bool(all_(equal(a, b)))
    except AxisError:
        return False


def pad_left(array: NamedArray, axis: AxisSelector, new_axis: AxisSelector, value: Any = 0) -> NamedArray:
    """Pad in front of ``axis`` up to the size of ``new_axis``.

    Raises:
        AxisSpecError: ``new_axis`` is smaller or has no size.

    Example:
        >>> import haliax as hax
        >>> pad_left(hax.named([1, 2], "a"), "a", hax.Axis("a", 3)).tolist()
        [0, 1, 2]
    """
    require_named("pad_left", array)
    index = position("pad_left", array, axis)
    (new,) = sized_axes(new_axis, "pad_left")
    missing = new.size - array.array.shape[index]
    if missing < 0:
        raise AxisSpecError(f"pad_left: {new} is smaller than {show(array.axes[index])}; expected a larger axis.")
    widths = [(missing, 0) if i == index else (0, 0) for i in range(array.ndim)]
    names = (*array.names[:index], new.name, *array.names[index + 1 :])
    return wrap(jnp.pad(array.array, widths, constant_values=raw(value)), intern_names(names))


def pad(
    array: NamedArray,
    pad_width: Mapping[AxisSelector, Any],
    *,
    mode: str = "constant",
    constant_values: Any = 0,
    **kwargs: Any,
) -> NamedArray:
    """Pad axes by (before, after) elements; see `jax.numpy.pad` for the modes.

    Raises:
        AxisNotFoundError: An axis is absent.

    Example:
        >>> import haliax as hax
        >>> pad(hax.named([1, 2], "a"), {"a": (1, 2)}, constant_values=9).tolist()
        [9, 1, 2, 9, 9]
    """
    require_named("pad", array)
    table = {names_of(k)[0]: v for k, v in pad_width.items()}
    missing = [n for n in table if n not in array.names]
    if missing:
        raise AxisNotFoundError("pad", missing, array.axes)
    widths = [table.get(n, (0, 0)) for n in array.names]
    widths = [(w, w) if isinstance(w, int) else tuple(w) for w in widths]
    if mode == "constant":
        kwargs["constant_values"] = raw(constant_values)
    return wrap(jnp.pad(array.array, widths, mode=mode, **kwargs), array.names)


def select(conditions: list[NamedArray], choices: list[Any], default: Any = 0) -> Any:
    """Return the choice of the first condition that holds, else ``default``.

    Example:
        >>> import haliax as hax
        >>> x = hax.arange({"a": 4})
        >>> select([x < 1, x < 3], [x * 0, x * 10], default=-1).tolist()
        [0, 10, 20, -1]
    """
    out = default
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        out = where(condition, choice, out)
    return out


def isin(array: NamedArray, values: Any) -> NamedArray:
    """Tell elementwise whether a value occurs in ``values`` (any axes).

    Example:
        >>> import haliax as hax
        >>> isin(hax.arange({"a": 4}), hax.named([1, 3], "v")).tolist()
        [False, True, False, True]
    """
    require_named("isin", array)
    return wrap(jnp.isin(array.array, raw(values)), array.names)


def top_k(
    arr: NamedArray, axis: AxisSelector, k: int, new_axis: AxisSelector | None = None
) -> tuple[NamedArray, NamedArray]:
    """Return the ``k`` largest values along ``axis`` and their indices, largest first.

    Args:
        arr: Array.
        axis: Axis to search; in the results it has size ``k``.
        k: Number of values.
        new_axis: New name of that axis.

    Raises:
        AxisSpecError: ``k`` is negative or larger than the axis.

    Example:
        >>> import haliax as hax
        >>> values, indices = top_k(hax.named([3, 9, 5], "a"), "a", 2)
        >>> values.tolist(), indices.tolist()
        ([9, 5], [1, 2])
    """
    require_named("top_k", arr)
    index = position("top_k", arr, axis)
    if not 0 <= k <= arr.array.shape[index]:
        raise AxisSpecError(f"top_k: k={k}; expected 0 <= k <= {arr.array.shape[index]} (axis {arr.names[index]!r}).")
    name = arr.names[index] if new_axis is None else names_of(new_axis)[0]
    values, indices = jax.lax.top_k(jnp.moveaxis(arr.array, index, -1), k)
    names = intern_names((*arr.names[:index], name, *arr.names[index + 1 :]))
    return wrap(jnp.moveaxis(values, -1, index), names), wrap(jnp.moveaxis(indices, -1, index), names)


def _trace_method(
    self: NamedArray, axis1: AxisSelector, axis2: AxisSelector, offset: int = 0, dtype: Any = None
) -> NamedArray:
    """Sum the diagonal; see `haliax.trace`."""
    return trace(self, axis1, axis2, offset, dtype)


bind(clip=clip, trace=_trace_method)
