"""The local backend: jobs and actors on this machine, with no server and no set-up.

*Process mode* (the default) runs every job and actor in a child process. Children are started fresh (never forked),
kept warm for the next job, captured in their output, and die with the driver however it dies. *Thread mode* runs the
same contract in threads, for tests and for work that shares memory.
"""

import atexit
import itertools
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from typing import Any, Final, Literal, Self

from fray._codec import dumps, ship_by_value_if_needed, through_pickle
from fray._job import Job, JobNames
from fray._local.actors import GroupSpec, ProcessActorGroup
from fray._local.addresses import unix_listener
from fray._local.child import Guardian
from fray._local.hosting import host_in_process
from fray._local.hub import get_hub
from fray._local.pool import JobRun, ProcessPool
from fray._local.threads import ThreadActorGroup, ThreadRunner
from fray._overlay import VARIABLE as OVERLAY_VARIABLE
from fray._overlay import overlay, requirements_of
from fray._requests import check_group, pack_call
from fray.client import HostedActor
from fray.endpoints import FOLDER_VARIABLE, EndpointFolder, new_endpoint, wait_for_endpoint
from fray.errors import ClientClosedError, JobRequestError
from fray.types import ActorConfig, Entrypoint, EnvironmentConfig, JobRequest, ResourceConfig

_SOCKET_FOLDER_LIMIT: Final = 60  # a socket's path may have 107 bytes on Linux
_open_clients: "weakref.WeakSet[LocalClient]" = weakref.WeakSet()


