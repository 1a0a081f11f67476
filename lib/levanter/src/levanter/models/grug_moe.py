r"""Grug mixture of experts (``model_type`` ``grug_moe``): a router without a loss, gated norms, exclusive attention.

    x = Gate(RMS(Embed[ids]))
    x = x + Attn(Gate(RMS(x)));   h = Gate(RMS(x));   x = x + MoE(h) + Shared(h)
    logits = Gate(RMS(x)) W_out

The equations are in :mod:`levanter.grug.model` and :mod:`levanter.grug.router`, the modules in
:mod:`levanter.models.grug_modules`. Everything that makes the recipe (which layers see everything, half rotations, sum
of the combine weights, activation, no biases, a head of its own) is fixed; a ``config.json`` that says otherwise is
refused, and so is one that spells a field differently.

State dict: ``model.embed_tokens``, ``model.embed_norm``, ``model.embed_gated_norm.{down,up}_proj``; per layer
``input_layernorm``, ``attn_gated_norm``, ``self_attn.{q,k,v,o}_proj``, ``self_attn.attn_gate``,
``post_attention_layernorm``, ``mlp_gated_norm``, ``mlp.router.{weight,bias}``, ``mlp.experts.{gate,up,down}_proj``
(all experts in one tensor ``[E, out, in]``), ``shared_expert.{gate,up,down}_proj``; ``model.norm``,
``model.final_gated_norm``, ``lm_head``. The router bias is float32 whatever the other tensors are.

References:
    The public Marin project, grug mixture of experts, 2026; see :mod:`levanter.grug.model`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from haliax import Axis

from levanter.errors import ConfigError, HfCheckpointError
from levanter.grug.flops import flops_per_token, num_parameters
from levanter.grug.model import FULL_EVERY, GrugMoeConfig
from levanter.grug.router import COMBINE_SUM
from levanter.layers.attention import AttentionBackend, AttentionSettings
from levanter.layers.moe import pick_implementation
from levanter.layers.stacked import RematPolicy, check_remat
from levanter.models.grug_modules import GrugMoeLMHeadModel
from levanter.models.hf_config import as_mapping, require
from levanter.models.lm_model import HfLmConfig, LmConfig
from levanter.models.state_dict import STACK, Layout, Leaf, TensorSlot, linear_slots, vector_slot

FIELDS = {
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "num_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "moe_intermediate_size": "intermediate_dim",
    "shared_expert_intermediate_size": "shared_expert_intermediate_dim",
    "gated_norm_rank": "gated_norm_rank",
    "sliding_window": "sliding_window",
    "qk_mult": "qk_mult",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
"""The one spelling of every field of ``config.json``, to ours."""

RECIPE = {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "full_attention_interval": FULL_EVERY,
    "partial_rotary_factor": 0.5,
    "routed_scaling_factor": COMBINE_SUM,
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
}
"""What the recipe fixes; written on export, and refused when a ``config.json`` has another value."""

OTHER_SPELLINGS = {
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "moe_top_k": "num_experts_per_tok",
    "intermediate_size": "moe_intermediate_size",
    "expert_intermediate_size": "moe_intermediate_size",
    "shared_intermediate_size": "shared_expert_intermediate_size",
    "n_shared_experts": "shared_expert_intermediate_size",
    "window_size": "sliding_window",
    "layer_norm_epsilon": "rms_norm_eps",
    "layer_norm_eps": "rms_norm_eps",
    "initializer_std": "initializer_range",
    "max_seq_len": "max_position_embeddings",
}
"""Names that other families use for fields of this one; refused, so that no field can be given twice."""


@LmConfig.register_subclass("grug_moe")
@dataclass(frozen=True)
class GrugMoeLmConfig(HfLmConfig):
    """Shape and settings of a grug mixture of experts; the defaults are the 67B model with 2B active.

    Attributes:
        max_seq_len: Longest sequence.
        hidden_dim: Size of the residual stream.
        num_layers: Layers, all of them sparse; every fourth and the last see all earlier positions.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides ``num_heads``.
        head_dim: Size of a head; a multiple of 4.
        num_experts: Experts.
        num_experts_per_tok: Experts that a token visits; less than the experts.
        intermediate_dim: Width of an expert.
        shared_expert_intermediate_dim: Width of the expert that every token visits.
        gated_norm_rank: Inner size of the gated norms.
        sliding_window: Keys that a query of the other layers sees, itself included.
        qk_mult: Factor on normed queries.
        rope_theta: Base of the rotation.
        layer_norm_epsilon: Added to the mean square in norms with weights.
        initializer_range: Standard deviation of fresh weights; None means ``0.5 / sqrt(hidden_dim)``.
        router_shards: Parts of the batch whose router thresholds are averaged; None is one a batch shard of the mesh,
            1 the quantile of the whole batch (:mod:`levanter.grug.router`).
        capacity_factor: Rows an expert device reserves as a multiple of the even share; None drops nothing.
        moe_implementation: Kernel: auto, ragged or blocked.
        attn_backend: Attention kernel.
        flash_attention_block_size: Block of the flash kernel.
        gradient_checkpointing: Remat policy: True keeps matrix products; False, "full", "save_all" are the others.
        scan_layers: Scan over layers, or unroll.
        reference_checkpoint: Hub name of the model this shape comes from.
        tokenizer: Tokenizer that belongs to it.

    Example:
        >>> round(GrugMoeLmConfig().total_trainable_params(128_256) / 1e9)
        67
    """

    max_seq_len: int = 65536
    hidden_dim: int = 2560
    num_layers: int = 26
    num_heads: int = 20
    num_kv_heads: int = 5
    head_dim: int = 128
    num_experts: int = 256
    num_experts_per_tok: int = 4
    intermediate_dim: int = 1280
    shared_expert_intermediate_dim: int = 2560
    gated_norm_rank: int = 128
    sliding_window: int = 2048
    qk_mult: float = 1.5703
    rope_theta: float = 10_000.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float | None = None
    router_shards: int | None = None
    capacity_factor: float | None = None
    moe_implementation: str = "auto"
    attn_backend: AttentionBackend | None = None
    flash_attention_block_size: int | None = None
    gradient_checkpointing: RematPolicy = True
    scan_layers: bool = True
    reference_checkpoint: str | None = None
    tokenizer: str | None = None

    hf_model_type: ClassVar[str] = "grug_moe"
    hf_architecture: ClassVar[str] = "GrugMoeForCausalLM"

    def __post_init__(self) -> None:
        check_remat(self.gradient_checkpointing)
        pick_implementation(self.moe_implementation)
        sizes = ("num_layers", "intermediate_dim", "shared_expert_intermediate_dim", "gated_norm_rank", "max_seq_len")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(f"{getattr(self, name)}; expected at least 1.", key=f"model.{name}")
        if self.capacity_factor is not None and self.capacity_factor <= 0:
            raise ConfigError(
                f"{self.capacity_factor}; expected > 0, or null for no limit.", key="model.capacity_factor"
            )
        self.template(1)

    @property
    def context_length(self) -> int:
        """Longest sequence."""
        return self.max_seq_len

    def template(self, vocab_size: int) -> GrugMoeConfig:
        """The same shape as :mod:`levanter.grug.model` takes it.

        Raises:
            ConfigError: sizes that do not fit together.
        """
        backend = self.attn_backend or AttentionBackend.DEFAULT
        return GrugMoeConfig(
            vocab_size=vocab_size,
            hidden_dim=self.hidden_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            expert_dim=self.intermediate_dim,
            shared_dim=self.shared_expert_intermediate_dim,
            gate_rank=self.gated_norm_rank,
            sliding_window=self.sliding_window,
            qk_mult=self.qk_mult,
            init_std=self.initializer_range,
            norm_eps=self.layer_norm_epsilon,
            rope_theta=self.rope_theta,
            capacity_factor=self.capacity_factor,
            router_shards=self.router_shards,
            attention=AttentionSettings(backend, self.flash_attention_block_size),
            implementation=self.moe_implementation,
        )

    def build(self, Vocab: Axis, *, key: jax.Array) -> GrugMoeLMHeadModel:
        """Make a freshly initialised model."""
        return GrugMoeLMHeadModel.init(
            Vocab,
            self.template(Vocab.size),
            self,
            remat=self.gradient_checkpointing,
            scan=self.scan_layers,
            key=key,
        )

    def flops_per_token(self, vocab_size: int, context_length: int, *, convention: str = "full") -> float:
        """Forward FLOPs per token, of the experts it visits; see :func:`levanter.grug.flops.flops_per_token`."""
        return flops_per_token(self.template(vocab_size), context_length, convention=convention)

    def total_trainable_params(self, vocab_size: int) -> int:
        """Number of parameters, by arithmetic; router biases are not among them."""
        return num_parameters(self.template(vocab_size))

    def state_dict_map(self) -> list[TensorSlot]:
        """Where each tensor lives, in export order."""
        slots = [TensorSlot("model.embed_tokens.weight", (Leaf("embeddings.token_embeddings.weight"),))]
        slots += _gated_norm_slots("model.embed_norm", "model.embed_gated_norm", "embeddings.norm")
        for layer in range(self.num_layers):
            slots += _layer_slots(f"model.layers.{layer}.", layer)
        slots += _gated_norm_slots("model.norm", "model.final_gated_norm", "transformer.norm")
        return slots + linear_slots("lm_head", "lm_head", bias=False)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> "GrugMoeLmConfig":
        """Our config from a parsed ``config.json``.

        Raises:
            HfCheckpointError: a field is missing or spelt otherwise, or a value is not the recipe's.
        """
        raw = as_mapping(hf_config)
        path = str(raw.get("_name_or_path", ""))
        for other, name in OTHER_SPELLINGS.items():
            if raw.get(other) is not None:
                raise HfCheckpointError(
                    f"cannot read config.json: {other}={raw[other]!r}; expected that value under {name}, the one "
                    f"spelling of {cls.hf_model_type}. Rename the field.",
                    path=path,
                )
        for name, only in RECIPE.items():
            if raw.get(name, only) != only:
                raise HfCheckpointError(
                    f"cannot import the model: {name}={raw[name]!r}; expected {only!r}, which the {cls.hf_model_type} "
                    "recipe fixes. Such a model is a variant: copy levanter/grug/model.py.",
                    path=path,
                )
        return cls(**{ours: require(raw, name) for name, ours in FIELDS.items()})

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The ``config.json``: every field in its one spelling, and the recipe."""
        fields = {name: getattr(self, ours) for name, ours in FIELDS.items()}
        return {
            "architectures": [self.hf_architecture],
            "model_type": self.hf_model_type,
            "vocab_size": vocab_size,
            **fields,
            "initializer_range": self.template(vocab_size).std,
            **RECIPE,
            **(config_overrides or {}),
        }


