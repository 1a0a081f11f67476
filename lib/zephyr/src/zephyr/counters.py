"""Counters that user functions add to while a task runs, exact after retries.

Each attempt counts on its own; the driver folds the counts of the attempts it accepted, once per shard. Outside a
task every call does nothing, so a function that counts can be tested by itself.

A counter has one aggregation, which says how observations, within a task and over tasks, become one number: their sum
unless `set_aggregation` says otherwise. One that was given two is left out of the result with a warning, since a count
is no reason for a run to fail. Counters of a stage are counters whose name begins with the stage's label and a slash.

Example:
    >>> from zephyr import counters
    >>> counters.increment("demo/seen", 2)     # outside a task: nothing happens
"""

import logging
import numbers
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from zephyr.errors import DatasetError

logger = logging.getLogger(__name__)


class Aggregation(StrEnum):
    """How the observations of a counter become one number; AVERAGE weighs each observation alike, in whatever task."""

    SUM = "sum"
    AVERAGE = "average"
    MIN = "min"
    MAX = "max"


class CounterValue(NamedTuple):
    """A counter so far.

    Args:
        how: Its aggregation; None once it was given two different ones, which drops it.
        value: Sum of the observations, also for AVERAGE, or the smallest or largest.
        observations: Their number; 0 when only the aggregation is known.
    """

    how: Aggregation | None
    value: float
    observations: int = 1


type CounterValues = dict[str, CounterValue]

_SUM = Aggregation.SUM
_NEW = CounterValue(_SUM, 0, 0)
_DROPPED = CounterValue(None, 0, 0)
_active: ContextVar[CounterValues | None] = ContextVar("zephyr_counters", default=None)
_stage: ContextVar[str] = ContextVar("zephyr_stage", default="")


@dataclass(frozen=True)
class CounterScope:
    """Counters that share a prefix: all of the pipeline's (`counters.pipeline`), or those of a stage.

    Args:
        label: What the names begin with; empty for the whole pipeline.
    Example:
        >>> from zephyr import Dataset, ZephyrContext, counters
        >>> def length(text):
        ...     counters.pipeline.set_aggregation("length", counters.Aggregation.AVERAGE)
        ...     counters.pipeline.update_counter("length", len(text))
        ...     counters.current_stage().update_counter("texts")
        ...     return len(text)
        >>> ZephyrContext(inline=True).execute(Dataset.from_list(["a", "bcd"]).map(length)).counters
        {'length': 2.0, 'stage0-map/texts': 2}
    """

    label: str = ""

    def update_counter(self, name: str, value: float = 1) -> None:
        """Add an observation, which the counter's aggregation (SUM unless set) folds in.

        Raises:
            DatasetError: (in a task) the value is no real number.
        """
        values = _active.get()
        if values is not None:
            _update(values, self._key(name), value)

    def set_counter(self, name: str, value: float) -> None:
        """Make this the only observation of the task so far; other tasks keep theirs.

        Raises:
            DatasetError: (in a task) the value is no real number.
        """
        values = _active.get()
        if values is not None:
            key = self._key(name)
            seen = values.get(key)
            if seen is None or seen.how is not None:
                how = Aggregation.SUM if seen is None else seen.how
                values[key] = CounterValue(how, _number(key, value))

    def set_aggregation(self, name: str, how: Aggregation | str) -> None:
        """Say how observations become one number; comes before the first, in every task, and may be repeated.

        Args:
            name: The counter.
            how: SUM, AVERAGE, MIN or MAX, as an `Aggregation` or its name.
        Raises:
            DatasetError: (in a task) no such aggregation.
        """
        values = _active.get()
        if values is not None:
            try:
                known = Aggregation(str(how).lower())
            except ValueError:
                raise DatasetError(
                    f"cannot aggregate a counter: name={name!r}, how={how!r}; expected SUM, AVERAGE, MIN or MAX. "
                    "Pass a counters.Aggregation."
                ) from None
            _fold(values, self._key(name), CounterValue(known, 0, 0))

    def _key(self, name: str) -> str:
        return f"{self.label}/{name}" if self.label else name


