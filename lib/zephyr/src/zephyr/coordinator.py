"""Who runs what, as a pure state machine: `handle(event, now) -> instructions`.

The machine knows no thread, file, process or clock. The driver feeds it what happened and carries out what it says,
so every schedule of losses, duplicates and delays can be played in a test.

A task is *queued*, *running* (one attempt, or two when a copy was started), or *done*. Facts it keeps true:

* a task is accepted once; every other attempt that finishes is discarded, its files with it;
* an attempt number is never reused, so a late report cannot be taken for a newer one;
* errors of user code count against `max_task_errors`, deaths of workers against `max_worker_losses`, separately;
* a stage starts only when every task of the one before is done.
"""

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from zephyr._inputs import TaskInputs, stage_inputs
from zephyr._task import TaskError, TaskReport, TaskSpec
from zephyr.errors import IllegalTransitionError
from zephyr.physical import Plan

# Events


@dataclass(frozen=True)
class WorkerJoined:
    """A worker is ready for a task."""

    worker: str


@dataclass(frozen=True)
class WorkerLost:
    """A worker's process is gone."""

    worker: str
    detail: str


@dataclass(frozen=True)
class TaskSucceeded:
    """An attempt finished."""

    worker: str
    spec: TaskSpec
    report: TaskReport


@dataclass(frozen=True)
class TaskFailed:
    """An attempt raised."""

    worker: str
    spec: TaskSpec
    error: TaskError


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


type Event = WorkerJoined | WorkerLost | TaskSucceeded | TaskFailed | Tick

# Instructions


@dataclass(frozen=True)
class StageStarted:
    """A stage has begun; `done` of its tasks were proven complete beforehand."""

    stage: int
    done: int


@dataclass(frozen=True)
class Assign:
    """Run an attempt on a worker."""

    worker: str
    spec: TaskSpec


@dataclass(frozen=True)
class Accept:
    """Publish what this attempt staged, and count what it counted."""

    spec: TaskSpec
    report: TaskReport


@dataclass(frozen=True)
class Discard:
    """Remove whatever this attempt left."""

    spec: TaskSpec


@dataclass(frozen=True)
class Finished:
    """All stages are done; the reports of the last one hold the results."""

    reports: tuple[TaskReport, ...]


@dataclass(frozen=True)
class GiveUp:
    """A task failed for good: by its error, or by losing too many workers (`error` is None)."""

    spec: TaskSpec
    worker: str
    count: int
    error: TaskError | None
    detail: str = ""


type Instruction = StageStarted | Assign | Accept | Discard | Finished | GiveUp


@dataclass(frozen=True)
class Policy:
    """Limits.

    Args:
        max_task_errors: Errors of one task's code before giving up.
        max_worker_losses: Workers that one task may lose.
        speculate_factor: Start a copy of a task that runs this many times the median.
        speculate_min_s: Never before this many seconds.
    """

    max_task_errors: int = 3
    max_worker_losses: int = 20
    speculate_factor: float = 3.0
    speculate_min_s: float = 10.0


@dataclass
class _Task:
    inputs: TaskInputs
    attempts: int = 0
    running: dict[int, tuple[str, float]] = field(default_factory=dict)
    errors: int = 0
    losses: int = 0
    report: TaskReport | None = None


