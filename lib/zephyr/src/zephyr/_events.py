"""What the coordinator is told, and what it says: events and instructions, plain data; and the limits it goes by."""

from dataclasses import dataclass, field

from zephyr._task import TaskError, TaskReport, TaskSpec
from zephyr.counters import CounterValues
from zephyr.errors import DatasetError

# Events


@dataclass(frozen=True)
class WorkerJoined:
    """A worker is ready for a task."""

    worker: str


@dataclass(frozen=True)
class WorkerLost:
    """A worker's process is gone.

    Args:
        worker: Its name.
        detail: What is known about the death.
        poison: The call of user code that it was in, where that is known.
        error: The death is the task's fault, and counts as this error of it.
    """

    worker: str
    detail: str
    poison: tuple[int, int] | None = None
    error: TaskError | None = None


@dataclass(frozen=True)
class WorkerBeat:
    """A busy worker is alive; `live` is what its attempt has counted so far."""

    worker: str
    label: str
    live: CounterValues = field(default_factory=dict)


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


type Event = WorkerJoined | WorkerLost | WorkerBeat | TaskSucceeded | TaskFailed | Tick

# Instructions


@dataclass(frozen=True)
class StageStarted:
    """A stage has begun; `done` of its tasks were proven complete beforehand."""

    stage: int
    done: int


@dataclass(frozen=True)
class Skewed:
    """A shuffle target is far larger than its siblings.

    Args:
        stage: The stage that reads it.
        shard: Its number there.
        size_bytes: Its bytes.
        median_bytes: Bytes of the median target.
        largest_bytes: Bytes of its largest piece; all of them if it stays whole.
        pieces: Into how many pieces it is cut; 1 if it is one key, or nearly, and stays whole.
    """

    stage: int
    shard: int
    size_bytes: int
    median_bytes: int
    largest_bytes: int
    pieces: int


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
class Kill:
    """End a worker's process, whatever it is doing; a `WorkerLost` follows.

    Args:
        worker: Its name.
        spec: What it is running.
        reason: Why, in words.
        overdue: The attempt ran for too long; otherwise the worker was silent.
    """

    worker: str
    spec: TaskSpec
    reason: str
    overdue: bool = False


@dataclass(frozen=True)
class Release:
    """Let an idle worker go: nothing is left for it."""

    worker: str


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


type Instruction = StageStarted | Skewed | Assign | Accept | Discard | Kill | Release | Finished | GiveUp


@dataclass(frozen=True)
class Policy:
    """Limits.

    Args:
        max_task_errors: Errors of one task's code before giving up.
        max_worker_losses: Workers that one task may lose.
        speculate_factor: Start a copy of a task that runs this many times the median.
        speculate_min_s: Never before this many seconds.
        heartbeat_timeout_s: Silence of a busy worker after which it is killed. A callable that keeps the interpreter
            lock for longer looks the same.
        suspect_after_s: Silence after which a copy of its task may start on an idle worker.
        start_timeout_s: Silence of a process that has not been heard yet, imports and start-up included.
        task_timeout_s: Longest that one attempt may run; beyond it the worker is killed, which counts as an error of
            the task. None is no limit.
        poison_after_losses: Once a task has lost this many workers, the record that each of its workers died on is
            put into quarantine, where the execution has one.
        drain: Let workers go when the last stage has nothing left for them (never those of a shared pool).
        skew_factor: A shuffle target of more bytes than this many times the median is cut into pieces.
        skew_min_bytes: Never one of fewer bytes.
        skew_pieces: Most pieces of one target; 1 cuts none.
    Raises:
        DatasetError: a skew limit out of range.
    """

    max_task_errors: int = 3
    max_worker_losses: int = 20
    speculate_factor: float = 3.0
    speculate_min_s: float = 10.0
    heartbeat_timeout_s: float = 120.0
    suspect_after_s: float = 20.0
    start_timeout_s: float = 600.0
    task_timeout_s: float | None = None
    poison_after_losses: int = 2
    drain: bool = True
    skew_factor: float = 4.0
    skew_min_bytes: int = 256 << 20
    skew_pieces: int = 16

    def __post_init__(self) -> None:
        for name, least in (("skew_factor", 1.0), ("skew_min_bytes", 1), ("skew_pieces", 1)):
            value = getattr(self, name)
            if not value >= least:
                raise DatasetError(
                    f"cannot set the policy: {name}={value}; expected {least} or more. skew_pieces=1 cuts no target."
                )
