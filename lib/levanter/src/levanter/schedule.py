"""Values that change at given training steps, and the batch size as the case that matters most.

A schedule is a list of ``(start, value)`` steps: from ``start`` on, ``value`` holds, until the next start; the last
holds for ever. For the batch size, what the data side needs is the *sample offset*: how many examples all earlier
steps consumed. :class:`BatchSchedule` keeps cumulative offsets a segment, so step to sample and sample to step are both
a binary search, and a changed batch size regroups the sample stream without changing it.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ScheduleStep[T]:
    """From training step ``start`` on, ``value`` holds.

    Attributes:
        start: First training step, ``>= 0``.
        value: What holds from there.
    """

    start: int
    value: T


IntSchedule = int | Sequence[ScheduleStep[int]]


def value_at_step[T](schedule: T | Sequence[ScheduleStep[T]], step: int) -> T:
    """The value that holds at a training step: that of the last entry whose start is not after it.

    Args:
        schedule: A constant, or steps with rising starts of which the first is 0.
        step: Training step, ``>= 0``.
    Raises:
        ValueError: The schedule is empty, does not start at 0 or does not rise; or ``step`` is negative.
    Example:
        >>> value_at_step([ScheduleStep(0, 8), ScheduleStep(10, 16)], 10)
        16
    """
    if step < 0:
        raise ValueError(f"no value at a negative step: step={step}; expected step >= 0.")
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        return schedule  # pyrefly: ignore[bad-return]
    entries = validate_steps(schedule)
    return entries[bisect.bisect_right([entry.start for entry in entries], step) - 1].value


def validate_steps[T](schedule: Sequence[ScheduleStep[T]]) -> list[ScheduleStep[T]]:
    """Check that a schedule starts at 0 and rises.

    Raises:
        ValueError: Naming the entry that breaks the rule.
    """
    entries = list(schedule)
    if not entries:
        raise ValueError("schedule is empty: expected at least one step. Give one with start=0.")
    if entries[0].start != 0:
        raise ValueError(f"schedule does not start at 0: first start={entries[0].start}; expected 0. Add a first step.")
    for before, after in itertools.pairwise(entries):
        if after.start <= before.start:
            raise ValueError(
                f"schedule does not rise: start={after.start} follows start={before.start}; "
                "expected strictly rising starts. Sort or merge the steps."
            )
    return entries


@dataclasses.dataclass(frozen=True)
class _Segment:
    start: int
    until: int | None
    size: int
    offset: int


class BatchSchedule:
    """Batch size by training step, with the sample offset of every step.

    Args:
        schedule: A constant size, or steps with rising starts; sizes ``>= 1``.
    Raises:
        ValueError: The schedule does not start at 0, does not rise, or a size is below 1.
    Example:
        >>> schedule = BatchSchedule([ScheduleStep(0, 10), ScheduleStep(5, 20)])
        >>> schedule.batch_size_at_step(7), schedule.global_data_offset_by_step(10)
        (20, 150)
        >>> schedule.find_step_containing_offset(49), schedule.find_step_containing_offset(50)
        (4, 5)
    """

    def __init__(self, schedule: IntSchedule) -> None:
        entries = [ScheduleStep(0, schedule)] if isinstance(schedule, int) else validate_steps(schedule)
        self.schedule = schedule
        self.segments: list[_Segment] = []
        offset = 0
        for number, entry in enumerate(entries):
            if entry.value < 1:
                raise ValueError(
                    f"batch size too small: start={entry.start}, size={entry.value}; expected >= 1. Correct it."
                )
            until = entries[number + 1].start if number + 1 < len(entries) else None
            self.segments.append(_Segment(entry.start, until, entry.value, offset))
            if until is not None:
                offset += (until - entry.start) * entry.value
        self._starts = [segment.start for segment in self.segments]
        self._offsets = [segment.offset for segment in self.segments]

    def batch_size_at_step(self, step: int) -> int:
        """Examples that training step ``step`` consumes.

        Raises:
            ValueError: ``step`` is negative.
        """
        return self._segment(step).size

    def global_data_offset_by_step(self, step: int) -> int:
        """Examples consumed before training step ``step``: the index of its first example.

        Raises:
            ValueError: ``step`` is negative.
        """
        segment = self._segment(step)
        return segment.offset + (step - segment.start) * segment.size

    def find_step_containing_offset(self, offset: int) -> int:
        """The training step that consumes example number ``offset``.

        Raises:
            ValueError: ``offset`` is negative.
        """
        if offset < 0:
            raise ValueError(f"no step holds a negative offset: offset={offset}; expected offset >= 0.")
        segment = self.segments[bisect.bisect_right(self._offsets, offset) - 1]
        return segment.start + (offset - segment.offset) // segment.size

    def batch_indices_at_step(self, step: int) -> range:
        """Indices of the examples that training step ``step`` consumes.

        Raises:
            ValueError: ``step`` is negative.
        """
        begin = self.global_data_offset_by_step(step)
        return range(begin, begin + self.batch_size_at_step(step))

    def unique_batch_sizes(self) -> set[int]:
        """Every size that occurs: what a compiled step must be ready for."""
        return {segment.size for segment in self.segments}

    def _segment(self, step: int) -> _Segment:
        if step < 0:
            raise ValueError(f"no batch at a negative step: step={step}; expected step >= 0.")
        return self.segments[bisect.bisect_right(self._starts, step) - 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchSchedule) and self.segments == other.segments

    def __hash__(self) -> int:
        return hash(tuple(self.segments))

    def __repr__(self) -> str:
        return f"BatchSchedule({self.schedule!r})"
