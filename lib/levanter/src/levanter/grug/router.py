r"""Quantile-balancing router: experts are balanced by a threshold each, not by a loss.

    S_t = top-K of z_t + b                      (b carries no gradient)
    alpha_t = the (K+1)-th largest of z_t + b   (what an expert has to beat)
    w_t = c sigma(z_S) / sum_S sigma(z_S)       (unbiased logits; c = 2.5)
    beta_e = the floor(T K / E)-th largest of z_e - alpha over valid tokens
    after the step:  b = -beta

With ``b = -beta`` an expert beats the threshold on exactly its even share ``K / E`` of the tokens, so loads even out
within a few steps and no auxiliary loss pulls on the model. Everything is float32; the bias belongs to the training
state, not to the parameters: it is never cast, decayed or differentiated.

**What the result depends on.** The published router takes ``beta`` on each batch shard and averages by valid tokens. A
mean of quantiles is no quantile, so its ``beta`` depends on how many shards the batch has: two layouts of one run route
a few tokens differently from the second step on. It is a property of the definition, not of the arithmetic: with
``shards`` equal, one device and eight give the same steps up to the order of float32 sums. ``shards=1`` is the quantile
of the whole batch, the same on every layout.

Order statistics are found by counting, not by sorting: the bits of the answer are fixed from the top, two a round, by
counting the tokens above three candidates an expert. That is exact, needs sixteen all-reduces of ``3 E`` integers where
the tokens of a shard lie on several devices, and on CPU takes a twentieth of the time of a sort.

Shape suffixes: T tokens, E experts, K experts a token, G batch shards.

References:
    The public Marin project, grug mixture of experts, 2026 (quantile balancing); a bias instead of a loss: Wang et al.,
    Auxiliary-loss-free load balancing, arXiv:2408.15664.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from levanter.errors import ConfigError
from levanter.layers.moe import expert_counts

COMBINE_SUM = 2.5
_DIGIT_BITS = 2
_SIGN = np.uint32(1 << 31)


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


def statistics(logits_TE: jax.Array, routing: QbRouting) -> dict[str, jax.Array]:
    """What a router did with a batch, without gradient and without padding; all float32.

    Returns:
        ``beta`` ``[E]``; ``expert_load`` ``[E]``: share of the assignments that each expert got; ``valid_tokens`` and
        ``padding_tokens``; ``load_balancing_loss``: ``E sum_e f_e P_e`` (:func:`levanter.layers.moe`), K when even;
        ``router_z_loss``: mean squared log-partition function in squared nats. No loss contains the last two.
    """
    logits = jax.lax.stop_gradient(logits_TE).astype(jnp.float32)
    tokens, experts = logits.shape
    valid_T = (routing.selected_TK[:, 0] < experts).astype(jnp.float32)
    count = jnp.sum(valid_T)
    share_T = valid_T / jnp.maximum(count, 1.0)
    counts_E = expert_counts(routing.selected_TK, experts).astype(jnp.float32)
    mean_prob_E = jnp.einsum("te,t->e", jax.nn.softmax(logits, axis=-1), share_T)
    return {
        "beta": routing.beta_E,
        "expert_load": counts_E / jnp.maximum(jnp.sum(counts_E), 1.0),
        "valid_tokens": count,
        "padding_tokens": tokens - count,
        "load_balancing_loss": experts * jnp.sum(counts_E * mean_prob_E) / jnp.maximum(count, 1.0),
        "router_z_loss": jnp.sum(jnp.square(jax.nn.logsumexp(logits, axis=-1)) * share_T),
    }


def report(aux: dict[str, jax.Array], k: int) -> dict[str, jax.Array]:
    """Scalars to log of what the layers of a model collected (:func:`statistics` and ``dropped``, layer axis first).

    Returns:
        ``train/router/{routing_entropy,load_balancing_loss,router_z_loss,capacity_overflow_rate,max_load_ratio}`` by
        layer (``layer_{i}/``) and over all layers (mean; the largest of the load ratios), with
        ``train/router/routing_counts_per_layer``; ``moe/{valid,skipped_padding,dropped,...}_assignments`` summed over
        layers; ``moe/layer{i}/expert{j}_load``. Entropies are those of the loads, in nats.
    """
    load_LE = aux["expert_load"]
    layers, experts = load_LE.shape
    logs_LE = jnp.log(jnp.where(load_LE > 0, load_LE, 1.0))
    valid_L = k * aux["valid_tokens"]
    by_layer = {
        "routing_entropy": -jnp.sum(load_LE * logs_LE, axis=-1),
        "load_balancing_loss": aux["load_balancing_loss"],
        "router_z_loss": aux["router_z_loss"],
        "capacity_overflow_rate": aux["dropped"] / jnp.maximum(valid_L, 1.0),
        "max_load_ratio": jnp.max(load_LE, axis=-1) * experts,
    }
    found = {f"train/router/layer_{i}/{name}": value[i] for name, value in by_layer.items() for i in range(layers)}
    for name, suffix in (("routing_entropy", "_mean"), ("capacity_overflow_rate", "_mean")):
        found[f"train/router/{name}{suffix}"] = jnp.mean(by_layer[name])
    found["train/router/load_balancing_loss"] = jnp.mean(by_layer["load_balancing_loss"])
    found["train/router/router_z_loss"] = jnp.mean(by_layer["router_z_loss"])
    found["train/router/max_load_ratio"] = jnp.max(by_layer["max_load_ratio"])
    found["train/router/routing_counts_per_layer"] = jnp.mean(valid_L)
    found |= {f"moe/layer{i}/expert{e}_load": load_LE[i, e] for i in range(layers) for e in range(experts)}
    dropped = jnp.sum(aux["dropped"])
    return found | {
        "moe/valid_assignments": jnp.sum(valid_L),
        "moe/skipped_padding_assignments": k * jnp.sum(aux["padding_tokens"]),
        "moe/dropped_assignments": dropped,
        "moe/receiver_dropped_assignments": dropped,
        "moe/sender_dropped_assignments": jnp.zeros((), jnp.float32),
    }


def quantile_thresholds(margins_TE: jax.Array, valid_T: jax.Array, k: int, *, shards: int) -> jax.Array:
    """Per expert, the margin that a share ``K / E`` of the valid tokens exceeds.

    Args:
        margins_TE: Unbiased logit minus the token's threshold.
        valid_T: Tokens that count.
        k: Experts a token.
        shards: Parts of T; each gives its own order statistic, averaged by its valid tokens.

    Returns:
        ``[E]`` float32; 0 when no token is valid.

    Example:
        >>> margins = jnp.array([[4.0, 1.0], [3.0, 2.0], [2.0, 3.0], [1.0, 4.0]])
        >>> quantile_thresholds(margins, jnp.ones(4, bool), 1, shards=1).tolist()
        [3.0, 3.0]
    """
    experts = margins_TE.shape[-1]
    margins_GTE = jnp.where(valid_T[:, None], margins_TE, -jnp.inf).reshape(shards, -1, experts)
    counts_G = jnp.sum(valid_T.reshape(shards, -1), axis=1, dtype=jnp.int32)
    picked_GE = nth_largest(margins_GTE, jnp.maximum(counts_G * k // experts, 1))
    weight_G1 = counts_G.astype(jnp.float32)[:, None]
    total = jnp.sum(jnp.where(weight_G1 > 0, picked_GE, 0.0) * weight_G1, axis=0)
    return total / jnp.maximum(jnp.sum(weight_G1), 1.0)


def nth_largest(x_GTE: jax.Array, n_G: jax.Array) -> jax.Array:
    """The n-th largest value along T, exactly, by fixing its bits from the top.

    Args:
        x_GTE: Values, float32, no NaN.
        n_G: Which, counted from 1; at most T.

    Returns:
        ``[G, E]`` float32.

    Example:
        >>> nth_largest(jnp.array([[[-2.0], [5.0], [0.5]]]), jnp.array([2])).tolist()
        [[0.5]]
    """
    keys = _ordered_bits(x_GTE)
    digits = jnp.arange(1, 1 << _DIGIT_BITS, dtype=jnp.uint32)

    def narrow(round_: jax.Array, found_GE: jax.Array) -> jax.Array:
        shift = (32 - _DIGIT_BITS * (1 + round_)).astype(jnp.uint32)
        candidates = found_GE[..., None] | (digits << shift)
        above = jnp.sum(keys[..., None] >= candidates[:, None], axis=1, dtype=jnp.int32)
        digit = jnp.sum(above >= n_G[:, None, None], axis=-1, dtype=jnp.uint32)
        return found_GE | (digit << shift)

    start = jnp.zeros((x_GTE.shape[0], x_GTE.shape[2]), jnp.uint32)
    found = jax.lax.fori_loop(0, 32 // _DIGIT_BITS, narrow, start)
    return jax.lax.bitcast_convert_type(jnp.where(found >= _SIGN, found ^ _SIGN, ~found), jnp.float32)


def _ordered_bits(x: jax.Array) -> jax.Array:
    """Bits that compare as unsigned integers the way the floats do."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)
