r"""One transformer block for every decoder here.

A family is a point in a small space: where the norms stand, which norm it is, whether queries and keys are normed,
which biases exist, which MLP follows. :class:`BlockSpec` is that point; :class:`Block` is the only implementation.

    pre:     h = x + Attn(N1 x);            y = h + MLP(N2 h)
    hybrid:  h = x + N3(Attn(N1 x));        y = h + N4(MLP(N2 h))
    post:    h = x + N3(Attn x);            y = h + N4(MLP h)

What differs between the layers of one model (mask window, rotation, score scale) is not in the spec: it arrives with
every call as :class:`LayerInputs`, so that all layers are one compiled body.

Shape suffixes: B batch, P position, E embed, H query heads, G key/value heads, D head size.

References:
    Touvron et al., LLaMA, arXiv:2302.13971, section 2.2. Post-norm and query-key norms: OLMo 2, arXiv:2501.00656,
    section 3.3; Gemma 2, arXiv:2408.00118, section 2.
"""

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.layers.attention import AttentionSettings, dot_product_attention
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.linear import InitSpec, apply_linear
from levanter.layers.normalization import Norm, NormSpec, apply_norm
from levanter.layers.rotary import apply_rotary
from levanter.models.mlp import MlpAux, MlpSpec
from levanter.sharding import constrain


class NormPlacement(enum.StrEnum):
    """Where a block norms: before each part, before and after, or after only."""

    PRE = "pre"
    HYBRID = "hybrid"
    POST = "post"


class QkNorm(enum.StrEnum):
    """How queries and keys are normed: not, each head by itself, or all heads as one vector."""

    NONE = "none"
    HEAD = "head"
    ALL_HEADS = "all_heads"


@dataclass(frozen=True)
class BlockSpec:
    """Everything that fixes a block's shape and arithmetic.

    Attributes:
        Embed: Residual stream.
        Heads: Query heads.
        KVHeads: Key and value heads.
        HeadSize: Size of a head.
        mlp: What follows attention.
        norm: The block's norms.
        placement: Where they stand.
        qk_norm: Norms of queries and keys.
        use_qkv_bias: Biases on query, key and value maps.
        use_output_bias: A bias on attention's output map.
        use_sinks: One learned logit per head that takes weight and gives nothing.
        attention: Kernel and score transforms.
        init: How weights start.
    """

    Embed: Axis
    Heads: Axis
    KVHeads: Axis
    HeadSize: Axis
    mlp: MlpSpec
    norm: NormSpec = field(default_factory=NormSpec)
    placement: NormPlacement = NormPlacement.PRE
    qk_norm: QkNorm = QkNorm.NONE
    use_qkv_bias: bool = False
    use_output_bias: bool = False
    use_sinks: bool = False
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    init: InitSpec = field(default_factory=InitSpec)

    def num_params(self) -> int:
        """Parameters of one block, by arithmetic."""
        e, h, g, d = self.Embed.size, self.Heads.size, self.KVHeads.size, self.HeadSize.size
        attention = 2 * e * h * d + 2 * e * g * d
        attention += (h + 2 * g) * d if self.use_qkv_bias else 0
        attention += (e if self.use_output_bias else 0) + (h if self.use_sinks else 0)
        if self.qk_norm != QkNorm.NONE:
            sizes = (d, d) if self.qk_norm == QkNorm.HEAD else (h * d, g * d)
            attention += sum(self.norm.num_params(size) for size in sizes)
        norms = self.norm.num_params(e) * (4 if self.placement == NormPlacement.HYBRID else 2)
        return attention + self.mlp.num_params(e) + norms


class LayerInputs(NamedTuple):
    """What one layer is given beside the residual stream.

    Attributes:
        mask: Which keys each query sees, the layer's own window included.
        rope: Cosines and sines, broadcastable to ``[B, 1, P, R]`` with ``R <= D``; None for no rotation.
        score_scale: Extra factor on the attention scores, or None.
    """

    mask: AttentionMask | None
    rope: tuple[jax.Array, jax.Array] | None = None
    score_scale: Any = None


