r"""Cautious AdamW: drop the part of the update that points against the present gradient.

    u_t = AdamW direction            q_t = [g_t * u_t > 0]  (elementwise, 0 or 1)
    p_t = p_{t-1} - eta (u_t q_t / (mean(q_t) + eps) + lambda p_{t-1})

| field | default |
|---|---|
| beta1, beta2 | 0.95, 0.95 |
| epsilon | 1e-8 |
| max_grad_norm | 1.0 |

The mean runs over each array, so the masked update keeps its average size.

References:
    Liang et al., Cautious optimizers: improving training with one line of code, arXiv:2411.16085, algorithm 1.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from levanter.optim.composition import check_fractions, check_positive, single_group, transformation
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import widen


def scale_by_cautious_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam's direction, masked where it disagrees in sign with the gradient and rescaled by the share kept."""
    adam = optax.scale_by_adam(b1, b2, eps)

    def mask(u: jax.Array, g: jax.Array) -> jax.Array:
        keep = (u * g > 0).astype(u.dtype)
        return u * keep / (jnp.mean(widen(keep)) + eps).astype(u.dtype)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = adam.update(grads, state, params)
        return jax.tree.map(mask, updates, grads), state

    return transformation(adam.init, update)


@OptimizerConfig.register_subclass("cautious")
@dataclass(frozen=True)
class CautiousConfig(OptimizerConfig):
    """Cautious AdamW; see the module for the formula.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment and to the share kept.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> CautiousConfig(learning_rate=1e-3).build(100) is not None
        True
    """

    beta1: float = 0.95
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("cautious", beta1=self.beta1, beta2=self.beta2)
        check_positive("cautious", epsilon=self.epsilon, max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build cautious AdamW with an injected learning rate."""
        direction = scale_by_cautious_adam(self.beta1, self.beta2, self.epsilon)
        return single_group(self, num_train_steps, direction, max_grad_norm=self.max_grad_norm)
