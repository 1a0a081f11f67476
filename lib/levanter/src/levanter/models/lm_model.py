"""What every language model here can do, and what its config must answer.

A model maps token ids to hidden states; the head that turns them into logits is separate, so that the loss can be
computed without the logits ever existing as one array (:mod:`levanter.kernels.fused_cross_entropy`).
"""

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from draccus import PluginRegistry
from haliax import Axis, NamedArray

from levanter.layers.attention_mask import AttentionMask


class LmHeadModel(eqx.Module):
    """A causal language model with a head.

    Attributes:
        config: The config it was made from.
        vocab_size: Number of ids.
    """

    @property
    @abc.abstractmethod
    def Vocab(self) -> Axis:
        """The vocabulary axis."""

    @abc.abstractmethod
    def activations(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None, *, pos_ids: NamedArray | None = None
    ) -> NamedArray:
        """Hidden states after the last norm, axes ``{batch..., position, embed}``."""

    def activations_with_aux(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None, *, pos_ids: NamedArray | None = None
    ) -> tuple[NamedArray, dict[str, jax.Array]]:
        """Hidden states, and auxiliary values by name (router losses and statistics); none unless a model has some."""
        return self.activations(input_ids, attn_mask, pos_ids=pos_ids), {}

    @abc.abstractmethod
    def get_lm_head(self) -> NamedArray:
        """The head, axes ``{embed, vocab}`` in storage order."""


@dataclass(frozen=True)
class LmConfig(PluginRegistry, discover_packages_path="levanter.models"):
    """Shape and settings of a language model; ``type`` selects the family."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        """The family used when no ``type:`` is given."""
        return "llama"

    @property
    def context_length(self) -> int:
        """Longest sequence the model is made for."""
        raise NotImplementedError(type(self).__name__)

    def build(self, Vocab: Axis, *, key: jax.Array) -> LmHeadModel:
        """Make a freshly initialised model."""
        raise NotImplementedError(type(self).__name__)

    def flops_per_token(self, vocab_size: int, context_length: int, *, convention: str = "full") -> float:
        """Forward FLOPs per token."""
        raise NotImplementedError(type(self).__name__)

    def total_trainable_params(self, vocab_size: int) -> int:
        """Number of parameters."""
        raise NotImplementedError(type(self).__name__)


def count_parameters(model: Any) -> int:
    """Number of array elements of floating dtype in a model."""
    return sum(x.size for x in jax.tree.leaves(model) if eqx.is_inexact_array(x) or hasattr(x, "dtype"))
