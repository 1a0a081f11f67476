r"""Qwen 3 mixture of experts: Qwen 3's attention (per-head query-key norms) and many narrow experts.

    p = softmax(W_r x),  S = top-k(p),  y = sum_{s in S} w_s down_s(silu(gate_s x) * up_s x)
    w_s = p_s / sum_S p  with norm_topk_prob, else p_s

Every layer is sparse (``decoder_sparse_step`` 1, no ``mlp_only_layers``), as in all published models of the family.
State dict: the router is ``mlp.gate``, expert ``e`` is ``mlp.experts.{e}.{gate,up,down}_proj``.

References:
    Qwen3 technical report, arXiv:2505.09388, section 2.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from haliax import Axis

from levanter.errors import HfCheckpointError
from levanter.layers.moe import check_top_k
from levanter.layers.rotary import DefaultRotaryConfig, RotaryConfig
from levanter.models.block import BlockSpec, QkNorm
from levanter.models.decoder import DecoderLMHeadModel
from levanter.models.hf_config import as_mapping, decoder_to_hf
from levanter.models.llama import LLAMA_NORMS
from levanter.models.lm_model import LmConfig
from levanter.models.mixtral import expert_slots
from levanter.models.moe import MoeMlpSpec
from levanter.models.qwen import QwenLikeConfig
from levanter.models.state_dict import TensorSlot, decoder_map


@LmConfig.register_subclass("qwen3_moe")
@dataclass(frozen=True)
class Qwen3MoeConfig(QwenLikeConfig):
    """Shape and settings of a Qwen 3 mixture of experts.

    Attributes:
        intermediate_dim: Width of a dense layer in ``config.json``; no layer here is dense.
        moe_intermediate_dim: Width of an expert.
        n_routed_experts: Experts.
        num_experts_per_tok: Experts that a token visits.
        norm_topk_prob: Rescale a token's combine weights to sum 1.
        router_aux_loss_coef: Weight of the load-balancing loss.
        rzl_coef: Weight of the router z-loss.
        moe_implementation: Kernel: auto, ragged or blocked.

    Example:
        >>> Qwen3MoeConfig().block_spec().mlp.Experts.size
        128
    """

    max_seq_len: int = 40960
    hidden_dim: int = 2048
    intermediate_dim: int = 6144
    num_layers: int = 48
    num_heads: int = 32
    num_kv_heads: int = 4
    head_dim: int | None = 128
    rope: RotaryConfig = field(default_factory=lambda: DefaultRotaryConfig(theta=1e6))
    moe_intermediate_dim: int = 768
    n_routed_experts: int = 128
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = True
    router_aux_loss_coef: float = 0.001
    rzl_coef: float = 0.0
    moe_implementation: str = "auto"

    hf_model_type: ClassVar[str] = "qwen3_moe"
    hf_architecture: ClassVar[str] = "Qwen3MoeForCausalLM"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_top_k(self.n_routed_experts, self.num_experts_per_tok)

    def block_spec(self) -> BlockSpec:
        """Per-head query-key norms and a routed MLP."""
        mlp = MoeMlpSpec(
            Experts=Axis("experts", self.n_routed_experts),
            Mlp=Axis("mlp", self.moe_intermediate_dim),
            experts_per_token=self.num_experts_per_tok,
            activation=self.activation_function,
            normalise=self.norm_topk_prob,
            load_balancing_coef=self.router_aux_loss_coef,
            z_loss_coef=self.rzl_coef,
            implementation=self.moe_implementation,
        )
        return dataclasses.replace(super().block_spec(), mlp=mlp, qk_norm=QkNorm.HEAD)

    def state_dict_map(self) -> list[TensorSlot]:
        """Qwen 3's, with router and experts for the MLP."""
        return decoder_map(self, norms=LLAMA_NORMS, mlp_slots=qwen3_moe_slots)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``.

        Raises:
            HfCheckpointError: some layers are dense.
        """
        raw: dict[str, Any] = {"head_dim": None, "num_key_value_heads": 4, **as_mapping(hf_config)}
        step, dense = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers") or []
        if step != 1 or dense:
            raise HfCheckpointError(
                f"decoder_sparse_step={step}, mlp_only_layers={dense}; expected 1 and []: every layer must be sparse. "
                "Models that mix dense and sparse layers cannot be loaded as qwen3_moe."
            )
        return cls(
            **cls.fields_from_hf(raw),
            use_bias=raw.get("attention_bias", False),
            moe_intermediate_dim=raw.get("moe_intermediate_size", 768),
            n_routed_experts=raw.get("num_experts", raw.get("num_local_experts", 128)),
            num_experts_per_tok=raw.get("num_experts_per_tok", 8),
            norm_topk_prob=raw.get("norm_topk_prob", False),
            router_aux_loss_coef=raw.get("router_aux_loss_coef", 0.001),
        )

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Qwen 3 MoE's ``config.json``."""
        fields = {
            **self.fields_to_hf(),
            "attention_bias": self.use_bias,
            "moe_intermediate_size": self.moe_intermediate_dim,
            "num_experts": self.n_routed_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "norm_topk_prob": self.norm_topk_prob,
            "router_aux_loss_coef": self.router_aux_loss_coef,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
        return decoder_to_hf(self, vocab_size, {**fields, **(config_overrides or {})})


def qwen3_moe_slots(prefix: str, spec: Any, layer: int) -> list[TensorSlot]:
    """Router and experts of one layer under Qwen's names."""
    names = {name: name for name in ("gate_proj", "up_proj", "down_proj")}
    return expert_slots(f"{prefix}mlp.", names, spec, layer)


Qwen3MoeLMHeadModel = DecoderLMHeadModel
