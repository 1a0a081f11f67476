r"""OLMo 2: norms after each part instead of before it, and norms over all heads of queries and keys together.

    q, k = RMS_all(W x);        h = x + N1(Attn x);        y = h + N2(MLP h)

References:
    OLMo et al., 2 OLMo 2 Furious, arXiv:2501.00656, section 3.3.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from levanter.models.block import BlockSpec, NormPlacement, QkNorm
from levanter.models.decoder import DecoderLMHeadModel, RotaryDecoderConfig
from levanter.models.hf_config import as_mapping, decoder_from_hf, decoder_to_hf, refuse_settings
from levanter.models.lm_model import LmConfig
from levanter.models.state_dict import TensorSlot, decoder_map

OLMO_NORMS = {
    "post_attn_output_norm": "post_attention_layernorm",
    "post_mlp_output_norm": "post_feedforward_layernorm",
}
"""Our norms to torch's."""


def olmo_block(spec: BlockSpec) -> BlockSpec:
    """A pre-norm block turned into OLMo's: post-norm, with norms over all heads."""
    return dataclasses.replace(spec, placement=NormPlacement.POST, qk_norm=QkNorm.ALL_HEADS)


@LmConfig.register_subclass("olmo2")
@dataclass(frozen=True)
class Olmo2Config(RotaryDecoderConfig):
    """Shape and settings of an OLMo 2 model.

    Example:
        >>> Olmo2Config().block_spec().placement.value
        'post'
    """

    max_seq_len: int = 4096
    layer_norm_epsilon: float = 1e-6

    hf_model_type: ClassVar[str] = "olmo2"
    hf_architecture: ClassVar[str] = "Olmo2ForCausalLM"

    def block_spec(self) -> BlockSpec:
        """Post-norm, with norms over all heads of queries and keys."""
        return olmo_block(super().block_spec())

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's, with OLMo's norms."""
        return decoder_map(self, norms=OLMO_NORMS)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``."""
        raw: dict[str, Any] = {"rms_norm_eps": 1e-5, **as_mapping(hf_config)}
        return cls(**decoder_from_hf(raw), use_bias=raw.get("attention_bias", False))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """OLMo 2's ``config.json``."""
        refuse_settings(self, head_dim=None)
        return decoder_to_hf(self, vocab_size, {"attention_bias": self.use_bias, **(config_overrides or {})})


Olmo2LMHeadModel = DecoderLMHeadModel
