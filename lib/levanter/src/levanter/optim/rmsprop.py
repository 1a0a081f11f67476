r"""RMSprop with momentum, both bias-corrected: normalise first, average second.

    v_t = beta2 v_{t-1} + (1 - beta2) g_t^2          n_t = g_t / (sqrt(v_t / (1 - beta2^t)) + eps)
    m_t = beta1 m_{t-1} + (1 - beta1) n_t            u_t = m_t / (1 - beta1^t)
    p_t = p_{t-1} - eta (u_t + lambda p_{t-1})

| field | default |
|---|---|
| beta1, beta2 | 0.9, 0.99 |
| epsilon | 1e-30 |
| max_grad_norm | 1.0 |

Adam averages first and divides by the present second moment; here every gradient is divided by the second moment of its
own time, so a spike cannot be amplified later by a falling denominator.

References:
    Tieleman and Hinton, Neural networks for machine learning, lecture 6e, 2012.
    Bias correction: Kingma and Ba, Adam, arXiv:1412.6980, section 3.
"""

from dataclasses import dataclass

import optax

from levanter.optim.composition import check_fractions, check_positive, single_group
from levanter.optim.config import OptimizerConfig


@OptimizerConfig.register_subclass("rmsprop-momentum")
@dataclass(frozen=True)
class RmsPropMomentumConfig(OptimizerConfig):
    """RMSprop with momentum; see the module for the formula.

    Attributes:
        beta1: Decay of the average of normalised gradients.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> RmsPropMomentumConfig(learning_rate=1e-3).build(100) is not None
        True
    """

    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-30
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("rmsprop-momentum", beta1=self.beta1, beta2=self.beta2)
        check_positive("rmsprop-momentum", max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build RMSprop with an injected learning rate."""
        normalise = optax.scale_by_rms(self.beta2, self.epsilon, eps_in_sqrt=False, bias_correction=True)
        average = optax.ema(self.beta1, debias=True)
        return single_group(self, num_train_steps, normalise, average, max_grad_norm=self.max_grad_norm)
