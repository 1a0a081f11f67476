r"""Llama: token embedding, a stack of pre-norm SwiGLU blocks with rotary attention, a norm, a head.

The config is the published one: same field names, same defaults. Everything that makes a block is in
:mod:`levanter.models.block`; this file only assembles.

References:
    Touvron et al., LLaMA, arXiv:2302.13971; Llama 2, arXiv:2307.09288; Llama 3, arXiv:2407.21783.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.errors import ConfigError, ModelShapeError
from levanter.flops import lm_flops_per_token
from levanter.layers.attention import AttentionBackend, AttentionSettings
from levanter.layers.attention_mask import POSITION, AttentionMask
from levanter.layers.normalization import init_norm, rms_norm
from levanter.layers.rotary import DefaultRotaryConfig, RotaryConfig, rotary_tables
from levanter.layers.stacked import Stacked, check_remat
from levanter.models.block import Block, BlockSpec, InitSpec
from levanter.models.lm_model import LmConfig, LmHeadModel
from levanter.sharding import constrain


@LmConfig.register_subclass("llama")
@dataclass(frozen=True)
class LlamaConfig(LmConfig):
    """Shape and settings of a Llama model.

    Attributes:
        max_seq_len: Longest sequence.
        hidden_dim: Size of the residual stream.
        intermediate_dim: Size of the MLP.
        num_layers: Blocks.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides ``num_heads``.
        head_dim: Size of a head; None means ``hidden_dim / num_heads``.
        activation_function: Gate of the MLP.
        initializer_range: Standard deviation under ``init_scheme: normal``; exported to Hugging Face always.
        init_scheme: ``fan_in`` or ``normal``.
        layer_norm_epsilon: Added to the mean square in norms.
        tie_word_embeddings: Use the embedding as the head.
        upcast_attn: Compute attention scores in float32 under a lower compute dtype.
        attn_backend: Attention kernel.
        flash_attention_block_size: Block of the flash kernel.
        gradient_checkpointing: Remat policy: True keeps matrix products; False, "full", "save_all" are the others.
        scan_layers: Scan over layers, or unroll.
        use_bias: Biases in linear layers.
        qk_norm: Norm queries and keys per head.
        hybrid_norm: Norm the outputs of attention and MLP too.
        input_embedding_norm: Norm the embeddings.
        sliding_window: Keys a query sees, itself included; None for all.
        rope: Rotary frequencies.
        logits_soft_cap: ``cap * tanh(z / cap)`` on the logits.
        reference_checkpoint: Hub name of the model this shape comes from.
        tokenizer: Tokenizer that belongs to it.

    Example:
        >>> LlamaConfig(hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=2).head_size
        8
    """

    max_seq_len: int = 2048
    hidden_dim: int = 4096
    intermediate_dim: int = 11008
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 32
    head_dim: int | None = None
    activation_function: str = "silu"
    initializer_range: float = 0.02
    init_scheme: str = "fan_in"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    upcast_attn: bool = False
    attn_backend: AttentionBackend | None = None
    flash_attention_block_size: int | None = None
    gradient_checkpointing: bool | str = True
    scan_layers: bool = True
    use_bias: bool = False
    qk_norm: bool = False
    hybrid_norm: bool = False
    input_embedding_norm: bool = False
    sliding_window: int | None = None
    rope: RotaryConfig = field(default_factory=DefaultRotaryConfig)
    logits_soft_cap: float | None = None
    reference_checkpoint: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}; expected a multiple.",
                key="model.num_kv_heads",
            )
        if self.head_dim is None and self.hidden_dim % self.num_heads:
            raise ConfigError(
                f"hidden_dim={self.hidden_dim}, num_heads={self.num_heads}; expected a multiple, or set head_dim.",
                key="model.num_heads",
            )
        if self.head_size % 2:
            raise ConfigError(f"head_dim={self.head_size}; rotary positions need an even one.", key="model.head_dim")
        check_remat(self.gradient_checkpointing)

    @property
    def head_size(self) -> int:
        """Size of one head."""
        return self.head_dim if self.head_dim is not None else self.hidden_dim // self.num_heads

    @property
    def context_length(self) -> int:
        """Longest sequence."""
        return self.max_seq_len

    @property
    def Embed(self) -> Axis:
        """The residual stream."""
        return Axis("embed", self.hidden_dim)

    def block_spec(self) -> BlockSpec:
        """The block this family is made of."""
        return BlockSpec(
            Embed=self.Embed,
            Mlp=Axis("mlp", self.intermediate_dim),
            Heads=Axis("heads", self.num_heads),
            KVHeads=Axis("kv_head", self.num_kv_heads),
            HeadSize=Axis("head_size", self.head_size),
            activation=self.activation_function,
            norm_eps=self.layer_norm_epsilon,
            hybrid_norm=self.hybrid_norm,
            qk_norm=self.qk_norm,
            use_bias=self.use_bias,
            sliding_window=self.sliding_window,
            attention=AttentionSettings(
                backend=self.attn_backend or AttentionBackend.DEFAULT,
                block_size=self.flash_attention_block_size,
                upcast=self.upcast_attn,
            ),
            init=self.init_spec(),
        )

    def init_spec(self) -> InitSpec:
        """How weights start."""
        return InitSpec(self.init_scheme, self.initializer_range, self.num_layers)

    def build(self, Vocab: Axis, *, key: jax.Array) -> "LlamaLMHeadModel":
        """Make a freshly initialised model."""
        return LlamaLMHeadModel.init(Vocab, self, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int, *, convention: str = "full") -> float:
        """Forward FLOPs per token; see :func:`levanter.flops.lm_flops_per_token`."""
        window = self.sliding_window or context_length
        return lm_flops_per_token(
            hidden_dim=self.hidden_dim,
            intermediate_dim=self.intermediate_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_size,
            vocab_size=vocab_size,
            context_length=min(window, context_length),
            convention=convention,
        )

    def total_trainable_params(self, vocab_size: int) -> int:
        """Number of parameters, by arithmetic."""
        e, m, d = self.hidden_dim, self.intermediate_dim, self.head_size
        heads, groups = self.num_heads, self.num_kv_heads
        attention = 2 * e * heads * d + 2 * e * groups * d
        biases = (heads * d + 2 * groups * d + e + 2 * m + e) if self.use_bias else 0
        norms = e * (4 if self.hybrid_norm else 2) + (2 * d if self.qk_norm else 0)
        ends = vocab_size * e * (1 if self.tie_word_embeddings else 2) + e * (2 if self.input_embedding_norm else 1)
        return self.num_layers * (attention + 3 * e * m + biases + norms) + ends


class LlamaEmbedding(eqx.Module):
    """Token embedding with an optional norm."""

    token_embeddings: hnn.Embedding
    norm: hnn.RmsNorm | None

    @staticmethod
    def init(Vocab: Axis, config: LlamaConfig, *, key: jax.Array) -> "LlamaEmbedding":
        """Fresh parameters."""
        scale = 1.0 if config.init_scheme == "fan_in" else config.initializer_range * config.hidden_dim
        table = hnn.Embedding.init(Vocab, config.Embed, key=key, init_scale=scale)
        return LlamaEmbedding(
            table, init_norm(config.Embed, config.layer_norm_epsilon) if config.input_embedding_norm else None
        )

    def __call__(self, ids: jax.Array) -> jax.Array:
        """``[B, P]`` ids to ``[B, P, E]``."""
        return rms_norm(self.norm, embed_lookup(self.token_embeddings.weight.array, ids))


class LlamaTransformer(eqx.Module):
    """The stack and its final norm."""

    layers: Stacked
    norm: hnn.RmsNorm
    config: LlamaConfig = eqx.field(static=True)

    @staticmethod
    def init(config: LlamaConfig, *, key: jax.Array) -> "LlamaTransformer":
        """Fresh parameters."""
        spec = config.block_spec()
        layers = Stacked.init(
            Axis("layers", config.num_layers),
            lambda k: Block.init(spec, key=k),
            key=key,
            remat=config.gradient_checkpointing,
            scan=config.scan_layers,
        )
        return LlamaTransformer(layers, init_norm(config.Embed, config.layer_norm_epsilon), config)

    def __call__(self, x: jax.Array, mask: AttentionMask | None, positions: jax.Array) -> jax.Array:
        """Apply to ``[B, P, E]``; ``positions`` are ``[P]`` or ``[B, P]``."""
        cos, sin = self.rope(positions)
        x = self.layers.fold(lambda block, h: block(h, mask, (cos, sin)), x)
        return rms_norm(self.norm, x)

    def rope(self, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tables broadcastable to ``[B, H, P, D]``."""
        cos, sin = rotary_tables(self.config.rope, self.config.head_size, positions)
        return (cos, sin) if positions.ndim == 1 else (cos[:, None], sin[:, None])


