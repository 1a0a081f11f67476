r"""Quantile-balancing router: experts are balanced by a threshold each, not by a loss.

    S_t = top-K of z_t + b                      (b carries no gradient)
    alpha_t = the (K+1)-th largest of z_t + b   (what an expert has to beat)
    w_t = c sigma(z_S) / sum_S sigma(z_S)       (unbiased logits; c = 2.5)
    beta_e = the floor(T K / E)-th largest of z_e - alpha over valid tokens
    after the step:  b = -beta

With ``b = -beta`` an expert beats the threshold on exactly its even share ``K / E`` of the tokens, so loads even out
within a few steps and no auxiliary loss pulls on the model. ``beta`` is taken on each batch shard and averaged by valid
tokens, so it needs no global sort. Everything is float32; the bias belongs to the training state, not to the
parameters: it is never cast, decayed or differentiated.

Shape suffixes: T tokens, E experts, K experts a token, G batch shards.

References:
    The public Marin project, grug mixture of experts, 2026 (quantile balancing); a bias instead of a loss: Wang et al.,
    Auxiliary-loss-free load balancing, arXiv:2408.15664.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from levanter.errors import ConfigError

COMBINE_SUM = 2.5


class QbRouting(NamedTuple):
    """Decision of a quantile-balancing router.

    Attributes:
        selected_TK: Chosen experts, int32; E for a token that is padding.
        weights_TK: Combine weights, float32, sum 2.5 per valid token and 0 for padding.
        beta_E: Thresholds that would have balanced this batch; the next bias is ``-beta_E``.
    """

    selected_TK: jax.Array
    weights_TK: jax.Array
    beta_E: jax.Array


def route(
    logits_TE: jax.Array, bias_E: jax.Array, k: int, *, valid_T: jax.Array | None = None, shards: int = 1
) -> QbRouting:
    """Choose experts and measure the thresholds.

    Args:
        logits_TE: Router logits.
        bias_E: Current bias, float32; constant to the gradient.
        k: Experts a token, less than the number of experts.
        valid_T: False for padding, which is sent nowhere and counts nowhere; None when all tokens are valid.
        shards: Contiguous parts of T that are balanced apart and averaged; divides T.

    Raises:
        ConfigError: ``k`` outside ``1 .. E - 1``, or shards that do not divide the tokens.

    Example:
        >>> routing = route(jnp.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), jnp.zeros(3), 1)
        >>> routing.selected_TK.ravel().tolist(), routing.weights_TK.ravel().tolist()
        ([0, 0], [2.5, 2.5])
    """
    tokens, experts = logits_TE.shape
    if not 1 <= k < experts:
        raise ConfigError(
            f"experts per token={k}, experts={experts}; expected 1 <= experts per token < experts: the threshold is "
            "the logit of the next best expert. Lower the former or add experts.",
            key="model.num_experts_per_tok",
        )
    if tokens % shards:
        raise ConfigError(f"{shards} batch shards, {tokens} tokens; expected a divisor.", key="model")
    logits = logits_TE.astype(jnp.float32)
    valid = jnp.ones((tokens,), bool) if valid_T is None else valid_T
    biased = jax.lax.stop_gradient(logits + bias_E)
    top, selected = jax.lax.top_k(biased, k + 1)
    selected = jnp.where(valid[:, None], selected[:, :k], experts).astype(jnp.int32)
    raw = jnp.take_along_axis(logits, jnp.minimum(selected, experts - 1), axis=-1)
    weights = jax.nn.sigmoid(raw)
    weights = COMBINE_SUM * weights / jnp.sum(weights, axis=-1, keepdims=True)
    weights = jnp.where(valid[:, None], weights, 0.0)
    margins = jax.lax.stop_gradient(logits) - top[:, k:]
    return QbRouting(selected, weights, quantile_thresholds(margins, valid, k, shards=shards))


def quantile_thresholds(margins_TE: jax.Array, valid_T: jax.Array, k: int, *, shards: int) -> jax.Array:
    """Per expert, the margin that a share ``K / E`` of the valid tokens exceeds.

    Args:
        margins_TE: Unbiased logit minus the token's threshold.
        valid_T: Tokens that count.
        k: Experts a token.
        shards: Parts of T; each gives its own order statistic, averaged by its valid tokens.

    Returns:
        ``[E]`` float32; 0 when no token is valid.
    """
    experts = margins_TE.shape[-1]
    margins_GTE = jnp.where(valid_T[:, None], margins_TE, -jnp.inf).reshape(shards, -1, experts)
    counts_G = jnp.sum(valid_T.reshape(shards, -1), axis=1)
    falling = -jnp.sort(-margins_GTE, axis=1)
    place_G = jnp.clip(counts_G * k // experts - 1, 0, margins_GTE.shape[1] - 1)
    picked = jnp.take_along_axis(falling, place_G[:, None, None], axis=1)[:, 0]
    weight = counts_G.astype(jnp.float32)[:, None]
    total = jnp.sum(jnp.where(weight > 0, picked, 0.0) * weight, axis=0)
    return total / jnp.maximum(jnp.sum(weight), 1.0)
