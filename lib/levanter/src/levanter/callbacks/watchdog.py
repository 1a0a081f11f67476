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


@dataclass(frozen=True)
class ProgressWatchdogConfig:
    """Deadlines; None switches one off.

    Attributes:
        step_timeout: Between the start and the end of a step.
        process_timeout: Since the last event of any kind.
        startup_timeout: Before the first step is done.
    """

    step_timeout: timedelta | None = None
    process_timeout: timedelta | None = None
    startup_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("step_timeout", "process_timeout", "startup_timeout"):
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
        self._on_stall = on_stall or _exit_stalled
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_event = self._clock.monotonic()
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
            return f"no step within {idle:.0f} s of the start" if limit and idle > limit.total_seconds() else None
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


def _exit_stalled(reason: str) -> None:
    logger.critical("progress watchdog: %s; leaving with code %d", reason, EXIT_STALLED)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    sys.stderr.flush()
    os._exit(EXIT_STALLED)
