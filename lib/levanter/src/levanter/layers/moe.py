r"""Mixtures of experts on raw arrays: choose experts, send tokens to them, bring the results back.

Routing (softmax over experts, top-k, renormalised):

    p = softmax(z),   S = top-k(p),   w_s = p_s / sum_{S} p   (norm_topk),   y = sum_{s in S} w_s MLP_s(x)
    load-balancing loss = E sum_e f_e P_e,   f_e = tokens that chose e / T,   P_e = mean of p_e
    z-loss              = mean(logsumexp(z)^2)

Dispatch is dropless: assignments are sorted by expert, every expert multiplies exactly its own rows, and no capacity
exists. Both directions of both moves (tokens to rows, rows to tokens) are gathers: each is the other's transpose by
construction, so no backward pass scatters.

Shape suffixes: T tokens, D model, K experts a token, E experts, I expert width, A = T K assignments, R rows.

References:
    Shazeer et al., Sparsely-gated mixture of experts, arXiv:1701.06538; load-balancing loss: Fedus et al., Switch
    transformers, arXiv:2101.03961, eq. 4; z-loss: Zoph et al., ST-MoE, arXiv:2202.08906, eq. 5; dropless dispatch: Gale
    et al., MegaBlocks, arXiv:2211.15841.
"""

import functools
from typing import NamedTuple

import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np

from levanter.errors import ConfigError
from levanter.layers.activations import activation as activation_fn
from levanter.layers.grouped_matmul import grouped_matmul

IMPLEMENTATIONS = ("auto", "ragged", "blocked")


class Routing(NamedTuple):
    """What the router decided.

    Attributes:
        selected_TK: Chosen experts, int32.
        weights_TK: Their combine weights, float32.
        probs_TE: Router probabilities, float32.
        logits_TE: Router logits, float32.
    """

    selected_TK: jax.Array
    weights_TK: jax.Array
    probs_TE: jax.Array
    logits_TE: jax.Array


def check_top_k(num_experts: int, per_token: int, *, key: str = "model.num_experts_per_tok") -> None:
    """Refuse to send a token to more experts than there are.

    Raises:
        ConfigError: ``per_token`` outside ``1 .. num_experts``.

    Example:
        >>> check_top_k(8, 2)
    """
    if not 1 <= per_token <= num_experts:
        raise ConfigError(
            f"experts per token={per_token}, experts={num_experts}; expected 1 <= experts per token <= experts. "
            "Lower the former or add experts.",
            key=key,
        )


def route_top_k(logits_TE: jax.Array, k: int, *, normalise: bool) -> Routing:
    """Softmax over experts, top-k, optionally renormalised to sum 1.

    Args:
        logits_TE: Router logits; computed in float32.
        k: Experts a token.
        normalise: Rescale the chosen probabilities to sum 1.

    Raises:
        ConfigError: more experts a token than experts.

    Example:
        >>> routing = route_top_k(jnp.log(jnp.array([[0.6, 0.2, 0.2]])), 2, normalise=True)
        >>> routing.selected_TK.tolist(), [round(float(w), 3) for w in routing.weights_TK[0]]
        ([[0, 1]], [0.75, 0.25])
    """
    check_top_k(logits_TE.shape[-1], k)
    logits = logits_TE.astype(jnp.float32)
    probs = jax.nn.softmax(logits, axis=-1)
    weights, selected = jax.lax.top_k(probs, k)
    if normalise:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return Routing(selected.astype(jnp.int32), weights, probs, logits)


def load_balancing_loss(routing: Routing) -> jax.Array:
    """``E sum_e f_e P_e``: K when tokens are spread evenly, up to E when all choose alike; float32 scalar.

    The counts carry no gradient; it flows through the mean probabilities.
    """
    tokens, experts = routing.probs_TE.shape
    chosen = expert_counts(routing.selected_TK, experts).astype(jnp.float32) / tokens
    return experts * jnp.sum(chosen * jnp.mean(routing.probs_TE, axis=0))


def router_z_loss(routing: Routing) -> jax.Array:
    """Mean squared log-partition function of the router, float32 scalar in squared nats."""
    return jnp.mean(jnp.square(jax.nn.logsumexp(routing.logits_TE, axis=-1)))


def routing_statistics(routing: Routing) -> dict[str, jax.Array]:
    """What a router does, without gradient.

    Returns:
        ``routing_entropy``: mean entropy of a token's probabilities in nats, between 0 and ``log E``; ``expert_load``:
        share of all assignments that each expert got, ``[E]``, sum 1.
    """
    probs = jax.lax.stop_gradient(routing.probs_TE)
    entropy = -jnp.mean(jnp.sum(jnp.where(probs > 0, probs * jnp.log(jnp.maximum(probs, 1e-30)), 0.0), axis=-1))
    counts = expert_counts(routing.selected_TK, probs.shape[-1]).astype(jnp.float32)
    return {"routing_entropy": entropy, "expert_load": counts / routing.selected_TK.size}


