"""Foldable metrics: a value that knows how to be combined across micro-batches, devices and steps.

A mean of means is wrong as soon as the parts differ in size, so a :class:`Metric` carries its mass beside its value and
folding is exact. Each reduction has an identity, so that folding from nothing changes nothing.
"""

import enum
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


class Reduction(enum.StrEnum):
    """How two values of one metric combine."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"


class Metric(eqx.Module):
    """A scalar with its mass.

    Attributes:
        value: Float32 scalar; for MEAN the *total* (value times mass), so that folding is addition.
        count: Mass behind it, float32 scalar; 0 marks the identity.
        reduction: How it folds.
    """

    value: jax.Array
    count: jax.Array
    reduction: Reduction = eqx.field(static=True)

    @staticmethod
    def from_value(value: Any, reduction: Reduction, count: Any = 1.0) -> "Metric":
        """Wrap a value observed with mass ``count``.

        Example:
            >>> a = Metric.from_value(1.0, Reduction.MEAN, count=1)
            >>> b = Metric.from_value(4.0, Reduction.MEAN, count=3)
            >>> float(fold_metric(a, b).result())
            3.25
        """
        mass = jnp.asarray(count, jnp.float32)
        number = jnp.asarray(value, jnp.float32)
        return Metric(number * mass if reduction == Reduction.MEAN else number, mass, reduction)

    @staticmethod
    def identity(reduction: Reduction) -> "Metric":
        """The element that folding leaves unchanged."""
        start = {Reduction.MAX: -jnp.inf, Reduction.MIN: jnp.inf}.get(reduction, 0.0)
        return Metric(jnp.float32(start), jnp.float32(0.0), reduction)

    def result(self) -> jax.Array:
        """The plain scalar: total over mass for MEAN, the value otherwise."""
        if self.reduction == Reduction.MEAN:
            return self.value / jnp.where(self.count == 0, 1.0, self.count)
        return self.value


def fold_metric(left: Metric, right: Metric) -> Metric:
    """Combine two observations of one metric; associative, with :meth:`Metric.identity` as the neutral element."""
    count = left.count + right.count
    if left.reduction == Reduction.MAX:
        value = jnp.maximum(left.value, right.value)
    elif left.reduction == Reduction.MIN:
        value = jnp.minimum(left.value, right.value)
    elif left.reduction == Reduction.LAST:
        value = jnp.where(right.count > 0, right.value, left.value)
    else:
        value = left.value + right.value
    return Metric(value, count, left.reduction)


def as_metrics(values: Mapping[str, Any], mass: Any = 1.0) -> dict[str, Metric]:
    """Wrap plain values in metrics, choosing each reduction from the name; ``mass`` is the weight of a mean."""
    return {
        name: value if isinstance(value, Metric) else Metric.from_value(value, infer_reduction(name), count=mass)
        for name, value in values.items()
    }


def infer_reduction(name: str) -> Reduction:
    """Choose a reduction from a metric's name.

    Example:
        >>> [str(infer_reduction(n)) for n in ("num_tokens", "max_norm", "learning_rate", "loss")]
        ['sum', 'max', 'last', 'mean']
    """
    last = name.rsplit("/", 1)[-1]
    if last.startswith("num_") or last.startswith("total_") or last.endswith(("_count", "_total", "_sum")):
        return Reduction.SUM
    if last.startswith("max_") or last.endswith("_max"):
        return Reduction.MAX
    if last.startswith("min_") or last.endswith("_min"):
        return Reduction.MIN
    if last.endswith("_rate"):
        return Reduction.LAST
    return Reduction.MEAN
