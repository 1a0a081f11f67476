"""Mutable arrays by name: `NamedRef` over `jax.Ref`.

A reference can be read and written in place inside jit, scan and grad. `NamedRef.slice` stages a view; views compose.
Everything static about a view (names, slices, ints) is static in the pytree, everything traced is data, so a view can
cross any JAX boundary.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from haliax._array.named import intern_names, require_named, wrap
from haliax._array.plan import permute_to
from haliax._axis.algebra import resolve_axis
from haliax._axis.dslice import dslice
from haliax._axis.types import Axis, AxisSelection, names_of
from haliax._ops.gather import write
from haliax._ops.indexing import compile_index, index
from haliax.core import NamedArray
from haliax.errors import ArrayTypeError, AxisNotFoundError, AxisSpecError, show


class RefIndexError(AxisSpecError, IndexError):
    """An index is out of range."""


class _Static(eqx.Module):
    """Elements ``start, start + stride, ...`` of an axis (``size`` of them), or one element that drops the axis."""

    start: int = eqx.field(static=True)
    size: int | None = eqx.field(static=True)
    stride: int = eqx.field(static=True, default=1)


class _Dynamic(eqx.Module):
    """Like `_Static` with a traced start."""

    start: Any
    size: int | None = eqx.field(static=True)
    stride: int = eqx.field(static=True, default=1)


class _Gather(eqx.Module):
    """Elements given by an integer array with names."""

    indices: NamedArray


_Entry = _Static | _Dynamic | _Gather


class NamedRef(eqx.Module):
    """A reference to a mutable named array, or a view into one.

    Example:
        >>> import haliax as hax
        >>> ref = new_ref(hax.zeros({"a": 3}))
        >>> ref["a", 1] = 5.0
        >>> ref.value().tolist()
        [0.0, 5.0, 0.0]
    """

    _ref: Any
    _axes: tuple[Axis, ...] = eqx.field(static=True)
    _prefix: tuple[_Entry | None, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of the view."""
        out: list[Axis] = []
        for axis, entry in zip(self._axes, self._prefix, strict=True):
            if entry is None:
                out.append(axis)
            elif isinstance(entry, _Gather):
                out.extend(entry.indices.axes)
            elif entry.size is not None:
                out.append(axis.resize(entry.size))
        return tuple(out)

    @property
    def shape(self) -> dict[str, int]:
        """Name to size, of the view."""
        return {a.name: a.size for a in self.axes}

    named_shape = shape

    @property
    def ndim(self) -> int:
        """Number of axes of the view."""
        return len(self.axes)

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self._ref.dtype

    def resolve_axis(self, axis: AxisSelection) -> Any:
        """Return the Axis of a name."""
        return resolve_axis(self.axes, axis)

    def value(self) -> NamedArray:
        """Return the present value of the view.

        Example:
            >>> import haliax as hax
            >>> new_ref(hax.arange({"a": 3})).value().tolist()
            [0, 1, 2]
        """
        return self[...]

    def unsliced(self) -> "NamedRef":
        """Return the reference to the whole array."""
        return NamedRef(self._ref, self._axes, (None,) * len(self._axes))

    def unsafe_buffer_pointer(self) -> int:
        """Return the address of the buffer."""
        return self._ref.unsafe_buffer_pointer()

    def __getitem__(self, idx: Any) -> NamedArray:
        return self._view(idx)._read()

    def __setitem__(self, idx: Any, value: Any) -> None:
        self._view(idx)._write(value)

    def slice(self, selectors: Mapping[Any, Any]) -> "NamedRef":
        """Return a view.

        Args:
            selectors: Axis to int, slice, range, dslice, list, 1-D array or integer NamedArray.

        Raises:
            AxisNotFoundError: An axis is absent (or was fixed by an earlier slice).
            RefIndexError: An int is out of range.
            NotImplementedError: The axis was sliced by an array before.

        Example:
            >>> import haliax as hax
            >>> ref = new_ref(hax.zeros({"a": 4}))
            >>> ref.slice({"a": slice(1, 3)})[...] = 1.0
            >>> ref.value().tolist()
            [0.0, 1.0, 1.0, 0.0]
        """
        prefix = list(self._prefix)
        for axis, item in selectors.items():
            name = names_of(axis)[0]
            position = next((i for i, a in enumerate(self._axes) if a.name == name), None)
            if position is None:
                raise AxisNotFoundError("NamedRef.slice", [name], self._axes)
            entry = prefix[position]
            if entry is not None and not isinstance(entry, _Gather) and entry.size is None:
                raise AxisSpecError(
                    f"NamedRef.slice: axis {name!r} was already fixed to one index; view {show(self.axes)}."
                )
            if isinstance(entry, _Gather):
                raise NotImplementedError(f"NamedRef.slice: axis {name!r} was indexed by an array; slice before that.")
            prefix[position] = _compose(self._axes[position], entry, item)
        return NamedRef(self._ref, self._axes, tuple(prefix))

    def _view(self, idx: Any) -> "NamedRef":
        if idx is ...:
            return self
        if isinstance(idx, tuple) and len(idx) % 2 == 0 and not isinstance(idx[0], tuple):
            idx = dict(zip(idx[::2], idx[1::2], strict=True))
        if not isinstance(idx, Mapping):
            raise AxisSpecError(
                f"NamedRef: index of type {type(idx).__name__}; expected ref['axis', i], a dict or '...'."
            )
        return self.slice(idx)

    def _items(self) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for axis, entry in zip(self._axes, self._prefix, strict=True):
            if entry is None:
                continue
            if isinstance(entry, _Gather):
                items[axis.name] = entry.indices
            elif entry.size is None:
                items[axis.name] = entry.start
            elif isinstance(entry, _Static):
                items[axis.name] = _to_slice(entry)
            else:
                offsets = jnp.arange(entry.size) * entry.stride + entry.start
                items[axis.name] = wrap(offsets, intern_names((axis.name,)))
        return items

    def _basic(self) -> tuple[Any, ...] | None:
        """Return the positional index when it has only ints and static forward slices, which `jax.Ref` takes."""
        out: list[Any] = []
        for entry in self._prefix:
            if entry is None:
                out.append(slice(None))
            elif isinstance(entry, _Gather) or (isinstance(entry, _Dynamic) and entry.size is not None):
                return None
            elif entry.size is None:
                out.append(entry.start)
            elif entry.stride != 1:
                return None
            else:
                out.append(_to_slice(entry))  # type: ignore[arg-type]
        return tuple(out)

    def _whole(self) -> NamedArray:
        return wrap(self._ref[...], intern_names(tuple(a.name for a in self._axes)))

    def _read(self) -> NamedArray:
        basic = self._basic()
        if basic is not None:
            return wrap(self._ref[basic if basic else ...], intern_names(tuple(a.name for a in self.axes)))
        out = index(self._whole(), self._items())
        return wrap(permute_to(out, tuple(a.name for a in self.axes)), intern_names(tuple(a.name for a in self.axes)))

    def _write(self, value: Any) -> None:
        axes = self.axes
        names = tuple(a.name for a in axes)
        if isinstance(value, NamedArray):
            if set(value.names) != set(names) or value.shape != {n: dict(self.shape)[n] for n in value.names}:
                raise AxisSpecError(
                    f"NamedRef: cannot write {show(value.axes)} to a place with axes {show(axes)}; expected the "
                    f"same axes. "
                    "Broadcast or reduce the value."
                )
            raw_value = permute_to(value, names)
        elif getattr(value, "ndim", 0):
            raise ArrayTypeError(
                f"NamedRef: cannot write a raw array of shape {value.shape}; expected NamedArray or scalar."
            )
        else:
            raw_value = value
        shape = tuple(a.size for a in axes)
        filled = jnp.broadcast_to(jnp.asarray(raw_value).astype(self.dtype), shape)
        basic = self._basic()
        if basic is not None:
            self._ref[basic if basic else ...] = filled
            return
        whole = self._whole()
        plan = compile_index(whole, self._items())
        update = permute_to(wrap(filled, names), plan.names)
        self._ref[...] = write(whole.array, whole.names, plan, "set", update)


