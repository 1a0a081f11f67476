r"""Sophia-H: momentum divided by a clipped estimate of the Hessian's diagonal.

    every ``update_interval`` steps:  h = beta2 h + (1 - beta2) z * (H z),   z ~ N(0, 1)     (Hutchinson)
    m_t = beta1 m_{t-1} + (1 - beta1) g_t
    u_t = clip(m_hat_t / max(gamma h, eps), -1, 1)        m_hat = m / (1 - beta1^t)
    p_t = p_{t-1} - eta (u_t + lambda p_{t-1})

The update uses the estimate of the step before, so the first ``u`` is the sign of the momentum.

| field | default |
|---|---|
| beta1, beta2 | 0.96, 0.99 |
| gamma, clip_threshold | 0.01, 1.0 |
| update_interval | 10 |
| epsilon | 1e-8 |
| max_grad_norm | 1.0 |

A Hessian-vector product costs about two gradients, paid on one step in ten. The objective of the step reaches the
optimizer as the extra argument ``obj_fn``; the trainer passes it.

The transform is :func:`optax.contrib.sophia`; only the estimator is here, because optax's differentiates
forward over reverse, which custom backward passes (fused cross-entropy, storage-order products) do not allow. Reverse
over reverse gives the same product.

References:
    Liu et al., Sophia: a scalable stochastic second-order optimizer, arXiv:2305.14342, algorithms 1 and 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from levanter.errors import ConfigError
from levanter.optim.composition import check_fractions, check_positive, single_group
from levanter.optim.config import OptimizerConfig


def hutchinson_diagonal(seed: int = 0) -> optax.GradientTransformationExtraArgs:
    """Estimate the Hessian's diagonal as ``z * (H z)`` with Gaussian ``z``.

    Args:
        seed: Seed of the probes; the key is part of the state, so a resumed run draws the same ones.

    Returns:
        A transform whose update needs ``params`` and ``obj_fn(params) -> scalar``.

    References:
        Hutchinson, A stochastic estimator of the trace of the influence matrix, 1989.
    """

    def init(params: Any) -> optax.contrib.HutchinsonState:
        return optax.contrib.HutchinsonState(key=jax.random.PRNGKey(seed))

    def update(
        grads: Any,
        state: optax.contrib.HutchinsonState,
        params: Any = None,
        *,
        obj_fn: Callable[[Any], jax.Array] | None = None,
        **extra: Any,
    ) -> tuple[Any, optax.contrib.HutchinsonState]:
        if obj_fn is None or params is None:
            raise ConfigError(
                "sophia-h needs the objective: obj_fn=None. Call update(grads, state, params, obj_fn=loss_of_params); "
                "the trainer does.",
                key="optimizer.type",
            )
        key, probe_key = jax.random.split(state.key)
        z = optax.tree.random_like(probe_key, params, jax.random.normal)

        def directional(p: Any) -> jax.Array:
            return jnp.asarray(optax.tree.vdot(jax.grad(obj_fn)(p), z))

        return jax.tree.map(jnp.multiply, jax.grad(directional)(params), z), optax.contrib.HutchinsonState(key=key)

    return optax.GradientTransformationExtraArgs(init, cast(Any, update))


@OptimizerConfig.register_subclass("sophia-h")
@dataclass(frozen=True)
class SophiaHConfig(OptimizerConfig):
    """Sophia-H; see the module for the formula.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the diagonal, per estimate.
        gamma: Factor on the diagonal; larger clips less.
        clip_threshold: Largest absolute update.
        update_interval: Steps between estimates.
        epsilon: Floor of the denominator.
        hutchinson_seed: Seed of the probes.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> SophiaHConfig(learning_rate=3e-4).build(100) is not None
        True
    """

    beta1: float = 0.96
    beta2: float = 0.99
    gamma: float = 0.01
    clip_threshold: float | None = 1.0
    update_interval: int = 10
    epsilon: float = 1e-8
    hutchinson_seed: int = 0
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("sophia-h", beta1=self.beta1, beta2=self.beta2)
        check_positive("sophia-h", gamma=self.gamma, epsilon=self.epsilon, update_interval=self.update_interval)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build Sophia-H with an injected learning rate."""
        # A rate of -1 and no decay leave u itself.
        direction = optax.contrib.sophia(
            learning_rate=-1.0,
            weight_decay=0.0,
            b1=self.beta1,
            b2=self.beta2,
            eps=self.epsilon,
            gamma=self.gamma,
            clip_threshold=self.clip_threshold,
            update_interval=self.update_interval,
            hessian_diagonal_fn=hutchinson_diagonal(self.hutchinson_seed),
        )
        return single_group(self, num_train_steps, direction, max_grad_norm=self.max_grad_norm)
