"""Indexing by name: reads, and the `.at` property for functional writes.

An index expression names axes and gives each an int, slice, dslice, list, or integer array. It is compiled to one
positional index tuple for JAX (and the names of what it reads), so reads and writes share one plan and a write never
performs the read.

Order of new axes: index arrays are taken in the order in which the axes they index are stored; the axes of each later
array are appended, or put in front when it shares an axis with the earlier ones. Placement follows NumPy: new axes
stand where the indexed axes stood if those are contiguous (ints count), else in front. Sizes never matter.
"""

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from haliax._array.named import NamedArray, bind, check_rank, intern_names, require_named, wrap
from haliax._array.plan import align, alignment
from haliax._array.sharding import out_sharding_for
from haliax._axis.dslice import dslice
from haliax._axis.types import Axis, names_of, reject_duplicates
from haliax._ops.broadcast import aligned_to
from haliax._ops.gather import IndexPlan, read, write
from haliax.errors import ArrayTypeError, AxisNotFoundError, AxisSizeMismatchError, AxisSpecError, format_axes, show


class _Advanced(NamedTuple):
    """One index array (a kept axis that is batched over has its shape only) with the names of its dimensions."""

    array: Any
    names: tuple[str, ...]


def _is_pallas_dslice(item: Any) -> bool:
    return type(item).__name__ == "Slice" and hasattr(item, "start") and hasattr(item, "size")


def is_integer_like(item: Any) -> bool:
    return hasattr(item, "dtype") and hasattr(item, "shape") and jnp.issubdtype(item.dtype, jnp.integer)


def normalize_index(array: NamedArray, idx: Any) -> dict[str, Any]:
    """Return {name: item} for a dict or a flat sequence of (axis, item) pairs.

    Raises:
        AxisSpecError: An odd number of entries, or another form.
        AxisNotFoundError: An axis is absent.
        AxisSizeMismatchError: A sized selector disagrees with the array.
    """
    if isinstance(idx, tuple) and len(idx) == 1 and isinstance(idx[0], tuple | Mapping):
        idx = idx[0]
    if isinstance(idx, tuple):
        if len(idx) % 2:
            raise AxisSpecError(
                f"index: {len(idx)} entries for axes {format_axes(array.names)}; expected pairs. "
                "Write x['axis', index] or x[{'axis': index}]."
            )
        idx = dict(zip(idx[::2], idx[1::2], strict=True))
    if not isinstance(idx, Mapping):
        raise AxisSpecError(
            f"index: got a {type(idx).__name__} for axes {format_axes(array.names)}; expected pairs or a dict. "
            "Write x['axis', index] or x[{'axis': index}]."
        )
    out: dict[str, Any] = {}
    for axis, item in idx.items():
        if not isinstance(axis, Axis | str):
            raise AxisSpecError(f"index: axis has type {type(axis).__name__}; expected Axis or str.")
        name = names_of(axis)[0]
        if name not in array.names:
            raise AxisNotFoundError("index", [name], array.axes)
        if isinstance(axis, Axis) and axis.size != array.array.shape[array.names.index(name)]:
            raise AxisSizeMismatchError("index", [("array", array.axes), ("requested", axis)])
        out[name] = item
    return out


