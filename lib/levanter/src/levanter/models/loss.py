"""Next-token loss: shift by one, weight, average.

The target of position ``i`` is token ``i + 1``; the last position has none and weighs nothing. The loss is
``sum(w * nll) / sum(w)``, returned as a total and a mass so that micro-batches can be added exactly.
"""

from typing import Any

import jax
import jax.numpy as jnp
from haliax import NamedArray

from levanter.errors import ModelShapeError
from levanter.kernels.fused_cross_entropy import CrossEntropySpec, cross_entropy_sum, token_losses
from levanter.metrics import Metric, Reduction
from levanter.models.lm_model import LmHeadModel
from levanter.trainable import BUFFER_PREFIX

TRAINING_ONLY = (BUFFER_PREFIX, "train/")


def next_token_loss(
    model: LmHeadModel,
    example: Any,
    *,
    logsumexp_weight: float = 0.0,
    chunk: int | None = None,
    with_router_losses: bool = False,
) -> tuple[Metric, dict[str, Metric]]:
    """Loss of a batch.

    Args:
        model: Any language model.
        example: Has ``tokens`` (int32, axes ``(batch, position)`` or ``(position)``), ``loss_weight`` (float32, same
            axes) and ``attn_mask``.
        logsumexp_weight: z-loss weight per squared nat.
        chunk: Rows of logits at a time.
        with_router_losses: Add the router losses of a mixture of experts; for training only.

    Returns:
        ``(loss, metrics)``: a mean whose mass is the summed weight, in nats per token. Where the loss has a z-loss or
        router losses, ``metrics`` holds ``cross_entropy_loss`` without them; router statistics are always there.
    """
    (x, head, labels, weight, spec), aux = _prepare(model, example, logsumexp_weight, chunk)
    total, nll = cross_entropy_sum(x, head, labels, weight, spec)
    mass = jnp.sum(weight)
    router_loss, metrics = model.router_losses(aux, mass)
    if not with_router_losses:
        metrics = {name: metric for name, metric in metrics.items() if not name.startswith(TRAINING_ONLY)}
    added = with_router_losses and bool(metrics)
    total = total + router_loss * mass if added else total
    if logsumexp_weight or added:
        metrics["cross_entropy_loss"] = Metric(jax.lax.stop_gradient(nll), mass, Reduction.MEAN)
    return Metric(total, mass, Reduction.MEAN), metrics


def next_token_nll(model: LmHeadModel, example: Any) -> NamedArray:
    """Negative log-likelihood of each next token, unweighted; 0 at the last position.

    Returns:
        Float32, axes of ``example.tokens``, in nats.
    """
    (x, head, labels, _, spec), _ = _prepare(model, example, 0.0, None)
    losses, _ = token_losses(x, head, labels, spec)
    losses = losses.reshape(example.tokens.array.shape)
    return NamedArray(losses.at[..., -1].set(0.0), example.tokens.axes)


def _prepare(model: LmHeadModel, example: Any, logsumexp_weight: float, chunk: int | None) -> tuple[tuple, Any]:
    tokens = example.tokens.array
    weight = example.loss_weight.array
    if weight.shape != tokens.shape:
        raise ModelShapeError(
            f"loss_weight does not fit: loss_weight={weight.shape}, tokens={tokens.shape}; expected equal shapes.",
            name="loss_weight",
        )
    labels = jnp.roll(tokens, -1, axis=-1)
    last = jnp.arange(tokens.shape[-1]) == tokens.shape[-1] - 1
    weight = jnp.where(last, 0.0, weight.astype(jnp.float32))
    named, aux = model.activations_with_aux(example.tokens, example.attn_mask)
    hidden = named.array
    head = model.get_lm_head()
    vocab_first = head.axes[0].name == "vocab"
    cap = getattr(getattr(model, "config", None), "logits_soft_cap", None)
    spec = CrossEntropySpec(vocab_first, logsumexp_weight, cap, chunk)
    prepared = (hidden.reshape(-1, hidden.shape[-1]), head.array, labels.reshape(-1), weight.reshape(-1), spec)
    return prepared, aux
