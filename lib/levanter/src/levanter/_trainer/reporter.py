"""Looking at a step's numbers: log them, show them, judge them."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from rigging.progress import Progress

from levanter.callbacks.core import MetricsHook
from levanter.callbacks.status_page import RunStatus
from levanter.callbacks.watch import WatchConfig, unpack_watched
from levanter.callbacks.watchdog import ProgressWatchdog
from levanter.divergence import DivergenceState, judge
from levanter.errors import DivergedError
from levanter.recovery.heartbeat import Heartbeat
from levanter.schedule import BatchSchedule
from levanter.step import LOSS, WATCH
from levanter.throughput import ThroughputMeter
from levanter.tracker.tracker import Tracker
from levanter.trainer_config import TrainerConfig


@dataclass(frozen=True)
class Pending:
    """A dispatched step whose numbers have not been looked at.

    Attributes:
        step: 0-based index.
        outputs: Scalars on the device.
        examples: Batch size.
        loading: Seconds spent waiting for the batch.
        compiling: Seconds of the first step, which compiles.
    """

    step: int
    outputs: Mapping[str, Any]
    examples: int
    loading: float
    compiling: float = 0.0


class Reporter:
    """Takes the numbers of every step, in order, one step late.

    Args:
        config: The run.
        schedule: Examples by step.
        watch: What is watched, or None.
        meter: Gets the durations.
        watchdog: Told that a step has ended.

    Attributes:
        last_loss: Loss of the last step looked at, nats.
        divergence: What the losses so far say; part of every checkpoint.
        metrics_hooks: Called with every step's numbers.
        status: Feeds the status page, when there is one.
    """

    def __init__(
        self,
        config: TrainerConfig,
        schedule: BatchSchedule,
        watch: WatchConfig | None,
        meter: ThroughputMeter,
        watchdog: ProgressWatchdog,
    ) -> None:
        self.last_loss = math.nan
        self.divergence = DivergenceState()
        self.metrics_hooks: list[MetricsHook] = []
        self.status: RunStatus | None = None
        self._config = config
        self._schedule = schedule
        self._all_examples = schedule.global_data_offset_by_step(config.num_train_steps)
        self._watch = watch
        self._meter = meter
        self._watchdog = watchdog
        self._heartbeat = Heartbeat()
        self._hook_seconds = 0.0
        self._last_s = time.perf_counter()

    @property
    def since_last_s(self) -> float:
        """Seconds since the last report ended, or since :meth:`restart_clock`."""
        return time.perf_counter() - self._last_s

    def restart_clock(self) -> None:
        """Forget the time since the last report: it was spent on something other than steps."""
        self._last_s = time.perf_counter()

    def hooks_took(self, seconds: float) -> None:
        """Book the time of the hooks, to be logged with the next step."""
        self._hook_seconds = seconds
        self._meter.spend("hook", seconds)

    def report(self, pending: Pending, tracker: Tracker, line: Progress | None, checkpoint: str | None) -> None:
        """Wait for a step's numbers and pass them on.

        Raises:
            DivergedError: the loss went wrong; everything up to here is flushed.
        """
        values = jax.device_get(pending.outputs)
        self._watchdog.step_finished()
        self._heartbeat.beat(pending.step + 1)
        duration = self.since_last_s
        self.restart_clock()
        watched = values.pop(WATCH, None)
        metrics = {name: float(value) for name, value in values.items()}
        self.last_loss = metrics[LOSS]
        speed = self._speed(pending, duration)
        metrics["global_step"] = pending.step
        metrics["run_progress"] = self._schedule.global_data_offset_by_step(pending.step + 1) / self._all_examples
        if self._watch is not None and watched is not None and (pending.step + 1) % self._watch.interval == 0:
            metrics |= unpack_watched(self._watch, watched)
        tracker.log({**metrics, **speed}, step=pending.step)
        if self.status is not None:
            self.status.update(pending.step, {**metrics, **speed}, self._meter.goodput(), checkpoint)
        for hook in self.metrics_hooks:
            hook(pending.step, metrics)
        if line is not None:
            _show(line, self.last_loss, speed)
        self._judge(pending.step, self.last_loss, tracker)

    def _speed(self, pending: Pending, duration: float) -> dict[str, float]:
        self._meter.spend("step", duration - pending.loading - pending.compiling)
        self._meter.spend("loading", pending.loading)
        self._meter.spend("compile", pending.compiling)
        hooks, self._hook_seconds = self._hook_seconds, 0.0
        return self._meter.step(pending.examples, duration, loading=pending.loading, hooks=hooks)

    def _judge(self, step: int, loss: float, tracker: Tracker) -> None:
        lenient = (math.isnan(loss) and not self._config.crash_on_nan) or (
            math.isinf(loss) and not self._config.crash_on_inf
        )
        if lenient:
            return
        self.divergence, reason = judge(self._config.divergence, self.divergence, step, loss)
        if reason is not None:
            tracker.log_summary({"diverged": True, "diverged_step": step, "diverged_reason": reason})
            tracker.flush()
            raise DivergedError(step, loss, reason)


def _show(line: Progress, loss: float, speed: Mapping[str, float]) -> None:
    rate = speed.get("throughput/tokens_per_second")
    shown = {"tok/s": f"{rate:,.0f}"} if rate else {}
    line.advance(1, loss=f"{loss:.4f}", **shown)
