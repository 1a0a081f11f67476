r"""Learning-rate schedules: cycles of warm-up, plateau and decay, each decay in one of eight shapes.

Over one cycle of ``T`` steps with peak ``eta`` and floor ``m = eta * min_lr_ratio`` the rate rises linearly from the
previous cycle's end value to ``eta`` over the warm-up, stays there, then follows a *shape* over the decay. A shape is a
pure function of the position inside the decay, written once, so the table below is the whole of the mathematics.

Numbers at most 1 are fractions of the cycle; larger ones are whole steps.

References:
    cosine: Loshchilov and Hutter, SGDR, arXiv:1608.03983, eq. 5.
    inv_sqrt: Vaswani et al., arXiv:1706.03762, section 5.3; Zhai et al., arXiv:2106.04560, section 3.5.
    linear (warm-up, stable, decay): Hu et al., MiniCPM, arXiv:2404.06395, section 4.
    power: Shen et al., Power Scheduler, arXiv:2408.13359, eq. 7.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from draccus import ChoiceRegistry

from levanter.errors import ConfigError

Schedule = Callable[[Any], Any]


@dataclass(frozen=True)
class DecayShape(ChoiceRegistry):
    """How the rate falls over one decay; subclasses are the ``type`` values of ``optimizer.lr_schedule``."""

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Rate after ``t`` of ``steps`` decay steps, in the units of ``peak``.

        Args:
            t: Steps since the decay began, a floating scalar in ``[0, steps]``.
            steps: Length of the decay in steps, at least 1.
            peak: Rate at the start of the decay.
            floor: Lowest rate, ``peak * min_lr_ratio``.
            warmup: Warm-up steps of the first cycle; only inverse square root reads it.
        """
        raise NotImplementedError(type(self).__name__)


@DecayShape.register_subclass("constant")
@dataclass(frozen=True)
class Constant(DecayShape):
    """No decay."""

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Return ``peak`` everywhere."""
        return jnp.full_like(t, peak)


@DecayShape.register_subclass("cosine")
@dataclass(frozen=True)
class Cosine(DecayShape):
    """``m + (eta - m) * (0.5 * (1 + cos(pi t / T))) ** exponent``."""

    exponent: float = 1.0

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Half a cosine from ``peak`` to ``floor``."""
        return floor + (peak - floor) * (0.5 * (1 + jnp.cos(jnp.pi * t / steps))) ** self.exponent


@DecayShape.register_subclass("linear")
@dataclass(frozen=True)
class Linear(DecayShape):
    """``m + (eta - m) * (1 - t / T)``."""

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Straight line from ``peak`` to ``floor``."""
        return floor + (peak - floor) * (1 - t / steps)


@DecayShape.register_subclass("polynomial")
@dataclass(frozen=True)
class Polynomial(DecayShape):
    """``m + (eta - m) * (1 - t / T) ** power``."""

    power: float = 2.0

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Power of the remaining fraction, from ``peak`` to ``floor``."""
        return floor + (peak - floor) * (1 - t / steps) ** self.power


@DecayShape.register_subclass("inv_sqrt")
@dataclass(frozen=True)
class InvSqrt(DecayShape):
    """``max(m, eta * min(1, 1 / sqrt(max(t + warmup, 1) / timescale)))``."""

    timescale: float = 10_000.0

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Inverse square root of the global position."""
        return jnp.maximum(floor, peak * jnp.minimum(1.0, jax.lax.rsqrt(jnp.maximum(t + warmup, 1) / self.timescale)))


@DecayShape.register_subclass("inv")
@dataclass(frozen=True)
class Inv(DecayShape):
    """``max(m, eta * min(1, 1 / ((eta / m - 1) * max(t, 1) / T + 1)))``; needs ``m > 0``."""

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Hyperbola that reaches ``floor`` at the end."""
        if floor <= 0:
            raise ConfigError("shape inv needs min_lr_ratio > 0; got 0.", key="optimizer.min_lr_ratio")
        scale = (peak / floor - 1) * jnp.maximum(t, 1) / steps + 1
        return jnp.maximum(floor, peak * jnp.minimum(1.0, 1 / scale))


