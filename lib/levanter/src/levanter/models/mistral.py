r"""Mistral: Llama's block and names with a sliding window over keys, and no biases anywhere.

    query i sees keys j with 0 <= i - j < sliding_window

The model adds the window itself, whatever causal mask the caller passes.

References:
    Jiang et al., Mistral 7B, arXiv:2310.06825, section 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from levanter.models.decoder import DecoderLMHeadModel, RotaryDecoderConfig
from levanter.models.hf_config import as_mapping, decoder_from_hf, decoder_to_hf, refuse_settings
from levanter.models.layer_types import LayerType
from levanter.models.llama import LLAMA_NORMS
from levanter.models.lm_model import LmConfig
from levanter.models.state_dict import TensorSlot, decoder_map


@LmConfig.register_subclass("mistral")
@dataclass(frozen=True)
class MistralConfig(RotaryDecoderConfig):
    """Shape and settings of a Mistral model; the fields of every rotary decoder and this.

    Attributes:
        sliding_window: Keys a query sees, itself included; None for all.

    Example:
        >>> MistralConfig().layer_settings()[0].window
        4096
    """

    max_seq_len: int = 8192
    intermediate_dim: int = 14336
    num_kv_heads: int = 8
    layer_norm_epsilon: float = 1e-6
    sliding_window: int | None = 4096

    hf_model_type: ClassVar[str] = "mistral"
    hf_architecture: ClassVar[str] = "MistralForCausalLM"

    def layer_settings(self) -> Sequence[LayerType]:
        """All layers alike."""
        return [LayerType(self.sliding_window, self.rope)] * self.num_layers

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's."""
        return decoder_map(self, norms=LLAMA_NORMS)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> "MistralConfig":
        """Our config from a parsed ``config.json``."""
        raw = as_mapping(hf_config)
        return cls(**decoder_from_hf(raw), sliding_window=raw.get("sliding_window"))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Mistral's ``config.json``."""
        refuse_settings(self, use_bias=False)
        return decoder_to_hf(self, vocab_size, {"sliding_window": self.sliding_window, **(config_overrides or {})})


MistralLMHeadModel = DecoderLMHeadModel
