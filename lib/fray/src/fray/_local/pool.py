"""Jobs over child processes: a bounded number at once, warm children used again.

All state belongs to the hub's thread. A job is one task per replica; its tasks start together or not at all, and the
first failure that is not retried ends them all.
"""

import collections
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rigging.job_identity import JobIdentity

from fray._codec import dumps
from fray._job import Failure, Job, wait_quietly
from fray._local.child import Child, Guardian, worker_command
from fray._local.frames import Kind
from fray._local.hub import Hub
from fray._local.task import Task
from fray.ports import PortLeases, variable
from fray.types import JobStatus

_GRACE_S: Final = 1.0


@dataclass
class Run:
    """One attempt of one replica."""

    job: "JobRun"
    rank: int
    child: Child | None = None
    number: int = 0
    outcome: tuple[Kind, bytes] | None = None


@dataclass
class JobRun:
    """A job with what is needed to run it."""

    job: Job
    payload: bytes | None
    environ: Mapping[str, str]
    cwd: str | None
    memory_limit_bytes: int | None
    runs: list[Run] = field(default_factory=list)
    leases: list[PortLeases] = field(default_factory=list)
    value: bytes = b""
    attempt: int = 0
    retrying: bool = False
    succeeded: int = 0
    coordinator: str | None = None
    stopping: JobStatus | None = None
    failure: Failure | None = None


