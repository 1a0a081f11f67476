"""Lengths of time and points in time as values, in whole milliseconds."""

import datetime as dt
from dataclasses import dataclass
from typing import Self

from rigging._timing.clock import Clock, SystemClock

_SYSTEM = SystemClock()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time in whole milliseconds.

    Args:
        ms: Milliseconds; fractions are cut off. May be negative (a difference).

    Example:
        >>> Duration.from_seconds(1.5) + Duration.from_ms(250)
        Duration(ms=1750)
        >>> (Duration.from_minutes(1) * 0.5).to_seconds()
        30.0
    """

    ms: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "ms", int(self.ms))

    @classmethod
    def from_ms(cls, ms: float) -> Self:
        """Make a duration of ``ms`` milliseconds."""
        return cls(int(ms))

    @classmethod
    def from_seconds(cls, seconds: float) -> Self:
        """Make a duration of ``seconds``, rounded to the nearest millisecond."""
        return cls(round(seconds * 1000))

    @classmethod
    def from_minutes(cls, minutes: float) -> Self:
        """Make a duration of ``minutes``."""
        return cls.from_seconds(minutes * 60)

    @classmethod
    def from_hours(cls, hours: float) -> Self:
        """Make a duration of ``hours``."""
        return cls.from_seconds(hours * 3600)

    def to_ms(self) -> int:
        """Return whole milliseconds."""
        return self.ms

    def to_seconds(self) -> float:
        """Return seconds."""
        return self.ms / 1000

    def __add__(self, other: "Duration") -> "Duration":
        return Duration(self.ms + other.ms) if isinstance(other, Duration) else NotImplemented

    def __sub__(self, other: "Duration") -> "Duration":
        return Duration(self.ms - other.ms) if isinstance(other, Duration) else NotImplemented

    def __mul__(self, factor: float) -> "Duration":
        return Duration(int(self.ms * factor))

    __rmul__ = __mul__

    def __str__(self) -> str:
        return f"{self.ms} ms" if abs(self.ms) < 1000 else f"{self.to_seconds():g} s"


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time: whole milliseconds since the Unix epoch, always UTC.

    Example:
        >>> Timestamp.from_seconds(0).as_formatted_date()
        '1970-01-01T00:00:00.000Z'
        >>> Timestamp.from_ms(5).add(Duration.from_seconds(1)).epoch_ms()
        1005
    """

    value_ms: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_ms", int(self.value_ms))

    @classmethod
    def now(cls, clock: Clock = _SYSTEM) -> Self:
        """Return the current time of ``clock``."""
        return cls.from_seconds(clock.time())

    @classmethod
    def from_ms(cls, epoch_ms: float) -> Self:
        """Make a timestamp from milliseconds since the epoch."""
        return cls(int(epoch_ms))

    @classmethod
    def from_seconds(cls, epoch_s: float) -> Self:
        """Make a timestamp from seconds since the epoch, rounded to a millisecond."""
        return cls(round(epoch_s * 1000))

    def epoch_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self.value_ms

    def epoch_seconds(self) -> float:
        """Return seconds since the epoch."""
        return self.value_ms / 1000

    def as_naive_utc(self) -> dt.datetime:
        """Return a datetime in UTC without a zone, as databases want it."""
        return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=self.value_ms)

    def as_formatted_date(self) -> str:
        """Return ISO 8601 text in UTC with milliseconds and a ``Z``."""
        return self.as_naive_utc().isoformat(timespec="milliseconds") + "Z"

    def as_short_time(self) -> str:
        """Return ``HH:MM:SS`` in UTC."""
        return self.as_naive_utc().strftime("%H:%M:%S")

    def age_ms(self, now: "Timestamp | None" = None) -> int:
        """Return milliseconds from this point to ``now`` (negative when it lies ahead)."""
        return (now or Timestamp.now()).value_ms - self.value_ms

    def add_ms(self, ms: float) -> "Timestamp":
        """Return the point ``ms`` milliseconds later."""
        return Timestamp(self.value_ms + int(ms))

    def add(self, duration: Duration) -> "Timestamp":
        """Return the point ``duration`` later."""
        return self.add_ms(duration.ms)

    def before(self, other: "Timestamp") -> bool:
        """Tell whether this point lies before ``other``."""
        return self.value_ms < other.value_ms

    def after(self, other: "Timestamp") -> bool:
        """Tell whether this point lies after ``other``."""
        return self.value_ms > other.value_ms


