r"""MARS-AdamW: Adam on a variance-reduced gradient.

    c_t = g_t + gamma beta1 / (1 - beta1) (g_t - g_{t-1}),  g_0 = 0
    c_t <- c_t min(1, C / ||c_t||)   (norm over all parameters)
    p_t = p_{t-1} - eta (Adam direction of c_t + lambda p_{t-1})

| field | default |
|---|---|
| beta1, beta2 | 0.95, 0.99 |
| gamma | 0.025 |
| epsilon | 1e-8 |
| max_grad_norm | 1.0, applied to c instead of g |

``g_{t-1}`` is the gradient of the last step at the last parameters (the paper's approximate form), so a step costs one
gradient. Three state arrays per parameter.

References:
    Yuan et al., MARS: unleashing the power of variance reduction for training large models, arXiv:2411.10438,
    algorithm 2 and section 3.2.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import optax

from levanter.optim.composition import check_fractions, check_positive, clip_by_norm, single_group, transformation
from levanter.optim.config import OptimizerConfig


class GradientDifferenceState(NamedTuple):
    """The last gradient, structure of the parameters."""

    previous: Any


def correct_by_difference(scale: float) -> optax.GradientTransformation:
    """``g + scale (g - g_previous)``; the previous gradient of the first step is 0."""

    def init(params: Any) -> GradientDifferenceState:
        return GradientDifferenceState(optax.tree.zeros_like(params))

    def update(grads: Any, state: GradientDifferenceState, params: Any = None) -> tuple[Any, GradientDifferenceState]:
        corrected = jax.tree.map(lambda g, old: g + scale * (g - old), grads, state.previous)
        return corrected, GradientDifferenceState(grads)

    return transformation(init, update)


@OptimizerConfig.register_subclass("mars")
@dataclass(frozen=True)
class MarsConfig(OptimizerConfig):
    """MARS-AdamW; see the module for the formula.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        gamma: Strength of the variance reduction; 0 gives AdamW.
        epsilon: Added to the root of the second moment.
        max_grad_norm: Norm clip of the corrected gradient; None switches it off.

    Example:
        >>> MarsConfig(learning_rate=1e-3).build(100) is not None
        True
    """

    beta1: float = 0.95
    beta2: float = 0.99
    gamma: float = 0.025
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("mars", beta1=self.beta1, beta2=self.beta2)
        check_positive("mars", epsilon=self.epsilon, max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build MARS-AdamW with an injected learning rate."""
        correct = correct_by_difference(self.gamma * self.beta1 / (1 - self.beta1))
        adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
        parts = (correct, *clip_by_norm(self.max_grad_norm), adam)
        return single_group(self, num_train_steps, *parts, max_grad_norm=None)
