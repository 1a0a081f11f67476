"""Steps whose body runs as a job: on a cluster, or in a child process of this machine.

``remote(fn, resources=...)`` marks a function; the engine submits it through the current fray client. What a job
needs rides on the function, so it never enters the identity of a step: the same recipe on another machine type is the
same recipe.
"""

import logging
import re
import resource
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from fray import Entrypoint, JobHandle, JobRequest, create_environment, current_client
from rigging.log_setup import LineFormatter
from rigging.memory import peak_rss_bytes
from rigging.resources import ResourceConfig

from marin.execution.attempt_context import StepAttempt, attempt_scope, step_attempt

_POLL_S = 0.2
_PROGRESS_LOGGER = " rigging.progress "
_JOB_ENVIRONMENT = {"MARIN_PROGRESS_INTERVAL_S": "1"}


@dataclass(frozen=True)
class RemoteCallable:
    """A function with what a job needs to run it. Calling it submits the job and waits.

    Attributes:
        fn: The function.
        resources: What the job asks for.
        name: Job name; derived from the step or the function when empty.
        env_vars: Environment of the job.
        pip_dependency_groups: Extras to install; None takes the device's default, an empty list none.
    """

    fn: Callable[..., Any]
    resources: ResourceConfig = field(default_factory=ResourceConfig.with_cpu)
    name: str = ""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    pip_dependency_groups: Sequence[str] | None = None

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, so that ``inspect.signature`` sees its arguments."""
        return self.fn

    def rewrap(self, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> "RemoteCallable":
        """The same job description around ``wrapper(fn)``."""
        return RemoteCallable(wrapper(self.fn), self.resources, self.name, self.env_vars, self.pip_dependency_groups)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a job and return its result.

        Raises:
            JobFailed: The job failed; the original exception is its cause where it can travel.
        """
        return run_job(self, args, kwargs).value


@overload
def remote(
    fn: Callable[..., Any],
    *,
    name: str = ...,
    resources: ResourceConfig | None = ...,
    env_vars: Mapping[str, str] | None = ...,
    pip_dependency_groups: Sequence[str] | None = ...,
) -> RemoteCallable: ...
@overload
def remote(
    fn: None = None,
    *,
    name: str = ...,
    resources: ResourceConfig | None = ...,
    env_vars: Mapping[str, str] | None = ...,
    pip_dependency_groups: Sequence[str] | None = ...,
) -> Callable[[Callable[..., Any]], RemoteCallable]: ...
def remote(
    fn: Callable[..., Any] | None = None,
    *,
    name: str = "",
    resources: ResourceConfig | None = None,
    env_vars: Mapping[str, str] | None = None,
    pip_dependency_groups: Sequence[str] | None = None,
) -> RemoteCallable | Callable[[Callable[..., Any]], RemoteCallable]:
    """Mark a function to be run as a job; a decorator, with or without arguments, or a wrapper.

    Args:
        fn: The function.
        name: Job name.
        resources: What the job asks for; one CPU by default.
        env_vars: Environment of the job.
        pip_dependency_groups: Extras to install in its environment.
    Returns:
        The marked function, or a decorator.
    Example:
        >>> remote(len).resources == ResourceConfig.with_cpu()
        True
    """

    def wrap(function: Callable[..., Any]) -> RemoteCallable:
        return RemoteCallable(
            function, resources or ResourceConfig.with_cpu(), name, dict(env_vars or {}), pip_dependency_groups
        )

    return wrap if fn is None else wrap(fn)


@dataclass(frozen=True)
class JobOutcome:
    """What came back from a job.

    Attributes:
        value: Return value of the function.
        resources: ``{cpu_s, ram_peak, scope}`` of the process that ran it.
        job_id: Id of the job.
        logs: Last lines of its output.
    """

    value: Any
    resources: dict[str, Any]
    job_id: str
    logs: str


def job_name(label: str) -> str:
    """A job name from a label: lowercase, safe characters, a random end.

    Example:
        >>> job_name("Tokens/Fine Web@dev")[:20]
        'tokens-fine-web-dev-'
    """
    return f"{re.sub(r'[^a-z0-9_.-]+', '-', label.lower()).strip('-.') or 'job'}-{secrets.token_hex(4)}"