pipeline = CounterScope()
"""Counters of the whole pipeline, under the names they are given."""


def stage(label: str) -> CounterScope:
    """Counters of the stage with this label, whichever stage counts; `current_stage` says what labels look like.

    Example:
        >>> stage("stage0-map").label
        'stage0-map'
    """
    return CounterScope(label)


def current_stage() -> CounterScope:
    """Counters of the stage that is running here, labelled `stage<number>-<operations>`; outside a task, of nothing."""
    return CounterScope(_stage.get())


def increment(name: str, value: int = 1) -> None:
    """Add an observation: the same as `pipeline.update_counter`; totals are sums unless an aggregation is set."""
    values = _active.get()
    if values is not None:
        _update(values, name, value)


def record_min(name: str, value: float) -> None:
    """Keep the smallest value seen anywhere."""
    _observe(name, value, Aggregation.MIN)


def record_max(name: str, value: float) -> None:
    """Keep the largest value seen anywhere."""
    _observe(name, value, Aggregation.MAX)


def _observe(name: str, value: float, how: Aggregation) -> None:
    values = _active.get()
    if values is not None:
        _fold(values, name, CounterValue(how, _number(name, value)))


def _update(values: CounterValues, name: str, value: float) -> None:
    seen = values.get(name, _NEW)
    how, total, observations = seen
    if how is _SUM and type(value) is int:  # the usual case, called for every record
        values[name] = CounterValue(_SUM, total + value, observations + 1)
        return
    new = CounterValue(how, _number(name, value))
    if how is not None:
        _fold(values, name, new)


def _number(name: str, value: object) -> float:
    """A plain number, which goes through JSON too, where numpy's do not."""
    if type(value) is int or type(value) is float:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise DatasetError(
        f"cannot count: name={name!r}, value={value!r} is a {type(value).__name__}; expected a real number. Pass one."
    )


def _fold(values: CounterValues, name: str, new: CounterValue) -> None:
    seen = values.get(name)
    if seen is None:
        values[name] = new
    elif seen.how is not new.how:
        values[name] = _DROPPED
    elif not seen.observations or not new.observations:
        values[name] = seen if seen.observations else new
    else:
        how, value, observations = seen
        if how is Aggregation.MIN:
            value = min(value, new.value)
        elif how is Aggregation.MAX:
            value = max(value, new.value)
        else:
            value += new.value
        values[name] = CounterValue(how, value, observations + new.observations)


@contextmanager
def collecting(into: CounterValues | None = None, *, stage: str = "") -> Iterator[CounterValues]:
    """Collect what is counted in the block, in `into` when given; the executor wraps each attempt in one.

    Args:
        into: Where to.
        stage: Label of the stage that `current_stage` is about.
    """
    values: CounterValues = {} if into is None else into
    token, stage_token = _active.set(values), _stage.set(stage)
    try:
        yield values
    finally:
        _active.reset(token)
        _stage.reset(stage_token)


def merge(parts: Iterable[CounterValues]) -> CounterValues:
    """Fold the counters of several attempts."""
    out: CounterValues = {}
    for part in parts:
        for name, value in part.items():
            _fold(out, name, value)
    return out


def totals(values: Mapping[str, CounterValue]) -> dict[str, float]:
    """Plain numbers by name, sorted by name; without counters that were dropped, or never observed."""
    if dropped := sorted(name for name, seen in values.items() if seen.how is None):
        logger.warning("counters %s are left out: each was given two aggregations; set one, in all tasks", dropped)
    found = {name: values[name] for name in sorted(values) if values[name].observations}
    return {name: v.value / v.observations if v.how is Aggregation.AVERAGE else v.value for name, v in found.items()}
