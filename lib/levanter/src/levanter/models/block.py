r"""One transformer block for every Llama-like model.

A family is a point in a small space: where the norms stand, whether queries and keys are normed, which biases exist,
which activation gates the MLP. :class:`BlockSpec` is that point; :class:`Block` is the only implementation.

    pre-norm:     h = x + Attn(N1 x);            y = h + MLP(N2 h)
    hybrid-norm:  h = x + N3(Attn(N1 x));        y = h + N4(MLP(N2 h))

Shape suffixes: B batch, P position, E embed, H query heads, G key/value heads, D head size, M mlp.

References:
    Touvron et al., LLaMA, arXiv:2302.13971, section 2.2. SwiGLU: Shazeer, arXiv:2002.05202.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis

from levanter.errors import ConfigError
from levanter.layers.attention import AttentionSettings, dot_product_attention
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.linear import apply_linear, matmul
from levanter.layers.normalization import init_norm, rms_norm
from levanter.layers.rotary import apply_rotary
from levanter.sharding import constrain

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": jax.nn.gelu,
    "relu": jax.nn.relu,
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
}


@dataclass(frozen=True)
class InitSpec:
    """How linear weights start.

    Attributes:
        scheme: ``fan_in`` (std ``1/sqrt(fan_in)``, embedding std ``1/E``) or ``normal`` (std ``std`` everywhere,
            residual outputs divided by ``sqrt(2 L)``). All truncated at three standard deviations.
        std: Standard deviation of ``normal``.
        num_layers: L.
    """

    scheme: str = "fan_in"
    std: float = 0.02
    num_layers: int = 1

    def __post_init__(self) -> None:
        if self.scheme not in ("fan_in", "normal"):
            raise ConfigError(f"unknown scheme {self.scheme!r}; expected fan_in or normal.", key="init_scheme")

    def scale(self, fan_in: int, *, residual: bool = False) -> float:
        """Factor on the ``1/sqrt(fan_in)`` that haliax starts from."""
        if self.scheme == "fan_in":
            return 1.0
        std = self.std / (2 * self.num_layers) ** 0.5 if residual else self.std
        return std * fan_in**0.5


@dataclass(frozen=True)
class BlockSpec:
    """Everything that fixes a block's shape and arithmetic."""

    Embed: Axis
    Mlp: Axis
    Heads: Axis
    KVHeads: Axis
    HeadSize: Axis
    activation: str = "silu"
    norm_eps: float = 1e-5
    hybrid_norm: bool = False
    qk_norm: bool = False
    use_bias: bool = False
    use_qkv_bias: bool = False
    sliding_window: int | None = None
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    init: InitSpec = field(default_factory=InitSpec)

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ConfigError(f"unknown activation {self.activation!r}; expected one of {known}.", key="model")

    def linear(
        self, in_axes: Any, out_axes: Any, *, key: jax.Array, use_bias: bool, residual: bool = False
    ) -> hnn.Linear:
        """A linear layer stored in-axes-first, started as ``init`` says."""
        fan_in = _product(in_axes)
        return hnn.Linear.init(
            in_axes,
            out_axes,
            key=key,
            use_bias=use_bias,
            out_first=False,
            init_scale=self.init.scale(fan_in, residual=residual),
        )


