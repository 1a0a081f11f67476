"""Carrying out a compiled index: reads and writes, batched along the axes that index arrays share with the array.

An index array that has a kept axis of the array asks for a lookup per element of that axis. Spelled as one more index
(``0 .. n - 1`` along the axis) the compiler no longer sees that rows do not mix, and gathers a sharded array on every
device. `jax.vmap` over the shared axes says it: the gather gets batching dimensions and stays where the data is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from haliax._array.sharding import out_sharding_for


class IndexPlan(NamedTuple):
    """A positional index into an array whose shared axes have been taken away.

    Attributes:
        positional: Index of the remaining dimensions; arrays in it have their shared axes in front.
        names: Axes of what is read.
        shape: Their sizes.
        fill: Whether reads beyond the end give 0.
        shared: Axes to batch over, outermost first.
        mapped: For each array in ``positional``, which of the shared axes it has.
        inner: Axes of what is read, without the shared ones, in the order in which the positional index gives them.
    """

    positional: tuple[Any, ...]
    names: tuple[str, ...]
    shape: tuple[int, ...]
    fill: bool
    shared: tuple[str, ...] = ()
    mapped: tuple[tuple[bool, ...], ...] = ()
    inner: tuple[str, ...] = ()

    @property
    def has_arrays(self) -> bool:
        """Whether anything but slices and Python ints indexes the array."""
        return any(hasattr(p, "shape") for p in self.positional)


def _to(x: Any, names: tuple[str, ...], order: tuple[str, ...]) -> Any:
    return x if names == order else jnp.transpose(x, [names.index(n) for n in order])


def _batched(plan: IndexPlan, fn: Callable[..., Any], *operands: Any) -> Any:
    """Call ``fn(index, *operands)``, vectorised over the shared axes; all operands have these in front."""
    arrays = [p for p in plan.positional if hasattr(p, "shape")]

    def one(arrays: Any, *operands: Any) -> Any:
        rest = iter(arrays)
        return fn(tuple(next(rest) if hasattr(p, "shape") else p for p in plan.positional), *operands)

    for level in reversed(range(len(plan.shared))):
        axes = [0 if mapped[level] else None for mapped in plan.mapped]
        one = jax.vmap(one, in_axes=(axes, *(0 for _ in operands)))
    return one(arrays, *operands)


def read(x: Any, names: tuple[str, ...], plan: IndexPlan, **options: Any) -> Any:
    """Read from the raw array ``x`` with axes ``names``; the result has the axes ``plan.names``.

    Args:
        x: Raw array.
        names: Its axes.
        plan: Compiled index.
        **options: Keywords of `jax.Array.at[...].get`; without any, and without fill, plain indexing is used.
    """
    if plan.fill and options.get("mode") is None:
        options |= {"mode": "fill", "fill_value": 0}
    if plan.has_arrays:
        target = out_sharding_for(plan.inner if plan.shared else plan.names)
        if target is not None:
            options["out_sharding"] = target

    def get(index: Any, x: Any) -> Any:
        return x.at[index].get(**options) if options else x[index]

    if not plan.shared:
        return get(plan.positional, x)
    rest = tuple(n for n in names if n not in plan.shared)
    out = _batched(plan, get, _to(x, names, (*plan.shared, *rest)))
    return _to(out, (*plan.shared, *plan.inner), plan.names)


def write(x: Any, names: tuple[str, ...], plan: IndexPlan, method: str, value: Any, **options: Any) -> Any:
    """Return ``x`` after ``x.at[index].method(value)``.

    Args:
        x: Raw array with axes ``names``.
        names: Its axes.
        plan: Compiled index.
        method: Name of the update, such as "set" or "add", or "apply".
        value: Scalar, or raw array with the trailing axes of ``plan.names``; a function for "apply".
        **options: Keywords of the update.
    """
    rest = tuple(n for n in names if n not in plan.shared)
    if plan.has_arrays and method != "apply":
        target = out_sharding_for(rest)
        if target is not None:
            options["out_sharding"] = target

    def put(index: Any, x: Any, *value: Any) -> Any:
        return getattr(x.at[index], method)(*value, **options)

    if not plan.shared:
        return put(plan.positional, x, value)
    order = (*plan.shared, *rest)
    operand = _to(x, names, order)
    if method == "apply" or not getattr(value, "ndim", 0):
        out = _batched(plan, lambda index, x: put(index, x, value), operand)
    else:
        whole = jnp.broadcast_to(value, plan.shape)
        out = _batched(plan, put, operand, _to(whole, plan.names, (*plan.shared, *plan.inner)))
    return _to(out, order, names)
