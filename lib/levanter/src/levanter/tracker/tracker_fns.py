"""Module-level logging: ``levanter.tracker.tracker_fns.log(...)`` goes to the current tracker.

The current tracker is a context variable set by the trainer; outside a run there is none and logging is an error.
``jit_log`` collects values inside a traced loss function; the trainer returns them from the compiled step.
"""

import contextlib
import contextvars
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from levanter.errors import TrackerError
from levanter.tracker.tracker import Tracker

_current: contextvars.ContextVar[Tracker | None] = contextvars.ContextVar("levanter_tracker", default=None)
_jit_metrics: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("levanter_jit", default=None)


def get_tracker() -> Tracker:
    """Return the current tracker.

    Raises:
        TrackerError: no tracker is set.
    """
    tracker = _current.get()
    if tracker is None:
        raise TrackerError("no tracker is set; expected to run inside `with current_tracker(...)` or a Trainer.")
    return tracker


@contextlib.contextmanager
def current_tracker(tracker: Tracker) -> Generator[Tracker]:
    """Make ``tracker`` current for a block."""
    token = _current.set(tracker)
    try:
        yield tracker
    finally:
        _current.reset(token)


def set_global_tracker(tracker: Tracker) -> None:
    """Make ``tracker`` current for the rest of this context."""
    _current.set(tracker)


def log(metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
    """Log scalars to the current tracker."""
    get_tracker().log(metrics, step=step, commit=commit)


def log_summary(metrics: Mapping[str, Any]) -> None:
    """Log whole-run values to the current tracker."""
    get_tracker().log_summary(metrics)


def log_hyperparameters(hparams: Mapping[str, Any]) -> None:
    """Log configuration to the current tracker."""
    get_tracker().log_hyperparameters(hparams)


def jit_log(metrics: Mapping[str, Any]) -> None:
    """Record traced scalars from inside a loss function; a no-op where nothing collects them.

    Call it from the loss function itself, not from inside a scan or a rematerialised block, whose values cannot escape.
    """
    collected = _jit_metrics.get()
    if collected is not None:
        collected.update(metrics)


@contextlib.contextmanager
def collect_jit_metrics() -> Generator[dict[str, Any]]:
    """Collect what :func:`jit_log` records inside the block."""
    collected: dict[str, Any] = {}
    token = _jit_metrics.set(collected)
    try:
        yield collected
    finally:
        _jit_metrics.reset(token)


@contextlib.contextmanager
def capture_time() -> Generator[Callable[[], float]]:
    """Measure a block in seconds: ``with capture_time() as elapsed: ...; elapsed()``."""
    start = time.perf_counter()
    end: list[float] = []
    try:
        yield lambda: (end[0] if end else time.perf_counter()) - start
    finally:
        end.append(time.perf_counter())