def _to_slice(entry: _Static) -> slice:
    stop = entry.start + (entry.size or 0) * entry.stride
    return slice(entry.start, stop if stop >= 0 else None, entry.stride)


def _compose(axis: Axis, entry: _Entry | None, item: Any) -> _Entry:
    """Index the elements of ``entry`` (all of the axis when None) by ``item``."""
    base: Any = _Static(0, axis.size, 1) if entry is None else entry
    size = base.size
    make = _Static if isinstance(base, _Static) else _Dynamic
    if isinstance(item, range):
        item = slice(item.start, item.stop if item.stop >= 0 else None, item.step)
    if isinstance(item, slice):
        picked = range(*item.indices(size))
        return make(base.start + picked.start * base.stride, len(picked), base.stride * picked.step)
    if isinstance(item, int | np.integer):
        if not -size <= item < size:
            raise RefIndexError(f"NamedRef: index {item} is out of range for axis {axis.name!r} of size {size}.")
        return make(base.start + (int(item) % size) * base.stride, None, 1)
    if isinstance(item, dslice):
        if isinstance(item.start, int) and isinstance(base, _Static):
            return _Static(base.start + item.start * base.stride, item.size, base.stride)
        return _Dynamic(base.start + item.start * base.stride, item.size, base.stride)
    if isinstance(item, NamedArray) and not item.names:
        return _Dynamic(base.start + item.array * base.stride, None, 1)
    if isinstance(item, list | tuple):
        item = jnp.asarray(item, dtype=jnp.int32)
    if isinstance(item, NamedArray):
        return _Gather(wrap(item.array * base.stride + base.start, item.names))
    if hasattr(item, "dtype") and item.ndim == 0:
        return _Dynamic(base.start + item * base.stride, None, 1)
    if hasattr(item, "dtype") and item.ndim == 1:
        return _Gather(wrap(item * base.stride + base.start, intern_names((axis.name,))))
    raise AxisSpecError(f"NamedRef: cannot index axis {axis.name!r} with a {type(item).__name__}.")


