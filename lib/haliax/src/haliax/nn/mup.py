"""Maximal update parametrisation: scales that let hyper-parameters transfer across widths.

Each class gives, for a weight from ``In`` to ``Out``, the standard deviation at initialisation, the factor applied in
the forward pass and the factor on the learning rate.

References:
    Yang et al., Tensor Programs V, arXiv:2203.03466, table 8.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import equinox as eqx

from haliax._axis.types import AxisSpec, axis_size


@dataclasses.dataclass(frozen=True)
class AbstractLinearReparam(abc.ABC):
    """Scales of a linear layer.

    Attributes:
        In: Axes that are contracted.
        Out: Axes of the result.
    """

    In: AxisSpec
    Out: AxisSpec

    @staticmethod
    @abc.abstractmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return the standard deviation at initialisation."""

    @property
    @abc.abstractmethod
    def active_scale(self) -> float:
        """Factor on the weight in the forward pass."""

    @property
    @abc.abstractmethod
    def lr_scale(self) -> float:
        """Factor on the learning rate."""


LinearReparam = AbstractLinearReparam


class LinearStandardParam(AbstractLinearReparam):
    """Standard parametrisation: deviation 1/sqrt(size(In)), no other scale."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return 1/sqrt(size(In))."""
        return 1 / max(axis_size(In), 1) ** 0.5

    @property
    def active_scale(self) -> float:
        """1."""
        return 1.0

    @property
    def lr_scale(self) -> float:
        """1."""
        return 1.0


class InputLinearMup(AbstractLinearReparam):
    """muP of an input layer: deviation 1, no other scale."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return 1."""
        return 1.0

    @property
    def active_scale(self) -> float:
        """1."""
        return 1.0

    @property
    def lr_scale(self) -> float:
        """1."""
        return 1.0


class HiddenLinearMup(AbstractLinearReparam):
    """muP of a hidden layer: deviation 1/sqrt(size(In)), learning rate 1/size(In)."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return 1/sqrt(size(In))."""
        return 1 / max(axis_size(In), 1) ** 0.5

    @property
    def active_scale(self) -> float:
        """1."""
        return 1.0

    @property
    def lr_scale(self) -> float:
        """1/size(In)."""
        return 1 / axis_size(self.In)


class OutputLinearMup(AbstractLinearReparam):
    """muP of an output layer: deviation 1, forward 1/size(In)."""

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Return 1."""
        return 1.0

    @property
    def active_scale(self) -> float:
        """1/size(In)."""
        return 1 / axis_size(self.In)

    @property
    def lr_scale(self) -> float:
        """1."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class AbstractEmbeddingReparam(abc.ABC):
    """Scales of an embedding.

    Attributes:
        Embed: Axes of a vector.
        Vocab: Axis of the tokens.
    """

    Embed: AxisSpec
    Vocab: AxisSpec
    active_scale: ClassVar[float] = 1.0
    lr_scale: ClassVar[float] = 1.0

    @staticmethod
    @abc.abstractmethod
    def init_scale(Embed: AxisSpec, Vocab: AxisSpec) -> float:
        """Return the standard deviation at initialisation."""

    @property
    @abc.abstractmethod
    def unembed_active_scale(self) -> float:
        """Factor on logits computed with the embedding."""


EmbeddingReparam = AbstractEmbeddingReparam


class EmbeddingStandardParam(AbstractEmbeddingReparam):
    """Standard parametrisation: deviation 1/size(Embed)."""

    @staticmethod
    def init_scale(Embed: AxisSpec, Vocab: AxisSpec) -> float:
        """Return 1/size(Embed)."""
        return 1 / axis_size(Embed)

    @property
    def unembed_active_scale(self) -> float:
        """1."""
        return 1.0


class EmbeddingMup(AbstractEmbeddingReparam):
    """muP: deviation 1, logits scaled by 1/size(Embed)."""

    @staticmethod
    def init_scale(Embed: AxisSpec, Vocab: AxisSpec) -> float:
        """Return 1."""
        return 1.0

    @property
    def unembed_active_scale(self) -> float:
        """1/size(Embed)."""
        return 1 / axis_size(self.Embed)


class ReparamEnabled(eqx.Module):
    """A module whose weight has a parametrisation, for optimisers that scale learning rates."""

    @property
    @abc.abstractmethod
    def reparam(self) -> Any:
        """The parametrisation."""
