"""Clocks: the one door through which code of this repository looks at time.

Code that calls ``time.time()`` itself can only be tested by sleeping and hoping. Everything here takes a ``Clock``
instead: ``SystemClock`` in production, ``ManualClock`` in tests.
"""

import threading
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """What a component may ask about time."""

    def time(self) -> float:
        """Return the wall-clock time in seconds since the Unix epoch (may jump)."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` have passed on this clock."""
        ...

    def wait(self, event: threading.Event, timeout_s: float | None) -> bool:
        """Wait until ``event`` is set or ``timeout_s`` have passed; return whether it is set."""
        ...


class SystemClock:
    """The machine's own clock.

    Example:
        >>> SystemClock().monotonic() <= SystemClock().monotonic()
        True
    """

    def time(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return the system's monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread for ``seconds`` (none or negative returns at once)."""
        if seconds > 0:
            time.sleep(seconds)

    def wait(self, event: threading.Event, timeout_s: float | None) -> bool:
        """Wait for ``event`` for up to ``timeout_s`` seconds (None: for ever)."""
        return event.wait(timeout_s)


class ManualClock:
    """A clock that moves only when told to: deterministic tests without sleeping.

    The thread that made the clock owns time: when *it* sleeps or waits, the clock jumps forward and the call returns at
    once. Any other thread that sleeps on the clock blocks until the owner has advanced it far enough, so background
    threads (heartbeats, pollers) run exactly when the test says so.

    Args:
        start: First reading of ``time()`` in seconds since the epoch. ``monotonic()`` starts at 0.

    Example:
        >>> clock = ManualClock(start=100.0)
        >>> clock.advance(5)
        >>> clock.time(), clock.monotonic()
        (105.0, 5.0)
        >>> clock.sleep(10)
        >>> clock.time()
        115.0
    """

    _POLL_S = 0.001

    def __init__(self, start: float = 0.0) -> None:
        self._start = float(start)
        self._elapsed = 0.0
        self._owner = threading.get_ident()
        self._moved = threading.Condition()

    def time(self) -> float:
        """Return ``start`` plus everything advanced so far, in seconds."""
        with self._moved:
            return self._start + self._elapsed

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        with self._moved:
            return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move time forward by ``seconds`` and wake every thread whose sleep is over.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"cannot move a clock back: seconds={seconds}; expected >= 0. Use set_time for a skew.")
        with self._moved:
            self._elapsed += seconds
            self._moved.notify_all()

    def set_time(self, epoch_s: float) -> None:
        """Step the wall clock to ``epoch_s`` without moving the monotonic clock, as NTP or a user would."""
        with self._moved:
            self._start = epoch_s - self._elapsed

    def sleep(self, seconds: float) -> None:
        """Jump forward (owner thread) or block until the owner has advanced by ``seconds`` (any other thread)."""
        if threading.get_ident() == self._owner:
            self.advance(max(0.0, seconds))
            return
        with self._moved:
            until = self._elapsed + seconds
            while self._elapsed < until:
                self._moved.wait()

    def wait(self, event: threading.Event, timeout_s: float | None) -> bool:
        """Wait for ``event``; the owner thread jumps to the timeout, others wait for the owner to get there."""
        if event.is_set():
            return True
        if threading.get_ident() == self._owner:
            if timeout_s is None:
                return event.wait()
            self.advance(max(0.0, timeout_s))
            return event.is_set()
        until = None if timeout_s is None else self.monotonic() + timeout_s
        while not event.wait(self._POLL_S):
            if until is not None and self.monotonic() >= until:
                return event.is_set()
        return True
