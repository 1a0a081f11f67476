r"""Llama: pre-norm, SwiGLU, rotary attention with grouped queries; three extensions that Hugging Face has no field for.

    h = x + Attn(RMS(x));        y = h + Down(silu(Gate RMS(h)) * Up RMS(h))

State dict: ``model.embed_tokens``, ``model.layers.{i}.self_attn.{q,k,v,o}_proj``, ``.mlp.{gate,up,down}_proj``,
``.input_layernorm``, ``.post_attention_layernorm``, ``model.norm``, ``lm_head``.

References:
    Touvron et al., LLaMA, arXiv:2302.13971; Llama 2, arXiv:2307.09288; Llama 3, arXiv:2407.21783.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from levanter.models.block import BlockSpec, NormPlacement, QkNorm
from levanter.models.decoder import (
    DecoderEmbedding,
    DecoderLMHeadModel,
    DecoderTransformer,
    RotaryDecoderConfig,
)
from levanter.models.hf_config import as_mapping, decoder_from_hf, decoder_to_hf, same_everywhere
from levanter.models.layer_types import LayerType
from levanter.models.lm_model import LmConfig
from levanter.models.state_dict import TensorSlot, decoder_map

LLAMA_NORMS = {"input_layernorm": "input_layernorm", "post_attention_layernorm": "post_attention_layernorm"}
"""Our norms to torch's, for every pre-norm relative of Llama."""

_EXTENSIONS = ("qk_norm", "hybrid_norm", "input_embedding_norm", "sliding_window", "logits_soft_cap")


@LmConfig.register_subclass("llama")
@dataclass(frozen=True)
class LlamaConfig(RotaryDecoderConfig):
    """Shape and settings of a Llama model; the fields of every decoder and these.

    Attributes:
        qk_norm: Norm queries and keys per head.
        hybrid_norm: Norm the outputs of attention and MLP too.
        input_embedding_norm: Norm the embeddings.
        sliding_window: Keys a query sees, itself included; None for all.
        logits_soft_cap: ``cap * tanh(z / cap)`` on the logits.

    Example:
        >>> LlamaConfig(hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=2).head_size
        8
    """

    qk_norm: bool = False
    hybrid_norm: bool = False
    input_embedding_norm: bool = False
    sliding_window: int | None = None
    logits_soft_cap: float | None = None

    hf_model_type: ClassVar[str] = "llama"
    hf_architecture: ClassVar[str] = "LlamaForCausalLM"

    @property
    def mlp_bias(self) -> bool:
        """Llama's MLP has biases where attention has."""
        return self.use_bias

    @property
    def norms_embedding(self) -> bool:
        """Whether the embeddings are normed before the first block."""
        return self.input_embedding_norm

    @property
    def final_logits_cap(self) -> float | None:
        """Cap of the logits, or None."""
        return self.logits_soft_cap

    def block_spec(self) -> BlockSpec:
        """Llama's block, with the extensions that are on."""
        return dataclasses.replace(
            super().block_spec(),
            placement=NormPlacement.HYBRID if self.hybrid_norm else NormPlacement.PRE,
            qk_norm=QkNorm.HEAD if self.qk_norm else QkNorm.NONE,
        )

    def layer_settings(self) -> Sequence[LayerType]:
        """All layers alike."""
        return [LayerType(self.sliding_window, self.rope)] * self.num_layers

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's names; the extensions keep ours."""
        extra = ("post_attn_output_norm", "post_mlp_output_norm") if self.hybrid_norm else ()
        return decoder_map(self, norms={**LLAMA_NORMS, **{name: name for name in extra}})

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> "LlamaConfig":
        """Our config from a parsed ``config.json``."""
        raw = as_mapping(hf_config)
        same_everywhere(raw, "attention_bias", "mlp_bias")
        extensions = raw.get("levanter_extensions", {})
        return cls(**decoder_from_hf(raw), use_bias=raw.get("attention_bias", False), **extensions)

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Llama's ``config.json``; settings that it has no field for go under ``levanter_extensions``."""
        extensions = {name: getattr(self, name) for name in _EXTENSIONS if getattr(self, name)}
        document = {
            "attention_bias": self.use_bias,
            "mlp_bias": self.use_bias,
            **({"levanter_extensions": extensions} if extensions else {}),
            **(config_overrides or {}),
        }
        return decoder_to_hf(self, vocab_size, document)


LlamaEmbedding = DecoderEmbedding
LlamaTransformer = DecoderTransformer
LlamaLMHeadModel = DecoderLMHeadModel
