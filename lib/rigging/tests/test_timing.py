import logging
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigging.timing import (
    Clock,
    Deadline,
    Duration,
    ExponentialBackoff,
    ManualClock,
    RateLimiter,
    SystemClock,
    Timer,
    Timestamp,
    TokenBucket,
    log_time,
    retry_with_backoff,
)

milliseconds = st.integers(-(10**12), 10**12)


def test_both_clocks_fulfil_the_protocol():
    assert isinstance(SystemClock(), Clock)
    assert isinstance(ManualClock(), Clock)


@given(milliseconds, milliseconds)
def test_durations_add_and_order_as_their_milliseconds_do(a, b):
    assert (Duration(a) + Duration(b)).to_ms() == a + b
    assert (Duration(a) - Duration(b)).to_ms() == a - b
    assert (Duration(a) < Duration(b)) == (a < b)
    assert (Duration(a) == Duration(b)) == (a == b)
    assert len({Duration(a), Duration(a)}) == 1


@given(st.integers(0, 10**9))
def test_a_duration_survives_conversion_to_seconds_and_back(ms):
    assert Duration.from_seconds(Duration(ms).to_seconds()) == Duration(ms)


def test_duration_units_agree_and_fractions_are_cut():
    assert Duration.from_hours(1) == Duration.from_minutes(60) == Duration.from_seconds(3600) == Duration(3_600_000)
    assert Duration(1.9).ms == 1  # pyrefly: ignore[bad-argument-type]
    assert (Duration(10) * 2.55).ms == 25
    assert (2 * Duration(10)).ms == 20
    assert str(Duration(999)) == "999 ms"
    assert str(Duration(1500)) == "1.5 s"


@given(milliseconds, milliseconds)
def test_timestamps_move_by_durations_and_order(ms, delta):
    start = Timestamp.from_ms(ms)
    later = start.add(Duration(delta))
    assert later.epoch_ms() - start.epoch_ms() == delta
    assert start.age_ms(now=later) == delta
    assert start.before(later) == (delta > 0) == later.after(start)


def test_timestamp_texts_are_utc():
    stamp = Timestamp.from_seconds(1_700_000_000.123)
    assert stamp.as_formatted_date() == "2023-11-14T22:13:20.123Z"
    assert stamp.as_short_time() == "22:13:20"
    assert stamp.as_naive_utc().tzinfo is None
    assert Timestamp.now(ManualClock(start=2.0)).epoch_ms() == 2000


def test_a_monotonic_deadline_ignores_a_stepped_wall_clock():
    clock = ManualClock(start=1000)
    deadline = Deadline.from_seconds(10, clock)
    clock.set_time(5_000_000)
    assert not deadline.expired()
    assert deadline.remaining_seconds() == 10
    clock.advance(10)
    assert deadline.expired()
    with pytest.raises(TimeoutError, match="too slow"):
        deadline.raise_if_expired("too slow")
    with pytest.raises(ValueError, match="monotonic"):
        deadline.as_timestamp()


def test_a_timestamp_deadline_is_a_fixed_point_and_never_negative():
    deadline = Deadline.after(Timestamp.from_seconds(100), Duration.from_seconds(5))
    assert deadline.as_timestamp() == Timestamp.from_seconds(105)
    assert deadline.remaining_ms(now=Timestamp.from_seconds(102)) == 3000
    assert deadline.remaining_ms(now=Timestamp.from_seconds(200)) == 0


def test_timer_stops_once():
    clock = ManualClock()
    with Timer(clock) as timer:
        clock.advance(2)
    clock.advance(5)
    assert timer.elapsed_ms() == 2000
    assert timer.stop() == 2


def test_rate_limiter_keeps_its_grid_and_drops_missed_slots():
    clock = ManualClock()
    limiter = RateLimiter(10, clock)
    ran_at = []
    for _ in range(100):
        if limiter.should_run():
            ran_at.append(clock.monotonic())
        clock.advance(3)
    assert ran_at[0] == 0
    # Late by up to one step, but the grid is that of the start: the n-th run never drifts.
    assert all(at - 10 * n < 3 for n, at in enumerate(ran_at))
    clock.advance(1000)
    assert limiter.should_run() and not limiter.should_run()


def test_rate_limiter_wait_ends_when_cancelled():
    clock = ManualClock()
    limiter = RateLimiter(10, clock)
    assert limiter.wait()
    assert limiter.wait() and clock.monotonic() == 10
    cancel = threading.Event()
    cancel.set()
    assert not limiter.wait(cancel)
    limiter.reset()
    assert limiter.time_until_next() == 0


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 5)), max_size=40))
def test_token_bucket_never_gives_more_than_capacity_plus_refill(steps):
    clock = ManualClock()
    bucket = TokenBucket(capacity=5, refill_period=10, clock=clock)
    given_out = 0
    for pause, amount in steps:
        clock.advance(pause)
        if bucket.try_acquire(amount):
            given_out += amount
        assert given_out <= 5 + clock.monotonic() * 0.5 + 1e-6
        assert 0 <= bucket.available <= 5


