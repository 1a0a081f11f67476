r"""Activation functions under the names that configurations use.

References:
    GELU: Hendrycks and Gimpel, arXiv:1606.08415. SiLU: Elfwing et al., arXiv:1702.03118. Squared ReLU: So et al.,
    Primer, arXiv:2109.08668. xIELU: Huang and Schlag, arXiv:2411.13010, eq. 9.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from levanter.errors import ConfigError

XIELU_BETA = 0.5
XIELU_EPS = -1e-6

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": jax.nn.gelu,
    "relu": jax.nn.relu,
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
}


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """The function of that name.

    Raises:
        ConfigError: an unknown name; the message lists the known ones.

    Example:
        >>> activation("relu_squared")(jnp.array([-1.0, 2.0])).tolist()
        [0.0, 4.0]
    """
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise ConfigError(f"unknown activation {name!r}; expected one of {known}.", key="model.activation_function")
    return ACTIVATIONS[name]


def xielu(x: jax.Array, alpha_p: jax.Array, alpha_n: jax.Array) -> jax.Array:
    r"""Expanded integral of the exponential linear unit, with learned curvature on both sides.

    ``a_p x^2 + b x`` for positive ``x``, ``a_n (expm1(min(x, eps)) - x) + b x`` otherwise, with ``b = 1/2``,
    ``a_p = softplus(alpha_p)`` and ``a_n = b + softplus(alpha_n)``.

    Args:
        x: Any shape.
        alpha_p: Scalar, before the softplus.
        alpha_n: Scalar, before the softplus.

    Example:
        >>> round(float(xielu(jnp.float32(2.0), jnp.float32(0.3), jnp.float32(0.3))), 2)
        4.42

    References:
        Huang and Schlag, arXiv:2411.13010, eq. 9.
    """
    positive = jax.nn.softplus(alpha_p)
    negative = XIELU_BETA + jax.nn.softplus(alpha_n)
    below = (jnp.expm1(jnp.minimum(x, XIELU_EPS)) - x) * negative
    return (jnp.where(x > 0, positive * jnp.square(x), below) + XIELU_BETA * x).astype(x.dtype)
