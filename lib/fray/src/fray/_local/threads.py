"""Thread mode: jobs and actors in threads of this process.

For tests and for code that shares memory on purpose. The contract is that of processes with three exceptions that
threads cannot help: a running thread cannot be killed, it shares the environment and the output of the process, and
(unless ``strict_pickle``) arguments are passed by reference.
"""

import contextvars
import threading
import traceback
import uuid
from collections.abc import Callable
from typing import Any

from fray._job import Failure, Job
from fray._local.executor import ActorExecutor
from fray._local.handles import LocalActorHandle, register_in_process, unregister_in_process
from fray._members import number_wanted
from fray.actor import ActorContext, set_current_actor
from fray.endpoints import set_thread_job
from fray.errors import ActorUnavailableError
from fray.ports import PortLeases, set_thread_ports
from fray.types import ActorConfig, JobStatus

_in_job: contextvars.ContextVar[bool] = contextvars.ContextVar("fray_in_thread_job", default=False)


class ThreadRunner:
    """Runs callables in threads, at most ``max_workers`` at once; jobs of jobs do not count, so waiting cannot
    deadlock."""

    def __init__(self, max_workers: int) -> None:
        self._slots = threading.Semaphore(max_workers)
        self._lock = threading.Lock()
        self._jobs: set[Job] = set()

    def submit(self, job: Job, call: Callable[[], Any]) -> None:
        """Start ``call`` in a thread of its own when there is room."""
        context = contextvars.copy_context()
        nested = _in_job.get()
        job.on_terminate(lambda: self._stop(job))
        with self._lock:
            self._jobs.add(job)
        args = (job, call, nested)
        threading.Thread(target=context.run, args=(self._run, *args), name=f"job {job.job_id}", daemon=True).start()

    def shutdown(self) -> None:
        """Mark every job that has not ended as stopped; running threads go on unseen."""
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            self._stop(job)

    def _stop(self, job: Job) -> None:
        job.finish(JobStatus.STOPPED)

    def _run(self, job: Job, call: Callable[[], Any], nested: bool) -> None:
        _in_job.set(True)
        if not nested:
            self._slots.acquire()
        try:
            if not JobStatus.finished(job.status()):
                self._run_attempts(job, call)
        finally:
            if not nested:
                self._slots.release()
            with self._lock:
                self._jobs.discard(job)

    def _run_attempts(self, job: Job, call: Callable[[], Any]) -> None:
        job.set_running()
        set_thread_job(job.job_id)
        with PortLeases(job.request.ports) as leases:
            set_thread_ports(leases.environ)
            self._attempt_until_done(job, call)

    def _attempt_until_done(self, job: Job, call: Callable[[], Any]) -> None:
        for attempt in range(job.request.max_retries_failure + 1):
            try:
                value = call()
            except BaseException as error:  # thread boundary: the job's owner gets it
                if isinstance(error, SystemExit) and error.code in (None, 0):
                    value = None
                elif attempt < job.request.max_retries_failure:
                    continue
                else:
                    _finish_failed(job, error)
                    return
            job.value.set_value(value)
            job.finish(JobStatus.SUCCEEDED)
            return


def _finish_failed(job: Job, error: BaseException) -> None:
    if isinstance(error, SystemExit):
        job.finish(JobStatus.FAILED, Failure(exit_code=error.code if isinstance(error.code, int) else 1))
        return
    text = "".join(traceback.format_exception(error))
    job.logs_by_rank[0].feed(text.encode())
    job.finish(JobStatus.FAILED, Failure(error=error, traceback_text=text))


class ThreadActorGroup:
    """Equal actors in this process; see ``fray.actor.ActorGroup``. Constructed one after another in the caller's
    thread."""

    def __init__(
        self, name: str, make: Callable[[], object], count: int, config: ActorConfig, strict_pickle: bool = False
    ) -> None:
        self.name = name
        self._make = make
        self._config = config
        self._strict = strict_pickle
        uid = uuid.uuid4().hex
        self._handles = [LocalActorHandle(f"local/{name}-{index}/{uid}", name, index) for index in range(count)]
        self._executors: list[ActorExecutor | None] = [None] * count
        self._attempts = [0] * count
        self._failure: BaseException | None = None
        for index in range(count):
            self._construct(index)
            if self._failure is not None:
                self.shutdown()
                return

    def _construct(self, index: int) -> None:
        handle: Any = self._handles[index]
        ending = threading.Event()
        context = ActorContext(handle, index, self.name, ending, self._attempts[index])
        self._attempts[index] += 1
        try:
            instance = contextvars.copy_context().run(_construct_as_actor, context, self._make)
        except BaseException as error:  # the same boundary as with processes: wait_ready tells
            self._failure = error
            return
        executor = ActorExecutor(instance, context, self._config.max_concurrency, strict_pickle=self._strict)
        self._executors[index] = executor
        register_in_process(handle._endpoint, executor)
        threading.Thread(target=self._close_at_end, args=(index, executor, ending), daemon=True).start()

    def _close_at_end(self, index: int, executor: ActorExecutor, ending: threading.Event) -> None:
        ending.wait()
        executor.close()
        if self._executors[index] is executor:
            self._executors[index] = None
            unregister_in_process(self._handles[index]._endpoint)

    @property
    def handles(self) -> list[Any]:
        """All handles, by index."""
        return list(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def wait_ready(self, count: int | None = None, timeout: float = 900.0) -> list[Any]:
        """Return the handles: construction happened at creation.

        Raises:
            JobRequestError: ``count`` is more than there are, or less than one.
            ActorUnavailableError: A constructor failed (it is the cause), or too few actors live.
        """
        wanted = number_wanted(count, len(self._handles))
        if self._failure is not None:
            raise ActorUnavailableError(self.name, "an actor could not be constructed") from self._failure
        alive = [self._handles[i] for i, executor in enumerate(self._executors) if executor is not None]
        if len(alive) < wanted:
            raise ActorUnavailableError(self.name, f"only {len(alive)} of {wanted} actors live")
        return alive

    def restart(self, index: int) -> None:
        """Replace one actor by a fresh one under the same name."""
        executor = self._executors[index]
        if executor is None:
            raise ActorUnavailableError(f"{self.name}-{index}", "it has ended")
        executor.close()
        self._construct(index)

    def logs(self, index: int, max_lines: int = 100) -> list[str]:
        """Return nothing: threads share the output of the process."""
        return []

    def is_done(self) -> bool:
        """Tell whether every actor has ended."""
        return all(executor is None for executor in self._executors)

    def shutdown(self) -> None:
        """End all actors; further calls are refused."""
        for index, executor in enumerate(self._executors):
            self._executors[index] = None
            unregister_in_process(self._handles[index]._endpoint)
            if executor is not None:
                executor.close()
                executor.end()


def _construct_as_actor(context: ActorContext, make: Callable[[], object]) -> object:
    set_current_actor(context)
    return make()
