"""The client of a Ray cluster."""

import functools
import itertools
import logging
import os
import secrets
import sys
import threading
from typing import Any, Self

import ray

from fray._codec import dumps, ship_by_value_if_needed
from fray._job import Job, JobNames
from fray._local.addresses import tcp_listener
from fray._local.hosting import host_in_process
from fray._overlay import requirements_of
from fray._requests import check_group, pack_call
from fray._tree import pack_tree
from fray.client import HostedActor
from fray.endpoints import new_endpoint, wait_for_endpoint
from fray.errors import ClientClosedError, JobRequestError
from fray.ray_backend import _board as board
from fray.ray_backend._actors import RayActorGroup, RayGroupSpec
from fray.ray_backend._jobs import RayJobs, RayRun, block_in_worker
from fray.ray_backend._options import require_feasible, resource_options, runtime_env
from fray.ray_backend._worker import Surroundings
from fray.types import ActorConfig, EnvironmentConfig, JobRequest, ResourceConfig


class RayClient:
    """Jobs and actors on Ray; see ``fray.client.Client`` for the contract.

    Args:
        address: Address of a cluster, as for ``ray.init`` (``"auto"`` finds the one of this machine); None takes the
            instance that this process is connected to, else the one that ``RAY_ADDRESS`` names, else starts one on this
            machine that ends with the client.
        ship_workspace: Send the files of an environment's ``workspace`` along; default on unless the instance runs on
            this machine alone, where the folder itself is used.
        in_task: The client lives in a task of Ray; for the backend itself.
        root: Prefix of the outermost client, whose endpoints nested jobs share; for the backend itself.
        **init_options: Further options of ``ray.init`` (``num_cpus``, ``object_store_memory``, ...).
    Raises:
        JobRequestError: ``address`` or options are given, and this process is connected already.

    Example:
        >>> from fray import connect_backend
        >>> client = connect_backend("ray", num_cpus=2)  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        ship_workspace: bool | None = None,
        in_task: bool = False,
        root: str = "",
        **init_options: Any,
    ) -> None:
        self.closed = False
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            if address is None and not os.environ.get("RAY_ADDRESS"):
                address = "local"  # Ray itself would join whatever cluster it finds on this machine
            self._one_machine = address == "local"
            settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
            if self._one_machine:
                settings["include_dashboard"] = False
            ray.init(address=address, **(settings | init_options))
        elif address is not None or init_options:
            raise JobRequestError(
                "address",
                address or init_options,
                "nothing, as this process is connected to Ray already",
                "Make the client without them, or call ray.shutdown() first.",
            )
        else:
            self._one_machine = len([node for node in ray.nodes() if node["Alive"]]) == 1
        self._ship = not self._one_machine if ship_workspace is None else ship_workspace
        self._in_task = in_task
        self._prefix = f"{secrets.token_hex(6)}/"
        self._root = root or self._prefix
        self._endpoints = board.EndpointBoard(f"{self._root}E/")
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._named = JobNames("ray")
        self._trees: dict[str, Any] = {}
        self._groups: list[RayActorGroup] = []
        self._hosted: list[HostedActor] = []
        self._jobs = RayJobs(self._prefix, self._endpoints.forget_job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def submit(self, request: JobRequest, adopt_existing: bool = True) -> Job:
        """Start a job and return at once; see ``fray.client.Client.submit``.

        Raises:
            JobAlreadyExists: A live job has this name and runs something else, or ``adopt_existing`` is false.
            JobRequestError: The cluster cannot give what is asked for.
            SerializationError: The callable or its arguments cannot be pickled.
            ClientClosedError: The client was shut down.
        """
        entry = request.entrypoint
        payload = None if entry.command is not None else pack_call(entry)
        options = self._options(request.resources, request.environment, request.num_replicas)
        surroundings, tree = self._surroundings(request.environment, request.resources)
        fingerprint = (entry.command, payload)
        with self._lock:
            self._require_open("submit")
            job, is_new = self._named.admit(request, fingerprint, adopt_existing)
        if not is_new:
            return job
        run = RayRun(job, payload, options, surroundings, tree, f"{self._prefix}j{next(self._numbers)}")
        if self._in_task:
            job.on_wait(block_in_worker(run))
        self._jobs.submit(run)
        return job

    def host_actor(
        self, cls: type, *args: Any, name: str, actor_config: ActorConfig = ActorConfig(), **kwargs: Any
    ) -> HostedActor:
        """Construct an actor in this process; tasks reach it over TCP, with a key that its handle holds."""
        self._require_open("host_actor")
        address, listener = tcp_listener(ray.util.get_node_ip_address())
        hosted = host_in_process(lambda: cls(*args, **kwargs), name, actor_config.max_concurrency, address, listener)
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
    ) -> RayActorGroup:
        """Start ``count`` equal actors; see ``fray.client.Client``. Without ``resources`` they reserve no core.

        Raises:
            JobRequestError: ``count < 1``, a name with a slash or blank, or more than the cluster can give.
            SerializationError: The class or its arguments cannot be pickled.
            ClientClosedError: The client was shut down.
        """
        check_group(name, count)
        self._require_open("create_actor_group")
        ship_by_value_if_needed(cls)
        target = dumps((cls, args, kwargs), f"actor {name}")
        if resources is None:
            options: dict[str, Any] = {"num_cpus": 0, "runtime_env": runtime_env(environment, ResourceConfig())}
        else:
            options = self._options(resources, environment, count)
        surroundings, tree = self._surroundings(environment, resources or ResourceConfig())
        spec = RayGroupSpec(name, target, actor_config, options, surroundings, tree)
        group = RayActorGroup(spec, count, f"{self._prefix}a{next(self._numbers)}")
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
        self._endpoints.publish(new_endpoint(name, address))

    def resolve_endpoint(self, name: str, timeout: float = 0.0) -> str:
        """Return a published address, waiting up to ``timeout`` seconds; see ``fray.client.Client``.

        Raises:
            EndpointNotFoundError: Nobody who lives has published it in that time.
        """
        return wait_for_endpoint(lambda: self._endpoints.find(name), name, timeout)

    def endpoints(self, prefix: str = "") -> dict[str, str]:
        """Return names and addresses of all endpoints that begin with ``prefix``."""
        return {endpoint.name: endpoint.address for endpoint in self._endpoints.all(prefix)}

    def shutdown(self, wait: bool = True) -> None:
        """End every job and actor of this client, and the Ray instance if the client started it.

        Args:
            wait: Return when all that is done; otherwise at once, and it happens in the background.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
        if wait:
            self._end_all()
        else:
            threading.Thread(target=self._end_all, name="fray-shutdown").start()

    def _end_all(self) -> None:
        self._jobs.shutdown()
        groups, self._groups = self._groups, []
        for group in groups:
            group.begin_shutdown()
        for group in groups:
            group.shutdown()
        for actor in self._hosted:
            actor.shutdown()
        board.wipe(self._prefix)
        if self._owns_ray:
            ray.shutdown()

    def _require_open(self, operation: str) -> None:
        if self.closed:
            raise ClientClosedError(operation)

    def _options(
        self, resources: ResourceConfig, environment: EnvironmentConfig | None, replicas: int
    ) -> dict[str, Any]:
        options = resource_options(resources)
        if self._one_machine:
            require_feasible(options, replicas)
        options["runtime_env"] = runtime_env(environment, resources)
        return options

    def _surroundings(
        self, environment: EnvironmentConfig | None, resources: ResourceConfig
    ) -> tuple[Surroundings, Any]:
        folder = None if environment is None else environment.workspace
        digest, tree = "", None
        if self._ship and folder is not None:
            digest, data = pack_tree(folder)
            with self._lock:
                if digest not in self._trees:
                    self._trees[digest] = ray.put(data)
                tree = self._trees[digest]
        path = tuple(os.path.abspath(entry or os.getcwd()) for entry in sys.path)
        made = functools.partial(RayClient, ship_workspace=self._ship, in_task=True, root=self._root)
        needed = () if environment is None else tuple(requirements_of(environment))
        variables = resources.device.default_env_vars()
        return Surroundings(path, folder or os.getcwd(), digest, made, variables, needed), tree