class LocalClient:
    """Jobs and actors on this machine; see ``fray.client.Client`` for the contract.

    Args:
        mode: ``"process"`` or ``"thread"``.
        max_workers: Tasks that run at once; default the number of usable cores, at least 4. Actors do not count.
        strict_pickle: Thread mode only: pass arguments and values through pickle, so that what works here works in
            processes.
        enforce_memory: Process mode only: limit each task's address space to the ``ram`` of its request.

    Example:
        >>> from fray import Entrypoint, JobRequest, LocalClient
        >>> with LocalClient() as client:
        ...     job = client.submit(JobRequest("add", Entrypoint.from_callable(sum, [[1, 2, 3]])))
        ...     job.result()
        6
    """

    def __init__(
        self,
        mode: Literal["process", "thread"] = "process",
        max_workers: int | None = None,
        *,
        strict_pickle: bool = False,
        enforce_memory: bool = False,
    ) -> None:
        if mode not in ("process", "thread"):
            raise JobRequestError("mode", mode, "'process' or 'thread'")
        if max_workers is not None and max_workers < 1:
            raise JobRequestError("max_workers", max_workers, "at least 1")
        self.mode = mode
        self.closed = False
        self._max_workers = max_workers or max(4, usable_cores())
        self._strict = strict_pickle
        self._enforce_memory = enforce_memory
        self._lock = threading.RLock()
        self._names = itertools.count()
        self._jobs = JobNames("local")
        self._groups: list[ProcessActorGroup | ThreadActorGroup] = []
        self._hosted: list[HostedActor] = []
        self._pid = os.getpid()
        self._guardian: Guardian | None = None
        self._pool: ProcessPool | None = None
        self._folder: str | None = None
        self._threads = ThreadRunner(self._max_workers)
        _open_clients.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def submit(self, request: JobRequest, adopt_existing: bool = True) -> Job:
        """Start a job and return at once; see ``fray.client.Client.submit``.

        Raises:
            JobAlreadyExists: A live job has this name and runs something else, or ``adopt_existing`` is false.
            JobRequestError: The environment asks for what this machine cannot give.
            EnvironmentSetupError: Its packages cannot be installed.
            SerializationError: The callable or its arguments cannot be pickled (process mode).
            ClientClosedError: The client was shut down.
        """
        surrounded = self._child_environ if self.mode == "process" else _surroundings
        environ, cwd = surrounded(request.environment, request.resources)
        entry = request.entrypoint
        in_thread = self.mode == "thread" and entry.fn is not None
        payload = None if entry.command is not None or in_thread else pack_call(entry)
        fingerprint = (entry.command, payload) if not in_thread else (entry.fn, entry.args, tuple(entry.kwargs.items()))
        with self._lock:
            self._require_open("submit")
            job, is_new = self._jobs.admit(request, fingerprint, adopt_existing)
        if not is_new:
            return job
        job.on_end(self._forget_endpoints)
        if in_thread:
            self._threads.submit(job, self._thread_call(entry))
        else:
            limit = request.resources.ram_bytes if self._enforce_memory else None
            run = JobRun(job, payload, environ, cwd, limit)
            pool = self._process_pool()
            get_hub().post(lambda: pool.submit(run))
        return job

    def prewarm(self, count: int) -> None:
        """Start ``count`` idle workers now, so that the next jobs find them warm (process mode)."""
        pool = self._process_pool()
        environ, cwd = self._child_environ(None, ResourceConfig())
        get_hub().call(lambda: pool.prewarm(count, environ, cwd))

    def host_actor(
        self, cls: type, *args: Any, name: str, actor_config: ActorConfig = ActorConfig(), **kwargs: Any
    ) -> HostedActor:
        """Construct an actor in this process that other processes can call; see ``fray.client.Client``.

        Example:
            >>> with LocalClient() as client:
            ...     client.host_actor(list, [3, 1], name="here").handle.count(3)
            1
        """
        self._require_open("host_actor")
        address = os.path.join(self._private_folder(), f"h{next(self._names)}")
        hosted = host_in_process(
            lambda: cls(*args, **kwargs), name, actor_config.max_concurrency, address, unix_listener(address)
        )
        self._hosted.append(hosted)
        return hosted

    def create_actor(
        self,
        cls: type,
        *args: Any,
        name: str,
        resources: ResourceConfig | None = None,
        actor_config: ActorConfig = ActorConfig(),
        environment: EnvironmentConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Start one actor and return its handle; calls wait until it is constructed."""
        group = self.create_actor_group(
            cls, *args, name=name, count=1, resources=resources, actor_config=actor_config, environment=environment,
            **kwargs,
        )  # fmt: skip
        return group.handles[0]

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
    ) -> Any:
        """Start ``count`` equal actors; see ``fray.client.Client``.

        Raises:
            JobRequestError: ``count < 1``, or a name with a slash or blank.
            SerializationError: The class or its arguments cannot be pickled (process mode).
            ClientClosedError: The client was shut down.

        Example:
            >>> with LocalClient(mode="thread") as client:
            ...     group = client.create_actor_group(list, [3, 1], name="lists", count=2)
            ...     len(group.wait_ready())
            2
        """
        check_group(name, count)
        self._require_open("create_actor_group")
        if self.mode == "thread":
            if self._strict:
                cls, args, kwargs = through_pickle((cls, args, kwargs), f"actor {name}")
            group: Any = ThreadActorGroup(name, lambda: cls(*args, **kwargs), count, actor_config, self._strict)
        else:
            environ, cwd = self._child_environ(environment, resources or ResourceConfig())
            ship_by_value_if_needed(cls)
            spec = GroupSpec(name, dumps((cls, args, kwargs), f"actor {name}"), actor_config, environ, cwd)
            prefix = f"a{next(self._names)}"
            self._process_pool()
            assert self._guardian is not None
            hub = get_hub()
            group = ProcessActorGroup(hub, self._guardian, spec, self._private_folder(), count, prefix)
            hub.call(group.start)
        with self._lock:
            self._groups = [known for known in self._groups if not known.is_done()]
            self._groups.append(group)
        return group

    def publish_endpoint(self, name: str, address: str) -> None:
        """Let every job of this tree of jobs find ``address``; see ``fray.client.Client``.

        Raises:
            EndpointTakenError: Another job that lives has published the name.
            JobRequestError: A blank in the name, or no address.
        """
        self._endpoint_folder().publish(new_endpoint(name, address))

    def resolve_endpoint(self, name: str, timeout: float = 0.0) -> str:
        """Return a published address, waiting up to ``timeout`` seconds; see ``fray.client.Client``.

        Raises:
            EndpointNotFoundError: Nobody who lives has published it in that time.

        Example:
            >>> with LocalClient(mode="thread") as client:
            ...     client.publish_endpoint("web", "http://localhost:8000")
            ...     client.resolve_endpoint("web")
            'http://localhost:8000'
        """
        return wait_for_endpoint(lambda: self._endpoint_folder().find(name), name, timeout)

    def endpoints(self, prefix: str = "") -> dict[str, str]:
        """Return names and addresses of all endpoints that begin with ``prefix``.

        Example:
            >>> with LocalClient(mode="thread") as client:
            ...     client.publish_endpoint("web", "http://localhost:8000")
            ...     client.endpoints("w"), client.endpoints("x")
            ({'web': 'http://localhost:8000'}, {})
        """
        return {name: endpoint.address for name, endpoint in self._endpoint_folder().all(prefix).items()}

    def _endpoint_folder(self) -> EndpointFolder:
        # Clients of nested jobs share the folder of the outermost one.
        return EndpointFolder(os.environ.get(FOLDER_VARIABLE) or os.path.join(self._private_folder(), "endpoints"))

    def _forget_endpoints(self, job: Job) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        if folder is None and self._folder is not None:
            folder = os.path.join(self._folder, "endpoints")
        if folder is not None:
            EndpointFolder(folder).forget_job(job.job_id)

    def _child_environ(self, environment: EnvironmentConfig | None, resources: ResourceConfig) -> Any:
        environ, cwd = _surroundings(environment, resources)
        folder = os.path.join(self._private_folder(), "endpoints")
        environ.setdefault(FOLDER_VARIABLE, folder)
        return environ, cwd

    def shutdown(self, wait: bool = True) -> None:
        """End every job and actor of this client and free what it holds; doing it again does nothing.

        Args:
            wait: Return when every process is gone; otherwise at once, and they end in the background.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
            groups, hosted = self._groups, self._hosted
            self._groups, self._hosted = [], []
        if self._pid != os.getpid():
            return  # a fork of the driver owns none of this
        if wait:
            self._end_all(groups, hosted)
        else:
            threading.Thread(target=self._end_all, args=(groups, hosted), name="fray-shutdown").start()

    def _end_all(self, groups: list[ProcessActorGroup | ThreadActorGroup], hosted: list[HostedActor]) -> None:
        for group in groups:
            group.shutdown()
        for actor in hosted:
            actor.shutdown()
        self._threads.shutdown()
        if self._pool is not None:
            self._pool.shutdown()
        if self._guardian is not None:
            self._guardian.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _require_open(self, operation: str) -> None:
        if self.closed:
            raise ClientClosedError(operation)

    def _process_pool(self) -> ProcessPool:
        with self._lock:
            self._require_open("start a process")
            if self._pool is None:
                hub = get_hub()
                guardian = self._guardian = hub.call(Guardian)
                folder = self._private_folder()
                hub.call(lambda: guardian.add_folder(folder))
                self._pool = ProcessPool(hub, self._guardian, self._max_workers)
            return self._pool

    def _private_folder(self) -> str:
        with self._lock:
            if self._folder is None:
                # In a job, inside the folder of the driver: who cleans up after a killed driver cleans up this one too.
                outer = os.path.dirname(os.environ.get(FOLDER_VARIABLE, ""))
                base = outer if os.path.isdir(outer) else tempfile.gettempdir()
                self._folder = tempfile.mkdtemp(
                    prefix="fray-", dir=base if len(base) < _SOCKET_FOLDER_LIMIT else "/tmp"
                )
            return self._folder

    def _thread_call(self, entry: Entrypoint) -> Any:
        fn, args, kwargs = entry.fn, entry.args, entry.kwargs
        assert fn is not None
        if not self._strict:
            return lambda: fn(*args, **kwargs)
        fn, args, kwargs = through_pickle((fn, args, dict(kwargs)), "the entrypoint")
        return lambda: through_pickle(fn(*args, **kwargs), "the result")


def usable_cores() -> int:
    """Return the number of processor cores that this process may use.

    Example:
        >>> usable_cores() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _surroundings(
    environment: EnvironmentConfig | None, resources: ResourceConfig
) -> tuple[dict[str, str], str | None]:
    """Return the whole environment of a child and its folder."""
    environ = dict(os.environ)
    for name, value in resources.device.default_env_vars().items():
        environ.setdefault(name, value)
    if environment is None:
        return environ, None
    if environment.docker_image is not None:
        raise JobRequestError("docker_image", environment.docker_image, "none on the local backend")
    environ |= environment.env_vars
    requirements = requirements_of(environment)
    if requirements:
        folder = environ[OVERLAY_VARIABLE] = overlay(requirements)
        before = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = f"{folder}{os.pathsep}{before}" if before else folder  # for commands
    return environ, environment.workspace


def _shutdown_open_clients() -> None:
    for client in list(_open_clients):
        try:
            client.shutdown()
        except (OSError, subprocess.SubprocessError):
            pass  # the interpreter is ending; the guardian does the rest


atexit.register(_shutdown_open_clients)
