r"""The grug mixture-of-experts model, written out.

    x = Gate(RMS(Embed[ids]))
    x = x + Attn(Gate(RMS(x)));   h = Gate(RMS(x));   x = x + MoE(h) + Shared(h)
    logits = Gate(RMS(x)) W_out

    Gate(y)   = y * sigmoid(silu(y W_d) W_u)                       rank 128
    Attn      : q, k = RMS(x W_q) m, RMS(x W_k)  (no weights, eps 1e-6; m = qk_mult on q)
                sliding layers: window, rotation of the first half of each head
                every 4th layer and the last: full causal, no rotation
                o = o - (o . v / (|v|^2 + 1e-6)) v                 (what the token itself said is removed)
                o = o * 2 sigmoid(x W_g) per head                  (W_g starts at 0)
    MoE       : quantile-balancing router (:mod:`levanter.grug.router`), dropless or with a capacity factor

Weights start from a normal distribution cut at three standard deviations, of ``init_std``; router bias and head gate
start at 0, norm weights at 1.

Shape suffixes: B batch, P position, T = B P tokens, D model, H query heads, G key/value heads, C head size, E experts,
K experts a token, I expert width, S shared width, R gate rank, V vocabulary.

References:
    The public Marin project, grug mixture of experts, 2026. Query-key norm: Henry et al., arXiv:2010.04245. Exclusive
    self-attention and gated norms are that project's; shared expert: Dai et al., DeepSeekMoE, arXiv:2401.06066.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from levanter.errors import ConfigError
from levanter.grug.router import route, statistics
from levanter.layers.attention import AttentionSettings, dot_product_attention
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.expert_parallel import sharded_moe_mlp
from levanter.layers.moe import ExpertWeights
from levanter.layers.rotary import DefaultRotaryConfig, apply_rotary, rotary_tables
from levanter.sharding import current_axes, current_mesh

QK_EPS = XSA_EPS = 1e-6
FULL_EVERY = 4


@dataclass(frozen=True)
class GrugMoeConfig:
    """Shape and settings; frozen, so that it can be a static argument.

    Attributes:
        vocab_size: V.
        hidden_dim: D.
        num_layers: Layers, all of them sparse.
        num_heads: H.
        num_kv_heads: G; divides H.
        head_dim: C.
        num_experts: E.
        num_experts_per_tok: K, less than E.
        expert_dim: I.
        shared_dim: S.
        gate_rank: R.
        sliding_window: Keys that a query of a sliding layer sees, itself included.
        qk_mult: Factor on normed queries.
        init_std: Standard deviation of fresh weights; None means ``0.5 / sqrt(D)``.
        norm_eps: Added to the mean square in norms with weights.
        rope_theta: Base of the rotation.
        capacity_factor: Rows an expert device reserves as a multiple of the even share; None is dropless.
        router_shards: Contiguous parts of the batch whose router thresholds are taken apart and averaged; divides the
            tokens of a batch. None, the published definition, takes one a batch shard of the mesh, so that the numbers
            depend on the layout; a number does not, and 1 takes the quantile of the whole batch.
        z_loss_weight: Weight of the logits' z-loss per squared nat.
        attention: Attention kernel.
        implementation: Expert kernel: auto, ragged or blocked.

    Example:
        >>> GrugMoeConfig(num_layers=6).is_full(3), GrugMoeConfig(num_layers=6).is_full(4)
        (True, False)
    """

    vocab_size: int = 128_256
    hidden_dim: int = 512
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 1
    head_dim: int = 128
    num_experts: int = 64
    num_experts_per_tok: int = 4
    expert_dim: int = 256
    shared_dim: int = 512
    gate_rank: int = 128
    sliding_window: int = 2048
    qk_mult: float = 1.3
    init_std: float | None = None
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    capacity_factor: float | None = None
    router_shards: int | None = None
    z_loss_weight: float = 0.0
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    implementation: str = "auto"

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.head_dim % 4:
            raise ConfigError(
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}; expected "
                "heads to be a multiple of kv heads and head_dim of 4 (half of it turns).",
                key="model.num_heads",
            )
        if not 1 <= self.num_experts_per_tok < self.num_experts:
            raise ConfigError(
                f"num_experts_per_tok={self.num_experts_per_tok}, num_experts={self.num_experts}; expected "
                "1 <= experts per token < experts. Lower the former or add experts.",
                key="model.num_experts_per_tok",
            )
        if self.sliding_window < 1:
            raise ConfigError(f"sliding_window={self.sliding_window}; expected at least 1.", key="model.sliding_window")
        if self.router_shards is not None and self.router_shards < 1:
            raise ConfigError(
                f"router_shards={self.router_shards}; expected at least 1, or null for one a batch shard of the mesh.",
                key="model.router_shards",
            )

    def is_full(self, layer: int) -> bool:
        """Whether a layer sees all earlier positions; the others have a window and a rotation."""
        return layer % FULL_EVERY == FULL_EVERY - 1 or layer == self.num_layers - 1

    @property
    def std(self) -> float:
        """Standard deviation of fresh weights."""
        return 0.5 / math.sqrt(self.hidden_dim) if self.init_std is None else self.init_std


class GatedNorm(NamedTuple):
    """``norm_D``, ``gate_down_DR``, ``gate_up_RD``."""

    norm: jax.Array
    gate_down: jax.Array
    gate_up: jax.Array


class Layer(NamedTuple):
    """One block."""

    attn_norm: GatedNorm
    wq: jax.Array
    wk: jax.Array
    wv: jax.Array
    wo: jax.Array
    attn_gate: jax.Array
    mlp_norm: GatedNorm
    router: jax.Array
    w_gate: jax.Array
    w_up: jax.Array
    w_down: jax.Array
    shared_gate: jax.Array
    shared_up: jax.Array
    shared_down: jax.Array


class Params(NamedTuple):
    """All trained arrays."""

    embed: jax.Array
    embed_norm: GatedNorm
    layers: list[Layer]
    final_norm: GatedNorm
    output_proj: jax.Array


def shapes(c: GrugMoeConfig) -> Params:
    """Shape and layout of every array: ``data`` splits storage, ``model`` and ``expert`` split work.

    Returns:
        A tree of ``(shape, PartitionSpec)``.
    """
    d, h, g, e, r = c.hidden_dim, c.num_heads, c.num_kv_heads, c.num_experts, c.gate_rank
    i, s = c.expert_dim, c.shared_dim
    # The trees hold (shape, spec) pairs in the places of arrays, so that one structure serves for both.
    norm, block, whole = cast(Any, GatedNorm), cast(Any, Layer), cast(Any, Params)
    gated = norm(((d,), P()), ((d, r), P("data", None)), ((r, d), P(None, "data")))
    layer = block(
        attn_norm=gated,
        wq=((d, h * c.head_dim), P("data", "model")),
        wk=((d, g * c.head_dim), P("data", "model")),
        wv=((d, g * c.head_dim), P("data", "model")),
        wo=((h * c.head_dim, d), P("model", "data")),
        attn_gate=((d, h), P("data", None)),
        mlp_norm=gated,
        router=((d, e), P("data", None)),
        w_gate=((e, d, i), P("expert", "data", "model")),
        w_up=((e, d, i), P("expert", "data", "model")),
        w_down=((e, i, d), P("expert", "model", "data")),
        shared_gate=((d, s), P("data", "model")),
        shared_up=((d, s), P("data", "model")),
        shared_down=((s, d), P("model", "data")),
    )
    ends = ((c.vocab_size, d), P("model", "data")), ((d, c.vocab_size), P("data", "model"))
    return whole(ends[0], gated, [layer] * c.num_layers, gated, ends[1])


def init(c: GrugMoeConfig, key: jax.Array) -> Params:
    """Fresh parameters, float32."""
    table, tree = jax.tree.flatten(shapes(c), is_leaf=_is_entry)
    keys = jax.random.split(key, len(table))
    fresh = [_fresh(k, shape, c.std) for k, (shape, _) in zip(keys, table, strict=True)]
    params = jax.tree.unflatten(tree, fresh)
    layers = [layer._replace(attn_gate=jnp.zeros_like(layer.attn_gate)) for layer in params.layers]
    return params._replace(layers=layers)


def partition_specs(c: GrugMoeConfig) -> Params:
    """The layout alone."""
    return jax.tree.map(lambda entry: entry[1], shapes(c), is_leaf=_is_entry)


def initial_bias(c: GrugMoeConfig) -> jax.Array:
    """Router bias of all layers, ``[layers, E]`` float32."""
    return jnp.zeros((c.num_layers, c.num_experts), jnp.float32)


def hidden_states(
    c: GrugMoeConfig,
    params: Params,
    bias_LE: jax.Array,
    ids_BP: jax.Array,
    *,
    valid_BP: jax.Array | None = None,
    segments: AttentionMask | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Run the model up to the head.

    Args:
        c: Config.
        params: Arrays, in the dtype to compute in.
        bias_LE: Router bias of each layer, float32.
        ids_BP: Token ids.
        valid_BP: False for padding.
        segments: A mask that keeps documents apart; None for none. Causality is added here.

    Returns:
        ``(x_BPD, aux)``; ``aux`` has what :func:`levanter.grug.router.statistics` reports and ``dropped``, layer axis
        first.
    """
    x = gated_norm(params.embed_norm, params.embed[ids_BP], c.norm_eps)
    positions = jnp.arange(ids_BP.shape[1])
    rope = rotary_tables(DefaultRotaryConfig(theta=c.rope_theta), c.head_dim // 2, positions)
    causal = AttentionMask.causal() if segments is None else segments & AttentionMask.causal()
    collected = []
    for index, layer in enumerate(params.layers):
        full = c.is_full(index)
        mask = causal if full else causal.with_sliding_window(c.sliding_window)

        def run(x: jax.Array, layer: Layer = layer, mask=mask, turn=None if full else rope, bias=bias_LE[index]):
            return block(c, layer, x, mask, turn, bias, valid_BP)

        x, aux = jax.checkpoint(run, policy=jax.checkpoint_policies.dots_saveable)(x)
        collected.append(aux)
    x = gated_norm(params.final_norm, x, c.norm_eps)
    return x, jax.tree.map(lambda *parts: jnp.stack(parts), *collected)


def block(
    c: GrugMoeConfig,
    p: Layer,
    x_BPD: jax.Array,
    mask: AttentionMask,
    rope: tuple[jax.Array, jax.Array] | None,
    bias_E: jax.Array,
    valid_BP: jax.Array | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """One layer: the new residual stream, and what its router reports."""
    x = x_BPD + attention(c, p, gated_norm(p.attn_norm, x_BPD, c.norm_eps), mask, rope)
    y, aux = mlp(c, p, gated_norm(p.mlp_norm, x, c.norm_eps), bias_E, valid_BP)
    return x + y, aux


def gated_norm(p: GatedNorm, x: jax.Array, eps: float) -> jax.Array:
    """RMS norm in float32, then ``y * sigmoid(silu(y W_d) W_u)``."""
    y = (_rms(x.astype(jnp.float32), eps) * p.norm.astype(jnp.float32)).astype(x.dtype)
    return y * jax.nn.sigmoid(jax.nn.silu(y @ p.gate_down) @ p.gate_up)


def attention(
    c: GrugMoeConfig, p: Layer, x_BPD: jax.Array, mask: AttentionMask, rope: tuple[jax.Array, jax.Array] | None
) -> jax.Array:
    """Gated exclusive attention of one layer, ``[B, P, D]``."""
    q, k, v = (_heads(x_BPD @ w, c.head_dim) for w in (p.wq, p.wk, p.wv))
    q = (_rms(q.astype(jnp.float32), QK_EPS) * c.qk_mult).astype(x_BPD.dtype)
    k = _rms(k.astype(jnp.float32), QK_EPS).astype(x_BPD.dtype)
    if rope is not None:
        q, k = apply_rotary(q, *rope), apply_rotary(k, *rope)
    o_BHPC = dot_product_attention(q, k, v, mask, c.attention)
    own = jnp.repeat(v, c.num_heads // c.num_kv_heads, axis=1).astype(jnp.float32)
    o = o_BHPC.astype(jnp.float32)
    along = jnp.sum(o * own, axis=-1, keepdims=True) / (jnp.sum(own * own, axis=-1, keepdims=True) + XSA_EPS)
    o = (o - along * own).astype(x_BPD.dtype)
    gate_BHP1 = 2 * jax.nn.sigmoid(x_BPD @ p.attn_gate).transpose(0, 2, 1)[..., None]
    merged = (o * gate_BHP1).transpose(0, 2, 1, 3).reshape(*x_BPD.shape[:2], -1)
    return merged @ p.wo


def mlp(
    c: GrugMoeConfig, p: Layer, x_BPD: jax.Array, bias_E: jax.Array, valid_BP: jax.Array | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Routed experts plus the shared one, and what the router reports."""
    x_TD = x_BPD.reshape(-1, c.hidden_dim)
    logits_TE = x_TD.astype(jnp.float32) @ p.router.astype(jnp.float32)
    valid_T = None if valid_BP is None else valid_BP.reshape(-1)
    shards = c.router_shards or _token_shards(x_BPD.shape[0])
    routing = route(logits_TE, bias_E, c.num_experts_per_tok, valid_T=valid_T, shards=shards)
    routed, dropped = sharded_moe_mlp(
        x_TD,
        routing.selected_TK,
        routing.weights_TK,
        ExpertWeights(p.w_gate, p.w_up, p.w_down),
        batch=x_BPD.shape[0],
        implementation=c.implementation,
        capacity_factor=c.capacity_factor,
    )
    shared = (jax.nn.silu(x_TD @ p.shared_gate) * (x_TD @ p.shared_up)) @ p.shared_down
    return (routed + shared).reshape(x_BPD.shape), {**statistics(logits_TE, routing), "dropped": dropped}


def _token_shards(batch: int) -> int:
    mesh = current_mesh()
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in current_axes("batch", batch))


def _rms(x: jax.Array, eps: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)


def _heads(x_BPX: jax.Array, size: int) -> jax.Array:
    batch, length, width = x_BPX.shape
    return x_BPX.reshape(batch, length, width // size, size).transpose(0, 2, 1, 3)


def _fresh(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    if len(shape) == 1:
        return jnp.ones(shape, jnp.float32)
    return std * jax.random.truncated_normal(key, -3, 3, shape, jnp.float32)


def _is_entry(node: object) -> bool:
    return isinstance(node, tuple) and len(node) == 2 and isinstance(node[1], P)