def test_token_bucket_can_be_capped_and_refill_rate_changed():
    clock = ManualClock()
    bucket = TokenBucket(capacity=4, refill_period=4, clock=clock)
    bucket.cap_tokens(1)
    assert not bucket.try_acquire(2)
    bucket.refill_rate = 10
    clock.advance(0.1)
    assert bucket.try_acquire(2)


@given(
    st.floats(0.001, 10),
    st.floats(1, 100),
    st.floats(1, 5),
    st.floats(0, 0.99),
    st.integers(0, 2**32),
)
def test_backoff_pauses_stay_between_a_millisecond_and_the_maximum(initial, ratio, factor, jitter, seed):
    backoff = ExponentialBackoff(initial, initial * ratio, factor, jitter, rng=random.Random(seed))
    pauses = [backoff.next_interval() for _ in range(50)]
    assert all(min(0.001, backoff.maximum) <= pause <= backoff.maximum for pause in pauses)


@pytest.mark.parametrize(
    "arguments",
    [{"initial": 0}, {"initial": 2, "maximum": 1}, {"factor": 0.9}, {"jitter": 1}, {"jitter": -0.1}],
)
def test_backoff_refuses_arguments_out_of_range(arguments):
    with pytest.raises(ValueError, match="bad backoff"):
        ExponentialBackoff(**arguments)


def test_backoff_with_factor_one_and_many_steps_stays_finite():
    backoff = ExponentialBackoff(1, 1, 1, 0)
    assert [backoff.next_interval() for _ in range(3)] == [1, 1, 1]
    growing = ExponentialBackoff(1, 1e300, 10, 0)
    assert max(growing.next_interval() for _ in range(10_000)) == 1e300


def test_wait_until_tests_the_condition_before_the_deadline():
    clock = ManualClock()
    backoff = ExponentialBackoff(initial=1, maximum=1, jitter=0, clock=clock)
    assert backoff.wait_until(lambda: True, timeout=0)
    assert not backoff.wait_until(lambda: False, timeout=3)
    assert clock.monotonic() == 3
    with pytest.raises(TimeoutError, match="never"):
        backoff.wait_until_or_raise(lambda: False, 1, "never came")


def test_retry_gives_the_last_error_unchanged_and_leaves_the_backoff_alone():
    clock = ManualClock()
    backoff = ExponentialBackoff(initial=1, maximum=8, factor=2, jitter=0)
    errors = [OSError(str(n)) for n in range(3)]
    seen = []

    def fail():
        raise errors[len(seen)]

    with pytest.raises(OSError) as caught:
        retry_with_backoff(
            fail,
            retryable=lambda error: isinstance(error, OSError),
            max_attempts=3,
            backoff=backoff,
            on_retry=lambda error, attempt: seen.append((error, attempt)),
            clock=clock,
        )
    assert caught.value is errors[2]
    assert seen == [(errors[0], 1), (errors[1], 2)]
    assert clock.monotonic() == 3
    assert backoff.next_interval() == 1


def test_retry_stops_at_an_error_that_is_not_worth_it_and_at_max_elapsed():
    calls = []

    def fail():
        calls.append(1)
        raise KeyError("bug")

    with pytest.raises(KeyError):
        retry_with_backoff(fail, retryable=lambda error: isinstance(error, OSError))
    assert len(calls) == 1
    clock = ManualClock()
    with pytest.raises(KeyError):
        retry_with_backoff(
            fail,
            retryable=lambda error: True,
            max_elapsed=5,
            backoff=ExponentialBackoff(2, 2, jitter=0),
            clock=clock,
        )
    assert clock.monotonic() == 4
    with pytest.raises(ValueError, match="max_attempts=0"):
        retry_with_backoff(fail, retryable=lambda error: True, max_attempts=0)


def test_log_time_writes_its_line_also_when_the_body_raises(caplog):
    clock = ManualClock()
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError), log_time("load", clock=clock):
        clock.advance(1.5)
        raise RuntimeError
    assert "load failed after 1.500 s" in caplog.text


def test_other_threads_sleep_until_the_owner_has_advanced_the_clock():
    clock = ManualClock()
    woken = threading.Event()
    thread = threading.Thread(target=lambda: (clock.sleep(5), woken.set()))
    thread.start()
    while not woken.wait(0.005):
        clock.advance(1)
    thread.join()
    assert clock.monotonic() >= 5
    with pytest.raises(ValueError, match="seconds=-1"):
        clock.advance(-1)


def test_waiting_on_an_event_ends_by_the_event_or_by_the_clock():
    clock = ManualClock()
    event = threading.Event()
    assert clock.wait(event, 4) is False and clock.monotonic() == 4
    results = []
    thread = threading.Thread(target=lambda: results.append(clock.wait(event, 1_000)))
    thread.start()
    event.set()
    thread.join(5)
    assert results == [True]
    assert SystemClock().wait(event, None)
