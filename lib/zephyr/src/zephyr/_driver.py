"""The shell around the coordinator: carries out its instructions, publishes accepted files, shows progress."""

import logging
import os
import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rigging.timing import Clock

from zephyr._files import local_path, publish, remove_file, remove_tree, staged_path, sync_folders
from zephyr._monitor import Monitor, StageStats
from zephyr._paths import is_remote
from zephyr._task import TaskError, TaskReport, TaskSettings, TaskSpec, attempt_folder, run_task
from zephyr.coordinator import (
    Accept,
    Assign,
    Coordinator,
    Discard,
    Event,
    Finished,
    GiveUp,
    Instruction,
    Kill,
    Policy,
    Release,
    Skewed,
    StageStarted,
    TaskFailed,
    TaskSucceeded,
    Tick,
    WorkerBeat,
    WorkerJoined,
)
from zephyr.counters import CounterValues, merge
from zephyr.errors import QuarantineFullError, TaskFailedError, WorkersLostError, ZephyrError
from zephyr.physical import Plan, WriteShard

logger = logging.getLogger(__name__)

_TICK_S = 1.0


class Executor(Protocol):
    """Something that runs attempts on named workers and reports events."""

    def join(self) -> Sequence[str]:
        """Workers that are ready for a new execution."""
        ...

    def submit(self, worker: str, spec: TaskSpec) -> None:
        """Start an attempt; its end is an event."""
        ...

    def next_event(self, timeout_s: float) -> Event | None:
        """Wait for an event."""
        ...

    def beats(self) -> Sequence[WorkerBeat]:
        """Signs of life since the last call."""
        ...

    def kill(self, worker: str) -> None:
        """End a worker's process at once; its loss is an event."""
        ...

    def release(self, worker: str) -> None:
        """Let an idle worker go."""
        ...

    def abandon(self, specs: Sequence[TaskSpec]) -> None:
        """Stop the attempts that are still running, before their files are removed."""
        ...


class InlineExecutor:
    """Runs attempts one by one in the calling process."""

    def __init__(self, plan: Plan, settings: TaskSettings) -> None:
        self.plan = plan
        self.settings = settings
        self.events: deque[Event] = deque()

    def join(self) -> Sequence[str]:
        """One worker."""
        return ("inline",)

    def submit(self, worker: str, spec: TaskSpec) -> None:
        """Run the attempt at once."""
        self.events.append(event_of(worker, spec, run_task(self.plan, spec, self.settings)))

    def next_event(self, timeout_s: float) -> Event | None:
        """The result of the attempt just run."""
        return self.events.popleft() if self.events else None

    def beats(self) -> Sequence[WorkerBeat]:
        """None: an attempt is over before anybody could ask."""
        return ()

    def kill(self, worker: str) -> None:
        """Never asked for."""

    def release(self, worker: str) -> None:
        """Nothing to let go."""

    def abandon(self, specs: Sequence[TaskSpec]) -> None:
        """Nothing runs in the background."""


def event_of(worker: str, spec: TaskSpec, result: TaskReport | TaskError) -> Event:
    """The event that a finished attempt is."""
    return TaskFailed(worker, spec, result) if isinstance(result, TaskError) else TaskSucceeded(worker, spec, result)


@dataclass(frozen=True)
class Outcome:
    """What an execution left: reports of the last stage, and the folded counters."""

    reports: tuple[TaskReport, ...]
    counters: CounterValues
    stages: tuple[StageStats, ...] = ()


