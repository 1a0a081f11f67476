"""Root-mean-square norms on raw arrays, float32 inside whatever the activations are.

References:
    Zhang and Sennrich, Root mean square layer normalization, arXiv:1910.07467, eq. 4.
"""

import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis


def init_norm(axis: Axis, eps: float) -> hnn.RmsNorm:
    """A norm over ``axis`` with unit weight and no bias."""
    return hnn.RmsNorm.init(axis, eps=eps, use_weight=True, use_bias=False)


def rms_norm(norm: hnn.RmsNorm | None, x: jax.Array) -> jax.Array:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis; ``norm`` None returns ``x``.

    Args:
        norm: A haliax norm whose axis is the last axis of ``x``.
        x: Activations ``[..., E]``.
    """
    if norm is None:
        return x
    value = x.astype(jnp.float32)
    scaled = value * jax.lax.rsqrt(jnp.mean(jnp.square(value), axis=-1, keepdims=True) + norm.eps)
    if norm.weight is not None:
        scaled = scaled * norm.weight.array.astype(jnp.float32)
    return scaled.astype(x.dtype)
