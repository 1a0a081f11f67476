r"""Norms on raw arrays, float32 inside whatever the activations are.

    rms:    x / sqrt(mean(x^2) + eps) * (offset + weight)
    layer:  (x - mean(x)) / sqrt(var(x) + eps) * weight + bias

``offset`` is 1 in models whose stored weight is a difference from one (Gemma), 0 elsewhere. A norm may run over several
trailing axes at once (OLMo 2 norms all heads of a query together).

References:
    Zhang and Sennrich, Root mean square layer normalization, arXiv:1910.07467, eq. 4.
    Ba, Kiros and Hinton, Layer normalization, arXiv:1607.06450, eq. 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.errors import ConfigError


@dataclass(frozen=True)
class NormSpec:
    """Which norm.

    Attributes:
        kind: ``rms`` or ``layer``.
        eps: Added to the mean square (``rms``) or variance (``layer``).
        offset: Added to the stored weight; ``rms`` only.
        use_bias: A bias after the weight.
    """

    kind: str = "rms"
    eps: float = 1e-5
    offset: float = 0.0
    use_bias: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("rms", "layer"):
            raise ConfigError(f"unknown norm {self.kind!r}; expected rms or layer.", key="model.norm")

    def init(self, axes: Axis | Sequence[Axis]) -> "RmsNorm | LayerNorm":
        """A norm over ``axes`` that multiplies by one and adds nothing.

        Example:
            >>> NormSpec(offset=1.0).init(Axis("embed", 2)).weight.array.tolist()
            [0.0, 0.0]
        """
        axes = (axes,) if isinstance(axes, Axis) else tuple(axes)
        shape = tuple(axis.size for axis in axes)
        weight = NamedArray(jnp.full(shape, 1.0 - self.offset), axes)
        bias = NamedArray(jnp.zeros(shape), axes) if self.use_bias else None
        if self.kind == "layer":
            return LayerNorm(weight, bias, self.eps)
        return RmsNorm(weight, bias, self.eps, self.offset)

    def num_params(self, size: int) -> int:
        """Parameters of a norm over ``size`` elements."""
        return size * (2 if self.use_bias else 1)


class RmsNorm(eqx.Module):
    """Root-mean-square norm.

    Attributes:
        weight: Axes of the normed dimensions.
        bias: The same axes, or None.
        eps: Added to the mean square.
        offset: Added to the weight.
    """

    weight: NamedArray
    bias: NamedArray | None
    eps: float = eqx.field(static=True)
    offset: float = eqx.field(static=True, default=0.0)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Norm the last axis of ``x``, whose size is the product of the norm's axes."""
        value = x.astype(jnp.float32)
        scaled = value * jax.lax.rsqrt(jnp.mean(jnp.square(value), axis=-1, keepdims=True) + self.eps)
        weight = self.weight.array.astype(jnp.float32).reshape(-1)
        scaled = scaled * (weight + self.offset if self.offset else weight)
        return _shift(scaled, self.bias).astype(x.dtype)


class LayerNorm(eqx.Module):
    """Layer norm.

    Attributes:
        weight: Axes of the normed dimensions.
        bias: The same axes, or None.
        eps: Added to the variance.
    """

    weight: NamedArray
    bias: NamedArray | None
    eps: float = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Norm the last axis of ``x``, whose size is the product of the norm's axes."""
        value = x.astype(jnp.float32)
        centred = value - jnp.mean(value, axis=-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.eps)
        scaled = scaled * self.weight.array.astype(jnp.float32).reshape(-1)
        return _shift(scaled, self.bias).astype(x.dtype)


Norm = RmsNorm | LayerNorm


def apply_norm(norm: Norm | None, x: jax.Array) -> jax.Array:
    """``norm(x)``; without a norm, ``x``.

    Example:
        >>> apply_norm(None, jnp.ones(2)).tolist()
        [1.0, 1.0]
    """
    return x if norm is None else norm(x)


def _shift(x: jax.Array, bias: NamedArray | None) -> jax.Array:
    return x if bias is None else x + bias.array.astype(jnp.float32).reshape(-1)
