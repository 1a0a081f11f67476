"""The Ray actor around a user's object.

Calls arrive as bytes, so arguments, values and exceptions travel by the same rules as on every backend. A second lane
of Ray threads (the concurrency group ``control``) answers questions about the actor while its methods run.
"""

import collections
import concurrent.futures
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ray

from fray._codec import dumps_value, loads, pack_error
from fray._local.executor import ActorExecutor
from fray.actor import ActorContext, set_current_actor
from fray.current_client import shutdown_default_client
from fray.errors import ActorUnavailableError
from fray.ray_backend import _board as board
from fray.ray_backend._worker import Surroundings, enter, guard_this_process, output_capture

CONTROL_LANES: Final = 8


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a worker needs to become an actor."""

    target: bytes  # cloudpickle of (class, args, kwargs)
    handle: Any
    group_name: str
    index: int
    max_concurrency: int
    surroundings: Surroundings
    key: str


class ActorHost:
    """Holds one actor; a Ray actor class."""

    def __init__(self, spec: HostSpec, tree: bytes | None) -> None:
        guard_this_process()
        output_capture().begin(f"{spec.key}/log", f"{spec.group_name}-{spec.index}")
        self._ending = threading.Event()
        # Ray starts a dead actor again without asking anybody, so the count stands on the board.
        attempt = int(board.get(f"{spec.key}/attempt") or b"0")
        board.put(f"{spec.key}/attempt", str(attempt + 1).encode())
        self._context = ActorContext(spec.handle, spec.index, spec.group_name, self._ending, attempt)
        self._operations: collections.defaultdict[str, threading.Event] = collections.defaultdict(threading.Event)
        # With one call at a time, constructor and calls share one thread, as objects with thread affinity need.
        self._lane = concurrent.futures.ThreadPoolExecutor(1) if spec.max_concurrency == 1 else None
        self._failure: bytes | None = None
        self._executor: ActorExecutor | None = None
        self._in_lane(lambda: self._construct(spec, tree))
        threading.Thread(target=self._leave_at_end, name="fray-end", daemon=True).start()

    def _in_lane(self, fn: Callable[[], Any]) -> Any:
        return fn() if self._lane is None else self._lane.submit(fn).result()

    def _construct(self, spec: HostSpec, tree: bytes | None) -> None:
        set_current_actor(self._context)
        try:
            enter(spec.surroundings, tree)
            cls, args, kwargs = loads(spec.target)
            self._executor = ActorExecutor(cls(*args, **kwargs), self._context, spec.max_concurrency)
        except BaseException as error:  # process boundary: reported to the driver
            self._failure = pack_error(error)

    def call(self, method: str, payload: bytes, operation: str | None = None) -> tuple[bool, bytes]:
        """Call a method; return whether it returned, and the packed value or exception.

        Args:
            method: Its name.
            payload: The packed arguments.
            operation: Id by which the call may be cancelled.
        """
        cancellation = None if operation is None else self._operations[operation]
        try:
            return self._in_lane(lambda: self._call(method, payload, cancellation))
        finally:
            if operation is not None:
                self._operations.pop(operation, None)

    def cancel(self, operation: str) -> None:
        """Cancel a call that runs or has not begun."""
        self._operations[operation].set()

    def _call(self, method: str, payload: bytes, cancellation: threading.Event | None) -> tuple[bool, bytes]:
        try:
            if self._executor is None:
                raise ActorUnavailableError(self._context.group_name, "its constructor failed")
            _, args, kwargs = loads(payload)
            return True, dumps_value(self._executor.call(method, args, kwargs, cancellation), f"the result of {method}")
        except BaseException as error:  # process boundary: the caller gets it and raises it
            return False, pack_error(error)

    def ready(self) -> tuple[int, bytes | None]:
        """Return the process number, and the packed exception of the constructor if it failed."""
        return os.getpid(), self._failure

    def wait_end(self) -> None:
        """Return when the actor ends by its own or the driver's wish."""
        self._ending.wait()

    def end(self) -> None:
        """End the actor after the calls that run now."""
        self._ending.set()

    def _leave_at_end(self) -> None:
        myself: Any = ray.get_runtime_context().current_actor
        self._ending.wait()
        shutdown_default_client()  # jobs and actors that the actor started end with it
        # Queued behind the calls that run now; Ray takes it as an intended end, which is not repaired.
        myself.__ray_terminate__.remote()


def host_class() -> Any:
    """Return the class as Ray wants it."""
    for name in ("ready", "wait_end", "end", "cancel"):
        setattr(ActorHost, name, ray.method(concurrency_group="control")(getattr(ActorHost, name)))
    make: Any = ray.remote  # its stub does not know this option
    return make(concurrency_groups={"control": CONTROL_LANES})(ActorHost)
