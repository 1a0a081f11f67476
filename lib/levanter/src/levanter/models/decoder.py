r"""The decoder that every family here is a configuration of.

    x_0 = scale * Embed[ids] (+ Positions)        x_{l+1} = Block_l(x_l)        logits = cap(Norm(x_L) Head)

A family gives a :class:`DecoderConfig`: its published fields, the :class:`~levanter.models.block.BlockSpec` they mean,
what differs from layer to layer (:class:`LayerType`), and the map of its state dict. No family has a model class of its
own; ``LlamaLMHeadModel``, ``Gpt2LMHeadModel`` and the others are names of :class:`DecoderLMHeadModel`.

Layers that differ (local and global windows, two rotations) still run as one scanned body: windows and table choices
are scanned beside the parameters.

Shape suffixes: B batch, P position, E embed, V vocab, L layers.

References:
    Vaswani et al., arXiv:1706.03762; Radford et al., GPT-2 (2019); Touvron et al., LLaMA, arXiv:2302.13971.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.errors import ConfigError, ModelShapeError
from levanter.flops import check_convention
from levanter.layers.attention import AttentionBackend, AttentionSettings
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.linear import InitSpec, LoraLinear, apply_linear
from levanter.layers.normalization import Norm, NormSpec, apply_norm
from levanter.layers.rotary import DefaultRotaryConfig, RotaryConfig
from levanter.layers.stacked import Stacked, check_remat
from levanter.models.block import Block, BlockSpec, LayerInputs
from levanter.models.layer_types import LayerType, plan_layers
from levanter.models.lm_model import HfLmConfig, HfLmModel, batched_ids
from levanter.models.mlp import GatedMlpSpec, MlpAux
from levanter.sharding import constrain
from levanter.tree_paths import is_named


@dataclass(frozen=True)
class DecoderConfig(HfLmConfig):
    """Fields that every decoder has.

    Attributes:
        max_seq_len: Longest sequence.
        hidden_dim: Size of the residual stream.
        num_layers: Blocks.
        num_heads: Query heads.
        head_dim: Size of a head; None means ``hidden_dim / num_heads``.
        initializer_range: Standard deviation under ``init_scheme: normal``; exported to Hugging Face always.
        init_scheme: ``fan_in`` or ``normal``.
        layer_norm_epsilon: Added to the mean square (or variance) in norms.
        tie_word_embeddings: Use the embedding as the head.
        upcast_attn: Compute attention scores in float32 under a lower compute dtype.
        attn_backend: Attention kernel.
        flash_attention_block_size: Block of the flash kernel.
        gradient_checkpointing: Remat policy: True keeps matrix products; False, "full", "save_all" are the others.
        scan_layers: Scan over layers, or unroll.
        reference_checkpoint: Hub name of the model this shape comes from.
        tokenizer: Tokenizer that belongs to it.
    """

    max_seq_len: int = 2048
    hidden_dim: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    head_dim: int | None = None
    initializer_range: float = 0.02
    init_scheme: str = "fan_in"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    upcast_attn: bool = False
    attn_backend: AttentionBackend | None = None
    flash_attention_block_size: int | None = None
    gradient_checkpointing: bool | str = True
    scan_layers: bool = True
    reference_checkpoint: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if self.head_dim is None and self.hidden_dim % self.num_heads:
            raise ConfigError(
                f"hidden_dim={self.hidden_dim}, num_heads={self.num_heads}; expected a multiple, or set head_dim.",
                key="model.num_heads",
            )
        check_remat(self.gradient_checkpointing)
        window = getattr(self, "sliding_window", None)
        if window is not None and window < 1:
            raise ConfigError(f"{window}; expected at least 1, or none for no window.", key="model.sliding_window")

    @abc.abstractmethod
    def block_spec(self) -> BlockSpec:
        """The block this family is made of."""

    @property
    def ties_embeddings(self) -> bool:
        """Whether the head is the embedding table."""
        return self.tie_word_embeddings

    def layer_settings(self) -> Sequence[LayerType]:
        """One entry a layer."""
        return [LayerType()] * self.num_layers

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

    @property
    def embed_scale(self) -> float:
        """Factor on the embeddings."""
        return 1.0

    @property
    def embed_init_scale(self) -> float:
        """Standard deviation of fresh embeddings under ``fan_in``, times the hidden size."""
        return 1.0

    @property
    def learned_positions(self) -> bool:
        """Whether positions have an embedding table of their own."""
        return False

    @property
    def norms_embedding(self) -> bool:
        """Whether the embeddings are normed before the first block."""
        return False

    @property
    def final_logits_cap(self) -> float | None:
        """Cap of the logits, or None."""
        return None

    def norm_spec(self) -> NormSpec:
        """The norms of blocks and ends."""
        return NormSpec(eps=self.layer_norm_epsilon)

    def init_spec(self) -> InitSpec:
        """How weights start."""
        return InitSpec(self.init_scheme, self.initializer_range, self.num_layers)

    def attention_settings(self, *, scale: float | None = None, soft_cap: float | None = None) -> AttentionSettings:
        """Kernel and score transforms.

        Args:
            scale: Factor on the scores; None means ``1 / sqrt(head size)``.
            soft_cap: Cap of the scores.
        """
        return AttentionSettings(
            backend=self.attn_backend or AttentionBackend.DEFAULT,
            block_size=self.flash_attention_block_size,
            scaling_factor=scale,
            soft_cap=soft_cap,
            upcast=self.upcast_attn,
        )

    def build(self, Vocab: Axis, *, key: jax.Array) -> "DecoderLMHeadModel":
        """Make a freshly initialised model."""
        return DecoderLMHeadModel.init(Vocab, self, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int, *, convention: str = "full") -> float:
        """Forward FLOPs per token; one multiply-add is two, ``causal`` counts half of attention's scores.

        Raises:
            ConfigError: an unknown convention.
        """
        check_convention(convention)
        spec = self.block_spec()
        e, h, g, d = self.hidden_dim, spec.Heads.size, spec.KVHeads.size, spec.HeadSize.size
        per_layer = 2 * e * d * (2 * h + 2 * g) + spec.mlp.flops_per_token(e)
        keys = sum(min(layer.window or context_length, context_length) for layer in self.layer_settings())
        scores = (4 * h * d + 3 * h) * keys / (2 if convention == "causal" else 1)
        return float(self.num_layers * per_layer + scores + 2 * e * vocab_size)

    def total_trainable_params(self, vocab_size: int) -> int:
        """Number of parameters, by arithmetic."""
        e, norm = self.hidden_dim, self.norm_spec().num_params(self.hidden_dim)
        ends = vocab_size * e * (1 if self.tie_word_embeddings else 2) + norm * (2 if self.norms_embedding else 1)
        ends += self.max_seq_len * e if self.learned_positions else 0
        return self.num_layers * self.block_spec().num_params() + ends


@dataclass(frozen=True)
class RotaryDecoderConfig(DecoderConfig):
    """A decoder with grouped queries, rotary positions and a gated MLP.

    Attributes:
        intermediate_dim: Size of the MLP.
        num_kv_heads: Key and value heads; divides ``num_heads``.
        activation_function: Gate of the MLP.
        use_bias: Biases in the linear layers of attention, and of the MLP where the family has them there.
        rope: Rotary frequencies.
    """

    intermediate_dim: int = 11008
    num_kv_heads: int = 32
    activation_function: str = "silu"
    use_bias: bool = False
    rope: RotaryConfig = dataclasses.field(default_factory=DefaultRotaryConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}; expected a multiple.",
                key="model.num_kv_heads",
            )
        if self.head_size % 2:
            raise ConfigError(f"head_dim={self.head_size}; rotary positions need an even one.", key="model.head_dim")

    @property
    def mlp_bias(self) -> bool:
        """Whether the MLP has biases; most families mean only attention by ``use_bias``."""
        return False

    def block_spec(self) -> BlockSpec:
        """Pre-norm, gated MLP; families replace what differs."""
        return BlockSpec(
            Embed=self.Embed,
            Heads=Axis("heads", self.num_heads),
            KVHeads=Axis("kv_head", self.num_kv_heads),
            HeadSize=Axis("head_size", self.head_size),
            mlp=GatedMlpSpec(Axis("mlp", self.intermediate_dim), self.activation_function, self.mlp_bias),
            norm=self.norm_spec(),
            use_qkv_bias=self.use_bias,
            use_output_bias=self.use_bias,
            attention=self.attention_settings(),
            init=self.init_spec(),
        )

    def layer_settings(self) -> Sequence[LayerType]:
        """All layers alike, unless the family says otherwise."""
        return [LayerType(rope=self.rope)] * self.num_layers


class DecoderEmbedding(eqx.Module):
    """Token embedding, learned positions, scale and norm, each where the family has it.

    Attributes:
        token_embeddings: Token table.
        position_embeddings: Position table, or None.
        norm: Norm of the sum, or None.
        scale: Factor on the token embeddings, rounded to the activation dtype before use.
    """

    token_embeddings: hnn.Embedding
    position_embeddings: hnn.Embedding | None
    norm: Norm | None
    scale: float = eqx.field(static=True)

    @staticmethod
    def init(Vocab: Axis, config: DecoderConfig, *, key: jax.Array) -> "DecoderEmbedding":
        """Fresh parameters."""
        fan_in = config.init_scheme == "fan_in"
        scale = config.embed_init_scale if fan_in else config.initializer_range * config.hidden_dim
        table = hnn.Embedding.init(Vocab, config.Embed, key=key, init_scale=scale)
        positions = None
        if config.learned_positions:
            Places = Axis("context", config.max_seq_len)
            place_key = jax.random.fold_in(key, 1)
            positions = hnn.Embedding.init(Places, config.Embed, key=place_key, init_scale=scale / 2)
        norm = config.norm_spec().init(config.Embed) if config.norms_embedding else None
        return DecoderEmbedding(table, positions, norm, config.embed_scale)

    def __call__(self, ids: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """``[B, P]`` ids to ``[B, P, E]``; ``positions`` are ``[P]`` or ``[B, P]``, None for ``0 .. P-1``."""
        x = embed_lookup(self.token_embeddings.weight.array, ids)
        if self.scale != 1.0:
            x = x * jnp.asarray(self.scale, x.dtype)
        if self.position_embeddings is not None:
            places = jnp.arange(ids.shape[1]) if positions is None else positions
            x = x + embed_lookup(self.position_embeddings.weight.array, places).astype(x.dtype)
        return apply_norm(self.norm, x)


class DecoderTransformer(eqx.Module):
    """The stack and its final norm."""

    layers: Stacked
    norm: Norm
    config: DecoderConfig = eqx.field(static=True)

    @staticmethod
    def init(config: DecoderConfig, *, key: jax.Array) -> "DecoderTransformer":
        """Fresh parameters."""
        spec = config.block_spec()
        layers = Stacked.init(
            Axis("layers", config.num_layers),
            lambda k: Block.init(spec, key=k),
            key=key,
            remat=config.gradient_checkpointing,
            scan=config.scan_layers,
        )
        return DecoderTransformer(layers, config.norm_spec().init(config.Embed), config)

    def __call__(self, x: jax.Array, mask: AttentionMask | None, positions: jax.Array) -> tuple[jax.Array, MlpAux]:
        """Apply to ``[B, P, E]``; ``positions`` are ``[P]`` or ``[B, P]``.

        Returns:
            Normed hidden states, and the MLPs' auxiliary values with the layer axis first.
        """
        xs, inputs = self.layer_inputs(positions)
        x, aux = self.layers.scan(lambda block, h, item: block(h, inputs(item, mask)), x, xs)
        return self.norm(x), aux

    def layer_inputs(
        self, positions: jax.Array
    ) -> tuple[dict[str, Any], Callable[[dict[str, Any], AttentionMask | None], LayerInputs]]:
        """What differs by layer, as arrays to scan over and a function from one layer's slice to its inputs.

        Args:
            positions: ``[P]`` or ``[B, P]``.

        Returns:
            ``(xs, inputs)`` where ``inputs(x, mask)`` adds the layer's window to the mask and picks its rotation.
        """
        return plan_layers(self.config.layer_settings(), self.config.head_size, positions)


class DecoderLMHeadModel(HfLmModel):
    """A decoder with its head.

    Attributes:
        embeddings: Token table and what belongs to it.
        transformer: Stack.
        lm_head: Linear from embed to vocab; None when tied.
        config: The config.
    """

    embeddings: DecoderEmbedding
    transformer: DecoderTransformer
    lm_head: hnn.Linear | None
    config: DecoderConfig = eqx.field(static=True)

    @staticmethod
    def init(Vocab: Axis, config: DecoderConfig, *, key: jax.Array) -> "DecoderLMHeadModel":
        """Fresh parameters; embedding, stack and head get independent keys."""
        ke, kt, kh = jax.random.split(key, 3)
        head = None
        if not config.tie_word_embeddings:
            head = config.init_spec().linear(config.Embed, Vocab, key=kh, use_bias=False)
        embedding = DecoderEmbedding.init(Vocab, config, key=ke)
        return DecoderLMHeadModel(embedding, DecoderTransformer.init(config, key=kt), head, config)

    @property
    def Vocab(self) -> Axis:
        """The vocabulary axis."""
        return Axis("vocab", self.embeddings.token_embeddings.weight.array.shape[0])

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits ``[..., V]`` of normed hidden states ``[..., E]``, capped where the family caps."""
        if isinstance(self.lm_head, LoraLinear):
            logits = apply_linear(self.lm_head, hidden)
        else:
            head = self.get_lm_head().array
            contract = 1 if self.lm_head is None else 0
            logits = jax.lax.dot_general(hidden, head, (((hidden.ndim - 1,), (contract,)), ((), ())))
        cap = self.config.final_logits_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def activations_with_aux(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None = None, *, pos_ids: NamedArray | None = None
    ) -> tuple[NamedArray, MlpAux]:
        """Hidden states after the last norm, and what the MLPs report.

        Args:
            input_ids: Int32, axes ``(position)`` or ``(batch, position)``.
            attn_mask: None means causal. The family's own windows are added to it.
            pos_ids: Positions for rotation or position table; None means ``0 .. P-1``.

        Returns:
            Hidden states with the axes of ``input_ids`` and ``embed``, and a dictionary that is empty for dense MLPs
            and else holds arrays with the layer axis first.

        Raises:
            ModelShapeError: the axes are not those, or the sequence is longer than the position table.
        """
        ids = batched_ids(input_ids)
        if self.config.learned_positions and ids.shape[1] > self.config.max_seq_len:
            raise ModelShapeError(
                f"sequence too long: position={ids.shape[1]}, max_seq_len={self.config.max_seq_len}; expected at most "
                "as many tokens as learned positions. Cut the sequence.",
                name="input_ids",
            )
        mask = AttentionMask.causal() if attn_mask is None else attn_mask
        positions = jnp.arange(ids.shape[1]) if pos_ids is None else pos_ids.array
        x = constrain(self.embeddings(ids, positions), "batch", "position", None)
        hidden, aux = self.transformer(x, mask, positions)
        return NamedArray(hidden if input_ids.array.ndim == 2 else hidden[0], (*input_ids.axes, self.config.Embed)), aux

    def get_lm_head(self) -> NamedArray:
        """The head: ``(embed, vocab)``, or the ``(vocab, embed)`` table when tied."""
        if self.lm_head is None:
            return self.embeddings.token_embeddings.weight
        weight = self.lm_head.weight
        if not isinstance(self.lm_head, LoraLinear):
            return weight
        return NamedArray(weight.array + self.lm_head.delta().array.astype(weight.array.dtype), weight.axes)

    @property
    def hf_config(self) -> HfLmConfig:
        """The config it was made from."""
        return self.config

    def resize_vocab(self, new_size: int, *, key: jax.Array) -> "DecoderLMHeadModel":
        """Grow or shrink the vocabulary; new rows start like a fresh model's."""
        ke, _, kh = jax.random.split(key, 3)
        Vocab = Axis("vocab", new_size)
        fresh = DecoderEmbedding.init(Vocab, self.config, key=ke).token_embeddings
        table = _splice(fresh.weight, self.embeddings.token_embeddings.weight, 0)
        embeddings = eqx.tree_at(lambda e: e.token_embeddings.weight, self.embeddings, table, is_leaf=is_named)
        head = self.lm_head
        if head is not None:
            new_head = self.config.init_spec().linear(self.config.Embed, Vocab, key=kh, use_bias=False)
            head = eqx.tree_at(lambda h: h.weight, new_head, _splice(new_head.weight, head.weight, 1), is_leaf=is_named)
        return DecoderLMHeadModel(embeddings, self.transformer, head, self.config)


def embed_lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows of ``table[V, E]`` for ``ids``; out-of-range ids clamp, as every JAX gather does.

    Example:
        >>> embed_lookup(jnp.eye(3), jnp.array([2])).tolist()
        [[0.0, 0.0, 1.0]]
    """
    return table[ids]


def _splice(new: NamedArray, old: NamedArray, axis: int) -> NamedArray:
    """``new`` with its first rows along ``axis`` taken from ``old``."""
    keep = min(new.array.shape[axis], old.array.shape[axis])
    index = (slice(None),) * axis + (slice(0, keep),)
    return NamedArray(new.array.at[index].set(old.array[index].astype(new.array.dtype)), new.axes)