class _Compiler:
    def __init__(self, array: NamedArray, items: dict[str, Any]) -> None:
        self.names, self.shape, self.items = array.names, array.array.shape, items
        self.basic: dict[int, slice] = {}
        self.scalars: dict[int, Any] = {}
        self.advanced: dict[int, _Advanced] = {}
        self.fill = False
        check_rank("index", self.names, self.shape)

    def classify(self) -> None:
        for position, name in enumerate(self.names):
            if name in self.items:
                self.classify_one(position, name, self.items[name])

    def classify_one(self, position: int, name: str, item: Any) -> None:
        if isinstance(item, slice):
            self.basic[position] = item
        elif isinstance(item, dslice) or _is_pallas_dslice(item):
            self.fill = True
            offsets = jnp.arange(item.size) * getattr(item, "stride", 1)
            start = item.start.array if isinstance(item.start, NamedArray) else item.start
            self.advanced[position] = _Advanced(offsets + start, (name,))
        elif isinstance(item, bool | np.bool_):
            raise self.bad(name, item)
        elif isinstance(item, int | np.integer):
            self.scalars[position] = int(item)
        elif isinstance(item, NamedArray):
            self.named_item(position, name, item)
        elif isinstance(item, list | tuple | range):
            self.advanced[position] = _Advanced(jnp.asarray(np.asarray(item, dtype=np.int32)), (name,))
        elif is_integer_like(item) and item.shape == ():
            self.scalars[position] = item
        elif is_integer_like(item) and len(item.shape) == 1 and isinstance(item, jax.Array):
            self.advanced[position] = _Advanced(item, (self.name_for_raw(position, name, item.shape[0]),))
        elif not hasattr(item, "dtype") and hasattr(type(item), "__index__"):
            self.scalars[position] = operator.index(item)
        else:
            raise self.bad(name, item)

    def bad(self, name: str, item: Any) -> AxisSpecError:
        shape = f" of shape {item.shape}" if hasattr(item, "shape") else ""
        return AxisSpecError(
            f"index: cannot index axis {name!r} with a {type(item).__name__}{shape}; expected an int, slice, dslice, "
            "list of ints, 1-D jax integer array or NamedArray. Only 1-D raw arrays have an obvious name; "
            "wrap others with hax.named(array, axes)."
        )

    def named_item(self, position: int, name: str, item: NamedArray) -> None:
        dtype = item.dtype
        if jnp.issubdtype(dtype, jnp.bool_):
            if item.names != (name,) or isinstance(item.array, jax.core.Tracer):
                raise AxisSpecError(
                    f"index: a mask for axis {name!r} must be concrete and have just that axis; got axes "
                    f"{format_axes(item.names)}. Inside jit use hax.where."
                )
            if item.array.shape[0] != self.shape[position]:
                raise AxisSizeMismatchError("index", [("array", self.sizes()), ("mask", item.axes)])
            self.advanced[position] = _Advanced(jnp.asarray(np.nonzero(np.asarray(item.array))[0]), (name,))
        elif not jnp.issubdtype(dtype, jnp.integer):
            raise AxisSpecError(f"index: indices for axis {name!r} have dtype {dtype}; expected integers.")
        elif not item.names:
            self.scalars[position] = item.array
        else:
            self.advanced[position] = _Advanced(item.array, item.names)

    def sizes(self) -> dict[str, int]:
        return dict(zip(self.names, self.shape, strict=True))

    def name_for_raw(self, position: int, name: str, size: int) -> str:
        kept = [n for i, n in enumerate(self.names) if n not in self.items and self.shape[i] == size]
        if not kept:
            return name
        if self.shape[position] == size or len(kept) > 1:
            warnings.warn(
                f"index axis {name!r} with a raw array of {size} elements: taken as indexed by axis {kept[0]!r}, "
                f"which has "
                "the same size. Pass a NamedArray to say which axis is meant.",
                stacklevel=6,
            )
        return kept[0]

    def share_kept_axes(self) -> None:
        """Count kept axes that an index array also has among the indexed ones: they are batched over."""
        used = {n for a in self.advanced.values() for n in a.names}
        for position, name in enumerate(self.names):
            if name in self.items and position not in self.basic:
                continue
            if name not in used:
                continue
            if position in self.basic:
                raise AxisSpecError(
                    f"index: axis {name!r} is sliced and also an axis of an index array; expected one of them. "
                    "Slice first, in a separate step."
                )
            self.advanced[position] = _Advanced(jax.ShapeDtypeStruct((self.shape[position],), jnp.int32), (name,))

    def union(self, order: list[int]) -> tuple[tuple[str, ...], dict[str, int]]:
        names: list[str] = []
        sizes: dict[str, int] = {}
        for position in order:
            array, own = self.advanced[position]
            for n, s in zip(own, array.shape, strict=True):
                if sizes.setdefault(n, s) != s:
                    operands = [
                        (
                            f"index of {self.names[p]}",
                            dict(zip(self.advanced[p].names, self.advanced[p].array.shape, strict=True)),
                        )
                        for p in order
                    ]
                    raise AxisSizeMismatchError("index", [("array", self.sizes()), *operands])
            new = [n for n in own if n not in names]
            names = [*new, *names] if len(new) < len(own) else [*names, *new]
        return tuple(names), sizes

    def compile(self) -> IndexPlan:
        self.classify()
        given = sorted(self.advanced)
        self.share_kept_axes()
        batched = [p for p in sorted(self.advanced) if p not in given]
        union, sizes = self.union(given + batched)
        shared = tuple(self.names[p] for p in batched)
        names, kept = self.place(union, range(len(self.names)))
        reject_duplicates("index", names, names)
        rest = [p for p in range(len(self.names)) if p not in batched]
        inner_union = tuple(n for n in union if n not in shared)
        positional, mapped = self.positional(rest, shared, inner_union)
        sizes.update(kept)
        return IndexPlan(
            positional,
            intern_names(names),
            tuple(sizes[n] for n in names),
            self.fill,
            shared,
            mapped,
            self.place(inner_union, rest)[0] if shared else names,
        )

    def place(self, union: tuple[str, ...], positions: Sequence[int]) -> tuple[tuple[str, ...], dict[str, int]]:
        """Return the names of the result of indexing the dimensions ``positions``, and the sizes of the sliced ones."""
        spots = [i for i, p in enumerate(positions) if p in self.scalars or p in self.advanced]
        contiguous = bool(spots) and spots == list(range(spots[0], spots[-1] + 1))
        kept: dict[str, int] = {}
        for p in positions:
            if p not in self.scalars and p not in self.advanced:
                kept[self.names[p]] = len(range(*self.basic.get(p, slice(None)).indices(self.shape[p])))
        insert = spots[0] if contiguous else 0
        out = [self.names[p] for p in positions if p not in self.scalars and p not in self.advanced]
        out[insert:insert] = union
        return tuple(out), kept

    def positional(
        self, positions: Sequence[int], shared: tuple[str, ...], inner: tuple[str, ...]
    ) -> tuple[tuple[Any, ...], tuple[tuple[bool, ...], ...]]:
        """Return the index of the dimensions ``positions`` and, per array in it, which shared axes it has."""
        index: list[Any] = []
        mapped: list[tuple[bool, ...]] = []
        for p in positions:
            if p in self.scalars:
                index.append(self.scalars[p])
                if hasattr(self.scalars[p], "shape"):
                    mapped.append((False,) * len(shared))
            elif p in self.advanced:
                array, own = self.advanced[p]
                target = out_sharding_for(own)
                if target is not None:  # index arrays must agree in sharding before they are combined
                    array = jax.sharding.reshard(array, target)
                front = tuple(n for n in shared if n in own)
                back = tuple(n for n in own if n not in shared)
                if front:
                    array = jnp.transpose(array, [own.index(n) for n in (*front, *back)])
                    array = _align_tail(array, len(front), back, inner)
                else:
                    array = align(array, alignment(own, inner))
                index.append(array)
                mapped.append(tuple(n in front for n in shared))
            else:
                index.append(self.basic.get(p, slice(None)))
        while index and isinstance(index[-1], slice) and index[-1] == slice(None):
            index.pop()
        return tuple(index), tuple(mapped)


