r"""Rotary position embeddings, rotate-half form, in float32.

Pair ``(x_i, x_{i + d/2})`` of a head is turned by the angle ``position * inv_freq_i``. The long-context variants differ
only in how they change ``inv_freq`` (and, for YaRN, in one scale on the tables), so each is a small config with one
method.

References:
    Su et al., RoFormer, arXiv:2104.09864, section 3.4.
    Llama 3.1 scaling: https://arxiv.org/abs/2407.21783, section 3.2 and its reference code's three-band rule.
    YaRN and dynamic NTK: Peng et al., arXiv:2309.00071, sections 3.1-3.4.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from draccus import ChoiceRegistry

from levanter.errors import ConfigError, ModelShapeError


@dataclass(frozen=True)
class RotaryConfig(ChoiceRegistry):
    """Which frequencies a head turns with.

    Attributes:
        theta: Base of the geometric series of wavelengths.
        partial_rotary_factor: Part of the head that turns; the rest of it carries no position.
    """

    theta: float = 10_000.0
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.partial_rotary_factor <= 1:
            raise ConfigError(
                f"{self.partial_rotary_factor}; expected above 0 and at most 1.", key="model.rope.partial_rotary_factor"
            )

    @classmethod
    def default_choice_name(cls) -> str | None:
        """Plain rotary embeddings."""
        return "default"

    def rotary_size(self, head_size: int) -> int:
        """How many leading dimensions of a head turn."""
        return int(head_size * self.partial_rotary_factor)

    def inverse_frequencies(self, head_size: int, length: jax.Array | int = 0) -> jax.Array:
        """Radians per position for each pair.

        Args:
            head_size: Dimensions that turn.
            length: Positions in use; only the dynamic variant looks at it.

        Returns:
            Float32 ``[head_size / 2]``.
        """
        if head_size % 2:
            raise ModelShapeError(f"bad head size: head_size={head_size}; expected an even number.", name="head_size")
        return self.theta ** -(jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)

    def table_scale(self) -> float:
        """Factor on cos and sin."""
        return 1.0


@RotaryConfig.register_subclass("default")
@dataclass(frozen=True)
class DefaultRotaryConfig(RotaryConfig):
    """The original; ``factor`` above 1 divides every frequency (linear interpolation)."""

    factor: float = 1.0

    def inverse_frequencies(self, head_size: int, length: jax.Array | int = 0) -> jax.Array:
        """Frequencies divided by ``factor``."""
        return super().inverse_frequencies(head_size) / self.factor


@RotaryConfig.register_subclass("linear")
@dataclass(frozen=True)
class LinearRotaryConfig(DefaultRotaryConfig):
    """Linear interpolation under its Hugging Face name."""


@RotaryConfig.register_subclass("llama3")
@dataclass(frozen=True)
class Llama3RotaryConfig(RotaryConfig):
    """Llama 3.1: long wavelengths are divided by ``factor``, short ones kept, a linear blend between."""

    theta: float = 500_000.0
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def inverse_frequencies(self, head_size: int, length: jax.Array | int = 0) -> jax.Array:
        """Frequencies by band."""
        base = super().inverse_frequencies(head_size)
        turns = self.original_max_position_embeddings * base / (2 * math.pi)
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = jnp.clip(blend, 0.0, 1.0)
        return (1 - blend) * base / self.factor + blend * base


@RotaryConfig.register_subclass("dynamic")
@dataclass(frozen=True)
class DynamicRotaryConfig(RotaryConfig):
    """Dynamic NTK: beyond the trained length the base grows with the length, so that no pair turns further than it did.

    Attributes:
        factor: How fast the base grows.
        max_position_embeddings: Trained length.
    """

    factor: float = 1.0
    max_position_embeddings: int = 2048

    def inverse_frequencies(self, head_size: int, length: jax.Array | int = 0) -> jax.Array:
        """Frequencies of a base that follows ``length``."""
        used = jnp.maximum(jnp.asarray(length, jnp.float32), self.max_position_embeddings)
        growth = self.factor * used / self.max_position_embeddings - (self.factor - 1)
        base = self.theta * growth ** (head_size / (head_size - 2))
        return base ** -(jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)


@RotaryConfig.register_subclass("yarn")
@dataclass(frozen=True)
class YarnRotaryConfig(RotaryConfig):
    """YaRN: interpolate slow pairs, extrapolate fast ones, scale the tables by ``0.1 mscale ln(factor) + 1``.

    Attributes:
        factor: How much longer than trained.
        beta_fast: Turns above which a pair is left alone.
        beta_slow: Turns below which it is interpolated.
        original_max_position_embeddings: Trained length.
        mscale: Strength of the table scale.
        attention_factor: The table scale itself, if set.
        truncate: Round the ramp's ends to whole pairs.
    """

    factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_position_embeddings: int = 2048
    mscale: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def inverse_frequencies(self, head_size: int, length: jax.Array | int = 0) -> jax.Array:
        """Frequencies by a linear ramp over pair indices."""
        base = super().inverse_frequencies(head_size)

        def pair_with(rotations: float) -> float:
            length = self.original_max_position_embeddings / (rotations * 2 * math.pi)
            return head_size * math.log(length) / (2 * math.log(self.theta))

        low, high = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_size - 1)
        width = high - low if high != low else 0.001
        ramp = jnp.clip((jnp.arange(head_size // 2) - low) / width, 0.0, 1.0)
        return base / self.factor * ramp + base * (1 - ramp)

    def table_scale(self) -> float:
        """Attention temperature folded into the tables."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * self.mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


def rotary_tables(config: RotaryConfig, head_size: int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for given positions.

    Args:
        config: Frequencies.
        head_size: Size of a head.
        positions: Integer positions, any shape.

    Returns:
        ``(cos, sin)``, float32, shape ``positions.shape + (rotary size,)``; the sine is negated in its first half, so
        that turning is ``x * cos + swap_halves(x) * sin``.
    """
    frequencies = config.inverse_frequencies(config.rotary_size(head_size), jnp.max(positions) + 1)
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    scale = config.table_scale()
    cos, sin = jnp.cos(angles) * scale, jnp.sin(angles) * scale
    return jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)


def apply_rotary(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn the last axis of ``x`` by the tables; computed in float32, returned in ``x``'s dtype.

    Tables narrower than the head turn its leading dimensions and leave the rest.

    Example:
        >>> cos, sin = rotary_tables(DefaultRotaryConfig(), 4, jnp.zeros((1,), jnp.int32))
        >>> apply_rotary(jnp.ones((1, 4)), cos, sin).tolist()
        [[1.0, 1.0, 1.0, 1.0]]
    """
    size = cos.shape[-1]
    half = size // 2
    value = x[..., :size].astype(jnp.float32)
    swapped = jnp.concatenate([value[..., half:], value[..., :half]], axis=-1)
    turned = (value * cos + swapped * sin).astype(x.dtype)
    return turned if size == x.shape[-1] else jnp.concatenate([turned, x[..., size:]], axis=-1)
