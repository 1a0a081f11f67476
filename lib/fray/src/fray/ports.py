"""Network ports for jobs: asked for by name, allocated where the task runs, given back however it ends.

A job that names ports in its request finds their numbers with ``job_port``. Between choosing a free port and the
server binding it, nobody else may be given the same one; so a port is leased with a file lock that the kernel drops
when the holder ends, even by SIGKILL: a port cannot leak.
"""

import contextvars
import fcntl
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

from fray.errors import PortNotFoundError

_VARIABLE: Final = "MARIN_PORT_"
_TRIES: Final = 1_000
_in_thread: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("fray_ports", default=None)


def job_port(name: str) -> int:
    """Return the port that this task was given under ``name`` (``JobRequest(ports=[name])``).

    Raises:
        PortNotFoundError: This task has no such port; lists those it has.

    Example:
        >>> from fray import Entrypoint, JobRequest, LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     entry = Entrypoint.from_callable(job_port, ["http"])
        ...     client.submit(JobRequest("serve", entry, ports=["http"])).result() > 1023
        True
    """
    given = _in_thread.get() or os.environ
    text = given.get(variable(name))
    if text is None:
        has = sorted(key.removeprefix(_VARIABLE).lower() for key in given if key.startswith(_VARIABLE))
        raise PortNotFoundError(name, has)
    return int(text)


def variable(name: str) -> str:
    """Return the environment variable that holds a port, for commands.

    Example:
        >>> variable("http-admin")
        'MARIN_PORT_HTTP_ADMIN'
    """
    return _VARIABLE + name.upper().replace("-", "_")


def set_thread_ports(environ: Mapping[str, str]) -> None:
    """Let ``job_port`` look here in this context; for backends whose tasks share a process."""
    _in_thread.set(environ)


class PortLease:
    """A port of this machine that no other lease has; hold it as long as the server may live."""

    def __init__(self) -> None:
        folder = os.path.join(tempfile.gettempdir(), f"fray-ports-{os.getuid()}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for _ in range(_TRIES):
            with socket.socket() as probe:
                probe.bind(("", 0))
                number = probe.getsockname()[1]
                descriptor = _lock(os.path.join(folder, str(number)))
                if descriptor is not None:
                    self.number: int = number
                    self._path = os.path.join(folder, str(number))
                    self._descriptor: int | None = descriptor
                    return
        raise OSError(f"no free port after {_TRIES} tries; expected some. End some servers of this machine.")

    def release(self) -> None:
        """Give the port back; again does nothing."""
        if self._descriptor is not None:
            os.unlink(self._path)  # while the lock is held, so the file is ours
            os.close(self._descriptor)
            self._descriptor = None


def _lock(path: str) -> int | None:
    """Return a descriptor that holds the lock of ``path``, None if another process holds it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last holder may have removed the file in between: then the lock is on a file that nobody else will see.
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
            return descriptor
    except OSError:
        pass  # leased to somebody who has not bound it yet, or removed just now
    os.close(descriptor)
    return None


class PortLeases:
    """The ports of one task.

    Example:
        >>> with PortLeases(["http"]) as leases:
        ...     list(leases.environ)
        ['MARIN_PORT_HTTP']
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._leases = {name: PortLease() for name in names}
        self.environ = {variable(name): str(lease.number) for name, lease in self._leases.items()}

    def release(self) -> None:
        """Give all of them back."""
        for lease in self._leases.values():
            lease.release()

    def __enter__(self) -> "PortLeases":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