class Attention(eqx.Module):
    """Grouped-query self-attention with rotary positions."""

    q_proj: hnn.Linear
    k_proj: hnn.Linear
    v_proj: hnn.Linear
    o_proj: hnn.Linear
    q_norm: hnn.RmsNorm | None
    k_norm: hnn.RmsNorm | None
    spec: BlockSpec = eqx.field(static=True)

    @staticmethod
    def init(spec: BlockSpec, *, key: jax.Array) -> "Attention":
        """Fresh parameters."""
        kq, kk, kv, ko = jax.random.split(key, 4)
        bias = spec.use_bias or spec.use_qkv_bias
        norm = init_norm(spec.HeadSize, spec.norm_eps) if spec.qk_norm else None
        return Attention(
            spec.linear(spec.Embed, (spec.Heads, spec.HeadSize), key=kq, use_bias=bias),
            spec.linear(spec.Embed, (spec.KVHeads, spec.HeadSize), key=kk, use_bias=bias),
            spec.linear(spec.Embed, (spec.KVHeads, spec.HeadSize), key=kv, use_bias=bias),
            spec.linear((spec.Heads, spec.HeadSize), spec.Embed, key=ko, use_bias=spec.use_bias, residual=True),
            norm,
            norm,
            spec,
        )

    def __call__(self, x: jax.Array, mask: AttentionMask | None, rope: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Attend within ``x``.

        Args:
            x: ``[B, P, E]``.
            mask: Which keys each query sees.
            rope: Cosines and sines, broadcastable to ``[B, 1, P, D]``.
        """
        q, k, v = self.project(x, rope)
        if self.spec.sliding_window is not None:
            mask = (mask or AttentionMask()).with_sliding_window(self.spec.sliding_window)
        out = dot_product_attention(q, k, v, mask, self.spec.attention)
        return self.output(out)

    def project(self, x: jax.Array, rope: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries ``[B, H, P, D]``, keys and values ``[B, G, P, D]``, normed and turned."""
        q = _split_heads(apply_linear(self.q_proj, x), self.spec.Heads.size, "heads")
        k = _split_heads(apply_linear(self.k_proj, x), self.spec.KVHeads.size, "kv_head")
        v = _split_heads(apply_linear(self.v_proj, x), self.spec.KVHeads.size, "kv_head")
        q, k = rms_norm(self.q_norm, q), rms_norm(self.k_norm, k)
        return apply_rotary(q, *rope), apply_rotary(k, *rope), v

    def output(self, out: jax.Array) -> jax.Array:
        """Merge heads ``[B, H, P, D]`` and project to ``[B, P, E]``."""
        merged = out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)
        weight = self.o_proj.weight.array.reshape(merged.shape[-1], -1)
        y = matmul(merged, weight)
        return y if self.o_proj.bias is None else y + self.o_proj.bias.array


class Mlp(eqx.Module):
    """``down(act(gate x) * up x)``."""

    gate_proj: hnn.Linear
    up_proj: hnn.Linear
    down_proj: hnn.Linear
    spec: BlockSpec = eqx.field(static=True)

    @staticmethod
    def init(spec: BlockSpec, *, key: jax.Array) -> "Mlp":
        """Fresh parameters."""
        kg, ku, kd = jax.random.split(key, 3)
        return Mlp(
            spec.linear(spec.Embed, spec.Mlp, key=kg, use_bias=spec.use_bias),
            spec.linear(spec.Embed, spec.Mlp, key=ku, use_bias=spec.use_bias),
            spec.linear(spec.Mlp, spec.Embed, key=kd, use_bias=spec.use_bias, residual=True),
            spec,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply to ``[B, P, E]``."""
        gate = ACTIVATIONS[self.spec.activation](apply_linear(self.gate_proj, x))
        hidden = constrain(gate * apply_linear(self.up_proj, x), "batch", "position", "mlp")
        return apply_linear(self.down_proj, hidden)


class Block(eqx.Module):
    """Attention and MLP with their norms and residual connections."""

    self_attn: Attention
    mlp: Mlp
    input_layernorm: hnn.RmsNorm
    post_attention_layernorm: hnn.RmsNorm
    post_attn_output_norm: hnn.RmsNorm | None
    post_mlp_output_norm: hnn.RmsNorm | None

    @staticmethod
    def init(spec: BlockSpec, *, key: jax.Array) -> "Block":
        """Fresh parameters."""
        ka, km = jax.random.split(key)

        def norm() -> hnn.RmsNorm:
            return init_norm(spec.Embed, spec.norm_eps)

        hybrid = spec.hybrid_norm
        return Block(
            Attention.init(spec, key=ka),
            Mlp.init(spec, key=km),
            norm(),
            norm(),
            norm() if hybrid else None,
            norm() if hybrid else None,
        )

    def __call__(self, x: jax.Array, mask: AttentionMask | None, rope: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Apply to ``[B, P, E]``."""
        attended = self.self_attn(rms_norm(self.input_layernorm, x), mask, rope)
        return self.after_attention(x, attended)

    def after_attention(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """The rest of the block once attention's output ``[B, P, E]`` is known."""
        x = x + rms_norm(self.post_attn_output_norm, attended)
        hidden = self.mlp(rms_norm(self.post_attention_layernorm, x))
        return constrain(x + rms_norm(self.post_mlp_output_norm, hidden), "batch", "position", None)


def _split_heads(x: jax.Array, heads: int, name: str) -> jax.Array:
    batch, length, width = x.shape
    split = x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
    return constrain(split, "batch", name, "position", None)


def _product(axes: Axis | tuple[Axis, ...]) -> int:
    size = 1
    for axis in axes if isinstance(axes, tuple) else (axes,):
        size *= axis.size
    return size