def expert_counts(selected_TK: jax.Array, experts: int) -> jax.Array:
    """How many assignments each expert got, ``[E]`` int32; ids outside ``0 .. E-1`` are not counted."""
    return jnp.sum(selected_TK.reshape(-1, 1) == jnp.arange(experts), axis=0, dtype=jnp.int32)


class Dispatch(NamedTuple):
    """Where every assignment goes, and where every row comes from.

    Attributes:
        row_A: Row of each assignment; R for one that no local expert takes.
        source_R: Assignment of each row; A for an empty row.
        group_sizes_E: Rows of each expert, empty rows of its blocks included.
        block_expert_N: Expert of each block of rows, for the blocked kernel.
        num_blocks: Blocks in use.
        block: Rows of a block; 1 for the ragged kernel. Static.
    """

    row_A: jax.Array
    source_R: jax.Array
    group_sizes_E: jax.Array
    block_expert_N: jax.Array
    num_blocks: jax.Array
    block: int


def plan_dispatch(
    selected_TK: jax.Array, experts: int, *, block: int, capacity: int | None = None, limit: jax.Array | None = None
) -> Dispatch:
    """Sort assignments by expert.

    Args:
        selected_TK: Expert of each assignment; ids outside ``0 .. experts - 1`` go nowhere (padding, other devices).
        experts: Experts here.
        block: Rows of a block; every expert's rows start at a multiple of it.
        capacity: Most assignments there is room for, in expert order; None takes all.
        limit: Most assignments taken, int32 scalar, at most the capacity; None takes as many as there is room for.
    """
    expert_A = selected_TK.reshape(-1)
    total = expert_A.shape[0]
    room = total if capacity is None else min(capacity, total)
    local = (expert_A >= 0) & (expert_A < experts)
    order = jnp.argsort(jnp.where(local, expert_A, experts), stable=True)
    rank_A = jnp.zeros((total,), jnp.int32).at[order].set(jnp.arange(total, dtype=jnp.int32))
    counts = expert_counts(expert_A, experts)
    ends = jnp.minimum(jnp.cumsum(counts), room if limit is None else jnp.minimum(limit, room))
    starts = jnp.concatenate([jnp.zeros((1,), ends.dtype), ends[:-1]])
    blocks_E = -(-(ends - starts) // block)
    block_ends = jnp.cumsum(blocks_E)
    first_row_E = (block_ends - blocks_E) * block
    max_blocks = -(-room // block) + (experts if block > 1 else 0)
    rows = max_blocks * block
    safe = jnp.where(local, expert_A, 0)
    taken = local & (rank_A < ends[safe])
    row_A = jnp.where(taken, first_row_E[safe] + rank_A - starts[safe], rows).astype(jnp.int32)
    source_R = jnp.full((rows + 1,), total, jnp.int32).at[row_A].set(jnp.arange(total, dtype=jnp.int32))[:rows]
    block_expert = jnp.searchsorted(block_ends, jnp.arange(max_blocks), side="right")
    block_expert = jnp.minimum(block_expert, experts - 1).astype(jnp.int32)
    return Dispatch(row_A, source_R, (blocks_E * block).astype(jnp.int32), block_expert, block_ends[-1], block)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def tokens_to_rows(x_TD: jax.Array, row_A: jax.Array, source_R: jax.Array, k: int) -> jax.Array:
    """Copy tokens to the rows of their experts, ``[R, D]``; empty rows are 0."""
    total = row_A.shape[0]
    picked = x_TD[jnp.minimum(source_R, total - 1) // k]
    return jnp.where((source_R < total)[:, None], picked, 0)


def _tokens_to_rows_fwd(x_TD: jax.Array, row_A: jax.Array, source_R: jax.Array, k: int) -> tuple:
    return tokens_to_rows(x_TD, row_A, source_R, k), (row_A, source_R)


def _tokens_to_rows_bwd(k: int, saved: tuple, d_RD: jax.Array) -> tuple:
    row_A, source_R = saved
    d_TKD = _pick_rows(d_RD, row_A).reshape(-1, k, d_RD.shape[-1])
    return jnp.sum(d_TKD, axis=1).astype(d_RD.dtype), *_no_gradients(row_A, source_R)


tokens_to_rows.defvjp(_tokens_to_rows_fwd, _tokens_to_rows_bwd)


@jax.custom_vjp
def rows_to_assignments(y_RD: jax.Array, row_A: jax.Array, source_R: jax.Array) -> jax.Array:
    """Bring each assignment's row back, ``[A, D]``; assignments without a row get 0."""
    return _pick_rows(y_RD, row_A)


def _rows_fwd(y_RD: jax.Array, row_A: jax.Array, source_R: jax.Array) -> tuple:
    return rows_to_assignments(y_RD, row_A, source_R), (row_A, source_R)


def _rows_bwd(saved: tuple, d_AD: jax.Array) -> tuple:
    row_A, source_R = saved
    return _pick_rows(d_AD, source_R), *_no_gradients(row_A, source_R)


rows_to_assignments.defvjp(_rows_fwd, _rows_bwd)


def _pick_rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """``x[index]``, 0 where ``index`` is one past the end."""
    count = x.shape[0]
    return jnp.where((index < count)[:, None], x[jnp.minimum(index, count - 1)], 0)


def _no_gradients(*arrays: jax.Array) -> tuple[np.ndarray, ...]:
    return tuple(np.zeros(a.shape, jax.dtypes.float0) for a in arrays)


class ExpertWeights(NamedTuple):
    """The matrices of all experts of one layer: ``gate`` and ``up`` are ``[E, D, I]``, ``down`` is ``[E, I, D]``."""

    gate: jax.Array
    up: jax.Array
    down: jax.Array


def moe_mlp(
    x_TD: jax.Array,
    selected_TK: jax.Array,
    weights_TK: jax.Array,
    experts: ExpertWeights,
    *,
    activation: str = "silu",
    implementation: str = "auto",
    capacity: int | None = None,
    limit: jax.Array | None = None,
) -> jax.Array:
    """Weighted sum of the chosen experts' gated MLPs.

    Args:
        x_TD: Tokens.
        selected_TK: Experts of each token, int32; an id outside ``0 .. E-1`` contributes nothing.
        weights_TK: Combine weights.
        experts: Matrices.
        activation: Gate's activation.
        implementation: ``ragged`` (:func:`haliax.nn.ragged_dot`), ``blocked``
            (:mod:`levanter.layers.grouped_matmul`), or ``auto``: blocked on CPU, ragged elsewhere.
        capacity: Most assignments there is room for, in expert order; None computes all.
        limit: Most assignments computed, int32 scalar; None computes as many as there is room for.

    Returns:
        ``[T, D]`` in the dtype of ``x``; summed over experts in float32.

    Raises:
        ConfigError: more experts a token than experts, or an unknown implementation.

    Example:
        >>> one = ExpertWeights(jnp.ones((1, 2, 3)), jnp.ones((1, 2, 3)), jnp.ones((1, 3, 2)))
        >>> ids, w = jnp.zeros((4, 1), jnp.int32), jnp.ones((4, 1))
        >>> moe_mlp(jnp.ones((4, 2)), ids, w, one, activation="relu").tolist()[0]
        [12.0, 12.0]
    """
    num_experts, k = experts.gate.shape[0], selected_TK.shape[-1]
    kind = pick_implementation(implementation)
    block = block_size(selected_TK.size, num_experts) if kind == "blocked" else 1
    plan = plan_dispatch(selected_TK, num_experts, block=block, capacity=capacity, limit=limit)
    rows_RD = tokens_to_rows(x_TD, plan.row_A, plan.source_R, k)
    gate, up = (_expert_matmul(rows_RD, w, plan) for w in (experts.gate, experts.up))
    hidden_RI = activation_fn(activation)(gate) * up
    out_RD = _expert_matmul(hidden_RI, experts.down, plan)
    out_TKD = rows_to_assignments(out_RD, plan.row_A, plan.source_R).reshape(*selected_TK.shape, -1)
    summed = jnp.einsum("tkd,tk->td", out_TKD, weights_TK.astype(jnp.float32), preferred_element_type=jnp.float32)
    return summed.astype(x_TD.dtype)


def pick_implementation(name: str) -> str:
    """Resolve ``auto`` by backend.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in IMPLEMENTATIONS:
        raise ConfigError(f"implementation={name!r}; expected one of {', '.join(IMPLEMENTATIONS)}.", key="model")
    if name != "auto":
        return name
    return "blocked" if jax.default_backend() == "cpu" else "ragged"


def block_size(assignments: int, experts: int) -> int:
    """Rows of a block: about half an expert's even share, a power of two between 8 and 128."""
    share = max(assignments // max(2 * experts, 1), 1)
    return min(128, max(8, 1 << (share.bit_length() - 1)))


def _expert_matmul(rows_RI: jax.Array, w_EIO: jax.Array, plan: Dispatch) -> jax.Array:
    w_EIO = w_EIO.astype(rows_RI.dtype)
    if plan.block == 1:
        return hnn.ragged_dot.ragged_dot(rows_RI, w_EIO, plan.group_sizes_E)
    blocks = rows_RI.reshape(-1, plan.block, rows_RI.shape[-1])
    out = grouped_matmul(blocks, plan.block_expert_N, plan.num_blocks, w_EIO)
    return out.reshape(rows_RI.shape[0], -1)
