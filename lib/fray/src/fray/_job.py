"""A job as every backend keeps it: its state, its outcome, its output, and its name among the others."""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fray._codec import unpack_error
from fray._future import Future
from fray._logs import LogTail
from fray._requests import same_fingerprint
from fray.errors import JobAlreadyExists, JobFailed
from fray.types import JobRequest, JobStatus

_MOST_NAMES: Final = 10_000  # of jobs that have ended, beyond which they are forgotten


@dataclass(frozen=True, slots=True)
class Failure:
    """How a task failed."""

    exit_code: int | None = None
    signal: int | None = None
    packed_error: bytes | None = None
    error: BaseException | None = None
    traceback_text: str | None = None


class Job:
    """Handle and state of one job; its state changes under one lock and only forward."""

    def __init__(self, job_id: str, request: JobRequest, fingerprint: object) -> None:
        self._job_id = job_id
        self.request = request
        self.fingerprint = fingerprint
        self.logs_by_rank = [
            LogTail(request.name if request.num_replicas == 1 else f"{request.name}/{rank}")
            for rank in range(request.num_replicas)
        ]
        self.value = Future(f"job {job_id}")  # of rank 0
        self._lock = threading.Lock()
        self._status = JobStatus.PENDING
        self._done = threading.Event()
        self._failure: Failure | None = None
        self._stop: Callable[[], object] | None = None
        self._at_end: Callable[[Job], object] | None = None
        self._ask: Callable[[], object] | None = None
        self._block: Callable[[threading.Event, float | None], bool] = threading.Event.wait
        self.live_output: dict[int, list[str]] = {}  # by rank, where output comes whole at the end

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self._job_id

    def status(self) -> JobStatus:
        """Return where the job is now."""
        if self._ask is not None and self._status is JobStatus.PENDING:
            self._ask()
        return self._status

    def wait(self, timeout: float | None = None, *, raise_on_failure: bool = True) -> JobStatus:
        """Wait for the end; see ``fray.client.JobHandle``."""
        if not self._done.is_set() and not self._block(self._done, timeout):
            if raise_on_failure:
                raise TimeoutError(
                    f"job has not ended: job={self._job_id!r}, status={self._status}, timeout={timeout} s; expected it "
                    "to end in that time. Wait longer or terminate it."
                )
            return self._status
        if raise_on_failure and self._status is not JobStatus.SUCCEEDED:
            self._raise()
        return self._status

    def result(self, timeout: float | None = None) -> Any:
        """Wait and return the callable's value; see ``fray.client.JobHandle``."""
        self.wait(timeout)
        return self.value.result()

    def terminate(self) -> None:
        """Stop the job and everything it started; returns when its processes are gone."""
        stop = self._stop
        if stop is not None and not self._done.is_set():
            stop()

    def logs(self, max_lines: int = 100) -> list[str]:
        """Return the last lines of output; with replicas each line names its rank."""
        if self._ask is not None and not self._done.is_set():
            self._ask()
        lines = [log.lines(max_lines) + self.live_output.get(rank, []) for rank, log in enumerate(self.logs_by_rank)]
        if len(lines) > 1:
            lines = [[f"[{rank}] {line}" for rank, some in enumerate(lines) for line in some]]
        return lines[0][-max_lines:] if max_lines > 0 else []

    def on_terminate(self, stop: Callable[[], object]) -> None:
        """Set how the job is stopped; for the runner."""
        self._stop = stop

    def on_ask(self, ask: Callable[[], object]) -> None:
        """Set what brings state and output up to date before somebody looks; for the runner."""
        self._ask = ask

    def on_end(self, fn: "Callable[[Job], object]") -> None:
        """Set what is called once when the job has ended, before anybody who waits for it goes on; for the runner."""
        self._at_end = fn

    def on_wait(self, block: Callable[[threading.Event, float | None], bool]) -> None:
        """Set how a thread waits for the end; for the runner."""
        self._block = block

    def set_running(self) -> None:
        """Note that a task has started."""
        with self._lock:
            if self._status is JobStatus.PENDING:
                self._status = JobStatus.RUNNING

    def finish(self, status: JobStatus, failure: Failure | None = None) -> bool:
        """Note the end; tell whether this was the first time."""
        with self._lock:
            if JobStatus.finished(self._status):
                return False
            self._status = status
            self._failure = failure
        if self._at_end is not None:
            self._at_end(self)
        self._done.set()
        return True

    def _raise(self) -> None:
        failure = self._failure or Failure()
        cause, text = failure.error, failure.traceback_text
        if failure.packed_error is not None:
            cause, text = unpack_error(failure.packed_error)
        raise JobFailed(
            self._job_id,
            str(self._status),
            exit_code=failure.exit_code,
            signal=failure.signal,
            log_tail=tuple(self.logs(20)),
            remote_traceback=text,
        ) from cause

    def __repr__(self) -> str:
        return f"<job {self._job_id} {self._status}>"


class JobNames:
    """The jobs of a client by name, of which two of one name never live at once.

    Args:
        backend: What ids of jobs begin with.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def admit(self, request: JobRequest, fingerprint: object, adopt_existing: bool) -> tuple[Job, bool]:
        """Return a new job and True, or the one that lives under this name and runs the same, and False.

        Raises:
            JobAlreadyExists: The one that lives runs something else, or ``adopt_existing`` is false.
        """
        with self._lock:
            live = self._jobs.get(request.name)
            if live is not None and not JobStatus.finished(live.status()):
                if adopt_existing and same_fingerprint(live.fingerprint, fingerprint):
                    return live, False
                raise JobAlreadyExists(request.name, live)
            job = Job(f"{self._backend}-{request.name}-{secrets.token_hex(4)}", request, fingerprint)
            self._jobs[request.name] = job
            if len(self._jobs) > _MOST_NAMES:
                self._jobs = {name: job for name, job in self._jobs.items() if not JobStatus.finished(job.status())}
            return job, True


def wait_quietly(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll ``condition`` every few milliseconds until it holds or time is up."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.002)
    return True
