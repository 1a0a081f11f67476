"""Losses with masks, weights and named reductions. All values are in nats."""

import warnings
from typing import Any

import jax.nn as jnn
import jax.numpy as jnp

from haliax._array.named import NamedArray, require_named, wrap
from haliax._axis.types import AxisSelection, AxisSelector
from haliax._ops.dot import dot
from haliax._ops.elementwise import exp
from haliax._ops.reductions import mean
from haliax._ops.reductions import sum as sum_
from haliax._ops.select import where as where_
from haliax.errors import ArrayTypeError
from haliax.nn.normalization import logsumexp


def reduce_loss(
    arr: NamedArray,
    reduction: Any = mean,
    reduction_axis: AxisSelection | None = None,
    where: NamedArray | None = None,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Reduce per-element losses.

    Args:
        arr: Losses.
        reduction: Reduction (`haliax.mean`, `haliax.sum`), or None to keep elements.
        reduction_axis: Axes to reduce; None means all, ``()`` none.
        where: Elements that count.
        weight: Non-negative weight per element. With `haliax.mean` the result is ``sum(w x) / sum(w)``, and 0 where
            the weights sum to 0; ``where`` acts as a weight of 0 or 1.

    Returns:
        The reduced losses; without reduction, masked elements are 0.

    Example:
        >>> import haliax as hax
        >>> loss = hax.named([1.0, 3.0], "a")
        >>> reduce_loss(loss).item(), reduce_loss(loss, weight=hax.named([3.0, 1.0], "a")).item()
        (2.0, 1.5)
    """
    if weight is not None:
        if where is not None:
            weight = where_(where, weight, 0)
        weighted = arr * weight
        if reduction is None or reduction_axis == ():
            return weighted
        if reduction is not mean:
            return reduction(weighted, reduction_axis)
        total = sum_(arr * 0 + weight, reduction_axis)
        safe = where_(total == 0, 1, total)
        return where_(total == 0, 0, sum_(weighted, reduction_axis) / safe)
    if reduction is None or reduction_axis == ():
        return arr if where is None else where_(where, arr, 0)
    return reduction(arr, reduction_axis, where=where) if where is not None else reduction(arr, reduction_axis)


def cross_entropy_loss_and_log_normalizers(
    pred_y: NamedArray, Label: AxisSelector, target_y: NamedArray
) -> tuple[NamedArray, NamedArray]:
    """Return the cross entropy per element and the log normalisers ``logsumexp(pred_y, Label)``.

    Args:
        pred_y: Logits, unnormalised.
        Label: Axis of the classes.
        target_y: Target probabilities over ``Label`` (one-hot).

    Example:
        >>> import haliax as hax
        >>> Vocab = hax.Axis("vocab", 2)
        >>> target = hax.named([1.0, 0.0], "vocab")
        >>> loss, log_z = cross_entropy_loss_and_log_normalizers(hax.zeros(Vocab), Vocab, target)
        >>> round(loss.item(), 4), round(log_z.item(), 4)
        (0.6931, 0.6931)
    """
    log_normalizers = logsumexp(pred_y, Label)
    neg_log_normalized = log_normalizers - pred_y
    return dot(target_y, neg_log_normalized, axis=Label), log_normalizers


def cross_entropy_loss(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    reduction: Any = mean,
    *,
    where: NamedArray | None = None,
    weight: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
) -> NamedArray:
    """Cross entropy between target probabilities and the softmax of logits.

    Args:
        logits: Unnormalised scores.
        Label: Axis of the classes.
        targets: Target probabilities with ``Label`` (see `haliax.nn.one_hot`).
        reduction: Reduction, or None.
        where: Elements that count.
        weight: Weight per element; see `reduce_loss`.
        reduction_axis: Axes to reduce; None means all, ``()`` none.

    Raises:
        AxisNotFoundError: ``Label`` is absent from the logits.

    Example:
        >>> import haliax as hax, haliax.nn as hnn
        >>> C = hax.Axis("class", 4)
        >>> loss = cross_entropy_loss(hax.zeros((C,)), C, hnn.one_hot(hax.named(1, ()), C))
        >>> round(loss.item(), 4)
        1.3863
    """
    require_named("cross_entropy_loss", targets, "targets")
    if jnp.issubdtype(targets.dtype, jnp.integer):
        warnings.warn(
            "cross_entropy_loss: targets are integers; expected probabilities over the label axis. Use hax.nn.one_hot.",
            stacklevel=2,
        )
    loss, _ = cross_entropy_loss_and_log_normalizers(logits, Label, targets)
    return reduce_loss(loss, reduction, reduction_axis, where=where, weight=weight)


def binary_cross_entropy_loss(
    logits: NamedArray,
    targets: NamedArray,
    reduction: Any = mean,
    *,
    where: NamedArray | None = None,
    weight: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
) -> NamedArray:
    """Cross entropy of independent yes/no decisions, from logits.

    Args:
        logits: Log-odds.
        targets: Probabilities in [0, 1].
        reduction: Reduction, or None.
        where: Elements that count.
        weight: Weight per element; see `reduce_loss`.
        reduction_axis: Axes to reduce; None means all, ``()`` none.

    Example:
        >>> import haliax as hax
        >>> round(binary_cross_entropy_loss(hax.zeros({"a": 2}), hax.ones({"a": 2})).item(), 4)
        0.6931
    """
    require_named("binary_cross_entropy_loss", logits, "logits")
    targets = targets.astype(logits.dtype)
    log_p = wrap(jnn.log_sigmoid(logits.array), logits.names)
    log_not_p = wrap(jnn.log_sigmoid(-logits.array), logits.names)
    loss = -targets * log_p - (1.0 - targets) * log_not_p
    return reduce_loss(loss, reduction, reduction_axis, where=where, weight=weight)


def perplexity(loss: Any) -> Any:
    """Return ``exp(loss)`` of a mean loss in nats.

    Raises:
        ArrayTypeError: The loss is no NamedArray.

    Example:
        >>> import haliax as hax
        >>> perplexity(hax.named(0.0, ())).item()
        1.0
    """
    if not isinstance(loss, NamedArray):
        raise ArrayTypeError(f"perplexity: loss has type {type(loss).__name__}; expected NamedArray.")
    return exp(loss)