class Coordinator:
    """State of one execution.

    Args:
        plan: What to run.
        execution: Its id.
        policy: Limits.
        proven: Reports of tasks that need not run, by (stage, shard).
        skipped_stages: Stages whose output nobody needs, because everything after them is proven.
    Example:
        >>> from zephyr import Dataset, compute_plan
        >>> machine = Coordinator(compute_plan(Dataset.from_list([1, 2]).pipeline), "x")
        >>> machine.start(0.0)
        [StageStarted(stage=0, done=0)]
        >>> [step] = machine.handle(WorkerJoined("w0"), 0.0)
        >>> step.worker, step.spec.label
        ('w0', '0-0-1')
    """

    def __init__(
        self,
        plan: Plan,
        execution: str,
        policy: Policy = Policy(),
        *,
        proven: Mapping[tuple[int, int], TaskReport] | None = None,
        skipped_stages: frozenset[int] = frozenset(),
    ) -> None:
        self.plan = plan
        self.execution = execution
        self.policy = policy
        self.proven = dict(proven or {})
        self.skipped_stages = skipped_stages
        self.stage = -1
        self.tasks: list[_Task] = []
        self.queue: deque[int] = deque()
        self.idle: dict[str, None] = {}
        self.busy: dict[str, TaskSpec] = {}
        self.durations: list[float] = []
        self.remaining = 0
        self.reports: list[tuple[TaskReport, ...]] = []
        self.over = False
        self.story: deque[str] = deque(maxlen=20)

    def start(self, now: float) -> list[Instruction]:
        """Begin the first stage."""
        return self._next_stage(now)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Apply one event.

        Args:
            event: What happened.
            now: Seconds of a monotonic clock.
        Raises:
            IllegalTransitionError: the event cannot follow from what was instructed.
        """
        self.story.append(_brief(event))
        if self.over:
            return [Discard(event.spec)] if isinstance(event, TaskSucceeded | TaskFailed) else []
        match event:
            case WorkerJoined(worker):
                if worker in self.idle or worker in self.busy:
                    raise IllegalTransitionError(_brief(event), "the worker is already here", tuple(self.story))
                self.idle[worker] = None
                out: list[Instruction] = []
            case WorkerLost(worker, detail):
                out = self._lost(worker, detail)
            case TaskSucceeded(worker, spec, report):
                out = self._succeeded(worker, spec, report, now)
            case TaskFailed(worker, spec, error):
                out = self._failed(worker, spec, error)
            case _:
                out = []
        if self.over:
            return out
        return out + self._assign(now)

    @property
    def running_attempts(self) -> tuple[TaskSpec, ...]:
        """Attempts that workers are still busy with."""
        return tuple(self.busy.values())

    def _free(self, worker: str, spec: TaskSpec) -> None:
        if self.busy.get(worker) != spec:
            raise IllegalTransitionError(f"report {spec.label} from {worker}", "not its assignment", tuple(self.story))
        del self.busy[worker]
        self.idle[worker] = None

    def _current(self, spec: TaskSpec) -> _Task | None:
        """The task of a report, if the attempt is still wanted."""
        if spec.stage != self.stage:
            return None
        task = self.tasks[spec.shard]
        return task if spec.attempt in task.running else None

    def _succeeded(self, worker: str, spec: TaskSpec, report: TaskReport, now: float) -> list[Instruction]:
        self._free(worker, spec)
        task = self._current(spec)
        if task is None:
            return [Discard(spec)]
        _, began = task.running.pop(spec.attempt)
        if task.report is not None:
            return [Discard(spec)]
        task.report = report
        self.durations.append(now - began)
        out: list[Instruction] = [Accept(spec, report)]
        self.remaining -= 1
        if self.remaining == 0:
            out += self._end_stage(now)
        return out

    def _failed(self, worker: str, spec: TaskSpec, error: TaskError) -> list[Instruction]:
        self._free(worker, spec)
        task = self._current(spec)
        out: list[Instruction] = [Discard(spec)]
        if task is None:
            return out
        del task.running[spec.attempt]
        if task.report is not None:
            return out
        task.errors += 1
        if not error.retryable or task.errors >= self.policy.max_task_errors:
            self.over = True
            return [*out, GiveUp(spec, worker, task.errors, error)]
        if not task.running:
            self.queue.append(spec.shard)
        return out

    def _lost(self, worker: str, detail: str) -> list[Instruction]:
        self.idle.pop(worker, None)
        spec = self.busy.pop(worker, None)
        if spec is None:
            return []
        out: list[Instruction] = [Discard(spec)]
        task = self._current(spec)
        if task is None:
            return out
        del task.running[spec.attempt]
        if task.report is not None:
            return out
        task.losses += 1
        if task.losses >= self.policy.max_worker_losses:
            self.over = True
            return [*out, GiveUp(spec, worker, task.losses, None, detail)]
        if not task.running:
            self.queue.append(spec.shard)
        return out

    def _end_stage(self, now: float) -> list[Instruction]:
        self.reports.append(tuple(task.report for task in self.tasks if task.report is not None))
        return self._next_stage(now)

    def _next_stage(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        while True:
            self.stage += 1
            if self.stage == len(self.plan.stages):
                self.over = True
                return [*out, Finished(self.reports[-1])]
            if self.stage in self.skipped_stages:
                self.reports.append(())
                continue
            stage = self.plan.stages[self.stage]
            self.tasks = [_Task(inputs) for inputs in stage_inputs(self.plan, stage, self.reports)]
            for shard, task in enumerate(self.tasks):
                task.report = self.proven.get((self.stage, shard))
            self.queue = deque(shard for shard, task in enumerate(self.tasks) if task.report is None)
            self.durations = []
            self.remaining = len(self.queue)
            out.append(StageStarted(self.stage, len(self.tasks) - len(self.queue)))
            if self.queue:
                return out
            self.reports.append(tuple(task.report for task in self.tasks if task.report is not None))

    def _assign(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        while self.idle:
            shard = self.queue.popleft() if self.queue else self._straggler(now)
            if shard is None:
                break
            worker = next(iter(self.idle))
            del self.idle[worker]
            task = self.tasks[shard]
            task.attempts += 1
            spec = TaskSpec(self.execution, self.stage, shard, task.attempts, task.inputs)
            task.running[task.attempts] = (worker, now)
            self.busy[worker] = spec
            out.append(Assign(worker, spec))
        return out

    def _straggler(self, now: float) -> int | None:
        """A task worth a second copy: running far longer than the median of at least half the stage."""
        if 2 * len(self.durations) < len(self.tasks) or not self.durations:
            return None
        limit = max(self.policy.speculate_min_s, self.policy.speculate_factor * statistics.median(self.durations))
        for shard, task in enumerate(self.tasks):
            if task.report is None and len(task.running) == 1:
                [(_, began)] = task.running.values()
                if now - began > limit:
                    return shard
        return None


def _brief(event: Event) -> str:
    match event:
        case WorkerJoined(worker) | WorkerLost(worker, _):
            return f"{type(event).__name__}({worker})"
        case TaskSucceeded(worker, spec, _) | TaskFailed(worker, spec, _):
            return f"{type(event).__name__}({worker}, {spec.label})"
    return type(event).__name__
