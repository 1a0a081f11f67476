"""Keep a slow or failing online tracker out of the training loop.

Calls are queued and carried out by one thread. When the queue is full, metrics are dropped and counted rather than
allowed to stall a step; a failing call is logged at a limited rate. Opening the tracker is *not* deferred: a wrong key
or project fails at start.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rigging.timing import Clock, SystemClock

from levanter.tracker.tracker import Tracker, scalars

logger = logging.getLogger(__name__)


class BackgroundTracker(Tracker):
    """Run another tracker's calls on a thread.

    Args:
        inner: The tracker that does the work.
        max_queue_size: Calls that may wait.
        finish_timeout_s: Longest wait for the queue to drain at the end.
        clock: Source of time, for the rate limit of error messages.
    """

    def __init__(
        self,
        inner: Tracker,
        *,
        max_queue_size: int = 10_000,
        finish_timeout_s: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = f"background({inner.name})"
        self.inner = inner
        self.dropped = 0
        self.failed = 0
        self._clock = clock or SystemClock()
        self._last_report = -1e9
        self._finish_timeout_s = finish_timeout_s
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(max_queue_size)
        self._thread = threading.Thread(target=self._drain, name="levanter-tracker", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Queue the metrics; values are fetched from devices here, on the caller's thread."""
        values = scalars(metrics)
        self._put(lambda: self.inner.log(values, step=step, commit=commit))

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Queue the summary."""
        values = scalars(metrics)
        self._put(lambda: self.inner.log_summary(values))

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Queue the configuration."""
        self._put(lambda: self.inner.log_hyperparameters(hparams))

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Queue the artifact; the file must stay in place until the run finishes."""
        self._put(lambda: self.inner.log_artifact(path, name=name, type=type))

    def finish(self) -> None:
        """Wait for the queue to drain, at most the timeout, then finish the inner tracker within the same time.

        A tracker that is stuck or down costs the timeout once; what it was still to receive is lost and counted.
        """
        deadline = self._clock.monotonic() + self._finish_timeout_s
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=self._finish_timeout_s)
            self._thread.join(max(0.0, deadline - self._clock.monotonic()))
        if self._thread.is_alive():
            self.dropped += self._queue.qsize()
            logger.error(
                "%s did not finish within %.0f s; what it had not sent is lost (dropped=%d failed=%d)",
                self.name, self._finish_timeout_s, self.dropped, self.failed,
            )  # fmt: skip
        elif self.dropped or self.failed:
            logger.warning("%s: dropped=%d failed=%d calls", self.name, self.dropped, self.failed)

    def _put(self, call: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self.dropped += 1
            self._report("queue is full, metrics are dropped")

    def _drain(self) -> None:
        while True:
            call = self._queue.get()
            try:
                (call or self.inner.finish)()
            except Exception as error:  # thread boundary: count and go on
                self.failed += 1
                self._report(f"call failed: {error!r}")
            if call is None:
                return

    def _report(self, message: str) -> None:
        now = self._clock.monotonic()
        if now - self._last_report >= 30.0:
            self._last_report = now
            logger.error("%s: %s (dropped=%d failed=%d)", self.name, message, self.dropped, self.failed)
