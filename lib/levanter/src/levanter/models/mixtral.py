r"""Mixtral: Mistral with a mixture of gated MLPs, two of eight experts a token.

    p = softmax(W_r x),  S = top-2(p),  y = sum_{s in S} p_s / sum_S p  *  w2_s (silu(w1_s x) * w3_s x)

Dispatch is dropless; the router losses are added in training only. State dict: the router is
``block_sparse_moe.gate``, expert ``e`` is ``block_sparse_moe.experts.{e}.w1`` (gate), ``.w3`` (up), ``.w2`` (down).

References:
    Jiang et al., Mixtral of experts, arXiv:2401.04088.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from haliax import Axis

from levanter.layers.moe import check_top_k
from levanter.models.block import BlockSpec
from levanter.models.decoder import DecoderLMHeadModel, RotaryDecoderConfig
from levanter.models.hf_config import as_mapping, decoder_from_hf, decoder_to_hf, refuse_settings
from levanter.models.layer_types import LayerType
from levanter.models.llama import LLAMA_NORMS
from levanter.models.lm_model import LmConfig
from levanter.models.moe import MoeMlpSpec
from levanter.models.state_dict import STACK, TensorSlot, decoder_map, linear_slots


@LmConfig.register_subclass("mixtral")
@dataclass(frozen=True)
class MixtralConfig(RotaryDecoderConfig):
    """Shape and settings of a Mixtral model; the fields of every rotary decoder and these.

    Attributes:
        sliding_window: Keys a query sees, itself included; None for all.
        n_routed_experts: Experts.
        num_experts_per_tok: Experts that a token visits.
        n_shared_experts: Experts that every token visits, as one dense MLP of their joint width; 0 for none.
        lbl_coef: Weight of the load-balancing loss.
        rzl_coef: Weight of the router z-loss.
        moe_implementation: Kernel: auto, ragged or blocked.

    Example:
        >>> MixtralConfig().block_spec().mlp.experts_per_token
        2
    """

    max_seq_len: int = 8192
    intermediate_dim: int = 14336
    num_kv_heads: int = 8
    sliding_window: int | None = None
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 0
    lbl_coef: float = 0.01
    rzl_coef: float = 0.001
    moe_implementation: str = "auto"

    hf_model_type: ClassVar[str] = "mixtral"
    hf_architecture: ClassVar[str] = "MixtralForCausalLM"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top_k(self.n_routed_experts, self.num_experts_per_tok)

    def block_spec(self) -> BlockSpec:
        """Mistral's, with a routed MLP."""
        mlp = MoeMlpSpec(
            Experts=Axis("experts", self.n_routed_experts),
            Mlp=Axis("mlp", self.intermediate_dim),
            experts_per_token=self.num_experts_per_tok,
            activation=self.activation_function,
            shared_dim=self.n_shared_experts * self.intermediate_dim,
            load_balancing_coef=self.lbl_coef,
            z_loss_coef=self.rzl_coef,
            implementation=self.moe_implementation,
        )
        return dataclasses.replace(super().block_spec(), mlp=mlp)

    def layer_settings(self) -> Sequence[LayerType]:
        """All layers alike."""
        return [LayerType(self.sliding_window, self.rope)] * self.num_layers

    def state_dict_map(self) -> list[TensorSlot]:
        """Llama's, with router and experts for the MLP."""
        return decoder_map(self, norms=LLAMA_NORMS, mlp_slots=mixtral_slots)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> "MixtralConfig":
        """Our config from a parsed ``config.json``; the z-loss, which it has no field for, keeps our default."""
        raw: dict[str, Any] = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, **as_mapping(hf_config)}
        return cls(
            **decoder_from_hf(raw),
            sliding_window=raw.get("sliding_window"),
            n_routed_experts=raw.get("num_local_experts", 8),
            num_experts_per_tok=raw.get("num_experts_per_tok", 2),
            lbl_coef=raw.get("router_aux_loss_coef", 0.001),
        )

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Mixtral's ``config.json``."""
        refuse_settings(self, use_bias=False, n_shared_experts=0)
        fields = {
            "sliding_window": self.sliding_window,
            "num_local_experts": self.n_routed_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "router_aux_loss_coef": self.lbl_coef,
        }
        return decoder_to_hf(self, vocab_size, {**fields, **(config_overrides or {})})


def mixtral_slots(prefix: str, spec: Any, layer: int) -> list[TensorSlot]:
    """Router and experts of one layer under Mixtral's names."""
    names = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    return expert_slots(f"{prefix}block_sparse_moe.", names, spec, layer)


def expert_slots(prefix: str, names: Mapping[str, str], spec: Any, layer: int) -> list[TensorSlot]:
    """Router ``gate`` and ``experts.{e}.{name}`` under a prefix.

    Args:
        prefix: Torch prefix of the layer's MLP.
        names: Torch name of each of an expert's matrices to ours.
        spec: Block spec whose MLP is a :class:`~levanter.models.moe.MoeMlpSpec`.
        layer: Index of the layer.
    """
    slots = linear_slots(f"{prefix}gate", f"{STACK}mlp.router", (layer,), bias=False)
    for expert in range(spec.mlp.Experts.size):
        for torch_name, ours in names.items():
            name = f"{prefix}experts.{expert}.{torch_name}"
            slots += linear_slots(name, f"{STACK}mlp.{ours}", (layer, expert), bias=False)
    return slots


MixtralLMHeadModel = DecoderLMHeadModel