def _layer_slots(prefix: str, layer: int) -> list[TensorSlot]:
    ours = STACK
    slots = _gated_norm_slots(f"{prefix}input_layernorm", f"{prefix}attn_gated_norm", f"{ours}attn_norm", (layer,))
    for name in ("q_proj", "k_proj", "v_proj", "attn_gate"):
        slots += linear_slots(f"{prefix}self_attn.{name}", f"{ours}self_attn.{name}", (layer,), bias=False)
    slots += linear_slots(f"{prefix}self_attn.o_proj", f"{ours}self_attn.o_proj", (layer,), in_axes=2, bias=False)
    slots += _gated_norm_slots(
        f"{prefix}post_attention_layernorm", f"{prefix}mlp_gated_norm", f"{ours}mlp_norm", (layer,)
    )
    slots += linear_slots(f"{prefix}mlp.router", f"{ours}mlp.router", (layer,), bias=False)
    slots.append(
        TensorSlot(f"{prefix}mlp.router.bias", (Leaf("router_bias.value", (layer,)),), Layout.VECTOR, dtype="float32")
    )
    for name in ("gate_proj", "up_proj", "down_proj"):
        leaf = Leaf(f"{ours}mlp.{name}.weight", (layer,))
        slots.append(TensorSlot(f"{prefix}mlp.experts.{name}", (leaf,), Layout.LINEAR_STACK))
    for name in ("gate_proj", "up_proj", "down_proj"):
        slots += linear_slots(f"{prefix}shared_expert.{name}", f"{ours}shared_expert.{name}", (layer,), bias=False)
    return slots


def _gated_norm_slots(norm: str, gate: str, ours: str, index: tuple[int, ...] = ()) -> list[TensorSlot]:
    slots = [vector_slot(f"{norm}.weight", f"{ours}.norm.weight", index)]
    for name in ("down_proj", "up_proj"):
        slots += linear_slots(f"{gate}.{name}", f"{ours}.{name}", index, bias=False)
    return slots
