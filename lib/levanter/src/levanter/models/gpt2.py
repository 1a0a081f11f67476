r"""GPT-2: pre-norm with layer norms, learned positions, biases everywhere, a two-matrix GELU MLP, a tied head.

    x_0 = Embed[ids] + Positions[0..P-1]
    h = x + Attn(LN(x));        y = h + Proj(gelu_new(Fc LN(h)))

State dict: ``transformer.wte``, ``transformer.wpe``, ``transformer.h.{i}.{ln_1,attn.c_attn,attn.c_proj,ln_2,mlp.c_fc,
mlp.c_proj}``, ``transformer.ln_f``; matrices are Conv1D, ``[in, out]``, and ``c_attn`` fuses queries, keys and values.
The prefix may be absent.

References:
    Radford et al., Language models are unsupervised multitask learners (2019), section 2.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from haliax import Axis

from levanter.errors import ConfigError, HfCheckpointError
from levanter.layers.normalization import NormSpec
from levanter.models.block import BlockSpec
from levanter.models.decoder import DecoderConfig, DecoderLMHeadModel
from levanter.models.hf_config import activation_from_hf, activation_to_hf, as_mapping, refuse_settings, require
from levanter.models.layer_types import LayerType
from levanter.models.lm_model import LmConfig
from levanter.models.mlp import PlainMlpSpec
from levanter.models.state_dict import STACK, Layout, Leaf, TensorSlot, linear_slots, vector_slot

_MATRICES = {
    "attn.c_attn": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), 1),
    "attn.c_proj": (("self_attn.o_proj",), 2),
    "mlp.c_fc": (("mlp.up_proj",), 1),
    "mlp.c_proj": (("mlp.down_proj",), 1),
}
_NORMS = {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm"}


@LmConfig.register_subclass("gpt2")
@dataclass(frozen=True)
class Gpt2Config(DecoderConfig):
    """Shape and settings of a GPT-2 model; the defaults are those of the small one.

    Attributes:
        mlp_scale: Size of the MLP over that of the residual stream.
        activation_function: Activation of the MLP.
        scale_attn_by_inverse_layer_idx: Divide the scores of layer ``l`` by ``l + 1``.
        embed_pdrop: Must be 0; dropout is not implemented.
        resid_pdrop: Must be 0.
        attn_pdrop: Must be 0.

    Example:
        >>> Gpt2Config().total_trainable_params(50257)
        124439808
    """

    max_seq_len: int = 1024
    hidden_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    tie_word_embeddings: bool = True
    mlp_scale: int = 4
    activation_function: str = "gelu_new"
    scale_attn_by_inverse_layer_idx: bool = False
    embed_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    attn_pdrop: float = 0.0

    hf_model_type: ClassVar[str] = "gpt2"
    hf_architecture: ClassVar[str] = "GPT2LMHeadModel"
    hf_base_prefix: ClassVar[str] = "transformer"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embed_pdrop", "resid_pdrop", "attn_pdrop"):
            if getattr(self, name):
                raise ConfigError(
                    f"{getattr(self, name)}; expected 0, dropout is not implemented.", key=f"model.{name}"
                )

    @property
    def num_kv_heads(self) -> int:
        """As many as query heads."""
        return self.num_heads

    @property
    def intermediate_dim(self) -> int:
        """Size of the MLP."""
        return self.hidden_dim * self.mlp_scale

    @property
    def learned_positions(self) -> bool:
        """A table of positions."""
        return True

    @property
    def embed_init_scale(self) -> float:
        """Fresh embeddings are small."""
        return self.initializer_range

    def norm_spec(self) -> NormSpec:
        """Layer norms with bias."""
        return NormSpec(kind="layer", eps=self.layer_norm_epsilon, use_bias=True)

    def block_spec(self) -> BlockSpec:
        """Pre-norm, biases everywhere, two-matrix MLP."""
        return BlockSpec(
            Embed=self.Embed,
            Heads=Axis("heads", self.num_heads),
            KVHeads=Axis("kv_head", self.num_heads),
            HeadSize=Axis("head_size", self.head_size),
            mlp=PlainMlpSpec(Axis("mlp", self.intermediate_dim), self.activation_function, use_bias=True),
            norm=self.norm_spec(),
            use_qkv_bias=True,
            use_output_bias=True,
            attention=self.attention_settings(),
            init=self.init_spec(),
        )

    def layer_settings(self) -> Sequence[LayerType]:
        """No rotation; scores scaled by the layer's number where that is on."""
        if not self.scale_attn_by_inverse_layer_idx:
            return [LayerType()] * self.num_layers
        return [LayerType(score_scale=1.0 / (index + 1)) for index in range(self.num_layers)]

    def state_dict_map(self) -> list[TensorSlot]:
        """GPT-2's names; Conv1D matrices, and queries, keys and values in one."""
        slots = [
            TensorSlot("transformer.wte.weight", (Leaf("embeddings.token_embeddings.weight"),)),
            TensorSlot("transformer.wpe.weight", (Leaf("embeddings.position_embeddings.weight"),)),
        ]
        for layer in range(self.num_layers):
            prefix = f"transformer.h.{layer}."
            for torch_name, ours in _NORMS.items():
                slots += _norm_slots(prefix + torch_name, STACK + ours, (layer,))
            for torch_name, (paths, in_axes) in _MATRICES.items():
                weights = tuple(Leaf(f"{STACK}{path}.weight", (layer,), in_axes) for path in paths)
                biases = tuple(Leaf(f"{STACK}{path}.bias", (layer,)) for path in paths)
                slots.append(TensorSlot(f"{prefix}{torch_name}.weight", weights, Layout.CONV1D))
                slots.append(TensorSlot(f"{prefix}{torch_name}.bias", biases, Layout.VECTOR))
        slots += _norm_slots("transformer.ln_f", "transformer.norm")
        if not self.tie_word_embeddings:
            slots += linear_slots("lm_head", "lm_head", bias=False)
        return slots

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``; dropout is of no account here.

        Raises:
            HfCheckpointError: unscaled attention, cross-attention, or an MLP that is no multiple of the stream.
        """
        raw = as_mapping(hf_config)
        hidden = require(raw, "n_embd")
        inner = raw.get("n_inner") or 4 * hidden
        odd = {"scale_attn_weights": raw.get("scale_attn_weights", True) is not True}
        odd |= {"add_cross_attention": bool(raw.get("add_cross_attention")), "n_inner": inner % hidden != 0}
        wrong = [name for name, bad in odd.items() if bad]
        if wrong:
            raise HfCheckpointError(
                f"cannot import the model: {wrong[0]}={raw.get(wrong[0])!r}, n_embd={hidden}; expected scaled "
                "self-attention and n_inner a multiple of n_embd. This variant of GPT-2 is not implemented.",
                path=str(raw.get("_name_or_path", "")),
            )
        return cls(
            max_seq_len=raw.get("n_positions", 1024),
            hidden_dim=hidden,
            num_layers=require(raw, "n_layer"),
            num_heads=require(raw, "n_head"),
            mlp_scale=inner // hidden,
            activation_function=activation_from_hf(raw.get("activation_function", "gelu_new")),
            initializer_range=raw.get("initializer_range", 0.02),
            layer_norm_epsilon=raw.get("layer_norm_epsilon", 1e-5),
            tie_word_embeddings=raw.get("tie_word_embeddings", True),
            scale_attn_by_inverse_layer_idx=raw.get("scale_attn_by_inverse_layer_idx", False),
        )

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """GPT-2's ``config.json``."""
        refuse_settings(self, head_dim=None)
        return {
            "architectures": [self.hf_architecture],
            "model_type": self.hf_model_type,
            "vocab_size": vocab_size,
            "n_positions": self.max_seq_len,
            "n_ctx": self.max_seq_len,
            "n_embd": self.hidden_dim,
            "n_layer": self.num_layers,
            "n_head": self.num_heads,
            "n_inner": self.intermediate_dim,
            "activation_function": activation_to_hf(self.activation_function),
            "initializer_range": self.initializer_range,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "tie_word_embeddings": self.tie_word_embeddings,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": self.scale_attn_by_inverse_layer_idx,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "use_cache": True,
            **(config_overrides or {}),
        }


def _norm_slots(name: str, path: str, index: tuple[int, ...] = ()) -> list[TensorSlot]:
    return [vector_slot(f"{name}.{part}", f"{path}.{part}", index) for part in ("weight", "bias")]


Gpt2LMHeadModel = DecoderLMHeadModel
