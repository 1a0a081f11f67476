import pytest
from hypothesis import given
from hypothesis import strategies as st
from levanter.schedule import BatchSchedule, ScheduleStep, value_at_step


def test_constant_sizes_are_multiplied():
    schedule = BatchSchedule(32)
    assert schedule.batch_size_at_step(10**6) == 32
    assert schedule.global_data_offset_by_step(1000) == 32000
    assert schedule.find_step_containing_offset(31) == 0
    assert schedule.unique_batch_sizes() == {32}


def test_offsets_accumulate_over_segments():
    schedule = BatchSchedule([ScheduleStep(0, 10), ScheduleStep(5, 20)])
    assert [schedule.batch_size_at_step(step) for step in (0, 4, 5, 99)] == [10, 10, 20, 20]
    assert [schedule.global_data_offset_by_step(step) for step in (0, 5, 10)] == [0, 50, 150]
    assert schedule.batch_indices_at_step(5) == range(50, 70)


def test_the_last_matching_entry_holds():
    steps = [ScheduleStep(0, "a"), ScheduleStep(5, "b"), ScheduleStep(9, "c")]
    assert [value_at_step(steps, step) for step in (0, 4, 5, 8, 9, 100)] == ["a", "a", "b", "b", "c", "c"]
    assert value_at_step(3, 7) == 3


schedules = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 50)), min_size=1, max_size=5)


@given(schedules, st.integers(0, 200))
def test_steps_tile_the_sample_stream(parts, step):
    start, steps = 0, []
    for duration, size in parts:
        steps.append(ScheduleStep(start, size))
        start += duration
    schedule = BatchSchedule(steps)
    indices = schedule.batch_indices_at_step(step)
    assert indices.stop == schedule.batch_indices_at_step(step + 1).start
    assert {schedule.find_step_containing_offset(index) for index in indices} == {step}
    assert sum(schedule.batch_size_at_step(before) for before in range(step)) == indices.start


@pytest.mark.parametrize(
    "steps, message",
    [
        ([], "empty"),
        ([ScheduleStep(1, 2)], "does not start at 0"),
        ([ScheduleStep(0, 2), ScheduleStep(0, 3)], "does not rise"),
        ([ScheduleStep(0, 2), ScheduleStep(5, 0)], "too small"),
    ],
)
def test_impossible_schedules_are_refused(steps, message):
    with pytest.raises(ValueError, match=message):
        BatchSchedule(steps)


def test_negative_steps_and_offsets_are_refused():
    schedule = BatchSchedule(2)
    for call in (
        schedule.batch_size_at_step,
        schedule.global_data_offset_by_step,
        schedule.find_step_containing_offset,
    ):
        with pytest.raises(ValueError, match="negative"):
            call(-1)
