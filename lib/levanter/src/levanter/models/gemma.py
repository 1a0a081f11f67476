r"""Gemma 1, 2 and 3: scaled embeddings, norm weights stored as differences from one, a tanh-GELU gate.

    x_0 = sqrt(E) Embed[ids]                RMS(x) = x / rms(x) * (1 + w)
    Gemma 1:     h = x + Attn(N1 x);        y = h + MLP(N2 h)
    Gemma 2, 3:  h = x + N2(Attn(N1 x));    y = h + N4(MLP(N3 h))

Gemma 2 caps attention scores (50) and logits (30), scales queries by ``query_pre_attn_scalar^-1/2`` and lets every
second layer see a window only. Gemma 3 drops the caps, norms queries and keys per head, and has one full layer in six,
whose rotation has another base than that of the windowed layers.

References:
    Gemma, arXiv:2403.08295, table 1; Gemma 2, arXiv:2408.00118, section 2; Gemma 3, arXiv:2503.19786, section 2.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from levanter.errors import HfCheckpointError
from levanter.layers.normalization import NormSpec
from levanter.layers.rotary import DefaultRotaryConfig, RotaryConfig
from levanter.models.block import BlockSpec, NormPlacement, QkNorm
from levanter.models.decoder import DecoderLMHeadModel, RotaryDecoderConfig
from levanter.models.hf_config import (
    activation_from_hf,
    as_mapping,
    decoder_from_hf,
    decoder_to_hf,
    refuse_settings,
    rope_from_hf,
    rope_scaling_to_hf,
)
from levanter.models.layer_types import LayerType, alternating_layers
from levanter.models.llama import LLAMA_NORMS
from levanter.models.lm_model import LmConfig
from levanter.models.state_dict import TensorSlot, decoder_map

_FOUR_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_attn_output_norm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_mlp_output_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class GemmaLikeConfig(RotaryDecoderConfig):
    """What all three generations share: the fields of every rotary decoder with Gemma's defaults."""

    max_seq_len: int = 8192
    hidden_dim: int = 2048
    intermediate_dim: int = 16384
    num_layers: int = 18
    num_heads: int = 8
    num_kv_heads: int = 1
    head_dim: int | None = 256
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-6
    tie_word_embeddings: bool = True

    @property
    def embed_scale(self) -> float:
        """Square root of the hidden size."""
        return self.hidden_dim**0.5

    def norm_spec(self) -> NormSpec:
        """Weights stored as differences from one."""
        return NormSpec(eps=self.layer_norm_epsilon, offset=1.0)

    @classmethod
    def fields_from_hf(cls, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of every rotary decoder, from a parsed ``config.json``.

        Raises:
            HfCheckpointError: the model attends in both directions.
        """
        raw: dict[str, Any] = {"head_dim": 256, "tie_word_embeddings": True, **as_mapping(hf_config)}
        if raw.get("use_bidirectional_attention"):
            raise HfCheckpointError(
                "cannot import the model: use_bidirectional_attention=True; expected a causal model.",
                path=str(raw.get("_name_or_path", "")),
            )
        # The first releases say "gelu" and mean its tanh approximation.
        act = activation_from_hf(raw.get("hidden_activation") or raw.get("hidden_act") or "gelu_pytorch_tanh")
        act = "gelu_new" if act == "gelu" else act
        head_dim = raw["head_dim"]
        fields = {**decoder_from_hf(raw), "activation_function": act, "head_dim": head_dim}
        return {**fields, "use_bias": raw.get("attention_bias", False)}

    def fields_to_hf(self) -> dict[str, Any]:
        """Gemma's own names for what every rotary decoder has."""
        act = "gelu_pytorch_tanh" if self.activation_function == "gelu_new" else self.activation_function
        return {"hidden_act": act, "hidden_activation": act, "attention_bias": self.use_bias}


@LmConfig.register_subclass("gemma")
@dataclass(frozen=True)
class GemmaConfig(GemmaLikeConfig):
    """Shape and settings of a first-generation Gemma; the defaults are those of Gemma 2B.

    Example:
        >>> GemmaConfig().embed_scale == 2048**0.5
        True
    """

    hf_model_type: ClassVar[str] = "gemma"
    hf_architecture: ClassVar[str] = "GemmaForCausalLM"

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's."""
        return decoder_map(self, norms=LLAMA_NORMS)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``."""
        return cls(**cls.fields_from_hf(hf_config))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Gemma's ``config.json``."""
        return decoder_to_hf(self, vocab_size, {**self.fields_to_hf(), **(config_overrides or {})})


@dataclass(frozen=True)
class WindowedGemmaConfig(GemmaLikeConfig):
    """What Gemma 2 and 3 add.

    Attributes:
        query_pre_attn_scalar: Scores are divided by its square root.
        sliding_window: Keys that a query of a local layer sees, itself included.
        sliding_window_pattern: Every so many layers one sees everything.
        layer_types: ``sliding_attention`` or ``full_attention`` for each layer; None derives it from the pattern.
        attn_logit_softcapping: Cap of the scores, or None.
        final_logit_softcapping: Cap of the logits, or None.
    """

    query_pre_attn_scalar: float = 256.0
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 2
    layer_types: tuple[str, ...] | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    @property
    def final_logits_cap(self) -> float | None:
        """Cap of the logits, or None."""
        return self.final_logit_softcapping

    @property
    def local_rotation(self) -> RotaryConfig:
        """Rotation of the windowed layers."""
        return self.rope

    def layer_kinds(self) -> Sequence[str]:
        """One entry a layer, as Hugging Face writes it."""
        if self.layer_types is not None:
            return self.layer_types
        every = self.sliding_window_pattern
        return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(self.num_layers)]

    def layer_settings(self) -> Sequence[LayerType]:
        """Local layers with a window, every so many a global one."""
        return alternating_layers(
            self.layer_kinds(),
            num_layers=self.num_layers,
            window=self.sliding_window,
            rope=self.rope,
            local_rope=self.local_rotation,
        )

    def block_spec(self) -> BlockSpec:
        """Norms before and after both parts; scores scaled and capped."""
        scale = self.query_pre_attn_scalar**-0.5
        return dataclasses.replace(
            super().block_spec(),
            placement=NormPlacement.HYBRID,
            attention=self.attention_settings(scale=scale, soft_cap=self.attn_logit_softcapping),
        )

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's, with four norms a layer."""
        return decoder_map(self, norms=_FOUR_NORMS)

    @classmethod
    def fields_from_hf(cls, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields above and those of every Gemma, from a parsed ``config.json``."""
        raw = as_mapping(hf_config)
        kinds = raw.get("layer_types")
        shared = super().fields_from_hf(raw)
        shared |= {
            "query_pre_attn_scalar": float(raw.get("query_pre_attn_scalar", 256)),
            "sliding_window": raw.get("sliding_window", 4096),
            "sliding_window_pattern": raw.get("sliding_window_pattern", cls.sliding_window_pattern),
            "attn_logit_softcapping": raw.get("attn_logit_softcapping", cls.attn_logit_softcapping),
            "final_logit_softcapping": raw.get("final_logit_softcapping", cls.final_logit_softcapping),
        }
        derived = cls(**shared).layer_kinds()
        return {**shared, "layer_types": None if kinds is None or list(kinds) == list(derived) else tuple(kinds)}

    def fields_to_hf(self) -> dict[str, Any]:
        """The fields above and those of every Gemma, as ``config.json`` has them."""
        scalar = self.query_pre_attn_scalar
        return {
            **super().fields_to_hf(),
            "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
            "sliding_window": self.sliding_window,
            "sliding_window_pattern": self.sliding_window_pattern,
            "layer_types": list(self.layer_kinds()),
            "attn_logit_softcapping": self.attn_logit_softcapping,
            "final_logit_softcapping": self.final_logit_softcapping,
        }


@LmConfig.register_subclass("gemma2")
@dataclass(frozen=True)
class Gemma2Config(WindowedGemmaConfig):
    """Shape and settings of a Gemma 2 model; the defaults are those of Gemma 2 2B.

    Example:
        >>> [x.window for x in Gemma2Config(num_layers=2).layer_settings()]
        [4096, None]
    """

    hidden_dim: int = 2304
    intermediate_dim: int = 9216
    num_layers: int = 26
    num_kv_heads: int = 4
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0

    hf_model_type: ClassVar[str] = "gemma2"
    hf_architecture: ClassVar[str] = "Gemma2ForCausalLM"

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``."""
        return cls(**cls.fields_from_hf(hf_config))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Gemma 2's ``config.json``."""
        return decoder_to_hf(self, vocab_size, {**self.fields_to_hf(), **(config_overrides or {})})


@LmConfig.register_subclass("gemma3")
@dataclass(frozen=True)
class Gemma3Config(WindowedGemmaConfig):
    """Shape and settings of a text-only Gemma 3 model.

    Attributes:
        rope: Rotation of the global layers.
        local_rope: Rotation of the windowed layers.

    Example:
        >>> {x.rope.theta for x in Gemma3Config().layer_settings()} == {1e6, 1e4}
        True
    """

    max_seq_len: int = 131072
    hidden_dim: int = 2304
    intermediate_dim: int = 9216
    num_layers: int = 26
    num_kv_heads: int = 4
    sliding_window_pattern: int = 6
    rope: RotaryConfig = dataclasses.field(default_factory=lambda: DefaultRotaryConfig(theta=1_000_000.0))
    local_rope: RotaryConfig = dataclasses.field(default_factory=DefaultRotaryConfig)

    hf_model_type: ClassVar[str] = "gemma3_text"
    hf_architecture: ClassVar[str] = "Gemma3ForCausalLM"

    @property
    def local_rotation(self) -> RotaryConfig:
        """Rotation of the windowed layers."""
        return self.local_rope

    def block_spec(self) -> BlockSpec:
        """Gemma 2's, with norms on the queries and keys of each head."""
        return dataclasses.replace(super().block_spec(), qk_norm=QkNorm.HEAD)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``, with one entry of rope parameters or one per layer type."""
        raw = as_mapping(hf_config)
        fields = cls.fields_from_hf(raw)
        fields["rope"] = rope_from_hf(raw, "full_attention", theta=1_000_000.0)
        nested = (raw.get("rope_parameters") or {}).get("sliding_attention")
        local = {"rope_scaling": nested} if nested else {"rope_theta": raw.get("rope_local_base_freq")}
        return cls(**fields, local_rope=rope_from_hf(local))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Gemma 3's ``config.json``; it has room for a plain local rotation only."""
        refuse_settings(self, local_rope=DefaultRotaryConfig(theta=self.local_rope.theta))
        return decoder_to_hf(
            self,
            vocab_size,
            {
                **self.fields_to_hf(),
                "rope_local_base_freq": self.local_rope.theta,
                "rope_parameters": {
                    "full_attention": {"rope_theta": self.rope.theta, **rope_scaling_to_hf(self.rope)},
                    "sliding_attention": {"rope_theta": self.local_rope.theta, "rope_type": "default"},
                },
                **(config_overrides or {}),
            },
        )


GemmaLMHeadModel = DecoderLMHeadModel
Gemma2LMHeadModel = DecoderLMHeadModel
Gemma3LMHeadModel = DecoderLMHeadModel
