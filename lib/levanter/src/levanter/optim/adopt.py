r"""ADOPT: Adam whose second moment is one step old, so that it converges for every beta2.

    step 1:  v_1 = (1 - beta2) g_1^2, no update
    step t:  n_t = g_t / (sqrt(v_{t-1} / (1 - beta2^{t-1})) + eps)
             m_t = beta1 m_{t-1} + (1 - beta1) n_t
             v_t = beta2 v_{t-1} + (1 - beta2) g_t^2
             p_t = p_{t-1} - eta (m_t / (1 - beta1^{t-1}) + lambda p_{t-1})

| field | default |
|---|---|
| beta1, beta2 | 0.9, 0.95 |
| epsilon | 1e-6 |
| max_grad_norm | 1.0 |

The paper divides by ``max(sqrt(v), eps)`` and has no bias correction, which :func:`optax.contrib.adopt` follows; with
beta2 = 0.95 instead of the paper's 0.9999 the corrected form above is the one that published Levanter configs mean.

References:
    Taniguchi et al., ADOPT: modified Adam can converge with any beta2 with the optimal rate, arXiv:2411.02853,
    algorithm 2.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from levanter.optim.composition import check_fractions, check_positive, single_group, transformation
from levanter.optim.config import OptimizerConfig


def scale_by_adopt(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """ADOPT's direction with bias-corrected moments; the first update is 0."""

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = optax.tree.zeros_like
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros(params), zeros(params))

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        seen = state.count
        first = seen == 0
        # On the first step both corrections are 0 / 0; any finite stand-in is masked by the zero update.
        nu_hat = optax.tree.bias_correction(state.nu, b2, jnp.maximum(seen, 1))
        normed = jax.tree.map(lambda g, v: jnp.where(first, 0.0, g / (jnp.sqrt(v) + eps)), grads, nu_hat)
        mu = optax.tree.update_moment(normed, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(grads, state.nu, b2, 2)
        updates = optax.tree.bias_correction(mu, b1, jnp.maximum(seen, 1))
        return updates, optax.ScaleByAdamState(optax.safe_increment(seen), mu, nu)

    return transformation(init, update)


@OptimizerConfig.register_subclass("adopt")
@dataclass(frozen=True)
class AdoptConfig(OptimizerConfig):
    """ADOPT; see the module for the formula.

    Attributes:
        beta1: Decay of the average of normalised gradients.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> AdoptConfig(learning_rate=1e-3).build(100) is not None
        True
    """

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-6
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("adopt", beta1=self.beta1, beta2=self.beta2)
        check_positive("adopt", epsilon=self.epsilon, max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build ADOPT with an injected learning rate."""
        direction = scale_by_adopt(self.beta1, self.beta2, self.epsilon)
        return single_group(self, num_train_steps, direction, max_grad_norm=self.max_grad_norm)
