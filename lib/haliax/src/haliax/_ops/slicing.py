"""Windows and lookups: `slice`, `updated_slice` and `take`."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from haliax._array.named import NamedArray, bind, intern_names, position, require_named, wrap
from haliax._array.sharding import out_sharding_for
from haliax._axis.types import Axis, AxisSelector, names_of, reject_duplicates
from haliax._ops.broadcast import broadcast_to
from haliax._ops.gather import read
from haliax._ops.indexing import compile_index, is_integer_like, normalize_index
from haliax.errors import AxisNotFoundError, AxisSpecError, show


def slice_(
    array: NamedArray,
    axis: AxisSelector | None = None,
    new_axis: AxisSelector | None = None,
    start: Any = 0,
    length: Any = None,
) -> NamedArray:
    """Cut a window out of one axis (or several) with `lax.dynamic_slice`: the start may be traced and is clamped.

    Args:
        array: Array.
        axis: Axis to cut; leave it out when ``start`` and ``length`` are mappings from axis to value.
        new_axis: Name (and size) of the result; default the axis' own name.
        start: First index, or {axis: first index}.
        length: Elements, or {axis: elements or Axis}; an Axis also renames.

    Raises:
        AxisSpecError: Keys of ``start`` and ``length`` differ, or a static window lies beyond the end.

    Example:
        >>> import haliax as hax
        >>> slice_(hax.arange({"pos": 6}), "pos", start=2, length=3).tolist()
        [2, 3, 4]
    """
    require_named("slice", array)
    if axis is not None and isinstance(axis, Mapping):
        # slice(x, start, length): the two mappings came in the places of axis and new_axis.
        given = [m for m in (new_axis, start, length) if isinstance(m, Mapping)]
        if len(given) != 1:
            raise AxisSpecError(f"slice: start is {dict(axis)}; expected one mapping of lengths besides it.")
        start, length, axis = axis, given[0], None
    if axis is not None:
        name = names_of(axis)[0]
        if length is None:
            if not isinstance(new_axis, Axis):
                raise AxisSpecError(f"slice {name!r}: no length; expected length= or a sized new_axis.")
            length = new_axis.size
        size = length.size if isinstance(length, Axis) else length
        target = names_of(new_axis)[0] if new_axis is not None else length.name if isinstance(length, Axis) else name
        return _dynamic_slice(array, {axis: start}, {axis: Axis(target, size)})
    if not isinstance(start, Mapping) or not isinstance(length, Mapping):
        raise AxisSpecError("slice: without axis, start and length must be mappings from axis to value.")
    return _dynamic_slice(array, start, length)


def _dynamic_slice(array: NamedArray, start: Mapping[Any, Any], length: Mapping[Any, Any]) -> NamedArray:
    starts = normalize_index(array, dict(start))
    lengths = normalize_index(array, dict(length))
    if set(starts) != set(lengths):
        raise AxisSpecError(
            f"slice: start names {sorted(starts)}, length names {sorted(lengths)}; expected the same axes."
        )
    begin: list[Any] = []
    sizes: list[int] = []
    names: list[str] = []
    for name, size in zip(array.names, array.array.shape, strict=True):
        first = starts.get(name, 0)
        first = first.array if isinstance(first, NamedArray) else first
        wanted = lengths.get(name, size)
        names.append(wanted.name if isinstance(wanted, Axis) else name)
        wanted = wanted.size if isinstance(wanted, Axis) else wanted
        if wanted > size or (isinstance(first, int | np.integer) and (first < 0 or first + wanted > size)):
            raise AxisSpecError(
                f"slice {name!r}: start={first if isinstance(first, int) else 'traced'}, length={wanted} exceeds size "
                f"{size}. Shorten the window."
            )
        begin.append(first)
        sizes.append(wanted)
    reject_duplicates("slice", names, names)
    if all(isinstance(b, int | np.integer) for b in begin):
        x = jax.lax.slice(jnp.asarray(array.array), begin, [b + s for b, s in zip(begin, sizes, strict=True)])
    else:
        x = jax.lax.dynamic_slice(jnp.asarray(array.array), begin, sizes)
    return wrap(x, intern_names(tuple(names)))


def updated_slice(array: NamedArray, start: Mapping[AxisSelector, Any], update: NamedArray) -> NamedArray:
    """Return ``array`` with a window replaced by ``update`` (`lax.dynamic_update_slice`).

    Args:
        array: Array.
        start: First index per axis: int, tracer, or a NamedArray of ints whose axes are axes of ``array`` (each of
            their elements gets its own start: ragged updates of a KV cache).
        update: New values; axes that it lacks are broadcast.

    Raises:
        AxisSpecError: ``update`` has axes that ``array`` lacks, or a static window lies beyond the end.
        AxisNotFoundError: An axis of ``start`` is absent.

    Example:
        >>> import haliax as hax
        >>> cache = hax.zeros({"batch": 2, "pos": 4})
        >>> starts = hax.named([0, 2], "batch")
        >>> updated_slice(cache, {"pos": starts}, hax.ones({"batch": 2, "pos": 1})).tolist()
        [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    """
    require_named("updated_slice", array)
    require_named("updated_slice", update, "update")
    starts = normalize_index(array, dict(start))
    extra = [n for n in update.names if n not in array.names]
    if extra:
        raise AxisSpecError(
            f"updated_slice: update has axes {extra} that are not in the original array with shape {show(array.axes)}. "
            "Rename or reduce the update."
        )
    shape = array.shape
    for a in update.axes:
        first = starts.get(a.name, 0)
        limit = shape[a.name] - (int(first) if isinstance(first, int | np.integer) else 0)
        if a.size > limit or (a.name not in starts and a.size != shape[a.name]):
            raise AxisSpecError(
                f"updated_slice: update of {a} at start {first if isinstance(first, int) else 'traced or 0'} "
                f"exceeds axis "
                f"{a.name!r} of size {shape[a.name]}. Shorten the update, or give a start for this axis."
            )
    window = [update.shape.get(n, 1 if n in starts else shape[n]) for n in array.names]
    update = broadcast_to(update, tuple(map(Axis, array.names, window)))
    ragged = [s for s in starts.values() if isinstance(s, NamedArray) and s.names]
    if ragged:
        return _ragged_update(array, starts, update, ragged)
    begin = [starts.get(n, 0) for n in array.names]
    begin = [b.array if isinstance(b, NamedArray) else b for b in begin]
    value = update.array.astype(array.dtype)
    return wrap(jax.lax.dynamic_update_slice(jnp.asarray(array.array), value, begin), array.names)


def _ragged_update(
    array: NamedArray, starts: dict[str, Any], update: NamedArray, ragged: Sequence[NamedArray]
) -> NamedArray:
    batch = tuple(dict.fromkeys(n for s in ragged for n in s.names))
    missing = [n for n in batch if n not in array.names]
    if missing:
        raise AxisNotFoundError("updated_slice (axes of start)", missing, array.axes)
    inner = tuple(n for n in array.names if n not in batch)
    x = array.array
    operand = jnp.transpose(x, [array.names.index(n) for n in (*batch, *inner)])
    value = jnp.transpose(update.array.astype(x.dtype), [update.names.index(n) for n in (*batch, *inner)])
    sizes = array.shape
    begin = []
    for n in inner:
        s = starts.get(n, 0)
        s = s if isinstance(s, NamedArray) else wrap(jnp.asarray(s), ())
        begin.append(broadcast_to(s, tuple(Axis(b, sizes[b]) for b in batch)).array.astype(jnp.int32))

    def one(x: Any, v: Any, *b: Any) -> Any:
        return jax.lax.dynamic_update_slice(x, v, b)

    for _ in batch:
        one = jax.vmap(one)
    # vmap wants the mapped dimensions of all arguments sharded alike; the array decides.
    spec = out_sharding_for(batch)
    if spec is not None:
        begin = [jax.sharding.reshard(b, spec) for b in begin]
        value = jax.sharding.reshard(value, out_sharding_for((*batch, *("" for _ in inner))))
    out = one(operand, value, *begin)
    order = (*batch, *inner)
    return wrap(jnp.transpose(out, [order.index(n) for n in array.names]), array.names)


def take(array: NamedArray, axis: AxisSelector, index: Any) -> NamedArray:
    """Pick elements along ``axis``; out of range gives NaN (the lowest value for integers).

    Args:
        array: Array.
        axis: Axis to look up in.
        index: int (drops the axis) or integer NamedArray, whose axes take the place of ``axis``. Names it shares with
            other axes of ``array`` are batched.

    Raises:
        AxisNotFoundError: ``axis`` is absent.
        AxisSpecError: ``index`` is not of integers.

    Example:
        >>> import haliax as hax
        >>> table = hax.arange({"vocab": 4, "embed": 2})
        >>> hax.take(table, "vocab", hax.named([3, 0], "pos")).tolist()
        [[6, 7], [0, 1]]
    """
    require_named("take", array)
    name = names_of(axis)[0]
    if name not in array.names:
        raise AxisNotFoundError("take", [name], array.axes)
    where = position("take", array, name)
    rest_before, rest_after = array.names[:where], array.names[where + 1 :]
    x = jnp.asarray(array.array)
    if not isinstance(index, NamedArray):
        if isinstance(index, int | np.integer) or (is_integer_like(index) and index.shape == ()):
            return wrap(jnp.take(x, index, axis=where), intern_names(rest_before + rest_after))
        raise AxisSpecError(f"take: index has type {type(index).__name__}; expected an int or an integer NamedArray.")
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise AxisSpecError(f"take: index has dtype {index.dtype}; expected integers.")
    new = tuple(n for n in index.names if n == name or n not in array.names)
    names = intern_names(rest_before + new + rest_after)
    target = out_sharding_for(names)
    if len(new) == len(index.names) and target is None:
        return wrap(jnp.take(x, index.array, axis=where), names)
    renamed = (
        index
        if name not in index.names
        else wrap(index.array, tuple(n + "\0" if n == name else n for n in index.names))
    )
    plan = compile_index(array, {name: renamed})
    out = read(x, array.names, plan, mode="fill")
    out_names = tuple(n.rstrip("\0") for n in plan.names)
    out = out if out_names == names else jnp.transpose(out, [out_names.index(n) for n in names])
    return wrap(out if target is None else jax.sharding.reshard(out, target), names)


bind(slice=slice_, take=take, updated_slice=updated_slice)
