"""Counters that user functions add to while a task runs, exact after retries.

Each attempt counts on its own; the driver adds up the counts of the attempts it accepted, once per shard. Outside a
task every call does nothing, so a function that counts can be tested by itself.

Example:
    >>> from zephyr import counters
    >>> counters.increment("demo/seen", 2)     # outside a task: nothing happens
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum


class Aggregation(StrEnum):
    """How the values of shards become one."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"


type CounterValues = dict[str, tuple[Aggregation, float]]

_active: ContextVar[CounterValues | None] = ContextVar("zephyr_counters", default=None)


def increment(name: str, value: int = 1) -> None:
    """Add `value` to a counter; totals are sums over shards."""
    _observe(name, value, Aggregation.SUM)


def record_min(name: str, value: float) -> None:
    """Keep the smallest value seen anywhere."""
    _observe(name, value, Aggregation.MIN)


def record_max(name: str, value: float) -> None:
    """Keep the largest value seen anywhere."""
    _observe(name, value, Aggregation.MAX)


def _observe(name: str, value: float, how: Aggregation) -> None:
    values = _active.get()
    if values is not None:
        _fold(values, name, how, value)


def _fold(values: CounterValues, name: str, how: Aggregation, value: float) -> None:
    seen = values.get(name)
    if seen is None:
        values[name] = (how, value)
    elif how is Aggregation.SUM:
        values[name] = (how, seen[1] + value)
    else:
        values[name] = (how, min(seen[1], value) if how is Aggregation.MIN else max(seen[1], value))


@contextmanager
def collecting(into: CounterValues | None = None) -> Iterator[CounterValues]:
    """Collect what is counted in the block, in `into` when given; the executor wraps each attempt in one."""
    values: CounterValues = {} if into is None else into
    token = _active.set(values)
    try:
        yield values
    finally:
        _active.reset(token)


def merge(parts: Iterable[CounterValues]) -> CounterValues:
    """Fold the counters of several attempts."""
    out: CounterValues = {}
    for part in parts:
        for name, (how, value) in part.items():
            _fold(out, name, how, value)
    return out


def totals(values: Mapping[str, tuple[Aggregation, float]]) -> dict[str, float]:
    """Plain numbers by name, sorted by name."""
    return {name: values[name][1] for name in sorted(values)}