def run_job(
    call: RemoteCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any], attempt: StepAttempt | None = None
) -> JobOutcome:
    """Submit a function as a job and wait for it; the job is terminated when the attempt is cancelled.

    Args:
        call: Function and job description.
        args: Its arguments.
        kwargs: Its keyword arguments.
        attempt: The attempt that the job belongs to; the current one by default.
    Raises:
        JobFailed: The job failed.
        StepCancelled: The attempt was cancelled (raised by the engine in this thread).
    """
    attempt = attempt or step_attempt()
    extras = call.pip_dependency_groups
    if extras is None:
        extras = _default_extras(call.resources)
    environment = create_environment(env_vars={**_JOB_ENVIRONMENT, **call.env_vars}, extras=tuple(extras))
    request = JobRequest(
        name=job_name(call.name or (attempt.step if attempt else getattr(call.fn, "__name__", "job"))),
        entrypoint=Entrypoint.from_callable(_in_job, (call.fn, args, dict(kwargs), _travelling(attempt))),
        resources=call.resources,
        environment=environment,
    )
    handle = current_client().submit(request)
    progress = _ProgressLines(handle, attempt.report if attempt is not None else None)
    try:
        while True:
            try:
                value, used = handle.result(timeout=_POLL_S)
            except TimeoutError:
                progress.forward()
                if attempt is not None and attempt.cancel.is_set():
                    handle.terminate()
                continue
            return JobOutcome(value, used, handle.job_id, "\n".join(handle.logs(max_lines=2_000)))
    except BaseException:
        handle.terminate()
        raise


class _ProgressLines:
    """Hands the newest progress line of a job's output on, each once."""

    def __init__(self, handle: JobHandle, report: Callable[[str], None] | None) -> None:
        self._handle = handle
        self._report = report
        self._last = ""

    def forward(self) -> None:
        """Look for a newer line."""
        if self._report is None:
            return
        lines = [line for line in self._handle.logs(max_lines=20) if _PROGRESS_LOGGER in line]
        text = lines[-1].partition(_PROGRESS_LOGGER)[2] if lines else ""
        if text and text != self._last:
            self._last = text
            self._report(text)


def _log_to_stderr() -> None:
    """In a job's own process, where nobody has set logging up: its output is what the attempt keeps."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter())
        root.addHandler(handler)
        root.setLevel(logging.INFO)


def _default_extras(resources: ResourceConfig) -> tuple[str, ...]:
    kind = getattr(resources.device, "kind", "cpu")
    return () if kind == "cpu" else (str(kind),)


def _travelling(attempt: StepAttempt | None) -> dict[str, Any] | None:
    """An attempt as plain data: the cancel event stays here, the job has its own."""
    if attempt is None:
        return None
    return {
        "step": attempt.step,
        "attempt": attempt.attempt,
        "epoch": attempt.epoch,
        "output_path": attempt.output_path,
        "scratch_path": attempt.scratch_path,
        "retry": attempt.retry,
    }


def _in_job(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], attempt: dict[str, Any] | None
) -> tuple[Any, dict[str, Any]]:
    """Runs in the job's process: the body, inside its attempt, with its use of the machine measured."""
    before = time.process_time()
    _log_to_stderr()
    if attempt is None:
        value = fn(*args, **kwargs)
    else:
        cancel = threading.Event()
        # A polite termination reaches the body through its cancel token first; what does not react is killed.
        in_main = threading.current_thread() is threading.main_thread()
        previous = signal.signal(signal.SIGTERM, lambda number, frame: cancel.set()) if in_main else None
        try:
            with attempt_scope(StepAttempt(**attempt, cancel=cancel)):
                value = fn(*args, **kwargs)
        finally:
            if in_main:
                signal.signal(signal.SIGTERM, previous)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = time.process_time() - before + children.ru_utime + children.ru_stime
    return value, {"cpu_s": round(cpu_s, 6), "ram_peak": peak_rss_bytes(), "scope": "job"}