def _align_tail(array: Any, lead: int, names: tuple[str, ...], out: tuple[str, ...]) -> Any:
    """Align the dimensions after the first ``lead`` to ``out``."""
    plan = alignment(names, out)
    if plan is None:
        return array
    if plan.perm is not None:
        array = jnp.transpose(array, (*range(lead), *(lead + p for p in plan.perm)))
    return array if plan.expand is None else jnp.expand_dims(array, tuple(lead + e for e in plan.expand))


def compile_index(array: NamedArray, idx: Any) -> IndexPlan:
    """Compile an index expression for ``array``.

    Raises:
        AxisError: The expression does not fit the axes.
    """
    return _Compiler(array, normalize_index(array, idx)).compile()


def _static_dslices(array: NamedArray, items: dict[str, Any]) -> dict[str, Any]:
    """Replace a lone dslice that is provably in range by a plain slice: no gather."""
    windows = [n for n, i in items.items() if isinstance(i, dslice)]
    if len(windows) != 1 or any(not isinstance(i, slice | dslice) for i in items.values()):
        return items
    (name,) = windows
    item, size = items[name], array.array.shape[array.names.index(name)]
    if isinstance(item.start, int | np.integer) and 0 <= item.start <= size - item.size:
        return {**items, name: slice(int(item.start), int(item.start) + item.size)}
    return items


