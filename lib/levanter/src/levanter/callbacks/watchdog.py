"""Ending a process that no longer makes progress, so that a supervisor can start it again.

A hung collective or a dead disk leaves a process alive and useless. The watchdog is one thread that knows when the last
step began and ended; when a deadline passes it says so, dumps every thread's stack, and leaves with code 124.
"""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from rigging.timing import Clock, SystemClock

from levanter.errors import ConfigError

logger = logging.getLogger(__name__)
EXIT_STALLED = 124
TIMEOUTS = ("step_timeout", "process_timeout", "startup_timeout", "startup_grace_period", "diagnostic_timeout")


@dataclass(frozen=True)
class ProgressWatchdogConfig:
    """Deadlines; None switches one off.

    Attributes:
        step_timeout: Between the start and the end of a step.
        process_timeout: Since the last event of any kind.
        startup_timeout: Before the first step is done.
        startup_grace_period: Time from the start in which ``step_timeout`` and ``process_timeout`` do not count yet,
            for runs whose first evaluation, first save or second batch size takes long to compile. ``startup_timeout``
            counts from the start.
        diagnostic_timeout: Longest time to dump the stacks before the process ends; a dump into a pipe that nobody
            reads would otherwise keep it alive.
    """

    step_timeout: timedelta | None = None
    process_timeout: timedelta | None = None
    startup_timeout: timedelta | None = None
    startup_grace_period: timedelta | None = None
    diagnostic_timeout: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        for name in TIMEOUTS:
            value = getattr(self, name)
            if value is not None and value.total_seconds() <= 0:
                raise ConfigError(f"{name}={value}; expected > 0.", key=f"trainer.progress_watchdog.{name}")

    @property
    def is_enabled(self) -> bool:
        """Whether any deadline is set."""
        return any((self.step_timeout, self.process_timeout, self.startup_timeout))


class ProgressWatchdog:
    """Watches from a thread.

    Args:
        config: Deadlines.
        clock: Source of time.
        poll_s: Seconds between looks.
        on_stall: Called with the reason; the default dumps stacks and exits with code 124.
    """

    def __init__(
        self,
        config: ProgressWatchdogConfig,
        *,
        clock: Clock | None = None,
        poll_s: float = 60.0,
        on_stall: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._poll_s = poll_s
        limit_s = config.diagnostic_timeout.total_seconds()
        self._on_stall = on_stall or (lambda reason: _exit_stalled(reason, limit_s))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = self._last_event = self._clock.monotonic()
        self._step_began: float | None = None
        self._any_step_done = False

    def start(self) -> None:
        """Start watching, if any deadline is set."""
        if self._config.is_enabled:
            self._thread = threading.Thread(target=self._run, name="levanter-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def step_started(self) -> None:
        """A step was dispatched."""
        self._last_event = self._step_began = self._clock.monotonic()

    def step_finished(self) -> None:
        """A step's result arrived."""
        self._last_event = self._clock.monotonic()
        self._step_began = None
        self._any_step_done = True

    def stalled(self) -> str | None:
        """The deadline that has passed, or None."""
        now = self._clock.monotonic()
        idle = now - self._last_event
        if not self._any_step_done:
            limit = self._config.startup_timeout
            waited = now - self._began
            return f"no step within {waited:.0f} s of the start" if limit and waited > limit.total_seconds() else None
        grace = self._config.startup_grace_period
        if grace is not None and now - self._began <= grace.total_seconds():
            return None
        step, process = self._config.step_timeout, self._config.process_timeout
        if step and self._step_began is not None and now - self._step_began > step.total_seconds():
            return f"a step has run for {now - self._step_began:.0f} s"
        if process and idle > process.total_seconds():
            return f"nothing has happened for {idle:.0f} s"
        return None

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._poll_s):
            reason = self.stalled()
            if reason is not None:
                self._on_stall(reason)
                return


def _exit_stalled(reason: str, limit_s: float) -> None:
    def diagnose() -> None:
        logger.critical("progress watchdog: %s; leaving with code %d", reason, EXIT_STALLED)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        sys.stderr.flush()

    thread = threading.Thread(target=diagnose, name="levanter-stall", daemon=True)
    thread.start()
    thread.join(limit_s)
    os._exit(EXIT_STALLED)
