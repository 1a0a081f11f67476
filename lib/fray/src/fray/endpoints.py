"""Endpoints: a job says where it can be reached, and others find it by name.

``current_client().publish_endpoint("web", "http://10.0.0.1:8000")`` in a job, ``client.resolve_endpoint("web")``
anywhere in the same tree of jobs. An endpoint belongs to the job that published it and is gone when the job has ended,
however it ended.
"""

import contextvars
import json
import os
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from rigging.job_identity import JobIdentity

from fray.errors import EndpointNotFoundError, EndpointTakenError, JobRequestError

FOLDER_VARIABLE: Final = "FRAY_ENDPOINTS"
_POLL_S: Final = 0.02
_MOST_POLL_S: Final = 0.5
_thread_job: contextvars.ContextVar[str | None] = contextvars.ContextVar("fray_thread_job", default=None)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A name with an address.

    Args:
        name: Name without blanks.
        address: Whatever callers understand: a URL, ``host:port``.
        job_id: Job that published it; None outside a job.
        pid: Process that published it.
        started: When that process started, in clock ticks since boot; tells it from a later one of the same number.

    Example:
        >>> Endpoint("web", "http://localhost:80").name
        'web'
    """

    name: str
    address: str
    job_id: str | None = None
    pid: int = 0
    started: int = 0


def current_job_id() -> str | None:
    """Return the id of the job that this code runs in, None outside one.

    Example:
        >>> current_job_id() is None  # this is no job
        True
    """
    return _thread_job.get() or JobIdentity.from_environment().job_id


def set_thread_job(job_id: str) -> None:
    """Set the job of this context; for backends whose tasks share a process."""
    _thread_job.set(job_id)


def new_endpoint(name: str, address: str) -> Endpoint:
    """Return an endpoint of the present job and process.

    Raises:
        JobRequestError: A blank in the name, or no address.

    Example:
        >>> new_endpoint("web", "http://localhost:80").address
        'http://localhost:80'
    """
    if not name or any(char.isspace() for char in name):
        raise JobRequestError("endpoint", name, "a name without blanks", "Use dashes.")
    if not address:
        raise JobRequestError("address", address, "an address such as http://host:port")
    return Endpoint(name, address, current_job_id(), os.getpid(), process_start(os.getpid()) or 0)


def process_start(pid: int) -> int | None:
    """Return when a process of this machine started, in ticks since boot; None when there is no such process.

    Example:
        >>> process_start(os.getpid()) == process_start(os.getpid()), process_start(2**22 + 1)
        (True, None)
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def wait_for_endpoint(look: Callable[[], Endpoint | None], name: str, timeout: float) -> str:
    """Ask ``look`` until it knows the endpoint, and return its address.

    Raises:
        EndpointNotFoundError: Nobody published it in time.

    Example:
        >>> wait_for_endpoint(lambda: Endpoint("web", "http://localhost:80"), "web", 1.0)
        'http://localhost:80'
    """
    end_s = time.monotonic() + timeout
    pause_s = _POLL_S
    while True:
        found = look()
        if found is not None:
            return found.address
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise EndpointNotFoundError(name, timeout)
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _MOST_POLL_S)


class EndpointFolder:
    """Endpoints of one machine, one file each; written whole, and of no account once their process is gone.

    Example:
        >>> folder = EndpointFolder(tempfile.mkdtemp())
        >>> folder.publish(new_endpoint("web", "localhost:80"))
        >>> folder.find("web").address, list(folder.all())
        ('localhost:80', ['web'])
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def publish(self, endpoint: Endpoint) -> None:
        """Make an endpoint known; the job that has published it before may change it.

        Raises:
            EndpointTakenError: A job that lives has published the name.
        """
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        target = self._file(endpoint.name)
        descriptor, staged = tempfile.mkstemp(dir=self._path, prefix=".")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(asdict(endpoint), stream)
        try:
            os.link(staged, target)
        except FileExistsError:
            known = self.find(endpoint.name)
            if known is not None and known.job_id != endpoint.job_id:
                raise EndpointTakenError(endpoint.name, known.address) from None
            os.replace(staged, target)
        finally:
            if os.path.exists(staged):
                os.unlink(staged)

    def find(self, name: str) -> Endpoint | None:
        """Return the endpoint of that name whose process lives."""
        try:
            with open(self._file(name), encoding="utf-8") as stream:
                endpoint = Endpoint(**json.load(stream))
        except FileNotFoundError:
            return None
        alive = process_start(endpoint.pid)
        return endpoint if alive is not None and alive == endpoint.started else None

    def all(self, prefix: str = "") -> Mapping[str, Endpoint]:
        """Return the endpoints that live and whose name begins with ``prefix``."""
        try:
            names = sorted(urllib.parse.unquote(name) for name in os.listdir(self._path) if name[0] != ".")
        except FileNotFoundError:
            return {}
        found = {name: self.find(name) for name in names if name.startswith(prefix)}
        return {name: endpoint for name, endpoint in found.items() if endpoint is not None}

    def forget_job(self, job_id: str) -> None:
        """Remove what a job has published."""
        if os.path.isdir(self._path):
            for endpoint in self.all().values():
                if endpoint.job_id == job_id:
                    os.unlink(self._file(endpoint.name))

    def _file(self, name: str) -> str:
        return os.path.join(self._path, urllib.parse.quote(name, safe=""))
