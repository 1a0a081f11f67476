"""Pacing and measuring: timers, rate limiters, token buckets."""

import contextlib
import logging
import threading
from collections.abc import Generator

from rigging._timing.clock import Clock, SystemClock

_SYSTEM = SystemClock()
logger = logging.getLogger(__name__)


class Timer:
    """Measure elapsed time on the monotonic clock, as an object or as a context manager.

    Example:
        >>> from rigging.timing import ManualClock
        >>> clock = ManualClock()
        >>> with Timer(clock) as timer:
        ...     clock.advance(2.5)
        >>> timer.elapsed_seconds()
        2.5
    """

    def __init__(self, clock: Clock = _SYSTEM) -> None:
        self._clock = clock
        self._start_s = clock.monotonic()
        self._stop_s: float | None = None

    def __enter__(self) -> "Timer":
        self.reset()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Start measuring again from now."""
        self._start_s = self._clock.monotonic()
        self._stop_s = None

    def stop(self) -> float:
        """Freeze the reading and return it in seconds; later stops change nothing."""
        if self._stop_s is None:
            self._stop_s = self._clock.monotonic()
        return self._stop_s - self._start_s

    def elapsed_seconds(self) -> float:
        """Return seconds since the start, or between start and stop."""
        return (self._clock.monotonic() if self._stop_s is None else self._stop_s) - self._start_s

    def elapsed_ms(self) -> int:
        """Return whole milliseconds since the start."""
        return int(self.elapsed_seconds() * 1000)


class RateLimiter:
    """Let something happen at most once per interval, on a grid that does not drift.

    A run that comes late does not push later runs back: the next slot is the next multiple of the interval, and missed
    slots are dropped rather than made up in a burst.

    Args:
        interval_seconds: Seconds between runs, ``>= 0``.
        clock: Source of time.

    Example:
        >>> from rigging.timing import ManualClock
        >>> clock = ManualClock()
        >>> limiter = RateLimiter(10, clock)
        >>> limiter.should_run(), limiter.should_run()
        (True, False)
        >>> clock.advance(13); limiter.should_run()
        True
        >>> limiter.time_until_next()
        7.0
    """

    def __init__(self, interval_seconds: float, clock: Clock = _SYSTEM) -> None:
        if interval_seconds < 0:
            raise ValueError(f"bad interval: interval_seconds={interval_seconds}; expected >= 0. Pass seconds.")
        self._interval_s = interval_seconds
        self._clock = clock
        self._next_s: float | None = None

    def should_run(self, now: float | None = None) -> bool:
        """Tell whether a run is due and, if so, claim it. ``now`` is in monotonic seconds."""
        now = self._clock.monotonic() if now is None else now
        if self._next_s is not None and now < self._next_s:
            return False
        self.mark_run(now)
        return True

    def mark_run(self, now: float | None = None) -> None:
        """Record that a run happens now; the next one is due on the grid."""
        now = self._clock.monotonic() if now is None else now
        if self._next_s is None or self._interval_s == 0 or now < self._next_s:
            self._next_s = now + self._interval_s
        else:
            missed = int((now - self._next_s) / self._interval_s)
            self._next_s += (missed + 1) * self._interval_s

    def time_until_next(self, now: float | None = None) -> float:
        """Return seconds until a run is due; 0 when it is."""
        now = self._clock.monotonic() if now is None else now
        return 0.0 if self._next_s is None else max(0.0, self._next_s - now)

    def wait(self, cancel: threading.Event | None = None) -> bool:
        """Block until a run is due and claim it; return False when ``cancel`` was set first."""
        while not (cancel is not None and cancel.is_set()):
            if self.should_run():
                return True
            if cancel is None:
                self._clock.sleep(self.time_until_next())
            else:
                self._clock.wait(cancel, self.time_until_next())
        return False

    def reset(self) -> None:
        """Forget the past: the next run is due at once."""
        self._next_s = None


class TokenBucket:
    """A thread-safe token bucket: bursts up to ``capacity``, then a steady refill.

    Args:
        capacity: Largest number of tokens, ``> 0``; the bucket starts full.
        refill_period: Seconds in which an empty bucket becomes full, ``> 0``.
        clock: Source of time.

    Example:
        >>> from rigging.timing import ManualClock
        >>> clock = ManualClock()
        >>> bucket = TokenBucket(capacity=2, refill_period=10, clock=clock)
        >>> bucket.try_acquire(2), bucket.try_acquire()
        (True, False)
        >>> clock.advance(5); bucket.try_acquire()
        True
    """

    def __init__(self, capacity: float, refill_period: float, clock: Clock = _SYSTEM) -> None:
        if capacity <= 0 or refill_period <= 0:
            raise ValueError(
                f"bad bucket: capacity={capacity}, refill_period={refill_period}; expected both > 0. Fix it."
            )
        self.capacity = float(capacity)
        self.refill_rate = capacity / refill_period  # tokens per second; may be changed while in use
        self._clock = clock
        self._tokens = float(capacity)
        self._updated_s = clock.monotonic()
        self._lock = threading.Lock()

    def _refill(self, now: float) -> None:
        if now > self._updated_s:
            self._tokens = min(self.capacity, self._tokens + (now - self._updated_s) * self.refill_rate)
            self._updated_s = now

    def try_acquire(self, n: float = 1, now: float | None = None) -> bool:
        """Take ``n`` tokens if they are there; never blocks."""
        with self._lock:
            self._refill(self._clock.monotonic() if now is None else now)
            if n > self._tokens:
                return False
            self._tokens -= n
            return True

    def cap_tokens(self, maximum: float, now: float | None = None) -> None:
        """Lower the current level to at most ``maximum`` tokens (back-pressure from a server)."""
        with self._lock:
            self._refill(self._clock.monotonic() if now is None else now)
            self._tokens = min(self._tokens, maximum)

    @property
    def available(self) -> float:
        """Tokens that could be taken now."""
        with self._lock:
            self._refill(self._clock.monotonic())
            return self._tokens


@contextlib.contextmanager
def log_time(label: str, level: int = logging.INFO, clock: Clock = _SYSTEM) -> Generator[Timer]:
    """Log how long the body took, also when it raised.

    Args:
        label: What is being timed.
        level: Logging level of the line.
        clock: Source of time.
    """
    timer = Timer(clock)
    outcome = "failed after"
    try:
        yield timer
        outcome = "took"
    finally:
        logger.log(level, "%s %s %.3f s", label, outcome, timer.stop())
