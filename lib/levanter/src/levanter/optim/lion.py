r"""Lion: the sign of an interpolated momentum.

    u_t = sign(beta1 m_{t-1} + (1 - beta1) g_t)
    m_t = beta2 m_{t-1} + (1 - beta2) g_t
    p_t = p_{t-1} - eta (u_t + lambda p_{t-1})

| field | default |
|---|---|
| beta1, beta2 | 0.9, 0.95 |
| max_grad_norm | 1.0 |

One state array per parameter. Rates are 3 to 10 times smaller, decay as much larger, than AdamW's.

References:
    Chen et al., Symbolic discovery of optimization algorithms, arXiv:2302.06675, algorithm 2.
"""

from dataclasses import dataclass

import optax

from levanter.optim.composition import check_fractions, check_positive, single_group
from levanter.optim.config import OptimizerConfig


@OptimizerConfig.register_subclass("lion")
@dataclass(frozen=True)
class LionConfig(OptimizerConfig):
    """Lion; see the module for the formula.

    Attributes:
        beta1: Weight of the momentum in the update.
        beta2: Decay of the momentum.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> LionConfig(learning_rate=1e-4).build(100) is not None
        True
    """

    beta1: float = 0.9
    beta2: float = 0.95
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("lion", beta1=self.beta1, beta2=self.beta2)
        check_positive("lion", max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build Lion with an injected learning rate."""
        direction = optax.scale_by_lion(self.beta1, self.beta2)
        return single_group(self, num_train_steps, direction, max_grad_norm=self.max_grad_norm)
