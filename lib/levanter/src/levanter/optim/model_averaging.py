"""Averages of the weights along the path of training, kept beside them and used for evaluation.

References:
    Polyak and Juditsky, Acceleration of stochastic approximation by averaging, 1992.
    Morales-Brotons et al., Exponential moving average of weights in deep learning, arXiv:2411.18704.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from draccus import ChoiceRegistry


class Averaging(eqx.Module):
    """A running average: ``model`` has the structure of the parameters, ``weight`` the total weight so far
    (float32)."""

    model: Any
    weight: jax.Array
    config: "ModelAveragingConfig" = eqx.field(static=True)

    def update(self, params: Any, step: jax.Array) -> "Averaging":
        """Mix in the parameters after 0-based step ``step``."""
        alpha, weight = self.config.mixing(step, self.weight)
        mixed = jax.tree.map(lambda avg, p: avg + alpha.astype(avg.dtype) * (p - avg), self.model, params)
        return Averaging(mixed, weight, self.config)


@dataclass(frozen=True)
class ModelAveragingConfig(ChoiceRegistry):
    """How much each new set of parameters counts."""

    def mixing(self, step: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return ``(alpha, new total weight)``; the average moves by ``alpha`` towards the new parameters."""
        raise NotImplementedError(type(self).__name__)

    def create(self, params: Any) -> Averaging:
        """Start an average at ``params``."""
        return Averaging(jax.tree.map(jnp.copy, params), jnp.zeros((), jnp.float32), self)


@ModelAveragingConfig.register_subclass("ema")
@dataclass(frozen=True)
class EmaConfig(ModelAveragingConfig):
    """``avg += (1 - beta) (p - avg)``."""

    beta: float = 0.999

    def mixing(self, step: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A constant step towards the new parameters."""
        return jnp.float32(1 - self.beta), weight + (1 - self.beta)


@ModelAveragingConfig.register_subclass("ema_decay_sqrt")
@dataclass(frozen=True)
class EmaDecaySqrtConfig(ModelAveragingConfig):
    """EMA until ``switch_step``, then weights ``1 - sqrt(t / decay_steps)`` normalised by their sum."""

    beta: float = 0.999
    switch_step: int = 100_000
    decay_steps: int = 100_000

    def mixing(self, step: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        """EMA before the switch, a decaying weighted mean after it."""
        t = jnp.clip((step - self.switch_step) / self.decay_steps, 0.0, 1.0)
        late = 1.0 - jnp.sqrt(t)
        new = jnp.where(step < self.switch_step, 1 - self.beta, late)
        total = weight + new
        alpha = jnp.where(step < self.switch_step, 1 - self.beta, new / jnp.maximum(total, 1e-12))
        return alpha.astype(jnp.float32), total.astype(jnp.float32)
