"""Every error that fray raises, in one tree.

Each class also is the builtin that fits it::

    FrayError
    ├── JobRequestError         (ValueError)      a job, environment or actor description that cannot be
    ├── EnvironmentSetupError   (RuntimeError)    the packages of an environment cannot be installed
    ├── SerializationError      (TypeError)       something cannot travel to another process
    ├── BackendNotFoundError    (LookupError)     no backend of that name is installed
    ├── BackendMissingError     (ImportError)     the backend's extra is not installed
    ├── ClientClosedError       (RuntimeError)    the client was shut down
    ├── JobAlreadyExists        (FileExistsError) a different live job has this name
    ├── CallCancelledError      (RuntimeError)    a submitted call was cancelled
    ├── JobFailed               (RuntimeError)    a job ended without success
    ├── RemoteError             (RuntimeError)    stand-in for a remote exception that cannot be revived here
    ├── PortNotFoundError       (LookupError)     the job did not ask for a port of this name
    ├── EndpointNotFoundError   (LookupError)     nobody has published an endpoint of this name
    ├── EndpointTakenError      (FileExistsError) another job has published this name
    └── ActorUnavailableError   (ConnectionError) the actor is gone, or died during the call

Message form: ``what failed: name=value; expected ... . What to do.``  The values are attributes.
"""

import signal as signal_module
from typing import Any, Self


