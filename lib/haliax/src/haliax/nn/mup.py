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
class AbstractLinearReparam:
    """Scales of a linear layer, each a power of the size of ``In``.

    Attributes:
        In: Axes that are contracted.
        Out: Axes of the result.
        init_power: Exponent of the standard deviation at initialisation.
        active_power: Exponent of the factor on the weight in the forward pass.
        lr_power: Exponent of the factor on the learning rate.
    """

    In: AxisSpec
    Out: AxisSpec
    init_power: ClassVar[float]
    active_power: ClassVar[float]
    lr_power: ClassVar[float]

    @classmethod
    def init_scale(cls, In: AxisSpec, Out: AxisSpec) -> float:
        """Return the standard deviation at initialisation."""
        del Out
        return max(axis_size(In), 1) ** cls.init_power

    @property
    def active_scale(self) -> float:
        """Factor on the weight in the forward pass."""
        return max(axis_size(self.In), 1) ** self.active_power

    @property
    def lr_scale(self) -> float:
        """Factor on the learning rate."""
        return max(axis_size(self.In), 1) ** self.lr_power


LinearReparam = AbstractLinearReparam


class LinearStandardParam(AbstractLinearReparam):
    """Standard parametrisation: deviation 1/sqrt(size(In)), no other scale.

    Example:
        >>> import haliax as hax
        >>> In, Out = hax.make_axes(i=4, o=8)
        >>> scales = LinearStandardParam(In, Out)
        >>> scales.init_scale(In, Out), scales.active_scale, scales.lr_scale
        (0.5, 1.0, 1.0)
    """

    init_power, active_power, lr_power = -0.5, 0.0, 0.0


class InputLinearMup(AbstractLinearReparam):
    """muP of an input layer: deviation 1, no other scale.

    Example:
        >>> import haliax as hax
        >>> In, Out = hax.make_axes(i=4, o=8)
        >>> scales = InputLinearMup(In, Out)
        >>> scales.init_scale(In, Out), scales.active_scale, scales.lr_scale
        (1.0, 1.0, 1.0)
    """

    init_power, active_power, lr_power = 0.0, 0.0, 0.0


class HiddenLinearMup(AbstractLinearReparam):
    """muP of a hidden layer: deviation 1/sqrt(size(In)), learning rate 1/size(In).

    Example:
        >>> import haliax as hax
        >>> In, Out = hax.make_axes(i=4, o=8)
        >>> scales = HiddenLinearMup(In, Out)
        >>> scales.init_scale(In, Out), scales.active_scale, scales.lr_scale
        (0.5, 1.0, 0.25)
    """

    init_power, active_power, lr_power = -0.5, 0.0, -1.0


class OutputLinearMup(AbstractLinearReparam):
    """muP of an output layer: deviation 1, forward 1/size(In).

    Example:
        >>> import haliax as hax
        >>> In, Out = hax.make_axes(i=4, o=8)
        >>> scales = OutputLinearMup(In, Out)
        >>> scales.init_scale(In, Out), scales.active_scale, scales.lr_scale
        (1.0, 0.25, 1.0)
    """

    init_power, active_power, lr_power = 0.0, -1.0, 0.0


@dataclasses.dataclass(frozen=True)
class AbstractEmbeddingReparam:
    """Scales of an embedding, each a power of the size of ``Embed``.

    Attributes:
        Embed: Axes of a vector.
        Vocab: Axis of the tokens.
        init_power: Exponent of the standard deviation at initialisation.
        unembed_power: Exponent of the factor on logits computed with the embedding.
    """

    Embed: AxisSpec
    Vocab: AxisSpec
    init_power: ClassVar[float]
    unembed_power: ClassVar[float]
    active_scale: ClassVar[float] = 1.0
    lr_scale: ClassVar[float] = 1.0

    @classmethod
    def init_scale(cls, Embed: AxisSpec, Vocab: AxisSpec) -> float:
        """Return the standard deviation at initialisation."""
        del Vocab
        return max(axis_size(Embed), 1) ** cls.init_power

    @property
    def unembed_active_scale(self) -> float:
        """Factor on logits computed with the embedding."""
        return max(axis_size(self.Embed), 1) ** self.unembed_power


EmbeddingReparam = AbstractEmbeddingReparam


class EmbeddingStandardParam(AbstractEmbeddingReparam):
    """Standard parametrisation: deviation 1/size(Embed).

    Example:
        >>> import haliax as hax
        >>> Embed, Vocab = hax.make_axes(embed=4, vocab=8)
        >>> scales = EmbeddingStandardParam(Embed, Vocab)
        >>> scales.init_scale(Embed, Vocab), scales.unembed_active_scale
        (0.25, 1.0)
    """

    init_power, unembed_power = -1.0, 0.0


class EmbeddingMup(AbstractEmbeddingReparam):
    """muP: deviation 1, logits scaled by 1/size(Embed).

    Example:
        >>> import haliax as hax
        >>> Embed, Vocab = hax.make_axes(embed=4, vocab=8)
        >>> scales = EmbeddingMup(Embed, Vocab)
        >>> scales.init_scale(Embed, Vocab), scales.unembed_active_scale
        (1.0, 0.25)
    """

    init_power, unembed_power = 0.0, -1.0


class ReparamEnabled(eqx.Module):
    """A module whose weight has a parametrisation, for optimisers that scale learning rates."""

    @property
    @abc.abstractmethod
    def reparam(self) -> Any:
        """The parametrisation."""
