r"""NAMO: Muon's orthogonal step, damped by how noisy the gradient is.

    m_t = mu m_{t-1} + (1 - mu) g_t
    v_t = mu2 v_{t-1} + (1 - mu2) ||g_t||^2                       (one number per matrix)
    a_t = min(1, eta sqrt(1 - mu2^t) / (1 - mu^t) ||m_t|| / (sqrt(v_t) + eps))
    p_t = p_{t-1} - lambda a_t p_{t-1} - min(1, a_t scale sqrt(max(in, out))) NS(m_t)

The D variant keeps ``v`` per output column and clamps the columns' ``a`` to ``[c mean, mean / c]``.

| field | default |
|---|---|
| learning_rate | 1e-2 |
| momentum, momentum2 | 0.95, 0.99 |
| scale | 0.2 |
| backend_steps, coefficient_type | 5, simple |
| column_clamp (namoD) | 0.75 |
| adam_lr, beta1, beta2, epsilon | 6e-4, 0.9, 0.95, 1e-8 |

Embeddings, the head and vectors take AdamW at ``adam_lr``.

References:
    The formula is that of the public Levanter optimizers ``namo`` and ``namoD``; Newton–Schulz:
    :mod:`levanter.optim.newton_schulz`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from levanter.optim.composition import check_fractions, check_positive, decay_and_rate, grouped, transformation
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import Kind, MatrixView, map_arrays, map_matrices, matrix_views, wide_dtype, widen
from levanter.optim.newton_schulz import check_coefficients, newton_schulz
from levanter.tree_paths import is_named, named_leaves, raw_array


class NamoState(NamedTuple):
    """Count, first moment (structure of the parameters) and squared norms by leaf name."""

    count: jax.Array
    mu: Any
    nu: dict[str, Any]


@dataclass(frozen=True)
class NamoConstants:
    """What fixes NAMO's arithmetic; the fields of :class:`NamoConfig`."""

    momentum: float = 0.95
    momentum2: float = 0.99
    scale: float = 0.2
    weight_decay: float = 0.0
    steps: int = 5
    coefficients: str = "simple"
    eps: float = 1e-8
    column_clamp: float | None = None

    def axes(self) -> tuple[int, ...]:
        """Dimensions of ``[S..., I, O]`` that a squared norm runs over."""
        return (-2, -1) if self.column_clamp is None else (-2,)


def namo(learning_rate: Any, constants: NamoConstants) -> optax.GradientTransformation:
    """NAMO's update of the matrices, rate and decay included.

    Args:
        learning_rate: Rate, a number or a traced scalar.
        constants: The rest.
    """
    axes = constants.axes()

    def init(params: Any) -> NamoState:
        nu = {}
        dtypes = {name: wide_dtype(raw_array(leaf).dtype) for name, leaf in named_leaves(params)}
        for name, view in matrix_views(params).items():
            columns = 1 if constants.column_clamp is None else view.fan_out
            nu[name] = view.state(jnp.zeros((*view.stack_shape, 1, columns), dtypes[name]), None, view.column_name)
        return NamoState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), nu)

    def update(grads: Any, state: NamoState, params: Any = None) -> tuple[Any, NamoState]:
        views = matrix_views(grads)
        count = jnp.asarray(optax.safe_increment(state.count))
        mu = optax.tree.update_moment(grads, state.mu, constants.momentum, 1)
        correction = jnp.sqrt(1 - constants.momentum2**count) / (1 - constants.momentum**count)
        nu: dict[str, Any] = {}

        def second(name: str, grad: Any) -> None:
            view, old = views[name], state.nu[name]
            square = jnp.sum(jnp.square(widen(view.matrices(raw_array(grad)))), axis=axes, keepdims=True)
            value = constants.momentum2 * raw_array(old) + (1 - constants.momentum2) * square
            nu[name] = type(old)(value, old.axes) if is_named(old) else value

        map_arrays(second, grads)

        def step(view: MatrixView, moment: jax.Array, p: jax.Array) -> jax.Array:
            m = widen(view.matrices(moment))
            norm = jnp.sqrt(jnp.sum(jnp.square(m), axis=axes, keepdims=True))
            root = jnp.sqrt(raw_array(nu[view.name]))
            a = jnp.minimum(1.0, learning_rate * correction * norm / (root + constants.eps))
            if constants.column_clamp is not None:
                mean = jnp.mean(a, axis=-1, keepdims=True)
                a = jnp.clip(a, constants.column_clamp * mean, mean / constants.column_clamp)
            orthogonal = newton_schulz(m, steps=constants.steps, eps=constants.eps, coefficients=constants.coefficients)
            size = jnp.minimum(1.0, a * constants.scale * max(view.fan_in, view.fan_out) ** 0.5)
            change = -constants.weight_decay * a * view.matrices(p) - size * orthogonal
            return view.restore(change).astype(p.dtype)

        return map_matrices(step, views, mu, params), NamoState(count, mu, nu)

    return transformation(init, update)


