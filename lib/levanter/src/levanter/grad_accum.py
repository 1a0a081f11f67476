"""Gradients of a batch too large to differentiate at once, as exact weighted means.

Micro-batches are differentiated one after another and *totals* are added: loss totals, masses, gradients of the totals.
One division by the whole mass at the end gives the gradient of the batch's weighted mean, whatever the masks and
whatever the sizes; micro-batches need not divide the batch, the last is simply smaller. Sums run in float32.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from haliax import NamedArray

from levanter.metrics import Metric, fold_metric
from levanter.tree_paths import is_named

TotalAndGrad = Callable[[Any, jax.Array], tuple[tuple[Metric, dict[str, Metric]], Any]]


def accumulate_gradients(
    fn: TotalAndGrad, batch: Any, micro_size: int | None, key: jax.Array, *, batch_axis: str = "batch"
) -> tuple[Metric, dict[str, Metric], Any]:
    """Differentiate a batch in pieces.

    Args:
        fn: ``(micro_batch, key) -> ((loss, metrics), grads)``; ``loss`` is a MEAN metric and ``grads`` the gradient of
            its *total*.
        batch: Pytree; NamedArrays with the batch axis and raw arrays with that leading size are split.
        micro_size: Examples at a time; None differentiates the batch at once.
        key: Split into one key per piece.
        batch_axis: Name of the batch axis.

    Returns:
        ``(loss, metrics, grads)``; ``grads`` is the gradient of the weighted mean.
    """
    size = batch_size_of(batch, batch_axis)
    if micro_size is None or micro_size >= size:
        (loss, metrics), grads = fn(batch, key)
        return loss, metrics, _divide(grads, loss.count)
    count, rest = divmod(size, micro_size)
    keys = jax.random.split(key, count + 1)
    first = fn(slice_batch(batch, 0, micro_size, batch_axis), keys[0])
    total = (first[0], jax.tree.map(lambda g: g.astype(jnp.float32), first[1]))

    def add(carry: Any, index: jax.Array) -> tuple[Any, None]:
        piece = fn(slice_batch(batch, index * micro_size, micro_size, batch_axis), keys[index])
        return _add(carry, piece), None

    if count > 1:
        total, _ = jax.lax.scan(add, total, jnp.arange(1, count))
    if rest:
        total = _add(total, fn(slice_batch(batch, count * micro_size, rest, batch_axis), keys[count]))
    (loss, metrics), grads = total
    grads = jax.tree.map(lambda g, like: g.astype(like.dtype), _divide(grads, loss.count), first[1])
    return loss, metrics, grads


def batch_size_of(batch: Any, batch_axis: str = "batch") -> int:
    """Number of examples in a batch.

    Raises:
        ValueError: nothing in the batch has the batch axis.
    """
    for leaf in jax.tree.leaves(batch, is_leaf=is_named):
        if isinstance(leaf, NamedArray):
            for axis in leaf.axes:
                if axis.name == batch_axis:
                    return axis.size
        elif hasattr(leaf, "ndim") and leaf.ndim:
            return leaf.shape[0]
    raise ValueError(f"cannot find the batch size: axis={batch_axis!r}; expected an array that has it.")


def slice_batch(batch: Any, start: Any, size: int, batch_axis: str = "batch") -> Any:
    """Examples ``start .. start + size`` of a batch; ``start`` may be traced."""
    total = batch_size_of(batch, batch_axis)

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, NamedArray):
            names = [axis.name for axis in leaf.axes]
            if batch_axis not in names:
                return leaf
            index = names.index(batch_axis)
            axes = tuple(a.resize(size) if i == index else a for i, a in enumerate(leaf.axes))
            return NamedArray(jax.lax.dynamic_slice_in_dim(leaf.array, start, size, axis=index), axes)
        if hasattr(leaf, "ndim") and leaf.ndim and leaf.shape[0] == total:
            return jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=0)
        return leaf

    return jax.tree.map(cut, batch, is_leaf=is_named)


def _add(left: Any, right: Any) -> Any:
    (loss_a, metrics_a), grads_a = left
    (loss_b, metrics_b), grads_b = right
    metrics = {name: fold_metric(metrics_a[name], metrics_b[name]) for name in metrics_a}
    return (fold_metric(loss_a, loss_b), metrics), jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads_a, grads_b)


def _divide(grads: Any, mass: jax.Array) -> Any:
    factor = 1.0 / jnp.where(mass == 0, 1.0, mass)
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)