def new_ref(value: NamedArray) -> NamedRef:
    """Return a mutable reference that starts with ``value``.

    Raises:
        ArrayTypeError: ``value`` is no NamedArray.

    Example:
        >>> import haliax as hax
        >>> ref = new_ref(hax.zeros({"a": 2, "b": 2}))
        >>> ref["a", 0] = 1.0
        >>> freeze(ref).tolist()
        [[1.0, 1.0], [0.0, 0.0]]
    """
    require_named("new_ref", value, "value")
    return NamedRef(jax.new_ref(value.array), value.axes, (None,) * value.ndim)


def freeze(ref: NamedRef) -> NamedArray:
    """Return the final value; the reference must not be used afterwards."""
    return wrap(jax.freeze(ref._ref), intern_names(tuple(a.name for a in ref._axes)))


def get(ref: NamedRef, idx: Any = ...) -> NamedArray:
    """Return ``ref[idx]``.

    Example:
        >>> import haliax as hax
        >>> get(new_ref(hax.arange({"a": 3})), {"a": 1}).item()
        1
    """
    return ref[idx]


def swap(ref: NamedRef, idx: Any, value: Any) -> NamedArray:
    """Write ``value`` and return what was there.

    Example:
        >>> import haliax as hax
        >>> ref = new_ref(hax.arange({"a": 3}))
        >>> swap(ref, {"a": 1}, 7).item(), ref.value().tolist()
        (1, [0, 7, 2])
    """
    previous = ref[idx]
    ref[idx] = value
    return previous