def index(array: NamedArray, slices: Any) -> NamedArray:
    """Read from ``array`` by name; ``array["axis", item]`` and ``array[{"axis": item}]`` call this.

    Args:
        array: Array.
        slices: For each axis an int (drops it), slice or list (keeps its name), `dslice` (window with static size; 0
            beyond the end), integer NamedArray (its axes replace the axis; names it shares with kept axes are batched).

    Returns:
        Always a NamedArray, without axes when every axis is dropped.

    Raises:
        AxisNotFoundError, AxisSizeMismatchError, AxisSpecError: The expression does not fit the axes.

    Example:
        >>> import haliax as hax
        >>> x = hax.arange({"batch": 2, "pos": 3})
        >>> x["pos", 1].tolist(), x["batch", 0, "pos", 1:].tolist()
        ([1, 4], [1, 2])
    """
    require_named("index", array)
    items = _static_dslices(array, normalize_index(array, slices))
    plan = _Compiler(array, items).compile()
    x = array.array
    if not plan.positional:
        return array
    x = jnp.asarray(array.array) if isinstance(array.array, np.ndarray) else array.array
    return wrap(read(x, array.names, plan), plan.names)


class _IndexUpdateHelper:
    """``array.at``: index it by name to get `_IndexUpdateRef`."""

    __slots__ = ("_array",)

    def __init__(self, array: NamedArray) -> None:
        self._array = array

    def __getitem__(self, idx: Any) -> "_IndexUpdateRef":
        return _IndexUpdateRef(self._array, idx)

    def __repr__(self) -> str:
        return f"at({self._array!r})"


class _IndexUpdateRef:
    """A place in an array: read it, or return a copy of the array that is changed there."""

    __slots__ = ("_array", "_plan")

    def __init__(self, array: NamedArray, idx: Any) -> None:
        self._array = array
        self._plan = compile_index(array, idx)

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | None = None,
        fill_value: Any = None,
    ) -> NamedArray:
        """Read; ``mode`` says what happens out of range (promise_in_bounds, clip, drop, fill)."""
        options = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode}
        if fill_value is not None:
            options["fill_value"] = fill_value
        out = read(jnp.asarray(self._array.array), self._array.names, self._plan, **options)
        return wrap(out, self._plan.names)

    def _update(self, method: str, update: Any, options: dict[str, Any]) -> NamedArray:
        plan = self._plan
        if isinstance(update, NamedArray):
            extra = [n for n in update.names if n not in plan.names]
            if extra:
                raise AxisSpecError(
                    f"at[...].{method}: update has axes {extra} that are not read by the index; update "
                    f"{show(update.axes)}, "
                    f"place {format_axes(plan.names, plan.shape)}. Reduce the update, or index more axes."
                )
            target = tuple(map(Axis, plan.names, plan.shape))
            for a in update.axes:
                if plan.shape[plan.names.index(a.name)] != a.size:
                    raise AxisSizeMismatchError(f"at[...].{method}", [("place", target), ("update", update.axes)])
            value = aligned_to(update, plan.names)
        elif getattr(update, "ndim", 0):
            raise ArrayTypeError(
                f"at[...].{method}: update is a raw array of shape {update.shape}; expected a NamedArray or a scalar."
            )
        else:
            value = update
        x = jnp.asarray(self._array.array)
        value = jnp.asarray(value).astype(x.dtype) if method == "set" else value
        return wrap(write(x, self._array.names, plan, method, value, **options), self._array.names)

    def apply(self, func: Any, **options: Any) -> NamedArray:
        """Replace what is there by ``func`` of it."""
        x = jnp.asarray(self._array.array)
        return wrap(write(x, self._array.names, self._plan, "apply", func, **options), self._array.names)


def _at_method(name: str) -> Any:
    def method(
        self: _IndexUpdateRef,
        update: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | None = None,
    ) -> NamedArray:
        options = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode}
        return self._update(name, update, options)

    method.__name__ = name
    method.__doc__ = f"Return the array after `jax.Array.at[...].{name}` at this place; the update broadcasts by name."
    return method


for _name in ("set", "add", "subtract", "mul", "multiply", "divide", "max", "min", "power"):
    setattr(_IndexUpdateRef, _name, _at_method(_name))


bind(
    __getitem__=index,
    at=property(_IndexUpdateHelper, doc="Functional updates: ``x.at['axis', i].set(v)``; see `haliax.index`."),
)
