"""Learning-rate schedules: published examples, and bounds for every shape."""

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
    "bad", [{"warmup": -0.1}, {"warmup": 1.5}, {"cycles": [50, 40]}, {"cycles": 2, "cycle_length": 10}]
)
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(ConfigError):
        AdamConfig(**bad).lr_scheduler(100)


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