@DecayShape.register_subclass("inv_sqrt_decay")
@dataclass(frozen=True)
class InvSqrtDecay(DecayShape):
    """``max(m, eta / sqrt(1 + c * t / T))``."""

    c: float = 28.6

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Inverse square root of the fraction done."""
        return jnp.maximum(floor, peak * jax.lax.rsqrt(1 + self.c * t / steps))


@DecayShape.register_subclass("power")
@dataclass(frozen=True)
class Power(DecayShape):
    """``min(eta, B * a * (t * B * S) ** b)``: the rate falls with the tokens seen, whatever the horizon."""

    batch_size: int = 512
    seq_length: int = 4096
    a: float = 4.6
    b: float = -0.51

    def value(self, t: jax.Array, steps: int, peak: float, floor: float, warmup: int) -> jax.Array:
        """Power law in tokens, capped at ``peak``."""
        tokens = jnp.maximum(t, 1) * (self.batch_size * self.seq_length)
        return jnp.minimum(peak, self.batch_size * self.a * tokens**self.b)


@dataclass(frozen=True)
class ScheduleShape:
    """Everything but the peak that fixes a schedule; see ``OptimizerConfig`` for the meaning of each field."""

    warmup: float = 0.01
    decay: float | None = None
    rewarmup: float = 0.0
    min_lr_ratio: float = 0.1
    cycles: int | Sequence[int] | None = None
    cycle_length: float | int | Sequence[float] | None = None
    decay_shape: DecayShape = Cosine()


def build_schedule(spec: ScheduleShape, peak: float, num_train_steps: int) -> Schedule:
    """Build ``step -> rate``, traceable by JAX.

    Args:
        spec: Warm-up, decay, cycles and shape.
        peak: Highest rate.
        num_train_steps: Steps in the run.

    Returns:
        A function from the 0-based step (int or array) to a rate in JAX's default float dtype (float32).

    Raises:
        ConfigError: a warm-up or decay of more steps than the run has, non-integer step counts, cycles that leave the
            run, or a run without steps.

    Example:
        >>> fn = build_schedule(ScheduleShape(warmup=2, decay_shape=Linear(), min_lr_ratio=0.0), 1.0, 10)
        >>> [round(float(fn(s)), 3) for s in (0, 1, 2, 6)]
        [0.0, 0.5, 1.0, 0.5]
    """
    _check_fits(spec, num_train_steps)
    floor = peak * spec.min_lr_ratio
    pieces: list[tuple[int, Callable[[jax.Array], jax.Array]]] = []
    previous = 0.0
    first_warmup = 0
    cycles = cycle_bounds(spec, num_train_steps)
    for index, (start, end) in enumerate(cycles):
        length = end - start
        ramp = spec.warmup if index == 0 else spec.rewarmup
        warm = min(steps_of(ramp, length, "warmup" if index == 0 else "rewarmup"), length)
        first_warmup = warm if index == 0 else first_warmup
        rest = length - warm
        decay = rest if spec.decay is None else min(steps_of(spec.decay, length, "decay"), rest)
        if warm:
            pieces.append((start, _ramp(start, warm, previous, peak)))
        if rest - decay or not decay:
            pieces.append((start + warm, lambda step: jnp.full_like(step, peak)))
        previous = peak
        if decay:
            piece = _decay(spec.decay_shape, end - decay, decay, peak, floor, first_warmup)
            pieces.append((end - decay, piece))
        if decay and index + 1 < len(cycles):  # where the next cycle sets out; every operation here is compiled
            previous = float(spec.decay_shape.value(jnp.asarray(decay, float), decay, peak, floor, first_warmup))

    def schedule(step: Any) -> jax.Array:
        t = jnp.asarray(step, float)
        rate = jnp.zeros_like(t)
        for start, piece in pieces:
            rate = jnp.where(t >= start, piece(t), rate)
        return rate

    return schedule


def _check_fits(spec: ScheduleShape, num_train_steps: int) -> None:
    if num_train_steps < 1:
        raise ConfigError(f"num_train_steps={num_train_steps}; expected at least 1.", key="trainer.num_train_steps")
    for name, value in (("warmup", spec.warmup), ("rewarmup", spec.rewarmup), ("decay", spec.decay or 0)):
        if value > 1 and value > num_train_steps:
            raise ConfigError(
                f"{name}={value:g} steps, num_train_steps={num_train_steps}; expected {name} <= num_train_steps. "
                "Shorten it, train longer, or give a fraction of the run (at most 1).",
                key=f"optimizer.{name}",
            )
    if not 0 <= spec.min_lr_ratio <= 1:
        raise ConfigError(
            f"min_lr_ratio={spec.min_lr_ratio}; expected 0 <= min_lr_ratio <= 1: it is a fraction of the peak.",
            key="optimizer.min_lr_ratio",
        )


def cycle_bounds(spec: ScheduleShape, num_train_steps: int) -> list[tuple[int, int]]:
    """Split ``[0, num_train_steps)`` into the cycles the spec asks for.

    Raises:
        ConfigError: both ``cycles`` and ``cycle_length`` set, or bounds outside the run.
    """
    if spec.cycles is not None and spec.cycle_length is not None:
        raise ConfigError("cycles and cycle_length are both set; expected one of them.", key="optimizer.cycles")
    if isinstance(spec.cycles, int):
        inner = [round(num_train_steps * i / spec.cycles) for i in range(1, spec.cycles)]
    elif spec.cycles is not None:
        inner = [int(c) for c in spec.cycles]
    elif isinstance(spec.cycle_length, Sequence):
        inner, at = [], 0
        for length in spec.cycle_length:
            at += steps_of(length, num_train_steps, "cycle_length")
            inner.append(at)
    elif spec.cycle_length is not None:
        length = steps_of(spec.cycle_length, num_train_steps, "cycle_length")
        if length < 1:
            raise ConfigError(f"cycle_length={spec.cycle_length} is under one step.", key="optimizer.cycle_length")
        inner = list(range(length, num_train_steps, length))
    else:
        inner = []
    bounds = [0, *[b for b in inner if b != num_train_steps], num_train_steps]
    if any(b <= a for a, b in itertools.pairwise(bounds)):
        raise ConfigError(
            f"cycle ends {inner} do not grow inside [1, {num_train_steps}]; fix cycles or num_train_steps.",
            key="optimizer.cycles",
        )
    return list(itertools.pairwise(bounds))


def steps_of(value: float, length: int, name: str) -> int:
    """Turn a fraction (at most 1) or a whole number of steps into steps.

    Raises:
        ConfigError: negative, or above 1 and not whole.

    Example:
        >>> steps_of(0.1, 200, "warmup"), steps_of(30, 200, "warmup")
        (20, 30)
    """
    if value < 0 or (value > 1 and value != int(value)):
        raise ConfigError(
            f"{name}={value}; expected a fraction in [0, 1] or a whole number of steps.", key=f"optimizer.{name}"
        )
    return int(value) if value > 1 else int(value * length)


def _ramp(start: int, steps: int, low: float, high: float) -> Callable[[jax.Array], jax.Array]:
    return lambda step: low + (high - low) * jnp.clip((step - start) / steps, 0.0, 1.0)


def _decay(
    shape: DecayShape, start: int, steps: int, peak: float, floor: float, warmup: int
) -> Callable[[jax.Array], jax.Array]:
    return lambda step: shape.value(jnp.clip(step - start, 0.0, float(steps)), steps, peak, floor, warmup)