@OptimizerConfig.register_subclass("namo")
@dataclass(frozen=True)
class NamoConfig(OptimizerConfig):
    """NAMO with AdamW for what is no matrix; see the module for the formula.

    Attributes:
        learning_rate: Peak rate of the matrices.
        momentum: Decay of the first moment.
        momentum2: Decay of the squared norm.
        scale: Root mean square of a full step.
        backend_steps: Newton–Schulz iterations.
        coefficient_type: Newton–Schulz coefficients: simple, quintic, polar_express or aol.
        adam_lr: Peak rate of AdamW.
        beta1: Decay of AdamW's first moment.
        beta2: Decay of AdamW's second moment.
        epsilon: Added to the roots of second moments.
        max_grad_norm: Norm clip of the gradient; None switches it off.
        clip_scope: ``global`` or ``group``.
        adam_modules: Matrices that AdamW should take too: a regular expression or substrings of their names.

    Example:
        >>> NamoConfig().build(100) is not None
        True
    """

    learning_rate: float = 1e-2
    momentum: float = 0.95
    momentum2: float = 0.99
    scale: float = 0.2
    backend_steps: int = 5
    coefficient_type: str = "simple"
    adam_lr: float = 6e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    clip_scope: str = "global"
    adam_modules: list[str] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coefficients(self.coefficient_type, steps=self.backend_steps)
        check_fractions("namo", momentum=self.momentum, momentum2=self.momentum2, beta1=self.beta1, beta2=self.beta2)
        check_positive("namo", scale=self.scale, epsilon=self.epsilon, max_grad_norm=self.max_grad_norm)

    def column_clamp_value(self) -> float | None:
        """None: one number per matrix."""
        return None

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build NAMO; ``learning_rate`` and ``adam_lr`` are injected."""
        constants = NamoConstants(
            momentum=self.momentum,
            momentum2=self.momentum2,
            scale=self.scale,
            weight_decay=self.weight_decay,
            steps=self.backend_steps,
            coefficients=self.coefficient_type,
            eps=self.epsilon,
            column_clamp=self.column_clamp_value(),
        )

        def groups(learning_rate: Any, adam_lr: Any) -> dict[str, list[optax.GradientTransformation]]:
            adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
            return {
                "namo": [namo(learning_rate, constants)],
                "adam": [adam, *decay_and_rate(self, adam_lr, self.weight_decay)],
            }

        return grouped(
            self,
            num_train_steps,
            groups,
            lambda kind: "namo" if kind is Kind.MATRIX else "adam",
            adam_lr=self.adam_lr,
            max_grad_norm=self.max_grad_norm,
            clip_scope=self.clip_scope,
            adam_modules=self.adam_modules,
        )


@OptimizerConfig.register_subclass("namoD")
@dataclass(frozen=True)
class NamoDConfig(NamoConfig):
    """NAMO with one damping per output column.

    Attributes:
        column_clamp: Columns stay within this factor of their mean.

    Example:
        >>> NamoDConfig().column_clamp
        0.75
    """

    column_clamp: float = 0.75

    def column_clamp_value(self) -> float | None:
        """The clamp of the columns."""
        return self.column_clamp
