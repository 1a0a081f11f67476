"""Sets, counts, searches and bits: functions whose results have axes of their own."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from haliax._array.named import NamedArray, intern_names, position, raw, require_named, wrap
from haliax._axis.types import Axis, AxisSelector, names_of
from haliax.errors import AxisSpecError, format_axes


def _require_1d(operation: str, a: NamedArray, argument: str) -> NamedArray:
    require_named(operation, a, argument)
    if a.ndim != 1:
        raise AxisSpecError(f"{operation}: {argument} has axes {format_axes(a.names)}; expected exactly one.")
    return a


def unique(
    array: NamedArray,
    Unique: Axis,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: AxisSelector | None = None,
    fill_value: Any = None,
) -> Any:
    """Return the sorted distinct elements of an array along a new axis of fixed size.

    Args:
        array: Array.
        Unique: Axis of the result; with fewer elements it is padded, with more it is cut.
        return_index: Also return the first position of each element.
        return_inverse: Also return, for each element of ``array``, its position in the result.
        return_counts: Also return how often each element occurs.
        axis: Compare slices along this axis instead of elements.
        fill_value: Padding; the smallest element unless given.

    Returns:
        The elements, or a tuple of them and what else was asked for.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([3, 1, 3], "a")
        >>> unique(x, hax.Axis("u", 2)).tolist()
        [1, 3]
    """
    require_named("unique", array)
    index = None if axis is None else position("unique", array, axis)
    out = jnp.unique(
        array.array,
        return_index=return_index,
        return_inverse=return_inverse,
        return_counts=return_counts,
        axis=index,
        size=Unique.size,
        fill_value=fill_value,
    )
    many = out if isinstance(out, tuple) else (out,)
    values = (Unique.name,) if index is None else (*array.names[:index], Unique.name, *array.names[index + 1 :])
    results = [wrap(many[0], intern_names(tuple(values)))]
    rest = list(many[1:])
    if return_index:
        results.append(wrap(rest.pop(0), intern_names((Unique.name,))))
    if return_inverse:
        inverse = rest.pop(0)
        if index is None:
            results.append(wrap(inverse.reshape(array.array.shape), array.names))
        else:
            results.append(wrap(inverse.reshape(-1), intern_names((array.names[index],))))
    if return_counts:
        results.append(wrap(rest.pop(0), intern_names((Unique.name,))))
    return results[0] if len(results) == 1 else tuple(results)


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: NamedArray
    indices: NamedArray
    inverse_indices: NamedArray
    counts: NamedArray


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: NamedArray
    counts: NamedArray


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: NamedArray
    inverse_indices: NamedArray


def unique_values(array: NamedArray, Unique: Axis, *, fill_value: Any = None) -> NamedArray:
    """Return the distinct elements; see `unique`.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([3, 1, 3], "a")
        >>> unique_values(x, hax.Axis("u", 2)).tolist()
        [1, 3]
    """
    return unique(array, Unique, fill_value=fill_value)


def unique_counts(array: NamedArray, Unique: Axis, *, fill_value: Any = None) -> UniqueCounts:
    """Return the distinct elements and how often each occurs.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([3, 1, 3], "a")
        >>> unique_counts(x, hax.Axis("u", 2)).counts.tolist()
        [1, 2]
    """
    return UniqueCounts(*unique(array, Unique, return_counts=True, fill_value=fill_value))


def unique_inverse(array: NamedArray, Unique: Axis, *, fill_value: Any = None) -> UniqueInverse:
    """Return the distinct elements and the position of each element of ``array`` among them.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([3, 1, 3], "a")
        >>> unique_inverse(x, hax.Axis("u", 2)).inverse_indices.tolist()
        [1, 0, 1]
    """
    return UniqueInverse(*unique(array, Unique, return_inverse=True, fill_value=fill_value))


def unique_all(array: NamedArray, Unique: Axis, *, fill_value: Any = None) -> UniqueAll:
    """Return all that `unique` can.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([3, 1, 3], "a")
        >>> unique_all(x, hax.Axis("u", 2)).indices.tolist()
        [1, 0]
    """
    return UniqueAll(
        *unique(array, Unique, return_index=True, return_inverse=True, return_counts=True, fill_value=fill_value)
    )


def searchsorted(a: NamedArray, v: Any, *, side: str = "left", sorter: Any = None, method: str = "scan") -> Any:
    """Return where to insert ``v`` into the sorted 1-D array ``a``: an array with the axes of ``v``.

    Example:
        >>> import haliax as hax
        >>> searchsorted(hax.named([1, 3, 5], "s"), hax.named([0, 4], "v")).tolist()
        [0, 2]
    """
    _require_1d("searchsorted", a, "a")
    out = jnp.searchsorted(a.array, raw(v), side=side, sorter=raw(sorter), method=method)
    return wrap(out, v.names) if isinstance(v, NamedArray) else wrap(out, ()) if jnp.ndim(v) == 0 else out


def bincount(x: NamedArray, Counts: Axis, *, weights: NamedArray | None = None, minlength: int = 0) -> NamedArray:
    """Return how often each of 0, 1, ... occurs in the 1-D array ``x``, along ``Counts``; larger values are dropped.

    Raises:
        AxisSpecError: ``x`` is not 1-D, or ``minlength`` exceeds the size of ``Counts``.

    Example:
        >>> import haliax as hax
        >>> bincount(hax.named([0, 2, 2], "a"), hax.Axis("count", 3)).tolist()
        [1, 0, 2]
    """
    _require_1d("bincount", x, "x")
    if minlength > Counts.size:
        raise AxisSpecError(f"bincount: minlength={minlength} exceeds {Counts}; pass a larger axis.")
    out = jnp.bincount(x.array, weights=raw(weights), length=Counts.size)
    return wrap(out, intern_names((Counts.name,)))


def packbits(a: NamedArray, axis: AxisSelector, *, bitorder: str = "big") -> NamedArray:
    """Pack groups of 8 booleans along ``axis`` into bytes.

    Example:
        >>> import haliax as hax
        >>> packbits(hax.named([1, 0, 0, 0, 0, 0, 0, 1], "bit"), "bit").tolist()
        [129]
    """
    require_named("packbits", a)
    return wrap(jnp.packbits(a.array, axis=position("packbits", a, axis), bitorder=bitorder), a.names)


def unpackbits(a: NamedArray, axis: AxisSelector, *, count: int | None = None, bitorder: str = "big") -> NamedArray:
    """Unpack bytes along ``axis`` into bits (``count`` of them).

    Example:
        >>> import haliax as hax
        >>> import jax.numpy as jnp
        >>> unpackbits(hax.named(jnp.array([129], jnp.uint8), "bit"), "bit").tolist()
        [1, 0, 0, 0, 0, 0, 0, 1]
    """
    require_named("unpackbits", a)
    index = position("unpackbits", a, axis)
    return wrap(jnp.unpackbits(a.array, axis=index, count=count, bitorder=bitorder), a.names)


def partition(a: NamedArray, kth: int, axis: AxisSelector) -> NamedArray:
    """Return ``a`` reordered along ``axis`` so that the ``kth`` element is where sorting would put it.

    Example:
        >>> import haliax as hax
        >>> partition(hax.named([3, 1, 2], "a"), 0, "a")["a", 0].item()
        1
    """
    require_named("partition", a)
    return wrap(jnp.partition(a.array, kth, axis=position("partition", a, axis)), a.names)


def argpartition(a: NamedArray, kth: int, axis: AxisSelector) -> NamedArray:
    """Return the indices that `partition` would use.

    Example:
        >>> import haliax as hax
        >>> argpartition(hax.named([3, 1, 2], "a"), 0, "a")["a", 0].item()
        1
    """
    require_named("argpartition", a)
    return wrap(jnp.argpartition(a.array, kth, axis=position("argpartition", a, axis)), a.names)


def digitize(x: NamedArray, bins: NamedArray, right: bool = False) -> NamedArray:
    """Return the bin of each element; ``bins`` is 1-D and monotonic.

    Example:
        >>> import haliax as hax
        >>> digitize(hax.named([0.5, 2.5], "a"), hax.named([0.0, 1.0, 2.0], "bin")).tolist()
        [1, 3]
    """
    require_named("digitize", x, "x")
    return wrap(jnp.digitize(x.array, _require_1d("digitize", bins, "bins").array, right=right), x.names)


def histogram(a: NamedArray, Bins: Axis, *, range: tuple[float, float] | None = None) -> tuple[NamedArray, NamedArray]:  # noqa: A002
    """Return counts along ``Bins`` and the edges of the bins along ``Bins`` + 1 (named ``<bins>_edges``).

    Example:
        >>> import haliax as hax
        >>> counts, edges = histogram(hax.named([0.0, 0.1, 1.0], "a"), hax.Axis("bin", 2))
        >>> counts.tolist(), edges.shape
        ([2.0, 1.0], {'bin_edges': 3})
    """
    require_named("histogram", a)
    counts, edges = jnp.histogram(a.array, bins=Bins.size, range=range)
    return wrap(counts, intern_names((Bins.name,))), wrap(edges, intern_names((f"{Bins.name}_edges",)))


def interp(x: NamedArray, xp: NamedArray, fp: NamedArray) -> NamedArray:
    """Interpolate the 1-D function through (xp, fp) linearly at ``x``.

    Example:
        >>> import haliax as hax
        >>> interp(hax.named([0.5], "x"), hax.named([0.0, 1.0], "p"), hax.named([0.0, 10.0], "p")).tolist()
        [5.0]
    """
    require_named("interp", x, "x")
    return wrap(jnp.interp(x.array, _require_1d("interp", xp, "xp").array, fp.array), x.names)


def take_along_axis(array: NamedArray, indices: NamedArray, axis: AxisSelector) -> NamedArray:
    """Pick elements along ``axis`` by indices that have the same axes (any order, ``axis`` may differ in size).

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSpecError: ``indices`` has other axes than ``array``.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([[1.0, 2.0], [3.0, 4.0]], "a b")
        >>> take_along_axis(x, hax.named([[1], [0]], "a b"), "b").tolist()
        [[2.0], [3.0]]
    """
    require_named("take_along_axis", array)
    index = position("take_along_axis", array, names_of(axis)[0])
    if set(indices.names) != set(array.names):
        raise AxisSpecError(
            f"take_along_axis: indices have axes {format_axes(indices.names)}, the array {format_axes(array.names)}; "
            "expected the same. Use hax.take, which broadcasts by name."
        )
    order = [indices.names.index(n) for n in array.names]
    return wrap(jnp.take_along_axis(array.array, jnp.transpose(indices.array, order), axis=index), array.names)
