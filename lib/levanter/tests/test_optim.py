"""Optimizers: AdamW against a float64 NumPy oracle, masks, guards, averages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.errors import ConfigError
from levanter.optim.config import AdamConfig, ClipUpdateNormConfig, SkipStepConfig, hyperparams_of
from levanter.optim.model_averaging import EmaConfig, EmaDecaySqrtConfig
from levanter.optim.transforms import (
    clip_block_rms,
    clip_update_norm,
    rolling_init,
    rolling_push,
    rolling_threshold,
    skip_bad_steps,
)
from levanter.optim.weight_decay import decayed_names
from levanter.trainer_state import trainable

STEPS = 20


def gradients(seed: int = 0):
    rng = np.random.default_rng(seed)
    return [{"w": rng.normal(size=(3, 2)) * 3, "bias": rng.normal(size=2)} for _ in range(STEPS)]


def adamw_oracle(params, grads, rates, *, b1=0.9, b2=0.95, eps=1e-8, decay=0.1, clip=1.0):
    """AdamW in float64, written from the paper."""
    params = {k: v.astype(np.float64) for k, v in params.items()}
    m = {k: np.zeros_like(v) for k, v in params.items()}
    v = {k: np.zeros_like(x) for k, x in params.items()}
    for step, (grad, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
        for key in params:
            g = grad[key] * min(1.0, clip / norm)
            m[key] = b1 * m[key] + (1 - b1) * g
            v[key] = b2 * v[key] + (1 - b2) * g**2
            update = (m[key] / (1 - b1**step)) / (np.sqrt(v[key] / (1 - b2**step)) + eps)
            update = update + (0 if key == "bias" else decay * params[key])
            params[key] = params[key] - rate * update
    return params


def run(optimizer, params, grads, dtype=jnp.float32, **extra):
    optimizer = optax.with_extra_args_support(optimizer)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, grad, extra):
        updates, state = optimizer.update(grad, state, params, **extra)
        return optax.apply_updates(params, updates), state

    for index, grad in enumerate(grads):
        values = {name: series[index] for name, series in extra.items()}
        params, state = step(params, state, jax.tree.map(lambda g: jnp.asarray(g, dtype), grad), values)
    return params, state


def start():
    rng = np.random.default_rng(9)
    return {"w": rng.normal(size=(3, 2)).astype(np.float32), "bias": np.ones(2, np.float32)}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_adamw_follows_the_float64_oracle(dtype):
    """In float64 to 1e-12 of the movement; in float32 within what its roundings can add up to.

    With unit roundoff u: a step rounds the parameter once, ``u |p|``; its direction is at most ``1 / sqrt(1 - b2)`` and
    is made of fewer than 32 rounded operations, the averages' own included (their weights sum to 1). So 20 steps are
    off by at most ``20 u (max |p| + 32 eta / sqrt(1 - b2))``.
    """
    config = AdamConfig(learning_rate=1e-2, warmup=5, lr_schedule="linear", min_lr_ratio=0.0)
    with jax.enable_x64(dtype == "float64"):
        schedule = config.lr_scheduler(STEPS)
        expected = adamw_oracle(start(), gradients(), [float(schedule(s)) for s in range(STEPS)])
        first = jax.tree.map(lambda x: jnp.asarray(x, dtype), start())
        params, state = run(config.build(STEPS), first, gradients(), dtype=dtype)
        for key, value in expected.items():
            largest = max(np.abs(value).max(), np.abs(start()[key]).max())
            bound = 20 * 2.0**-24 * (largest + 32 * 1e-2 / np.sqrt(0.05))
            bound = bound if dtype == "float32" else 1e-12 * np.abs(value - start()[key]).max()
            assert np.abs(np.asarray(params[key]) - value).max() <= bound, key
        assert float(hyperparams_of(state)["learning_rate"]) == pytest.approx(float(schedule(STEPS - 1)))


def test_default_decay_spares_norms_embeddings_and_biases(tiny_model):
    names = decayed_names(trainable(tiny_model), None)
    assert "lm_head.weight" in names
    assert not any("norm" in n or "embeddings" in n for n in names)
    assert decayed_names(trainable(tiny_model), r".*token_embeddings.*") == ["embeddings.token_embeddings.weight"]
    assert len(decayed_names(trainable(tiny_model), ["mlp.up", "Embedding.weight"])) == 2


def test_a_bad_step_is_skipped_and_the_optimizer_forgets_it():
    config = AdamConfig(learning_rate=1e-2, warmup=0, skip_bad_steps=SkipStepConfig(8, 6.0))
    calm, wild = gradients(), gradients()
    wild[12] = jax.tree.map(lambda g: g * 1e6, wild[12])
    losses = np.full(STEPS, 2.0, np.float32)
    losses[12] = np.nan
    params, state = run(config.build(STEPS), jax.tree.map(jnp.asarray, start()), wild[:13], loss=losses)
    before, _ = run(config.build(STEPS), jax.tree.map(jnp.asarray, start()), calm[:12], loss=losses)
    assert float(state.skipped) == 1
    for key in params:
        np.testing.assert_array_equal(params[key], before[key])


def test_update_clipping_bounds_a_jump_by_its_history():
    transform = clip_update_norm(rolling=8, sigma=3.0)
    state = transform.init(None)
    for _ in range(8):
        _, state = transform.update({"w": jnp.ones(4)}, state)
    clipped, state = transform.update({"w": jnp.full(4, 100.0)}, state)
    assert float(state.did_clip) == 1 and float(optax.tree.norm(clipped)) < 2.1
    assert float(jnp.max(state.history.values)) == pytest.approx(200.0)
    built = AdamConfig(clip_update_norm=ClipUpdateNormConfig(), update_rms_clipping=1.0, adamc_weight_decay=True)
    params, _ = run(built.build(STEPS), jax.tree.map(jnp.asarray, start()), gradients())
    assert np.isfinite(params["w"]).all()


def test_block_rms_clip_leaves_small_updates_alone():
    transform = clip_block_rms(1.0)
    out, _ = transform.update({"a": jnp.full(4, 0.5), "b": jnp.full(4, 8.0)}, transform.init(None))
    assert out["a"].tolist() == [0.5] * 4 and out["b"].tolist() == [1.0] * 4


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20), st.integers(2, 8))
def test_the_rolling_threshold_is_the_mean_plus_sigma_of_the_window(values, length):
    state = rolling_init(length)
    for value in values:
        state = rolling_push(state, jnp.float32(value))
    state = rolling_push(state, jnp.float32(np.nan))
    window = np.asarray(values[-length:], np.float64)
    if len(values) < max(2, length // 2):
        assert np.isinf(rolling_threshold(state, 2.0))
    else:
        expected = window.mean() + 2 * max(window.std(), 1e-6)
        assert float(rolling_threshold(state, 2.0)) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_ema_and_sqrt_decay_average_as_defined():
    average = EmaConfig(0.9).create({"w": jnp.zeros(2)})
    for step in range(3):
        average = average.update({"w": jnp.ones(2)}, jnp.int32(step))
    assert float(average.model["w"][0]) == pytest.approx(1 - 0.9**3)
    config = EmaDecaySqrtConfig(beta=0.9, switch_step=2, decay_steps=4)
    average = config.create({"w": jnp.zeros(1)})
    update = jax.jit(lambda a, x, s: a.update({"w": x}, s))
    value, weight = 0.0, 0.0
    for step in range(6):
        new = 0.1 if step < 2 else 1 - np.sqrt(min((step - 2) / 4, 1))
        weight += new
        value += (0.1 if step < 2 else new / weight) * (step - value)
        average = update(average, jnp.full(1, float(step)), jnp.int32(step))
    assert float(average.model["w"][0]) == pytest.approx(value, rel=1e-5)


def test_negative_rates_are_refused():
    with pytest.raises(ConfigError):
        AdamConfig(learning_rate=-1.0)
    assert skip_bad_steps(optax.sgd(0.1)) is not None