class Deadline:
    """A point after which something is too late.

    Two modes. *Monotonic* (``from_seconds``, ``from_ms``, ``from_now``) measures on the monotonic clock and survives
    clock steps. *Timestamp* (``after``) is a fixed point of wall-clock time, comparable between machines and
    deterministic when ``now`` is passed.

    Example:
        >>> deadline = Deadline.after(Timestamp.from_seconds(10), Duration.from_seconds(5))
        >>> deadline.expired(now=Timestamp.from_seconds(14)), deadline.expired(now=Timestamp.from_seconds(15))
        (False, True)
    """

    __slots__ = ("_at_monotonic_s", "_at_timestamp", "_clock")

    def __init__(self, *, at_monotonic_s: float | None, at_timestamp: Timestamp | None, clock: Clock = _SYSTEM) -> None:
        self._at_monotonic_s = at_monotonic_s
        self._at_timestamp = at_timestamp
        self._clock = clock

    @classmethod
    def from_seconds(cls, seconds: float, clock: Clock = _SYSTEM) -> Self:
        """Make a monotonic deadline ``seconds`` from now."""
        return cls(at_monotonic_s=clock.monotonic() + seconds, at_timestamp=None, clock=clock)

    @classmethod
    def from_ms(cls, ms: float, clock: Clock = _SYSTEM) -> Self:
        """Make a monotonic deadline ``ms`` milliseconds from now."""
        return cls.from_seconds(ms / 1000, clock)

    @classmethod
    def from_now(cls, duration: Duration, clock: Clock = _SYSTEM) -> Self:
        """Make a monotonic deadline ``duration`` from now."""
        return cls.from_seconds(duration.to_seconds(), clock)

    @classmethod
    def after(cls, timestamp: Timestamp, duration: Duration, clock: Clock = _SYSTEM) -> Self:
        """Make a wall-clock deadline ``duration`` after ``timestamp``."""
        return cls(at_monotonic_s=None, at_timestamp=timestamp.add(duration), clock=clock)

    def remaining_seconds(self, now: Timestamp | None = None) -> float:
        """Return the seconds left, never negative. ``now`` counts only in timestamp mode."""
        if self._at_timestamp is not None:
            return max(0, self._at_timestamp.value_ms - (now or Timestamp.now(self._clock)).value_ms) / 1000
        assert self._at_monotonic_s is not None
        return max(0.0, self._at_monotonic_s - self._clock.monotonic())

    def remaining_ms(self, now: Timestamp | None = None) -> int:
        """Return whole milliseconds left, never negative."""
        return int(self.remaining_seconds(now) * 1000)

    def expired(self, now: Timestamp | None = None) -> bool:
        """Tell whether the deadline is reached or past."""
        return self.remaining_seconds(now) <= 0

    def raise_if_expired(self, message: str = "deadline expired") -> None:
        """Raise when it is too late.

        Raises:
            TimeoutError: The deadline is reached; the text is ``message``.
        """
        if self.expired():
            raise TimeoutError(message)

    def as_timestamp(self) -> Timestamp:
        """Return the wall-clock point of a timestamp-mode deadline.

        Raises:
            ValueError: This is a monotonic deadline, which has no wall-clock time.
        """
        if self._at_timestamp is None:
            raise ValueError(
                "a monotonic deadline has no timestamp; expected one made by Deadline.after(). Make it so."
            )
        return self._at_timestamp
