"""Time: clocks that can be injected, durations, deadlines, pacing and retries.

The idea: nothing in this repository reads the time itself. It is given a ``Clock``; production gives ``SystemClock``,
tests give ``ManualClock``, and a test of a 90-second timeout takes a millisecond and cannot flake.

Invariants: durations and timestamps are whole milliseconds and UTC; waiting uses the monotonic clock; a pause drawn by
``ExponentialBackoff`` never exceeds its maximum.
"""

from rigging._timing.backoff import ExponentialBackoff, retry_with_backoff
from rigging._timing.clock import Clock, ManualClock, SystemClock
from rigging._timing.pacing import RateLimiter, Timer, TokenBucket, log_time
from rigging._timing.values import Deadline, Duration, Timestamp

__all__ = [
    "Clock",
    "Deadline",
    "Duration",
    "ExponentialBackoff",
    "ManualClock",
    "RateLimiter",
    "SystemClock",
    "Timer",
    "Timestamp",
    "TokenBucket",
    "log_time",
    "retry_with_backoff",
]
