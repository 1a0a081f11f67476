r"""OLMo 3: OLMo 2 with a sliding window on three layers of four.

    q, k = RMS_all(W x);        h = x + N1(Attn x);        y = h + N2(MLP h)

Windowed layers rotate plainly; full layers may stretch their rotation to a longer context.

References:
    OLMo team, OLMo 3 (2025), https://allenai.org/papers/olmo3, architecture section.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from levanter.layers.rotary import DefaultRotaryConfig, RotaryConfig
from levanter.models.block import BlockSpec
from levanter.models.decoder import DecoderLMHeadModel, RotaryDecoderConfig
from levanter.models.hf_config import (
    as_mapping,
    decoder_from_hf,
    decoder_to_hf,
    refuse_settings,
    rope_from_hf,
    rope_scaling_to_hf,
)
from levanter.models.layer_types import LayerType, alternating_layers
from levanter.models.lm_model import LmConfig
from levanter.models.olmo import OLMO_NORMS, olmo_block
from levanter.models.state_dict import TensorSlot, decoder_map

_THETA = 500_000.0


@LmConfig.register_subclass("olmo3")
@dataclass(frozen=True)
class Olmo3Config(RotaryDecoderConfig):
    """Shape and settings of an OLMo 3 model.

    Attributes:
        sliding_window: Keys that a query of a windowed layer sees, itself included.
        layer_types: ``sliding_attention`` or ``full_attention`` for each layer; None makes every fourth one full.
        rope: Rotation of full layers; windowed ones use its base without scaling.

    Example:
        >>> [x.window for x in Olmo3Config(num_layers=4).layer_settings()]
        [4096, 4096, 4096, None]
    """

    max_seq_len: int = 4096
    layer_norm_epsilon: float = 1e-6
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] | None = None
    rope: RotaryConfig = dataclasses.field(default_factory=lambda: DefaultRotaryConfig(theta=_THETA))

    hf_model_type: ClassVar[str] = "olmo3"
    hf_architecture: ClassVar[str] = "Olmo3ForCausalLM"

    def layer_kinds(self) -> Sequence[str]:
        """One entry a layer, as Hugging Face writes it."""
        if self.layer_types is not None:
            return self.layer_types
        return ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(self.num_layers)]

    def layer_settings(self) -> Sequence[LayerType]:
        """Windows with the plain rotation, and every so often a full layer with the configured one."""
        local = DefaultRotaryConfig(theta=self.rope.theta)
        return alternating_layers(
            self.layer_kinds(),
            num_layers=self.num_layers,
            window=self.sliding_window,
            rope=self.rope,
            local_rope=local,
        )

    def block_spec(self) -> BlockSpec:
        """OLMo 2's."""
        return olmo_block(super().block_spec())

    def state_dict_map(self) -> list[TensorSlot]:
        """OLMo 2's."""
        return decoder_map(self, norms=OLMO_NORMS)

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``."""
        raw: dict[str, Any] = {"rms_norm_eps": 1e-5, **as_mapping(hf_config)}
        kinds = raw.get("layer_types")
        fields: dict[str, Any] = {**decoder_from_hf(raw), "rope": rope_from_hf(raw, "full_attention", theta=_THETA)}
        fields |= {"sliding_window": raw.get("sliding_window", 4096), "use_bias": raw.get("attention_bias", False)}
        derived = cls(**fields).layer_kinds()
        return cls(**fields, layer_types=None if kinds is None or list(kinds) == list(derived) else tuple(kinds))

    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """OLMo 3's ``config.json``."""
        refuse_settings(self, head_dim=None)
        theta = self.rope.theta
        fields = {
            "attention_bias": self.use_bias,
            "sliding_window": self.sliding_window,
            "layer_types": list(self.layer_kinds()),
            "rope_parameters": {
                "full_attention": {"rope_theta": theta, **rope_scaling_to_hf(self.rope)},
                "sliding_attention": {"rope_theta": theta, "rope_type": "default"},
            },
        }
        return decoder_to_hf(self, vocab_size, {**fields, **(config_overrides or {})})


Olmo3LMHeadModel = DecoderLMHeadModel
