r"""Qwen 2 and 3: Llama's block and names, with query, key and value biases (2) or per-head query-key norms (3).

    Qwen 2:  q, k, v = W x + b
    Qwen 3:  q, k = RMS_head(W x),  v = W x

Both may put a sliding window on the layers from ``max_window_layers`` on; ``layer_types`` says it layer by layer.

References:
    Qwen2 technical report, arXiv:2407.10671, section 2.2; Qwen3 technical report, arXiv:2505.09388, section 2.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from levanter.models.block import BlockSpec, QkNorm
from levanter.models.decoder import DecoderLMHeadModel, RotaryDecoderConfig
from levanter.models.hf_config import as_mapping, decoder_from_hf, decoder_to_hf, refuse_settings
from levanter.models.layer_types import LayerType, alternating_layers
from levanter.models.llama import LLAMA_NORMS
from levanter.models.lm_model import LmConfig
from levanter.models.state_dict import TensorSlot, decoder_map


@dataclass(frozen=True)
class QwenLikeConfig(RotaryDecoderConfig):
    """What both generations share.

    Attributes:
        use_sliding_window: Whether any layer has a window.
        sliding_window: Keys that a query of such a layer sees, itself included.
        max_window_layers: First layer with a window.
        layer_types: ``sliding_attention`` or ``full_attention`` for each layer; None derives it from the fields above.
    """

    max_seq_len: int = 32768
    intermediate_dim: int = 22016
    layer_norm_epsilon: float = 1e-6
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 0
    layer_types: tuple[str, ...] | None = None

    def layer_settings(self) -> Sequence[LayerType]:
        """Windows where ``layer_types`` or ``max_window_layers`` put them."""
        window = self.sliding_window if self.use_sliding_window else None
        return alternating_layers(
            self.layer_kinds(), num_layers=self.num_layers, window=window, rope=self.rope, local_rope=self.rope
        )

    def layer_kinds(self) -> Sequence[str]:
        """One entry a layer, as Hugging Face writes it."""
        if self.layer_types is not None:
            return self.layer_types
        first = self.max_window_layers if self.use_sliding_window and self.sliding_window else self.num_layers
        return ["sliding_attention" if i >= first else "full_attention" for i in range(self.num_layers)]

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's, with what the block adds."""
        return decoder_map(self, norms=LLAMA_NORMS)

    @classmethod
    def fields_from_hf(cls, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields above and those of every rotary decoder, from a parsed ``config.json``."""
        raw = as_mapping(hf_config)
        kinds = raw.get("layer_types")
        shared: dict[str, Any] = {
            **decoder_from_hf(raw),
            "use_sliding_window": raw.get("use_sliding_window", False),
            "sliding_window": raw.get("sliding_window"),
            "max_window_layers": raw.get("max_window_layers", 28),
        }
        derived = cls(**shared).layer_kinds()
        return {**shared, "layer_types": None if kinds is None or list(kinds) == list(derived) else tuple(kinds)}

    def fields_to_hf(self) -> dict[str, Any]:
        """The fields above as ``config.json`` has them."""
        return {
            "use_sliding_window": self.use_sliding_window,
            "sliding_window": self.sliding_window,
            "max_window_layers": self.max_window_layers,
            "layer_types": list(self.layer_kinds()),
        }


@LmConfig.register_subclass("qwen")
@dataclass(frozen=True)
class QwenConfig(QwenLikeConfig):
    """Shape and settings of a Qwen 2 or 2.5 model.

    Example:
        >>> QwenConfig(num_layers=2, use_sliding_window=True, max_window_layers=1).layer_kinds()
        ['full_attention', 'sliding_attention']
    """

    hf_model_type: ClassVar[str] = "qwen2"
    hf_architecture: ClassVar[str] = "Qwen2ForCausalLM"

    def block_spec(self) -> BlockSpec:
        """Biases on queries, keys and values only."""
        return dataclasses.replace(super().block_spec(), use_qkv_bias=True, use_output_bias=False)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``."""
        return cls(**cls.fields_from_hf(hf_config))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Qwen 2's ``config.json``."""
        refuse_settings(self, use_bias=False, head_dim=None)
        return decoder_to_hf(self, vocab_size, {**self.fields_to_hf(), **(config_overrides or {})})


@LmConfig.register_subclass("qwen3")
@dataclass(frozen=True)
class Qwen3Config(QwenLikeConfig):
    """Shape and settings of a dense Qwen 3 model; ``head_dim`` need not divide ``hidden_dim``.

    Example:
        >>> Qwen3Config(hidden_dim=1024, num_heads=16, num_kv_heads=8, head_dim=128).head_size
        128
    """

    head_dim: int | None = 128

    hf_model_type: ClassVar[str] = "qwen3"
    hf_architecture: ClassVar[str] = "Qwen3ForCausalLM"

    def block_spec(self) -> BlockSpec:
        """Norms on the queries and keys of each head."""
        return dataclasses.replace(super().block_spec(), qk_norm=QkNorm.HEAD)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``."""
        raw: dict[str, Any] = {"head_dim": 128, **as_mapping(hf_config)}
        return cls(**cls.fields_from_hf(raw), use_bias=raw.get("attention_bias", False))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Qwen 3's ``config.json``."""
        fields = {"attention_bias": self.use_bias, **self.fields_to_hf()}
        return decoder_to_hf(self, vocab_size, {**fields, **(config_overrides or {})})


QwenLMHeadModel = DecoderLMHeadModel
Qwen3LMHeadModel = DecoderLMHeadModel
