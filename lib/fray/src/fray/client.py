"""The one protocol that every backend speaks, and waiting for many jobs at once."""

from collections.abc import Sequence
from typing import Any, Protocol

from rigging.timing import Clock, ExponentialBackoff, SystemClock

from fray.actor import ActorGroup, ActorHandle
from fray.errors import JobAlreadyExists, JobFailed
from fray.types import ActorConfig, EnvironmentConfig, JobRequest, JobStatus, ResourceConfig

__all__ = ["Client", "HostedActor", "JobAlreadyExists", "JobFailed", "JobHandle", "wait_all"]


class JobHandle(Protocol):
    """A job that was submitted.

    Example:
        >>> from fray import Entrypoint, JobRequest, LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     job = client.submit(JobRequest("add", Entrypoint.from_callable(sum, [[1, 2]])))
        ...     str(job.wait(timeout=10)), job.result()
        ('succeeded', 3)
    """

    @property
    def job_id(self) -> str:
        """Id of the job, unique for the client."""
        ...

    def status(self) -> JobStatus:
        """Return where the job is now."""
        ...

    def wait(self, timeout: float | None = None, *, raise_on_failure: bool = True) -> JobStatus:
        """Wait for the end, up to ``timeout`` seconds.

        Raises:
            JobFailed: It failed or was stopped, and ``raise_on_failure``.
            TimeoutError: It has not ended yet, and ``raise_on_failure``; otherwise the present status is returned.
        """
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait and return the value of the callable (of rank 0, with replicas); None for a command.

        Raises:
            JobFailed: It failed or was stopped.
            TimeoutError: It has not ended yet.
        """
        ...

    def terminate(self) -> None:
        """Stop the job and everything it started; does nothing when it has ended."""
        ...

    def logs(self, max_lines: int = 100) -> list[str]:
        """Return the last lines of its output, without line ends."""
        ...


class HostedActor(Protocol):
    """An actor that lives in this process and can be called from others.

    Example:
        >>> from fray import LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     hosted = client.host_actor(list, [3, 1], name="here")
        ...     hosted.handle.count(3)
        1
    """

    handle: ActorHandle

    def shutdown(self) -> None:
        """Stop serving calls."""
        ...


class Client(Protocol):
    """Starts jobs and actors somewhere."""

    closed: bool

    def submit(self, request: JobRequest, adopt_existing: bool = True) -> JobHandle:
        """Start a job and return at once.

        A live job of the same name that runs the same thing is returned instead, if ``adopt_existing``.

        Raises:
            JobAlreadyExists: A live job has the name, and it is another one or ``adopt_existing`` is false.
            SerializationError: The callable or its arguments cannot travel.
        """
        ...

    def host_actor(
        self, cls: type, *args: Any, name: str, actor_config: ActorConfig = ActorConfig(), **kwargs: Any
    ) -> HostedActor:
        """Construct ``cls(*args, **kwargs)`` in this process and let other processes call it."""
        ...

    def create_actor(
        self,
        cls: type,
        *args: Any,
        name: str,
        resources: ResourceConfig | None = None,
        actor_config: ActorConfig = ActorConfig(),
        environment: EnvironmentConfig | None = None,
        **kwargs: Any,
    ) -> ActorHandle:
        """Start one actor; calls wait until it is constructed."""
        ...

    def create_actor_group(
        self,
        cls: type,
        *args: Any,
        name: str,
        count: int,
        resources: ResourceConfig | None = None,
        actor_config: ActorConfig = ActorConfig(),
        environment: EnvironmentConfig | None = None,
        **kwargs: Any,
    ) -> ActorGroup:
        """Start ``count`` equal actors."""
        ...

    def publish_endpoint(self, name: str, address: str) -> None:
        """Let every job of this tree of jobs find ``address`` under ``name``, until the job that published it ends.

        Raises:
            EndpointTakenError: Another job that lives has published the name.
            JobRequestError: A blank in the name, or no address.
        """
        ...

    def resolve_endpoint(self, name: str, timeout: float = 0.0) -> str:
        """Return the address that was published under ``name``, waiting up to ``timeout`` seconds for it.

        Raises:
            EndpointNotFoundError: Nobody who lives has published it in that time.
        """
        ...

    def endpoints(self, prefix: str = "") -> dict[str, str]:
        """Return names and addresses of all endpoints that begin with ``prefix``."""
        ...

    def shutdown(self, wait: bool = True) -> None:
        """End every job and actor of this client."""
        ...


def wait_all(
    jobs: Sequence[JobHandle],
    *,
    timeout: float | None = None,
    raise_on_failure: bool = True,
    clock: Clock = SystemClock(),
) -> list[JobStatus]:
    """Wait for all jobs; the first one that fails ends the waiting.

    Args:
        jobs: Handles, from any backend.
        timeout: Seconds for all of them together; None for no limit.
        raise_on_failure: Raise for the first job seen failed or stopped; otherwise wait for the rest too.
        clock: Source of time.
    Returns:
        Final statuses, in the order of ``jobs``.
    Raises:
        JobFailed: A job failed or was stopped.
        TimeoutError: Some have not ended; tells how many.

    Example:
        >>> from fray import Entrypoint, JobRequest, LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     jobs = [client.submit(JobRequest(f"n{n}", Entrypoint.from_callable(abs, [-n]))) for n in range(3)]
        ...     _ = wait_all(jobs, timeout=10)
        ...     [job.result() for job in jobs]
        [0, 1, 2]
    """
    pauses = ExponentialBackoff(initial=0.05, maximum=2.0, factor=1.5, jitter=0)
    end_s = None if timeout is None else clock.monotonic() + timeout
    open_jobs = dict(enumerate(jobs))
    while open_jobs:
        for index, job in list(open_jobs.items()):
            if JobStatus.finished(job.status()):
                job.wait(raise_on_failure=raise_on_failure)
                del open_jobs[index]
        if not open_jobs:
            break
        pause_s = pauses.next_interval()
        if end_s is not None:
            left_s = end_s - clock.monotonic()
            if left_s <= 0:
                raise TimeoutError(
                    f"jobs have not ended: {len(open_jobs)} of {len(jobs)} remain after timeout={timeout} s; "
                    "expected all to end. Wait longer or terminate them."
                )
            pause_s = min(pause_s, left_s)
        # Waiting on one of them instead of sleeping returns at once when it is the last to end.
        next(iter(open_jobs.values())).wait(pause_s, raise_on_failure=False)
    return [job.status() for job in jobs]