class LlamaLMHeadModel(LmHeadModel):
    """Llama with its head.

    Attributes:
        embeddings: Token table.
        transformer: Stack.
        lm_head: Linear from embed to vocab; None when tied.
        config: The config.
    """

    embeddings: LlamaEmbedding
    transformer: LlamaTransformer
    lm_head: hnn.Linear | None
    config: LlamaConfig = eqx.field(static=True)

    @staticmethod
    def init(Vocab: Axis, config: LlamaConfig, *, key: jax.Array) -> "LlamaLMHeadModel":
        """Fresh parameters; embedding, stack and head get independent keys."""
        ke, kt, kh = jax.random.split(key, 3)
        head = None
        if not config.tie_word_embeddings:
            spec = config.block_spec()
            head = spec.linear(config.Embed, Vocab, key=kh, use_bias=False)
        return LlamaLMHeadModel(
            LlamaEmbedding.init(Vocab, config, key=ke), LlamaTransformer.init(config, key=kt), head, config
        )

    @property
    def Vocab(self) -> Axis:
        """The vocabulary axis."""
        weight = self.embeddings.token_embeddings.weight
        return Axis("vocab", weight.array.shape[0])

    def __call__(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None = None, *, pos_ids: NamedArray | None = None
    ) -> NamedArray:
        """Logits, axes ``{batch..., position, vocab}``; for training use the loss, which never holds them all."""
        hidden = self.activations(input_ids, attn_mask, pos_ids=pos_ids)
        head = self.get_lm_head().array
        contract = 1 if self.lm_head is None else 0
        logits = jax.lax.dot_general(hidden.array, head, (((hidden.array.ndim - 1,), (contract,)), ((), ())))
        cap = self.config.logits_soft_cap
        logits = logits if cap is None else cap * jnp.tanh(logits / cap)
        return NamedArray(logits, (*hidden.axes[:-1], self.Vocab))

    def activations(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None = None, *, pos_ids: NamedArray | None = None
    ) -> NamedArray:
        """Hidden states after the last norm.

        Args:
            input_ids: Int32, axes ``(position)`` or ``(batch, position)``.
            attn_mask: None means causal.
            pos_ids: Positions for the rotation; None means ``0 .. P-1``.

        Raises:
            ModelShapeError: the axes are not those.
        """
        names = [axis.name for axis in input_ids.axes]
        if not names or names[-1] != POSITION or len(names) > 2:
            raise ModelShapeError(
                f"bad input_ids: axes={names}; expected (position) or (batch, position).", name="input_ids"
            )
        ids = input_ids.array if len(names) == 2 else input_ids.array[None]
        mask = AttentionMask.causal() if attn_mask is None else attn_mask
        positions = jnp.arange(ids.shape[1]) if pos_ids is None else pos_ids.array
        x = constrain(self.embeddings(ids), "batch", "position", None)
        hidden = self.transformer(x, mask, positions)
        return NamedArray(hidden if len(names) == 2 else hidden[0], (*input_ids.axes, self.config.Embed))

    def get_lm_head(self) -> NamedArray:
        """The head: ``(embed, vocab)``, or the ``(vocab, embed)`` table when tied."""
        return self.embeddings.token_embeddings.weight if self.lm_head is None else self.lm_head.weight

    def resize_vocab(self, new_size: int, *, key: jax.Array) -> "LlamaLMHeadModel":
        """Grow or shrink the vocabulary; new rows start like a fresh model's."""
        fresh = LlamaLMHeadModel.init(Axis("vocab", new_size), dataclasses.replace(self.config, num_layers=1), key=key)
        keep = min(new_size, self.Vocab.size)

        def splice(new: Any, old: Any, axis: int) -> NamedArray:
            index = (slice(None),) * axis + (slice(0, keep),)
            return NamedArray(new.array.at[index].set(old.array[index]), new.axes)

        old_table, new_table = self.embeddings.token_embeddings, fresh.embeddings.token_embeddings
        table = splice(new_table.weight, old_table.weight, 0)
        new_embedding = eqx.tree_at(lambda t: t.weight, new_table, table)
        head = fresh.lm_head
        if head is not None and self.lm_head is not None:
            head = eqx.tree_at(lambda h: h.weight, head, splice(head.weight, self.lm_head.weight, 1))
        return LlamaLMHeadModel(
            LlamaEmbedding(new_embedding, self.embeddings.norm), self.transformer, head, self.config
        )


def embed_lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows of ``table[V, E]`` for ``ids``; out-of-range ids clamp, as every JAX gather does."""
    return table[ids]
