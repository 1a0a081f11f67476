"""Everything that one training step reads and writes, as one pytree.

If it is here it is in the checkpoint; if it is not here it cannot influence the next step. That is the whole of
bit-equal resume.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from levanter.optim.model_averaging import Averaging, ModelAveragingConfig
from levanter.precision import Policy
from levanter.trainable import partition_trainable


class TrainerState(eqx.Module):
    """State after ``step`` updates.

    Attributes:
        step: Updates done, int32 scalar.
        model: The model, floating leaves in the parameter dtype.
        opt_state: The optimizer's state.
        training_key: PRNG key; split once a step.
        model_averaging: Running average of the weights, or None.
        optimizer: The optax transform.
        mp: Precision policy.
    """

    step: jax.Array
    model: Any
    opt_state: Any
    training_key: jax.Array
    model_averaging: Averaging | None
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    mp: Policy = eqx.field(static=True)

    @staticmethod
    def init(
        optimizer: optax.GradientTransformation,
        model: Any,
        *,
        key: jax.Array,
        mp: Policy | None = None,
        averaging: ModelAveragingConfig | None = None,
    ) -> "TrainerState":
        """State before the first step; the model's floating leaves are cast to the parameter dtype."""
        mp = mp or Policy()
        model = mp.cast_to_params(model)
        params = trainable(model)
        state = TrainerState(
            step=jnp.zeros((), jnp.int32),
            model=model,
            opt_state=optimizer.init(params),
            training_key=key,
            model_averaging=averaging.create(params) if averaging is not None else None,
            optimizer=optimizer,
            mp=mp,
        )
        return jax.tree.map(_with_own_dtype, state)

    @property
    def eval_model(self) -> Any:
        """The averaged model when there is one, else the model."""
        if self.model_averaging is None:
            return self.model
        return eqx.combine(self.model_averaging.model, self.model)

    def take_step(
        self, grads: Any, *, loss: jax.Array, key: jax.Array, obj_fn: Callable[[Any], jax.Array] | None = None
    ) -> tuple["TrainerState", Any]:
        """Apply one optimizer update.

        Args:
            grads: Gradient of the mean loss, structure of :func:`trainable`.
            loss: The mean loss, for optimizers that judge it.
            key: The next training key.
            obj_fn: The step's mean loss as a function of the parameters, for optimizers that look at its curvature.

        Returns:
            ``(new state, updates)``.
        """
        params, rest = partition_trainable(self.model)
        optimizer = optax.with_extra_args_support(self.optimizer)
        updates, opt_state = optimizer.update(grads, self.opt_state, params, loss=loss, obj_fn=obj_fn)
        params = optax.apply_updates(params, updates)
        averaging = None if self.model_averaging is None else self.model_averaging.update(params, self.step)
        model = eqx.combine(params, rest)
        return TrainerState(self.step + 1, model, opt_state, key, averaging, self.optimizer, self.mp), updates


def trainable(model: Any) -> Any:
    """The leaves of a model that are trained (:mod:`levanter.trainable`); everything else becomes None."""
    return partition_trainable(model)[0]


def _with_own_dtype(leaf: Any) -> Any:
    """Array leaves without JAX's weak types, which ``jnp.ones`` and Python scalars have and updated leaves lack.

    A compiled step would fit the first state only, and be compiled once more for the second.
    """
    return jax.lax.convert_element_type(leaf, leaf.dtype) if getattr(leaf, "weak_type", False) else leaf