class Driver:
    """Runs one plan to its end.

    Args:
        plan: The plan.
        execution: Its id.
        executor: Where attempts run.
        settings: Places and limits of tasks.
        policy: Failure limits.
        clock: Source of monotonic time.
        name: Shown with progress.
    """

    def __init__(
        self,
        plan: Plan,
        execution: str,
        executor: Executor,
        settings: TaskSettings,
        *,
        policy: Policy,
        clock: Clock,
        name: str,
    ) -> None:
        self.plan = plan
        self.execution = execution
        self.executor = executor
        self.settings = settings
        self.policy = policy
        self.clock = clock
        self.name = name
        self.counted: CounterValues = {}
        self.published: list[str] = []
        self.quarantined = 0
        self.monitor = Monitor(plan, name=name, clock=clock)
        self.outcome: Outcome | None = None

    def run(
        self, *, proven: Mapping[tuple[int, int], TaskReport], skipped_stages: frozenset[int] = frozenset()
    ) -> Outcome:
        """Run until finished or given up.

        Raises:
            ZephyrError: of the tree in `zephyr.errors`; the outputs of unfinished stages are not left half-written.
        """
        machine = Coordinator(
            self.plan,
            self.execution,
            self.policy,
            proven=proven,
            skipped_stages=skipped_stages,
            written=self.settings.written,
        )
        try:
            self._apply(machine.start(self.clock.monotonic()))
            if self.outcome is None:
                for worker in self.executor.join():
                    self._apply(machine.handle(WorkerJoined(worker), self.clock.monotonic()))
            ticked = self.clock.monotonic()
            while self.outcome is None:
                event = self.executor.next_event(_TICK_S)
                now = self.clock.monotonic()
                if event is not None:
                    self._apply(machine.handle(event, now))
                if event is None or now - ticked >= _TICK_S:
                    ticked = now
                    self._tick(machine, now)
            return self.outcome
        finally:
            left = machine.running_attempts
            self.executor.abandon(left)
            for spec in left:
                self._discard(spec)
            self.monitor.ended(self.clock.monotonic())
            sync_folders([path for path in self.published if not is_remote(path)])

    def _tick(self, machine: Coordinator, now: float) -> None:
        for beat in self.executor.beats():
            self._apply(machine.handle(beat, now))
            self.monitor.live(beat)
        if self.outcome is None:
            self._apply(machine.handle(Tick(), now))
        self.monitor.show(now)

    def _apply(self, instructions: list[Instruction]) -> None:
        for step in instructions:
            match step:
                case Assign(worker, spec):
                    self.monitor.assigned(worker, spec, self.clock.monotonic())
                    self.executor.submit(worker, spec)
                case Accept(spec, report):
                    self._accept(spec, report)
                case Discard(spec):
                    self.monitor.dropped(spec)
                    self._discard(spec)
                case Kill(worker, spec, reason):
                    logger.warning("killing worker %s: task %s %s", worker, spec.label, reason)
                    self.executor.kill(worker)
                case Release(worker):
                    self.executor.release(worker)
                case StageStarted(stage, done):
                    self.monitor.began(self.plan.stages[stage], done, self.clock.monotonic())
                case Skewed():
                    self.monitor.skewed(step)
                case Finished(reports):
                    self.outcome = Outcome(reports, self.counted, tuple(self.monitor.stages))
                case GiveUp():
                    raise self._failure(step)

    def _accept(self, spec: TaskSpec, report: TaskReport) -> None:
        for target, written in report.written.items():
            publish(written.staged, target)
            self.published.append(target)
        quarantine = self.settings.quarantine
        if quarantine is not None and not report.quarantined and not spec.piece:
            # What an earlier run put aside here is clean in this one.
            remove_file(quarantine.path(spec.stage, spec.shard))
        self.counted = merge((self.counted, report.counters))
        self.quarantined += report.quarantined
        self.monitor.accepted(spec, report, self.clock.monotonic())
        if quarantine is not None and self.quarantined > quarantine.max_records:
            where = f"shard {spec.shard} of stage {self.plan.stages[spec.stage].name!r}"
            raise QuarantineFullError(quarantine.folder, quarantine.max_records, where, "see the files there")

    def _discard(self, spec: TaskSpec) -> None:
        remove_tree(attempt_folder(self.settings, spec))
        branch, _ = self.plan.stages[spec.stage].locate(spec.shard)
        if self.settings.quarantine is not None:
            target = self.settings.quarantine.path(spec.stage, spec.shard)
            remove_file(staged_path(target, self.execution, spec.label))
        for op in branch.ops:
            if isinstance(op, WriteShard):
                staged = staged_path(op.paths[spec.shard], self.execution, spec.label)
                remove_file(staged)
                # A Parquet file that was widened while it was written has its second copy under such a name.
                while not is_remote(staged) and os.path.exists(wider := staged.removesuffix(".tmp") + "w.tmp"):
                    remove_file(local_path(wider))
                    staged = wider

    def _failure(self, step: GiveUp) -> Exception:
        stage, shard = self.plan.stages[step.spec.stage].name, step.spec.shard
        if step.error is None:
            return WorkersLostError(stage, shard, step.count, step.detail)
        original = None if step.error.error is None else pickle.loads(step.error.error)
        if isinstance(original, ZephyrError):
            original.add_note(f"in stage {stage!r}, shard {shard}")
            return original
        error = step.error
        failure = TaskFailedError(stage, shard, step.count, step.worker, error.text, error.trace, where=error.where)
        failure.add_note(step.error.trace)
        failure.__cause__ = original
        return failure
