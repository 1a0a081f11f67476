"""What every language model here can do, and what its config must answer.

A model maps token ids to hidden states; the head that turns them into logits is separate, so that the loss can be
computed without the logits ever existing as one array (:mod:`levanter.kernels.fused_cross_entropy`).
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
from draccus import PluginRegistry
from haliax import Axis, NamedArray

from levanter.errors import ModelShapeError
from levanter.layers.attention_mask import POSITION, AttentionMask
from levanter.metrics import Metric
from levanter.models.moe import router_losses
from levanter.models.state_dict import TensorSlot


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

    def router_losses(self, aux: dict[str, jax.Array], mass: jax.Array) -> tuple[jax.Array, dict[str, Metric]]:
        """What a training step adds to its loss, and the metrics, of the auxiliary values of a batch.

        Args:
            aux: From :meth:`activations_with_aux`.
            mass: Summed loss weight of the batch.
        """
        return router_losses(aux, mass)

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


@dataclass(frozen=True)
class HfLmConfig(LmConfig):
    """A config whose models have a Hugging Face folder.

    Attributes:
        hf_model_type: ``model_type`` in ``config.json``.
        hf_architecture: Class name in ``architectures``.
        hf_base_prefix: Prefix that checkpoints of the model without its head leave out.
    """

    hf_model_type: ClassVar[str] = ""
    hf_architecture: ClassVar[str] = ""
    hf_base_prefix: ClassVar[str] = "model"

    @abc.abstractmethod
    def state_dict_map(self) -> list[TensorSlot]:
        """Where each Hugging Face tensor lives, in export order."""

    @classmethod
    @abc.abstractmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> Self:
        """Our config from a parsed ``config.json``."""

    @abc.abstractmethod
    def to_hf_config(self, vocab_size: int, config_overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The ``config.json`` that describes a model of this config."""

    @abc.abstractmethod
    def build(self, Vocab: Axis, *, key: jax.Array) -> "HfLmModel":
        """Make a freshly initialised model."""

    @property
    def ties_embeddings(self) -> bool:
        """Whether the head is the embedding table."""
        return False


class HfLmModel(LmHeadModel):
    """A language model with a Hugging Face folder."""

    def __call__(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None = None, *, pos_ids: NamedArray | None = None
    ) -> NamedArray:
        """Logits, axes ``{batch..., position, vocab}``; for training use the loss, which never holds them all."""
        hidden = self.activations(input_ids, attn_mask, pos_ids=pos_ids)
        return NamedArray(self.logits(hidden.array), (*hidden.axes[:-1], self.Vocab))

    @abc.abstractmethod
    def logits(self, hidden: jax.Array) -> jax.Array:
        """Logits ``[..., V]`` of normed hidden states ``[..., E]``."""

    def activations(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None = None, *, pos_ids: NamedArray | None = None
    ) -> NamedArray:
        """Hidden states after the last norm; see :meth:`activations_with_aux`."""
        return self.activations_with_aux(input_ids, attn_mask, pos_ids=pos_ids)[0]

    @abc.abstractmethod
    def activations_with_aux(
        self, input_ids: NamedArray, attn_mask: AttentionMask | None = None, *, pos_ids: NamedArray | None = None
    ) -> tuple[NamedArray, dict[str, jax.Array]]:
        """Hidden states after the last norm, and what the layers report."""

    @property
    @abc.abstractmethod
    def hf_config(self) -> HfLmConfig:
        """The config it was made from."""

    @abc.abstractmethod
    def resize_vocab(self, new_size: int, *, key: jax.Array) -> Self:
        """Grow or shrink the vocabulary; new rows start like a fresh model's."""


def batched_ids(input_ids: NamedArray) -> jax.Array:
    """Token ids as ``[B, P]``.

    Args:
        input_ids: Axes ``(position)``, which is a batch of one, or ``(batch, position)``.

    Raises:
        ModelShapeError: the axes are not those.
    """
    names = [axis.name for axis in input_ids.axes]
    if not names or names[-1] != POSITION or len(names) > 2:
        raise ModelShapeError(
            f"bad input_ids: axes={names}; expected (position) or (batch, position).", name="input_ids"
        )
    return input_ids.array if len(names) == 2 else input_ids.array[None]


def count_parameters(model: Any) -> int:
    """Number of array elements of floating dtype in a model."""
    return sum(x.size for x in jax.tree.leaves(model) if eqx.is_inexact_array(x) or hasattr(x, "dtype"))