def _revive(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class FrayError(Exception):
    """Root of every error that fray raises on purpose. All of them can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


class JobRequestError(FrayError, ValueError):
    """A request contradicts itself or cannot be carried out.

    Example:
        >>> error = JobRequestError("count", 0, "at least 1")
        >>> error.field, error.value, isinstance(error, ValueError)
        ('count', 0, True)
    """

    def __init__(self, field: str, value: object, expected: str, remedy: str = "Fix the request.") -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"bad request: {field}={value!r}; expected {expected}. {remedy}")


class EnvironmentSetupError(FrayError, RuntimeError):
    """The packages that an environment names cannot be installed."""

    def __init__(self, requirements: list[str], reason: str) -> None:
        self.requirements = requirements
        self.reason = reason
        super().__init__(
            f"cannot install packages: requirements={requirements}, {reason}; expected uv to install them. "
            "Install uv (pip install uv), check the names, or install them in the driver's environment."
        )


class SerializationError(FrayError, TypeError):
    """A value cannot be pickled, so it cannot travel to another process.

    Example:
        >>> "cloudpickle can pickle" in str(SerializationError("a lock", "TypeError"))
        True
    """

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(
            f"cannot send {what} to another process: {reason}; expected a value that cloudpickle can pickle. "
            "Open files, locks and connections inside the function instead of passing them."
        )


class BackendNotFoundError(FrayError, LookupError):
    """No installed distribution offers a backend of this name.

    Example:
        >>> BackendNotFoundError("cloud", ["local", "ray"]).installed
        ['local', 'ray']
    """

    def __init__(self, name: str, installed: list[str]) -> None:
        self.name = name
        self.installed = installed
        super().__init__(
            f"unknown fray backend: name={name!r}; expected one of {installed}. "
            "Install the distribution that offers it, or use one that is installed."
        )


class BackendMissingError(FrayError, ImportError):
    """The library that a backend stands on is not installed.

    Example:
        >>> str(BackendMissingError("ray", "marin-fray[ray]")).rpartition("with: ")[2]
        "pip install 'marin-fray[ray]'"
    """

    def __init__(self, backend: str, requirement: str) -> None:
        self.backend = backend
        self.requirement = requirement
        super().__init__(
            f"cannot load the fray backend {backend!r}: its library is not installed; expected the extra. "
            f"Install it with: pip install '{requirement}'"
        )


class ClientClosedError(FrayError, RuntimeError):
    """The client was shut down; it starts nothing any more."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        super().__init__(f"client is shut down: operation={operation}; expected a live client. Make a new client.")


class JobAlreadyExists(FrayError, FileExistsError):
    """A live job has this name, and it is not the same job.

    Example:
        >>> JobAlreadyExists("train").job_name
        'train'
    """

    def __init__(self, job_name: str, handle: object = None) -> None:
        self.job_name = job_name
        self.handle = handle
        super().__init__(
            f"a live job has this name: name={job_name!r}; expected a name of its own. "
            "Wait for that job, terminate it, or choose another name."
        )


def describe_exit(exit_code: int | None, signal: int | None) -> str:
    """Return how a process ended, in words.

    Example:
        >>> describe_exit(3, None), describe_exit(None, 9)
        ('exit code 3', 'killed by SIGKILL (out of memory, or from outside)')
    """
    if signal is None:
        return f"exit code {exit_code}"
    try:
        name = signal_module.Signals(signal).name
    except ValueError:
        name = f"signal {signal}"
    return f"killed by {name}" + (" (out of memory, or from outside)" if name == "SIGKILL" else "")


class JobFailed(FrayError, RuntimeError):
    """A job failed or was stopped.

    Args:
        job_id: The job.
        failed_status: Its final status.
        exit_code: Exit code of the process, when it ended by itself and not through an exception.
        signal: Number of the signal that ended it.
        log_tail: Last lines of its output.
        remote_traceback: Traceback text of the exception that ended it. When the exception could be revived, it is the
            ``__cause__``.
    """

    def __init__(
        self,
        job_id: str,
        failed_status: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        log_tail: tuple[str, ...] = (),
        remote_traceback: str | None = None,
    ) -> None:
        self.job_id = job_id
        self.failed_status = failed_status
        self.exit_code = exit_code
        self.signal = signal
        self.log_tail = log_tail
        self.remote_traceback = remote_traceback
        if remote_traceback:
            why = remote_traceback.strip().splitlines()[-1]
        elif exit_code is None and signal is None:
            why = "it was stopped" if failed_status == "stopped" else "no reason was reported"
        else:
            why = describe_exit(exit_code, signal)
        text = f"job did not succeed: job={job_id!r}, status={failed_status}, {why}; expected it to succeed. "
        text += "Read the output below or with handle.logs()."
        if log_tail:
            text += "\n  last output:\n" + "\n".join(f"  | {line}" for line in log_tail[-10:])
        super().__init__(text)


class RemoteError(FrayError, RuntimeError):
    """Stand-in for an exception that cannot be revived here: its class or its content does not travel.

    Example:
        >>> RemoteError("mod.Oops", "bad").type_name
        'mod.Oops'
    """

    def __init__(self, type_name: str, text: str, remote_traceback: str = "") -> None:
        self.type_name = type_name
        self.text = text
        self.remote_traceback = remote_traceback
        super().__init__(
            f"a remote exception could not be revived: {type_name}: {text}; expected a picklable exception. "
            "Read the remote traceback in the notes."
        )


class CallCancelledError(FrayError, RuntimeError):
    """A call made with ``submit`` was cancelled, by its caller or because its time was up.

    Example:
        >>> CallCancelledError("counter-0.add").call
        'counter-0.add'
    """

    def __init__(self, call: str, reason: str = "cancel() was called") -> None:
        self.call = call
        self.reason = reason
        super().__init__(
            f"call was cancelled: call={call!r}, {reason}; expected it to run to its end. "
            "The method may still be running if it does not ask cancel_requested(); submit it again if need be."
        )


class PortNotFoundError(FrayError, LookupError):
    """The task that asks was not given a port of this name.

    Example:
        >>> PortNotFoundError("http", ["grpc"]).allocated
        ['grpc']
    """

    def __init__(self, name: str, allocated: list[str]) -> None:
        self.port_name = name
        self.allocated = allocated
        super().__init__(
            f"no port of this name: name={name!r}; expected one of {allocated}. "
            "Name it in the job's request: JobRequest(..., ports=[...])."
        )


class EndpointNotFoundError(FrayError, LookupError):
    """Nobody who lives has published an endpoint of this name.

    Example:
        >>> isinstance(EndpointNotFoundError("web", 3.0), LookupError)
        True
    """

    def __init__(self, name: str, timeout_s: float) -> None:
        self.endpoint = name
        self.timeout_s = timeout_s
        super().__init__(
            f"no endpoint of this name: name={name!r}, waited {timeout_s} s; expected a job to publish it. "
            "Wait longer, or look at the log of the job that should."
        )


class EndpointTakenError(FrayError, FileExistsError):
    """Another job that lives has published this name."""

    def __init__(self, name: str, address: str) -> None:
        self.endpoint = name
        self.address = address
        super().__init__(
            f"endpoint is taken: name={name!r}, published with address={address!r} by another job; expected a free "
            "name. Put the job's name or rank into it."
        )


class ActorUnavailableError(FrayError, ConnectionError):
    """The actor does not answer: never started, died during the call, or was shut down.

    Example:
        >>> isinstance(ActorUnavailableError("counter-0", "it was shut down"), ConnectionError)
        True
    """

    def __init__(self, actor: str, reason: str) -> None:
        self.actor = actor
        self.reason = reason
        super().__init__(
            f"actor unavailable: actor={actor!r}, {reason}; expected a live actor. "
            "A call that was under way may or may not have taken effect; repeat it only if that is harmless."
        )

    @classmethod
    def during_call(cls, actor: str) -> Self:
        """Make the error of a call whose actor died before it answered."""
        return cls(actor, "it ended before it answered")
