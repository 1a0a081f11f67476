r"""Apertus: a two-matrix MLP with the learned activation xIELU, and per-head query-key norms.

    h = x + Attn(N1 x);        y = h + Down(xielu(Up(N2 h)))        q, k = RMS_head(W x)

References:
    Apertus, arXiv:2509.14233, section 2.1; xIELU: Huang and Schlag, arXiv:2411.13010.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from haliax import Axis

from levanter.errors import HfCheckpointError
from levanter.layers.activations import XIELU_BETA, XIELU_EPS
from levanter.layers.rotary import Llama3RotaryConfig, RotaryConfig
from levanter.models.block import BlockSpec, QkNorm
from levanter.models.decoder import DecoderLMHeadModel, RotaryDecoderConfig
from levanter.models.hf_config import as_mapping, decoder_from_hf, decoder_to_hf, refuse_settings, require
from levanter.models.lm_model import LmConfig
from levanter.models.mlp import PlainMlpSpec
from levanter.models.state_dict import STACK, TensorSlot, constant_slot, decoder_map, linear_slots, vector_slot

_THETA = 12_000_000.0
_NORMS = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}


@LmConfig.register_subclass("apertus")
@dataclass(frozen=True)
class ApertusConfig(RotaryDecoderConfig):
    """Shape and settings of an Apertus model.

    Example:
        >>> ApertusConfig().block_spec().mlp.activation
        'xielu'
    """

    max_seq_len: int = 65536
    intermediate_dim: int = 14336
    activation_function: str = "xielu"
    rope: RotaryConfig = dataclasses.field(default_factory=lambda: Llama3RotaryConfig(theta=_THETA))

    hf_model_type: ClassVar[str] = "apertus"
    hf_architecture: ClassVar[str] = "ApertusForCausalLM"

    def block_spec(self) -> BlockSpec:
        """Pre-norm with per-head norms and a two-matrix MLP."""
        return BlockSpec(
            Embed=self.Embed,
            Heads=Axis("heads", self.num_heads),
            KVHeads=Axis("kv_head", self.num_kv_heads),
            HeadSize=Axis("head_size", self.head_size),
            mlp=PlainMlpSpec(Axis("mlp", self.intermediate_dim), self.activation_function, use_bias=False),
            norm=self.norm_spec(),
            qk_norm=QkNorm.HEAD,
            use_qkv_bias=self.use_bias,
            use_output_bias=self.use_bias,
            attention=self.attention_settings(),
            init=self.init_spec(),
        )

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's, with Apertus' norms and MLP."""
        return decoder_map(self, norms=_NORMS, mlp_slots=_mlp_slots)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``.

        Raises:
            HfCheckpointError: an activation that is not xIELU.
        """
        raw: dict[str, Any] = {
            "rms_norm_eps": 1e-5,
            "hidden_act": "xielu",
            "rope_theta": _THETA,
            **as_mapping(hf_config),
        }
        if require(raw, "hidden_act") != "xielu":
            raise HfCheckpointError(
                f"cannot import the model: hidden_act={raw['hidden_act']!r}; expected 'xielu' for Apertus.",
                path=str(raw.get("_name_or_path", "")),
            )
        return cls(**decoder_from_hf(raw), use_bias=raw.get("attention_bias", False))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Apertus' ``config.json``."""
        refuse_settings(self, activation_function="xielu")
        return decoder_to_hf(self, vocab_size, {"attention_bias": self.use_bias, **(config_overrides or {})})


def _mlp_slots(prefix: str, spec: BlockSpec, layer: int) -> Iterable[TensorSlot]:
    for name in ("up_proj", "down_proj"):
        yield from linear_slots(f"{prefix}mlp.{name}", f"{STACK}mlp.{name}", (layer,), bias=False)
    for name in ("alpha_p", "alpha_n"):
        yield vector_slot(f"{prefix}mlp.act_fn.{name}", f"{STACK}mlp.{name}", (layer,))
    like = f"{STACK}mlp.alpha_p"
    yield constant_slot(f"{prefix}mlp.act_fn.beta", XIELU_BETA, like=like)
    yield constant_slot(f"{prefix}mlp.act_fn.eps", XIELU_EPS, like=like)


ApertusLMHeadModel = DecoderLMHeadModel
