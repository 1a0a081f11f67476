"""Who runs what, as a pure state machine: `handle(event, now) -> instructions`.

The machine knows no thread, file, process or clock. The driver feeds it what happened and carries out what it says,
so every schedule of losses, duplicates and delays can be played in a test.

A task is *queued*, *running* (one attempt, or two when a copy was started), or *done*. Facts it keeps true:

* a task is accepted once; every other attempt that finishes is discarded, its files with it;
* an attempt number is never reused, so a late report cannot be taken for a newer one;
* errors of user code count against `max_task_errors`, deaths of workers against `max_worker_losses`, separately;
* a worker that falls silent gets a copy of its task started beside it, and is killed before it is given up;
* a stage starts only when every task of the one before is done.

A shuffle target that is far larger than its siblings becomes several tasks, its *pieces*, and the task of its shard is
queued when all of them are done. Pieces are tasks like any other: accepted once, copied, retried and counted alone.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from zephyr._balance import divide_targets
from zephyr._events import (
    Accept,
    Assign,
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
    WorkerLost,
)
from zephyr._inputs import TaskInputs, stage_inputs
from zephyr._task import TaskError, TaskReport, TaskSpec
from zephyr.errors import IllegalTransitionError
from zephyr.physical import Plan, Stage


@dataclass(eq=False)
class _Task:
    inputs: TaskInputs
    shard: int
    piece: int = 0
    pieces: tuple["_Task", ...] = ()
    attempts: int = 0
    running: dict[int, tuple[str, float]] = field(default_factory=dict)
    errors: int = 0
    losses: int = 0
    poison: tuple[tuple[int, int], ...] = ()
    report: TaskReport | None = None


class Coordinator:
    """State of one execution.

    Args:
        plan: What to run.
        execution: Its id.
        policy: Limits.
        proven: Reports of tasks that need not run, by (stage, shard).
        skipped_stages: Stages whose output nobody needs, because everything after them is proven.
        written: (stage, shard) of tasks that find their output file proven, and have nothing to cut.
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
        written: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        self.plan = plan
        self.execution = execution
        self.policy = policy
        self.proven = dict(proven or {})
        self.skipped_stages = skipped_stages
        self.written = written
        self.stage = -1
        self.tasks: list[_Task] = []
        self.queue: deque[_Task] = deque()
        self.idle: dict[str, None] = {}
        self.busy: dict[str, TaskSpec] = {}
        self.began: dict[str, float] = {}
        self.heard: dict[str, float] = {}
        self.up: set[str] = set()
        self.killing: dict[str, Kill] = {}
        self.durations: list[float] = []
        self.median_of = 0
        self.median = 0.0
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
            case WorkerLost():
                out = self._lost(event)
            case WorkerBeat(worker, label):
                spec = self.busy.get(worker)
                if spec is None or spec.label != label:
                    return []
                self.heard[worker] = now
                self.up.add(worker)
                return []
            case TaskSucceeded(worker, spec, report):
                out = self._succeeded(worker, spec, report, now)
            case TaskFailed(worker, spec, error):
                out = self._failed(worker, spec, error)
            case _:
                out = self._watch(now)
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
        self.up.add(worker)
        if worker not in self.killing:
            self.idle[worker] = None

    def _watch(self, now: float) -> list[Instruction]:
        """Kill workers that are silent, or whose attempt runs for too long."""
        out: list[Instruction] = []
        policy = self.policy
        for worker, spec in self.busy.items():
            if worker in self.killing:
                continue
            ran = now - self.began[worker]
            if policy.task_timeout_s is not None and worker in self.up and ran > policy.task_timeout_s:
                reason = f"ran for {ran:.0f} s, task_timeout_s={policy.task_timeout_s}"
                self.killing[worker] = Kill(worker, spec, reason, overdue=True)
            elif (quiet := self._quiet(worker, now)) > self._patience(worker):
                self.killing[worker] = Kill(worker, spec, f"gave no sign of life for {quiet:.0f} s")
            else:
                continue
            out.append(self.killing[worker])
        return out

    def _quiet(self, worker: str, now: float) -> float:
        return now - max(self.began[worker], self.heard.get(worker, -math.inf))

    def _patience(self, worker: str) -> float:
        return self.policy.heartbeat_timeout_s if worker in self.up else self.policy.start_timeout_s

    def _current(self, spec: TaskSpec) -> _Task | None:
        """The task of a report, if the attempt is still wanted."""
        if spec.stage != self.stage:
            return None
        task = self.tasks[spec.shard]
        if spec.piece:
            task = task.pieces[spec.piece - 1]
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
        if task.piece:
            self._join_pieces(self.tasks[spec.shard])
        if self.remaining == 0:
            out += self._end_stage(now)
        return out

    def _join_pieces(self, task: _Task) -> None:
        """Queue the task of a shard whose pieces are all done: it reads what they made, in their order."""
        reports = [piece.report for piece in task.pieces if piece.report is not None]
        if len(reports) == len(task.pieces):
            task.inputs = tuple(ref for report in reports for ref in report.blocks)
            self.queue.appendleft(task)

    def _divide(self, stage: Stage) -> list[Instruction]:
        """Cut the targets that are too large; their pieces come first, since they take longest."""
        inputs = [task.inputs for task in self.tasks]
        out: list[Instruction] = []
        first: list[_Task] = []
        for shard, cut in divide_targets(self.plan, stage, inputs, self.reports, self.policy).items():
            task = self.tasks[shard]
            if task.report is not None or (stage.index, shard) in self.written:
                continue
            task.pieces = tuple(_Task(part, shard, at) for at, part in enumerate(cut.pieces, 1))
            first += task.pieces or (task,)
            num = max(1, len(task.pieces))
            out.append(Skewed(stage.index, shard, cut.size_bytes, cut.median_bytes, cut.largest_bytes, num))
        ahead = set(map(id, first))
        rest = (task for task in self.tasks if task.report is None and not task.pieces and id(task) not in ahead)
        self.queue = deque([*first, *rest])
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
            self.queue.append(task)
        return out

    def _lost(self, event: WorkerLost) -> list[Instruction]:
        worker = event.worker
        self.idle.pop(worker, None)
        self.up.discard(worker)
        self.heard.pop(worker, None)
        killed = self.killing.pop(worker, None)
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
        error = event.error
        if killed is not None and killed.overdue:
            error = TaskError(f"TimeoutError: {killed.reason}", "", None, retryable=True)
        if error is not None:
            task.errors += 1
            given_up = task.errors >= self.policy.max_task_errors
        else:
            task.losses += 1
            given_up = task.losses >= self.policy.max_worker_losses
        if event.poison is not None and task.losses > self.policy.poison_after_losses:
            task.poison = (*task.poison, event.poison)
        if given_up:
            self.over = True
            detail = killed.reason if killed else event.detail
            return [*out, GiveUp(spec, worker, task.losses if error is None else task.errors, error, detail)]
        if not task.running:
            self.queue.append(task)
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
            self.tasks = [_Task(inputs, at) for at, inputs in enumerate(stage_inputs(self.plan, stage, self.reports))]
            for shard, task in enumerate(self.tasks):
                task.report = self.proven.get((self.stage, shard))
            skewed = self._divide(stage)
            self.durations, self.median_of, self.median = [], 0, 0.0
            done = sum(task.report is not None for task in self.tasks)
            self.remaining = len(self.tasks) - done + sum(len(task.pieces) for task in self.tasks)
            out += [StageStarted(self.stage, done), *skewed]
            if self.queue:
                return out
            self.reports.append(tuple(task.report for task in self.tasks if task.report is not None))

    def _assign(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        while self.idle:
            task = self.queue.popleft() if self.queue else self._straggler(now)
            if task is None:
                break
            worker = next(iter(self.idle))
            del self.idle[worker]
            task.attempts += 1
            careful = task.losses >= self.policy.poison_after_losses
            spec = TaskSpec(
                self.execution,
                self.stage,
                task.shard,
                task.attempts,
                task.inputs,
                careful,
                task.poison,
                task.piece,
                bool(task.pieces),
            )
            task.running[task.attempts] = (worker, now)
            self.busy[worker] = spec
            self.began[worker] = now
            out.append(Assign(worker, spec))
        return out + self._drain()

    def _drain(self) -> list[Instruction]:
        """Idle workers beyond one spare for each running task, in the last stage."""
        if not self.policy.drain or self.queue or self.stage != len(self.plan.stages) - 1:
            return []
        spare = len(self.idle) - len(self.busy)
        out = [Release(worker) for worker in list(self.idle)[: max(0, spare)]]
        for step in out:
            del self.idle[step.worker]
        return list(out)

    def _straggler(self, now: float) -> _Task | None:
        """A task worth a second copy: its worker is silent, or it runs far longer than the median of half the stage."""
        limit = self._copy_limit()
        for worker, spec in self.busy.items():
            task = self._current(spec)
            if task is None or task.report is not None or len(task.running) != 1:
                continue
            silent = worker in self.up and self._quiet(worker, now) > self.policy.suspect_after_s
            if silent or now - self.began[worker] > limit:
                return task
        return None

    def _copy_limit(self) -> float:
        """Seconds after which a task is slow; infinite before half of the stage is done."""
        done = len(self.durations)
        if not done or 2 * done < len(self.tasks):
            return math.inf
        if done > self.median_of * 1.05:
            # Sorting all durations at every event of the tail would be most of what the coordinator does.
            self.median_of, self.median = done, statistics.median(self.durations)
        return max(self.policy.speculate_min_s, self.policy.speculate_factor * self.median)


def _brief(event: Event) -> str:
    match event:
        case WorkerJoined(worker) | WorkerLost(worker, _, _, _) | WorkerBeat(worker, _, _):
            return f"{type(event).__name__}({worker})"
        case TaskSucceeded(worker, spec, _) | TaskFailed(worker, spec, _):
            return f"{type(event).__name__}({worker}, {spec.label})"
    return type(event).__name__


__all__ = [
    "Accept",
    "Assign",
    "Coordinator",
    "Discard",
    "Event",
    "Finished",
    "GiveUp",
    "Instruction",
    "Kill",
    "Policy",
    "Release",
    "Skewed",
    "StageStarted",
    "TaskFailed",
    "TaskSucceeded",
    "Tick",
    "WorkerBeat",
    "WorkerJoined",
    "WorkerLost",
]
