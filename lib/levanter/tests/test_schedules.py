"""Learning-rate schedules: published examples, and bounds for every shape."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.errors import ConfigError
from levanter.optim.config import AdamConfig
from levanter.optim.schedules import DecayShape, ScheduleShape, build_schedule, cycle_bounds, steps_of

SHAPES = sorted(DecayShape.get_known_choices())


def rates(config: AdamConfig, steps: int, at) -> list[float]:
    schedule = config.lr_scheduler(steps)
    return [float(schedule(step)) for step in at]


def test_constant_stays_put():
    assert rates(AdamConfig(learning_rate=1e-3, warmup=0, lr_schedule="constant"), 100, [0, 50, 99]) == pytest.approx(
        [1e-3] * 3
    )


def test_linear_with_warmup_rises_then_falls_to_the_floor():
    config = AdamConfig(learning_rate=1.0, warmup=0.1, min_lr_ratio=0.1, lr_schedule="linear")
    assert rates(config, 1000, [0, 50, 100, 550, 1000]) == pytest.approx([0.0, 0.5, 1.0, 0.55, 0.1])


def test_warmup_stable_decay_has_a_plateau():
    config = AdamConfig(learning_rate=1.0, warmup=0.1, decay=0.2, min_lr_ratio=0.0, lr_schedule="linear")
    assert rates(config, 1000, [100, 500, 799, 900, 1000]) == pytest.approx([1, 1, 1, 0.5, 0])


def test_cosine_is_half_way_in_the_middle():
    config = AdamConfig(learning_rate=1.0, warmup=0, min_lr_ratio=0.0, lr_schedule="cosine")
    assert rates(config, 1000, [0, 500, 1000]) == pytest.approx([1, 0.5, 0], abs=1e-6)


def test_cycles_restart_from_the_end_value_with_rewarmup():
    config = AdamConfig(learning_rate=1.0, warmup=0, rewarmup=10, min_lr_ratio=0.2, cycles=2, lr_schedule="linear")
    assert rates(config, 200, [0, 99, 100, 105, 110, 200]) == pytest.approx([1, 0.208, 0.2, 0.6, 1, 0.2])


def test_cycles_by_list_and_by_length_agree():
    spec = {"warmup": 0.0, "min_lr_ratio": 0.1}
    assert cycle_bounds(ScheduleShape(cycles=[50, 100], **spec), 150) == [(0, 50), (50, 100), (100, 150)]
    assert cycle_bounds(ScheduleShape(cycle_length=50, **spec), 150) == [(0, 50), (50, 100), (100, 150)]
    assert cycle_bounds(ScheduleShape(cycles=3, **spec), 150) == [(0, 50), (50, 100), (100, 150)]


@pytest.mark.parametrize(
    "bad",
    [
        {"warmup": -0.1},
        {"warmup": 1.5},
        {"cycles": [50, 40]},
        {"cycles": 2, "cycle_length": 10},
        {"warmup": 101},
        {"decay": 200},
        {"rewarmup": 500, "cycles": 2},
        {"min_lr_ratio": 1.5},
    ],
)
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(ConfigError):
        AdamConfig(**bad).lr_scheduler(100)


def test_a_warm_up_longer_than_the_run_names_both_numbers():
    with pytest.raises(ConfigError, match=r"warmup=101 steps, num_train_steps=100; .*give a fraction"):
        AdamConfig(warmup=101).lr_scheduler(100)
    with pytest.raises(ConfigError, match="num_train_steps=0"):
        AdamConfig().lr_scheduler(0)


def shape_oracle(name: str, t: float, T: float, peak: float, m: float, warmup: int) -> float:
    """Every shape from its formula, in Python floats, at its defaults."""
    return {
        "constant": lambda: peak,
        "cosine": lambda: m + (peak - m) * 0.5 * (1 + math.cos(math.pi * t / T)),
        "linear": lambda: peak + (m - peak) * t / T,
        "polynomial": lambda: m + (peak - m) * (1 - t / T) ** 2,
        "inv_sqrt": lambda: max(m, peak * min(1.0, 1 / math.sqrt(max(t + warmup, 1) / 1e4))),
        "inv": lambda: max(m, peak * min(1.0, 1 / ((peak / m - 1) * max(t, 1) / T + 1))),
        "inv_sqrt_decay": lambda: max(m, peak / math.sqrt(1 + 28.6 * t / T)),
        "power": lambda: min(peak, 512 * 4.6 * (max(t, 1) * 512 * 4096) ** -0.51),
    }[name]()


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_follows_its_formula(name):
    """Warm-up 10, plateau to 50, decay over 50 steps, 1e-6 relative."""
    config = AdamConfig(learning_rate=0.02, warmup=10, decay=50, min_lr_ratio=0.1, lr_schedule=name)
    got = np.asarray(config.lr_scheduler(100)(np.arange(101)))
    expected = [0.02 * s / 10 for s in range(10)] + [0.02] * 40
    expected += [shape_oracle(name, s, 50.0, 0.02, 0.002, 10) for s in range(51)]
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=15, deadline=None)
@given(steps=st.integers(2, 500), warmup=st.floats(0, 1), decay=st.none() | st.floats(0, 1), ratio=st.floats(0.01, 1))
def test_every_shape_stays_between_zero_and_the_peak(name, steps, warmup, decay, ratio):
    spec = ScheduleShape(
        warmup=warmup, decay=decay, min_lr_ratio=ratio, decay_shape=DecayShape.get_known_choices()[name]()
    )
    values = np.asarray(build_schedule(spec, 0.3, steps)(np.arange(steps + 1)))
    assert np.all(np.isfinite(values)) and values.min() >= 0 and values.max() <= 0.3 * (1 + 1e-5)


@pytest.mark.parametrize("name", [n for n in SHAPES if n not in ("constant", "power", "inv_sqrt")])
def test_every_decaying_shape_falls_monotonically(name):
    spec = ScheduleShape(warmup=0.0, min_lr_ratio=0.1, decay_shape=DecayShape.get_known_choices()[name]())
    values = np.asarray(build_schedule(spec, 1.0, 200)(np.arange(201)))
    assert np.all(np.diff(values) <= 1e-6) and values[-1] < values[0]


def test_fractions_and_steps_mean_what_they_say():
    assert steps_of(1, 70, "warmup") == 70
    assert steps_of(2, 70, "warmup") == 2
