"""Small gradient transforms that sit between Adam and the learning rate.

Each is a pure optax transform: a state tuple of arrays, an update that traces. They exist because one bad batch can
undo a day: update clipping bounds how far a step may move, skip-step refuses it outright.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from levanter.optim.matrices import widen

STD_FLOOR = 1e-6


class RollingState(NamedTuple):
    """A ring of the last N scalar observations: ``values`` float32 ``[N]``, ``count`` int32 (all seen so far)."""

    values: jax.Array
    count: jax.Array


def rolling_init(length: int) -> RollingState:
    """An empty ring of ``length`` observations."""
    return RollingState(jnp.zeros((length,), jnp.float32), jnp.zeros((), jnp.int32))


def rolling_push(state: RollingState, value: jax.Array) -> RollingState:
    """Append one observation, dropping the oldest; non-finite ones are kept out so that they cannot poison the mean."""
    length = state.values.shape[0]
    keep = jnp.isfinite(value)
    values = jnp.where(keep, state.values.at[state.count % length].set(value.astype(jnp.float32)), state.values)
    return RollingState(values, state.count + keep.astype(jnp.int32))


def rolling_threshold(state: RollingState, sigma: float) -> jax.Array:
    """``mean + sigma * std`` of the ring; infinity until ``max(2, N / 2)`` observations are in."""
    length = state.values.shape[0]
    filled = jnp.minimum(state.count, length)
    used = jnp.arange(length) < filled
    number = jnp.maximum(filled, 1)
    mean = jnp.sum(jnp.where(used, state.values, 0.0)) / number
    variance = jnp.sum(jnp.where(used, (state.values - mean) ** 2, 0.0)) / number
    limit = mean + sigma * jnp.maximum(jnp.sqrt(variance), STD_FLOOR)
    return jnp.where(state.count >= max(2, length // 2), limit, jnp.inf)


class ClipUpdateState(NamedTuple):
    """History of unclipped update norms and what the last step did."""

    history: RollingState
    did_clip: jax.Array
    pre_clip_norm: jax.Array
    threshold: jax.Array


def clip_update_norm(rolling: int = 128, sigma: float = 3.0) -> optax.GradientTransformation:
    """Scale an update down to ``mean + sigma * std`` of the recent update norms when it exceeds that.

    Args:
        rolling: Observations in the history.
        sigma: Standard deviations above the mean that are still let through.

    Returns:
        A transform; the history stores the norm *before* clipping.
    """

    def init(params: Any) -> ClipUpdateState:
        zero = jnp.zeros((), jnp.float32)
        return ClipUpdateState(rolling_init(rolling), zero, zero, jnp.asarray(jnp.inf, jnp.float32))

    def update(updates: Any, state: ClipUpdateState, params: Any = None) -> tuple[Any, ClipUpdateState]:
        norm = optax.tree.norm(updates)
        limit = rolling_threshold(state.history, sigma)
        factor = jnp.where(norm > limit, limit / jnp.maximum(norm, STD_FLOOR), 1.0)
        clipped = jax.tree.map(lambda u: u * factor.astype(u.dtype), updates)
        did = (norm > limit).astype(jnp.float32)
        return clipped, ClipUpdateState(rolling_push(state.history, norm), did, norm, limit)

    return optax.GradientTransformation(init, cast(Any, update))


def clip_block_rms(threshold: float) -> optax.GradientTransformation:
    """Divide each leaf by ``max(1, rms(leaf) / threshold)``.

    References:
        Shazeer and Stern, Adafactor, arXiv:1804.04235, section 6.
    """

    def clip(update: jax.Array) -> jax.Array:
        rms = jnp.sqrt(jnp.mean(jnp.square(widen(update))))
        return update / jnp.maximum(1.0, rms / threshold).astype(update.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(clip, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class SkipStepState(NamedTuple):
    """Inner state first, then the histories, so that the inner leaves keep their place in a checkpoint."""

    inner: Any
    losses: RollingState
    grad_norms: RollingState
    skipped: jax.Array


def skip_bad_steps(
    inner: optax.GradientTransformation, rolling: int = 128, sigma: float = 6.0
) -> optax.GradientTransformationExtraArgs:
    """Skip a step whose loss or gradient norm is far above its recent history, or not finite.

    A skipped step has a zero update and leaves the inner state alone; its observations still enter the history.

    Args:
        inner: The optimizer to guard.
        rolling: Observations in each history.
        sigma: Standard deviations above the mean that are still accepted.

    References:
        OLMo 2, arXiv:2501.00656, section 4.
    """
    wrapped = optax.with_extra_args_support(inner)

    def init(params: Any) -> SkipStepState:
        return SkipStepState(
            wrapped.init(params), rolling_init(rolling), rolling_init(rolling), jnp.zeros((), jnp.float32)
        )

    def update(updates: Any, state: SkipStepState, params: Any = None, *, loss: jax.Array, **extra: Any) -> tuple:
        norm = optax.tree.norm(updates)
        good = (loss <= rolling_threshold(state.losses, sigma)) & (norm <= rolling_threshold(state.grad_norms, sigma))
        good = good & jnp.isfinite(loss) & jnp.isfinite(norm)
        safe = jax.tree.map(lambda u: jnp.where(good, u, jnp.zeros_like(u)), updates)
        new, inner_state = wrapped.update(safe, state.inner, params, loss=loss, **extra)
        new = jax.tree.map(lambda u: jnp.where(good, u, jnp.zeros_like(u)), new)
        kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), inner_state, state.inner)
        skipped = 1.0 - good.astype(jnp.float32)
        return new, SkipStepState(kept, rolling_push(state.losses, loss), rolling_push(state.grad_norms, norm), skipped)

    return optax.GradientTransformationExtraArgs(init, cast(Any, update))
