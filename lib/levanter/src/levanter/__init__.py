"""A language-model trainer on JAX that reads like one script and resumes bit for bit.

The names below are loaded on first use, so that importing the package costs nothing. Everything else is imported from
its module: ``levanter.layers.attention``, ``levanter.optim.config``, ``levanter.data.loader``, ...
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levanter.checkpoint import CheckpointerConfig as CheckpointerConfig
    from levanter.checkpoint import load_checkpoint as load_checkpoint
    from levanter.checkpoint import save_checkpoint as save_checkpoint
    from levanter.compat.hf_checkpoints import load_hf_checkpoint as load_hf_checkpoint
    from levanter.compat.hf_checkpoints import save_hf_checkpoint as save_hf_checkpoint
    from levanter.errors import LevanterError as LevanterError
    from levanter.eval import bits_per_byte as bits_per_byte
    from levanter.inference.generate import generate as generate
    from levanter.layers.attention_mask import AttentionMask as AttentionMask
    from levanter.models.llama import LlamaConfig as LlamaConfig
    from levanter.models.llama import LlamaLMHeadModel as LlamaLMHeadModel
    from levanter.optim.config import AdamConfig as AdamConfig
    from levanter.trainer import Trainer as Trainer
    from levanter.trainer_config import TrainerConfig as TrainerConfig
    from levanter.trainer_state import TrainerState as TrainerState

_HOMES = {
    "AdamConfig": "levanter.optim.config",
    "AttentionMask": "levanter.layers.attention_mask",
    "CheckpointerConfig": "levanter.checkpoint",
    "LevanterError": "levanter.errors",
    "LlamaConfig": "levanter.models.llama",
    "LlamaLMHeadModel": "levanter.models.llama",
    "Trainer": "levanter.trainer",
    "TrainerConfig": "levanter.trainer_config",
    "TrainerState": "levanter.trainer_state",
    "bits_per_byte": "levanter.eval",
    "generate": "levanter.inference.generate",
    "load_checkpoint": "levanter.checkpoint",
    "load_hf_checkpoint": "levanter.compat.hf_checkpoints",
    "save_checkpoint": "levanter.checkpoint",
    "save_hf_checkpoint": "levanter.compat.hf_checkpoints",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'levanter' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
