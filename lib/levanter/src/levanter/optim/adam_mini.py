r"""Adam-mini: one second moment per block of parameters that share a Hessian block.

    m_t = beta1 m_{t-1} + (1 - beta1) g_t
    v_t = beta2 v_{t-1} + (1 - beta2) mean_block(g_t^2)
    p_t = p_{t-1} - eta (m_hat_t / (sqrt(v_hat_t) + eps) + lambda p_{t-1})

| parameter | block |
|---|---|
| embedding, language-model head | the row of a token |
| query and key projection | a head |
| every other linear layer | the inputs of an output neuron |
| vectors (norms, biases) | an element, as in Adam |

| field | default |
|---|---|
| beta1, beta2 | 0.9, 0.95 |
| epsilon | 1e-8 |
| max_grad_norm | 1.0 |

The second moment shrinks by the fan-in: for a Llama it is under 1 % of the parameters instead of 100 %.

References:
    Zhang et al., Adam-mini: use fewer learning rates to gain more, arXiv:2406.16793, algorithms 1 and 3.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from haliax import NamedArray

from levanter.optim.composition import check_fractions, check_positive, single_group, transformation
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import MatrixView, map_arrays, matrix_views
from levanter.tree_paths import is_named, owner_classes, raw_array

_HEAD_WISE = ("q_proj", "k_proj")


def block_dims(params: Any) -> dict[str, tuple[int, ...]]:
    """The dimensions that each leaf's block runs over, by leaf name; empty where every element is its own block."""
    views = matrix_views(params, tables=True)
    classes = owner_classes(params)

    def dims(name: str, view: MatrixView) -> tuple[int, ...]:
        if "Embedding" in classes.get(name, ""):
            return view.columns
        if any(part in name for part in _HEAD_WISE):
            return (*view.rows, *view.columns[1:])
        return view.rows

    return {name: dims(name, view) for name, view in views.items()}


def scale_by_adam_mini(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam with the second moment averaged over blocks; block dimensions have size 1 in the state."""

    def init(params: Any) -> optax.ScaleByAdamState:
        blocks = block_dims(params)

        def second(name: str, leaf: Any) -> Any:
            raw = raw_array(leaf)
            shape = [1 if d in blocks.get(name, ()) else size for d, size in enumerate(raw.shape)]
            return _like(leaf, jnp.zeros(shape, raw.dtype))

        nu = map_arrays(second, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), nu)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        blocks = block_dims(grads)

        def second(name: str, grad: Any, old: Any) -> Any:
            g, v = raw_array(grad), raw_array(old)
            mean = jnp.mean(jnp.square(g), axis=blocks.get(name, ()), keepdims=True)
            return _like(old, b2 * v + (1 - b2) * mean.astype(v.dtype))

        count = jnp.asarray(optax.safe_increment(state.count))
        mu = optax.tree.update_moment(grads, state.mu, b1, 1)
        nu = map_arrays(second, grads, state.nu)
        mu_hat, nu_hat = optax.tree.bias_correction(mu, b1, count), optax.tree.bias_correction(nu, b2, count)
        updates = map_arrays(lambda _, m, v: _like(m, raw_array(m) / (jnp.sqrt(raw_array(v)) + eps)), mu_hat, nu_hat)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return transformation(init, update)


def _like(leaf: Any, value: jax.Array) -> Any:
    if not is_named(leaf):
        return value
    return NamedArray(value, tuple(axis.resize(n) for axis, n in zip(leaf.axes, value.shape, strict=True)))


@OptimizerConfig.register_subclass("mini")
@dataclass(frozen=True)
class MiniConfig(OptimizerConfig):
    """Adam-mini; see the module for the formula and the blocks.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> MiniConfig(learning_rate=1e-3).build(100) is not None
        True
    """

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("mini", beta1=self.beta1, beta2=self.beta2)
        check_positive("mini", epsilon=self.epsilon, max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build Adam-mini with an injected learning rate."""
        direction = scale_by_adam_mini(self.beta1, self.beta2, self.epsilon)
        return single_group(self, num_train_steps, direction, max_grad_norm=self.max_grad_norm)