class ProcessPool:
    """Runs jobs in child processes, at most ``max_workers`` tasks at once (a larger job runs alone)."""

    def __init__(self, hub: Hub, guardian: Guardian, max_workers: int) -> None:
        self._hub = hub
        self._guardian = guardian
        self._max = max_workers
        self._waiting: collections.deque[JobRun] = collections.deque()
        self._idle: list[tuple[object, Child]] = []
        self._active: dict[Child, Run] = {}
        self._children: set[Child] = set()
        self._jobs: set[int] = set()
        self._live: dict[str, JobRun] = {}
        self._numbers = 0

    def submit(self, run: JobRun) -> None:
        """Queue a job. Hub thread only."""
        run.job.on_terminate(lambda: self.stop(run))
        self._live[run.job.job_id] = run
        self._waiting.append(run)
        self._pump()

    def stop(self, run: JobRun) -> None:
        """Stop a job and return when its processes are gone. Any thread but the hub's."""
        children = self._hub.call(lambda: self._begin_stop(run, JobStatus.STOPPED, None))
        for child in children:
            child.terminate()
        wait_quietly(lambda: all(child.ended for child in children), _GRACE_S)
        for child in children:
            child.kill()
        run.job.wait(raise_on_failure=False)

    def shutdown(self) -> None:
        """Stop everything and return when all processes are gone. Any thread but the hub's."""
        children = self._hub.call(self._begin_shutdown)
        for child in children:
            child.kill()
        wait_quietly(lambda: all(child.ended for child in children), 10.0)

    def prewarm(self, count: int, environ: Mapping[str, str], cwd: str | None) -> None:
        """Start ``count`` idle workers. Hub thread only."""
        for _ in range(count):
            self._idle.append((_key(environ, cwd), self._spawn_worker(environ, cwd)))

    def _begin_stop(self, run: JobRun, status: JobStatus, failure: Failure | None) -> list[Child]:
        if run.stopping is None:
            run.stopping, run.failure = status, failure
        if run in self._waiting:
            self._waiting.remove(run)
        self._go_on(run)
        return self._children_of(run)

    def _begin_shutdown(self) -> list[Child]:
        for run in list(self._live.values()):
            self._begin_stop(run, JobStatus.STOPPED, None)
        return list(self._children)

    def _pump(self) -> None:
        while self._waiting:
            run = self._waiting[0]
            if self._active and len(self._active) + run.job.request.num_replicas > self._max:
                return
            self._waiting.popleft()
            self._start_job(run)

    def _start_job(self, run: JobRun) -> None:
        count = run.job.request.num_replicas
        ports = ["coordinator", *run.job.request.ports] if count > 1 else run.job.request.ports
        run.leases = [PortLeases(ports if rank == 0 else run.job.request.ports) for rank in range(count)]
        if count > 1:
            run.coordinator = f"127.0.0.1:{run.leases[0].environ.pop(variable('coordinator'))}"
        run.runs = [Run(run, rank) for rank in range(count)]
        run.succeeded = 0
        run.job.set_running()
        attempt = run.attempt
        for task in run.runs:
            self._start_task(task)
            if run.stopping is not None or run.retrying or run.attempt != attempt:
                return  # it could not start

    def _start_task(self, task: Run) -> None:
        run = task.job
        job = run.job
        identity = JobIdentity(task.rank, job.request.num_replicas, job.job_id, run.coordinator, run.attempt)
        given = identity.to_environment() | run.leases[task.rank].environ
        try:
            if run.payload is None:
                command = job.request.entrypoint.command or ()
                environ = dict(run.environ) | given
                child = self._spawn(command, environ, run.cwd, with_socket=False)
            else:
                child = self._worker_for(run)
        except OSError as error:
            self._task_failed(task, Failure(error=error, traceback_text=f"{type(error).__name__}: {error}"))
            return
        task.child = child
        child.log = job.logs_by_rank[task.rank]
        self._active[child] = task
        if run.payload is not None:
            self._numbers += 1
            task.number = self._numbers
            message = Task(job.job_id, run.payload, given, run.memory_limit_bytes)
            child.send([(Kind.JOB, task.number, dumps(message, "a task"))])

    def _worker_for(self, run: JobRun) -> Child:
        key = _key(run.environ, run.cwd)
        if not run.job.request.fresh_process:
            for index, (idle_key, child) in enumerate(self._idle):
                if idle_key == key:
                    del self._idle[index]
                    return child
        if self._idle and len(self._children) >= self._max:
            self._idle.pop(0)[1].kill()  # make room: an idle child of another environment is worth least
        return self._spawn_worker(run.environ, run.cwd)

    def _spawn_worker(self, environ: Mapping[str, str], cwd: str | None) -> Child:
        return self._spawn(worker_command(environ), environ, cwd, with_socket=True)

    def _spawn(self, command: list[str] | tuple[str, ...], environ: Mapping[str, str], cwd: str | None, *,
               with_socket: bool) -> Child:  # fmt: skip
        child = Child(
            self._hub, self._guardian, command, environ, cwd,
            with_socket=with_socket, on_frame=self._on_frame, on_exit=self._on_exit,
        )  # fmt: skip
        self._children.add(child)
        return child

    def _on_frame(self, child: Child, kind: Kind, number: int, payload: bytes) -> None:
        task = self._active.get(child)
        if task is None or number >> 1 != task.number:
            return
        if number & 1:
            del self._active[child]
            child.log = None
            if not child.doomed:
                self._idle.append((_key(task.job.environ, task.job.cwd), child))
            self._settle(task, kind, payload)
        else:
            task.outcome = (kind, payload)  # the child ends now; settle when it is gone, with what it started

    def _on_exit(self, child: Child, exit_code: int | None, signal: int | None) -> None:
        self._children.discard(child)
        self._idle = [(key, idle) for key, idle in self._idle if idle is not child]
        task = self._active.pop(child, None)
        if task is not None:
            if task.outcome is not None:
                self._settle(task, *task.outcome)
            elif task.job.payload is None and exit_code == 0:
                self._settle(task, Kind.RESULT, b"")
            else:
                self._task_failed(task, Failure(exit_code=exit_code, signal=signal))
        self._pump()

    def _settle(self, task: Run, kind: Kind, payload: bytes) -> None:
        if kind is Kind.RESULT:
            run = task.job
            if task.rank == 0:
                run.value = payload
            run.succeeded += 1
            self._go_on(run)
        elif kind is Kind.EXIT:
            self._task_failed(task, Failure(exit_code=int(payload)))
        else:
            self._task_failed(task, Failure(packed_error=payload))
        self._pump()

    def _task_failed(self, task: Run, failure: Failure) -> None:
        run = task.job
        if run.stopping is None and not run.retrying and run.attempt < run.job.request.max_retries_failure:
            # The processes of a gang talk to each other, so they all start again.
            run.retrying = True
            for child in self._children_of(run):
                child.kill()
            self._go_on(run)
        elif not run.retrying:
            for child in self._begin_stop(run, JobStatus.FAILED, failure):
                child.kill()
        else:
            self._go_on(run)

    def _children_of(self, run: JobRun) -> list[Child]:
        return [task.child for task in run.runs if task.child is not None and task.child in self._active]

    def _go_on(self, run: JobRun) -> None:
        """Start the next attempt, or finish, when the last process of this attempt has ended."""
        if self._children_of(run):
            return
        if run.retrying or run.stopping is not None or run.succeeded == len(run.runs):
            for leases in run.leases:
                leases.release()
        if run.retrying and run.stopping is None:
            run.retrying = False
            run.attempt += 1
            self._start_job(run)
        elif run.stopping is not None or run.succeeded == len(run.runs):
            self._finish(run)

    def _finish(self, run: JobRun) -> None:
        self._live.pop(run.job.job_id, None)
        if run.stopping is None:
            if run.payload is None:
                run.job.value.set_value(None)
            else:
                run.job.value.set_raw(True, run.value)
        run.job.finish(run.stopping or JobStatus.SUCCEEDED, run.failure)


def _key(environ: Mapping[str, str], cwd: str | None) -> object:
    return (cwd, environ)
