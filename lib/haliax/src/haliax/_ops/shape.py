"""Renaming, splitting, merging and moving axes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from haliax._array.named import NamedArray, bind, check_rank, freeze, intern_names, position, require_named, wrap
from haliax._array.plan import positions_of
from haliax._array.sharding import auto_sharded, reshaped
from haliax._axis.algebra import resolve_axis
from haliax._axis.order import check_partial_sizes, solve_order
from haliax._axis.types import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    names_of,
    pairs,
    reject_duplicates,
    sized_axes,
)
from haliax.errors import ArrayTypeError, AxisNotFoundError, AxisSizeMismatchError, AxisSpecError, show


def transpose_to(array: NamedArray, partial: Sequence[Any], operation: str = "rearrange") -> NamedArray:
    """Transpose to a partial order of axes (see `haliax.axis.rearrange_for_partial_order`).

    Raises:
        AxisSpecError: The order names an unknown axis, repeats one, or leaves one out without ``...``.
        AxisSizeMismatchError: A sized entry disagrees with the array.
    """
    plan = _transpose_plan(operation, array.names, array.array.shape, tuple(partial))
    if plan is None:
        return array
    perm, names = plan
    return wrap(jnp.transpose(array.array, perm), names)


@functools.lru_cache(maxsize=8192)
def _transpose_plan(
    operation: str, names: tuple[str, ...], shape: tuple[int, ...], partial: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """Return the permutation and the new names, or None when nothing moves."""
    check_rank(operation, names, shape)
    check_partial_sizes(operation, partial, tuple(map(Axis, names, shape)))
    wanted = tuple(p if p is ... else p if isinstance(p, str) else names_of(p)[0] for p in partial)
    out = solve_order(wanted, names)
    return None if out == names else (tuple(names.index(n) for n in out), intern_names(out))


def rename(array: NamedArray, renames: Mapping[AxisSelector, AxisSelector], *, strict: bool = True) -> NamedArray:
    """Give axes new names.

    Args:
        array: Array to rename.
        renames: Old selector to new selector; swapping two names works.
        strict: Raise on names the array does not have; otherwise ignore them.

    Raises:
        AxisNotFoundError: An old name is absent and ``strict``.
        AxisSizeMismatchError: A size given on either side differs from the array's.
        AxisCollisionError: Two axes would have one name.

    Example:
        >>> import haliax as hax
        >>> hax.zeros({"a": 2, "b": 3}).rename({"a": "b", "b": "a"}).shape
        {'b': 2, 'a': 3}
    """
    require_named("rename", array)
    table: dict[str, str] = {}
    for old, new in renames.items():
        ((old_name, old_size),), ((new_name, new_size),) = pairs(old), pairs(new)
        if old_name not in array.names:
            if strict:
                raise AxisNotFoundError("rename", [old_name], array.axes)
            continue
        size = array.array.shape[array.names.index(old_name)]
        if old_size not in (None, size) or new_size not in (None, size):
            raise AxisSizeMismatchError("rename", [("array", array.axes), ("old", old), (f"new {new_name}", new)])
        table[old_name] = new_name
    names = tuple(table.get(n, n) for n in array.names)
    reject_duplicates("rename", names, names)
    return wrap(array.array, intern_names(names))


def flatten_axes(array: Any, old_axes: AxisSelection, new_axis: AxisSelector | None = None) -> Any:
    """Merge ``old_axes`` (data in the order given) into ``new_axis``, placed where the first of them was.

    Called with two arguments on an axis spec, it returns the single Axis that the spec would flatten to.

    Args:
        array: NamedArray, or a spec.
        old_axes: Axes to merge; none adds a size-1 axis in front.
        new_axis: Name or Axis of the result.

    Raises:
        AxisNotFoundError: An old axis is absent.
        AxisSizeMismatchError: ``new_axis`` has a size other than the product.

    Example:
        >>> import haliax as hax
        >>> flatten_axes(hax.ones({"a": 2, "b": 3, "c": 4}), ("c", "a"), "ca").shape
        {'ca': 8, 'b': 3}
    """
    if new_axis is None:
        axes = sized_axes(array, "flatten_axes")
        return Axis(names_of(old_axes)[0], _product(axes))
    if not isinstance(array, NamedArray):
        return _flatten_spec(array, old_axes, new_axis)
    ((new_name, new_size),) = pairs(new_axis)
    positions = positions_of("flatten_axes", array.names, array.array.shape, freeze(old_axes))
    total = 1
    for i in positions:
        total *= array.array.shape[i]
    if new_size not in (None, total):
        raise AxisSizeMismatchError(
            f"flatten_axes: {show(old_axes)} has {total} elements",
            [("array", array.axes), ("new axis", {new_name: new_size})],
            f"Use Axis({new_name!r}, {total}), or the bare name.",
        )
    if not positions:
        names = (new_name, *array.names)
        reject_duplicates("flatten_axes", names, names)
        return wrap(jnp.expand_dims(array.array, 0), intern_names(names))
    first = min(positions)
    before = [i for i in range(first) if i not in positions]
    after = [i for i in range(first, array.ndim) if i not in positions]
    names = (*(array.names[i] for i in before), new_name, *(array.names[i] for i in after))
    reject_duplicates("flatten_axes", names, names)
    x = array.array
    perm = (*before, *positions, *after)
    if perm != tuple(range(array.ndim)):
        x = jnp.transpose(x, perm)
    shape = array.array.shape
    x = reshaped(x, (*(shape[i] for i in before), total, *(shape[i] for i in after)), names)
    return wrap(x, intern_names(names))


def _flatten_spec(spec: AxisSpec, old_axes: AxisSelection, new_axis: AxisSelector) -> tuple[Axis, ...]:
    axes = sized_axes(spec, "flatten_axes")
    old = sized_axes(resolve_axis(axes, tuple(names_of(old_axes))), "flatten_axes")
    ((new_name, new_size),) = pairs(new_axis)
    total = _product(old)
    if new_size not in (None, total):
        raise AxisSizeMismatchError("flatten_axes", [("spec", axes), ("new axis", {new_name: new_size})])
    gone = {a.name for a in old}
    out: list[Axis] = []
    for a in axes:
        if a.name not in gone:
            out.append(a)
        elif new_name not in {o.name for o in out}:
            out.append(Axis(new_name, total))
    return tuple(out)


def _product(axes: Sequence[Axis]) -> int:
    total = 1
    for a in axes:
        total *= a.size
    return total


def unflatten_axis(array: NamedArray, axis: AxisSelector, new_axes: AxisSpec) -> NamedArray:
    """Split ``axis`` into ``new_axes`` in its place; the inverse of `flatten_axes`.

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSizeMismatchError: The product of the new sizes differs.

    Example:
        >>> import haliax as hax
        >>> unflatten_axis(hax.ones({"e": 6}), "e", {"h": 2, "d": 3}).shape
        {'h': 2, 'd': 3}
    """
    require_named("unflatten_axis", array)
    index = position("unflatten_axis", array, axis)
    new = sized_axes(new_axes, "unflatten_axis")
    size = array.array.shape[index]
    if _product(new) != size:
        raise AxisSizeMismatchError(
            f"unflatten_axis: {array.names[index]!r} has {size} elements, the new axes {_product(new)}",
            [("array", array.axes), ("new axes", new)],
            "Give sizes whose product is the axis' size.",
        )
    names = array.names[:index] + tuple(a.name for a in new) + array.names[index + 1 :]
    reject_duplicates("unflatten_axis", names, names)
    shape = array.array.shape
    x = reshaped(array.array, shape[:index] + tuple(a.size for a in new) + shape[index + 1 :], names)
    return wrap(x, intern_names(names))


def flatten(array: NamedArray, new_axis_name: AxisSelector) -> NamedArray:
    """Merge all axes, in storage order, into one.

    Raises:
        AxisSizeMismatchError: A size was given and it is not the number of elements.

    Example:
        >>> import haliax as hax
        >>> flatten(hax.ones({"a": 2, "b": 3}), "all").shape
        {'all': 6}
    """
    require_named("flatten", array)
    ((name, size),) = pairs(new_axis_name)
    if size not in (None, array.array.size):
        raise AxisSizeMismatchError("flatten", [("array", array.axes), ("new axis", new_axis_name)])
    return wrap(jnp.ravel(array.array), intern_names((name,)))


ravel = flatten


def flatten_all_axes_but(
    a: NamedArray, axis_name: str, axis: AxisSelection, reorder_to_front: bool = False
) -> tuple[NamedArray, Callable[[NamedArray], NamedArray]]:
    """Merge the axes given into ``axis_name`` and return the way back.

    Despite the established name, ``axis`` are the axes that *are* merged.

    Args:
        a: Array.
        axis_name: Name of the merged axis.
        axis: Axes to merge; none adds an axis of size 1.
        reorder_to_front: Put the merged axis first.

    Returns:
        The merged array, and a function that splits ``axis_name`` again and restores the order as far as it can.

    Example:
        >>> import haliax as hax
        >>> flat, restore = flatten_all_axes_but(hax.ones({"a": 2, "b": 3, "c": 4}), "ab", ("a", "b"))
        >>> flat.shape, restore(flat).shape
        ({'ab': 6, 'c': 4}, {'a': 2, 'b': 3, 'c': 4})
    """
    require_named("flatten_all_axes_but", a)
    merged = sized_axes(a.resolve_axis(tuple(names_of(axis))))
    original = a.names
    out = flatten_axes(a, merged, axis_name)
    if reorder_to_front:
        out = transpose_to(out, (axis_name, ...))

    def restore(b: NamedArray) -> NamedArray:
        split_up = unflatten_axis(b, axis_name, merged)
        kept = [n for n in original if n in split_up.names]
        new = [n for n in split_up.names if n not in original]
        wanted = list(kept)
        for n in new:
            before = split_up.names[: split_up.names.index(n)]
            anchor = max((wanted.index(m) for m in before if m in wanted), default=-1)
            wanted.insert(anchor + 1, n)
        return transpose_to(split_up, tuple(wanted))

    return out, restore


def split(a: NamedArray, axis: AxisSelector, new_axes: Sequence[Axis]) -> list[NamedArray]:
    """Cut ``axis`` into consecutive pieces, one per new axis.

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSizeMismatchError: The sizes do not sum to the size of ``axis``.

    Example:
        >>> import haliax as hax
        >>> [p.shape for p in split(hax.ones({"e": 5}), "e", [hax.Axis("q", 2), hax.Axis("k", 3)])]
        [{'q': 2}, {'k': 3}]
    """
    require_named("split", a)
    index = position("split", a, axis)
    new = [sized_axes(n, "split")[0] for n in new_axes]
    total = sum(n.size for n in new)
    if total != a.array.shape[index]:
        raise AxisSizeMismatchError(
            f"split: pieces have {total} elements in all, {a.names[index]!r} has {a.array.shape[index]}",
            [("array", a.axes), *((f"piece {i}", n) for i, n in enumerate(new))],
            "Give sizes that sum to the axis' size.",
        )
    out, start = [], 0
    for n in new:
        names = (*a.names[:index], n.name, *a.names[index + 1 :])
        reject_duplicates("split", names, names)
        piece = jax.lax.slice_in_dim(jnp.asarray(a.array), start, start + n.size, axis=index)
        out.append(wrap(piece, intern_names(names)))
        start += n.size
    return out


def unbind(array: NamedArray, axis: AxisSelector) -> list[NamedArray]:
    """Return the slices along ``axis``, which they no longer have.

    Raises:
        AxisNotFoundError: ``axis`` is absent.

    Example:
        >>> import haliax as hax
        >>> [p.tolist() for p in unbind(hax.named([[1, 2], [3, 4]], "a b"), "b")]
        [[1, 3], [2, 4]]
    """
    require_named("unbind", array)
    index = position("unbind", array, axis)
    names = intern_names(array.names[:index] + array.names[index + 1 :])
    x = array.array
    return [
        auto_sharded(wrap(jax.lax.index_in_dim(jnp.asarray(x), i, axis=index, keepdims=False), names))
        for i in range(x.shape[index])
    ]


def roll(array: NamedArray, shift: Any, axis: AxisSelection) -> NamedArray:
    """Shift elements along an axis (or several), wrapping around.

    Args:
        array: Array.
        shift: int, a tuple of them for several axes, or a scalar (raw or without axes).
        axis: Axis or axes.

    Raises:
        ArrayTypeError: ``shift`` is a NamedArray with axes.

    Example:
        >>> import haliax as hax
        >>> roll(hax.arange({"a": 4}), 1, "a").tolist()
        [3, 0, 1, 2]
    """
    require_named("roll", array)
    if isinstance(shift, NamedArray):
        if shift.names:
            raise ArrayTypeError(f"roll: shift has axes {show(shift.axes)}; expected a scalar.")
        shift = shift.array
    positions = positions_of("roll", array.names, array.array.shape, freeze(axis))
    return wrap(jnp.roll(array.array, shift, positions if len(positions) > 1 else positions[0]), array.names)


def flip(array: NamedArray, axis: AxisSelection) -> NamedArray:
    """Reverse the order of elements along the given axes.

    Example:
        >>> import haliax as hax
        >>> flip(hax.arange({"a": 3}), "a").tolist()
        [2, 1, 0]
    """
    require_named("flip", array)
    positions = positions_of("flip", array.names, array.array.shape, freeze(axis))
    return wrap(jnp.flip(array.array, positions), array.names)


def diff(array: NamedArray, axis: AxisSelector, n: int = 1) -> NamedArray:
    """Return the ``n``-th difference along ``axis``, which gets shorter by ``n``.

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSpecError: ``n`` is negative.

    Example:
        >>> import haliax as hax
        >>> diff(hax.named([1, 4, 9], "a"), "a").tolist()
        [3, 5]
    """
    require_named("diff", array)
    if n < 0:
        raise AxisSpecError(f"diff: n={n}; expected n >= 0.")
    return wrap(jnp.diff(array.array, n=n, axis=position("diff", array, axis)), array.names)


def repeat(array: NamedArray, repeats: Any, axis: AxisSelector, total_repeat_length: int | None = None) -> NamedArray:
    """Repeat each element along ``axis``; see `jax.numpy.repeat`.

    Example:
        >>> import haliax as hax
        >>> repeat(hax.named([1, 2], "a"), 2, "a").tolist()
        [1, 1, 2, 2]
    """
    require_named("repeat", array)
    repeats = repeats.array if isinstance(repeats, NamedArray) else repeats
    index = position("repeat", array, axis)
    x = jnp.repeat(array.array, repeats, axis=index, total_repeat_length=total_repeat_length)
    return wrap(x, array.names)


def tile(array: NamedArray, reps: Mapping[AxisSelector, int]) -> NamedArray:
    """Repeat the whole array along axes; an unknown name becomes a new leading axis of that many copies.

    Example:
        >>> import haliax as hax
        >>> tile(hax.named([1, 2], "a"), {"a": 2, "new": 2}).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    require_named("tile", array)
    table = {names_of(k)[0]: v for k, v in reps.items()}
    new = [n for n in table if n not in array.names]
    x = array.array.reshape((1,) * len(new) + array.array.shape)
    names = (*new, *array.names)
    return wrap(jnp.tile(x, [table.get(n, 1) for n in names]), intern_names(tuple(names)))


bind(
    flatten=flatten,
    flatten_axes=flatten_axes,
    ravel=ravel,
    rename=rename,
    split=split,
    unbind=unbind,
    unflatten_axis=unflatten_axis,
)