class Attention(eqx.Module):
    """Grouped-query self-attention.

    Attributes:
        q_proj: Embed to (heads, head_size).
        k_proj: Embed to (kv_head, head_size).
        v_proj: Embed to (kv_head, head_size).
        o_proj: (heads, head_size) to embed.
        q_norm: Norm of queries, or None.
        k_norm: Norm of keys, or None.
        sinks: Logits of the sinks, axis heads, or None.
        spec: Description of the block.
    """

    q_proj: hnn.Linear
    k_proj: hnn.Linear
    v_proj: hnn.Linear
    o_proj: hnn.Linear
    q_norm: Norm | None
    k_norm: Norm | None
    sinks: NamedArray | None
    spec: BlockSpec = eqx.field(static=True)

    @staticmethod
    def init(spec: BlockSpec, *, key: jax.Array) -> "Attention":
        """Fresh parameters."""
        kq, kk, kv, ko = jax.random.split(key, 4)
        heads, groups, size = spec.Heads, spec.KVHeads, spec.HeadSize
        norms: dict[QkNorm, tuple[Any, Any]] = {
            QkNorm.NONE: (None, None),
            QkNorm.HEAD: (size, size),
            QkNorm.ALL_HEADS: ((heads, size), (groups, size)),
        }
        q_axes, k_axes = norms[spec.qk_norm]
        bias = spec.use_qkv_bias
        return Attention(
            spec.init.linear(spec.Embed, (heads, size), key=kq, use_bias=bias),
            spec.init.linear(spec.Embed, (groups, size), key=kk, use_bias=bias),
            spec.init.linear(spec.Embed, (groups, size), key=kv, use_bias=bias),
            spec.init.linear((heads, size), spec.Embed, key=ko, use_bias=spec.use_output_bias, residual=True),
            None if q_axes is None else spec.norm.init(q_axes),
            None if k_axes is None else spec.norm.init(k_axes),
            NamedArray(jnp.zeros(heads.size), (heads,)) if spec.use_sinks else None,
            spec,
        )

    def __call__(self, x: jax.Array, inputs: LayerInputs) -> jax.Array:
        """Attend within ``x[B, P, E]``."""
        q, k, v = self.project(x, inputs)
        return self.output(self.attend(q, k, v, inputs.mask))

    def project(self, x: jax.Array, inputs: LayerInputs) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries ``[B, H, P, D]``, keys and values ``[B, G, P, D]``, normed and turned."""
        whole = self.spec.qk_norm == QkNorm.ALL_HEADS
        q, k, v = (apply_linear(layer, x) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if whole:
            q, k = apply_norm(self.q_norm, q), apply_norm(self.k_norm, k)
        q = _split_heads(q, self.spec.Heads.size, "heads")
        k = _split_heads(k, self.spec.KVHeads.size, "kv_head")
        v = _split_heads(v, self.spec.KVHeads.size, "kv_head")
        if not whole:
            q, k = apply_norm(self.q_norm, q), apply_norm(self.k_norm, k)
        if inputs.rope is not None:
            q, k = apply_rotary(q, *inputs.rope), apply_rotary(k, *inputs.rope)
        if inputs.score_scale is not None:
            q = q * jnp.asarray(inputs.score_scale, q.dtype)
        return q, k, v

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array, mask: AttentionMask | None) -> jax.Array:
        """Weighted values ``[B, H, P, D]``."""
        sinks = None if self.sinks is None else self.sinks.array
        return dot_product_attention(q, k, v, mask, self.spec.attention, sinks=sinks)

    def output(self, out: jax.Array) -> jax.Array:
        """Merge heads ``[B, H, P, D]`` and project to ``[B, P, E]``."""
        merged = out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)
        return apply_linear(self.o_proj, merged)


class Block(eqx.Module):
    """Attention and MLP with their norms and residual connections.

    Attributes:
        self_attn: Attention.
        mlp: What follows it; see :class:`levanter.models.mlp.MlpSpec`.
        input_layernorm: Norm before attention, or None.
        post_attention_layernorm: Norm before the MLP, or None.
        post_attn_output_norm: Norm of attention's output, or None.
        post_mlp_output_norm: Norm of the MLP's output, or None.
    """

    self_attn: Attention
    mlp: Any
    input_layernorm: Norm | None
    post_attention_layernorm: Norm | None
    post_attn_output_norm: Norm | None
    post_mlp_output_norm: Norm | None

    @staticmethod
    def init(spec: BlockSpec, *, key: jax.Array) -> "Block":
        """Fresh parameters."""
        ka, km = jax.random.split(key)
        before = spec.placement in (NormPlacement.PRE, NormPlacement.HYBRID)
        after = spec.placement in (NormPlacement.POST, NormPlacement.HYBRID)
        norms = [spec.norm.init(spec.Embed) if present else None for present in (before, before, after, after)]
        return Block(Attention.init(spec, key=ka), spec.mlp.init(spec.Embed, spec.init, key=km), *norms)

    def __call__(self, x: jax.Array, inputs: LayerInputs) -> tuple[jax.Array, MlpAux]:
        """Apply to ``[B, P, E]``; returns the new stream and the MLP's auxiliary values."""
        return self.after_attention(x, self.self_attn(self.before_attention(x), inputs))

    def before_attention(self, x: jax.Array) -> jax.Array:
        """What attention reads of the stream ``[B, P, E]``."""
        return apply_norm(self.input_layernorm, x)

    def after_attention(self, x: jax.Array, attended: jax.Array) -> tuple[jax.Array, MlpAux]:
        """The rest of the block once attention's output ``[B, P, E]`` is known."""
        x = x + apply_norm(self.post_attn_output_norm, attended)
        hidden, aux = self.mlp(apply_norm(self.post_attention_layernorm, x))
        return constrain(x + apply_norm(self.post_mlp_output_norm, hidden), "batch", "position", None), aux


def _split_heads(x: jax.Array, heads: int, name: str) -> jax.Array:
    batch, length, width = x.shape
    split = x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
    return constrain(split, "batch", name, "position", None)
