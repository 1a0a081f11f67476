"""Actor groups on Ray. The state of a group belongs to the dispatch thread."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ray
import ray.exceptions

from fray._codec import unpack_error
from fray._future import Future
from fray._members import wait_until_ready
from fray.errors import ActorUnavailableError
from fray.ray_backend import _board as board
from fray.ray_backend._calls import NAMESPACE, RayActorHandle, one_line, resolved
from fray.ray_backend._dispatch import post, when_ready
from fray.ray_backend._host import HostSpec, host_class
from fray.ray_backend._worker import Surroundings
from fray.types import ActorConfig

_GRACE_S: Final = 1.0
_KILL_S: Final = 10.0
_host = host_class()


@dataclass(frozen=True)
class RayGroupSpec:
    """What all members of a group share."""

    name: str
    target: bytes
    config: ActorConfig
    options: dict[str, Any]
    surroundings: Surroundings
    tree: Any


class Member:
    """One actor of a group, over all its restarts."""

    def __init__(self, index: int, key: str, handle: RayActorHandle, label: str) -> None:
        self.index = index
        self.key = key
        self.handle = handle
        self.label = label
        self.ready = Future(f"{label} ready")
        self.actor: Any = None
        self.pid: int | None = None
        self.generation = 0
        self.ended = False
        self.gone = threading.Event()  # of the present generation
        self.why = "it has not started"


class RayActorGroup:
    """Equal actors, each a Ray actor; see ``fray.actor.ActorGroup``."""

    def __init__(self, spec: RayGroupSpec, count: int, prefix: str) -> None:
        self.name = spec.name
        self._spec = spec
        self._failure: BaseException | None = None
        self._closing = False
        self._members = []
        for index in range(count):
            key = f"{prefix}.{index};"  # no key is the beginning of another
            handle = RayActorHandle(key, spec.name, index)
            self._members.append(Member(index, key, handle, f"{spec.name}-{index}"))
        for member in self._members:
            self._start(member)

    def _start(self, member: Member) -> None:
        spec = self._spec
        host = HostSpec(
            spec.target,
            member.handle,
            spec.name,
            member.index,
            spec.config.max_concurrency,
            spec.surroundings,
            member.key,
        )
        name = f"{member.key}#{member.generation}"
        options: dict[str, Any] = dict(spec.options)
        if len(self._members) > 1:
            options.setdefault("scheduling_strategy", "SPREAD")
        member.actor = _host.options(
            name=name,
            namespace=NAMESPACE,
            max_concurrency=spec.config.max_concurrency,
            max_restarts=spec.config.max_restarts or 0,
            max_task_retries=0,
            **options,
        ).remote(host, spec.tree)
        member.gone = threading.Event()
        member.why = "it is starting"
        resolved[member.key] = member.actor
        board.put(member.key, name.encode())
        self._watch(member)

    def _watch(self, member: Member) -> None:
        generation, actor = member.generation, member.actor

        def guarded(fn: Callable[[Any, BaseException | None], object]) -> Callable[[Any, BaseException | None], object]:
            return lambda value, error: fn(value, error) if member.generation == generation else None

        when_ready(actor.ready.remote(), guarded(lambda value, error: self._is_ready(member, value, error)))
        when_ready(actor.wait_end.remote(), guarded(lambda value, error: self._has_ended(member, error)))

    def _is_ready(self, member: Member, value: tuple[int, bytes | None] | None, error: BaseException | None) -> None:
        if value is None:
            return  # it died before; the watch for its end tells
        member.pid, packed = value
        if packed is None:
            member.ready.set_value(None)
        else:
            # A constructor that fails will fail again; a group without one of its members is of no use to anybody.
            self._failure = unpack_error(packed)[0]
            member.why = "its constructor failed"
            self._begin_shutdown()

    def _has_ended(self, member: Member, error: BaseException | None) -> None:
        if isinstance(error, ray.exceptions.ActorUnavailableError) and not self._closing:
            member.pid = None
            if member.ready.done():
                member.ready = Future(f"{member.label} ready")
            self._watch(member)  # Ray starts it again; this waits for that
        elif error is None:
            # It leaves after the calls that run now; only then is it gone.
            when_ready(member.actor.ready.remote(), lambda value, error: self._end(member, "it ended itself"))
        else:
            self._end(member, "it was shut down" if self._closing else f"its process ended ({one_line(error)})")

    def _end(self, member: Member, why: str) -> None:
        if self._failure is None:
            member.why = why
        member.pid = None
        member.ended = True
        member.gone.set()
        resolved.pop(member.key, None)
        board.wipe(member.key)

    @property
    def handles(self) -> list[Any]:
        """All handles, by index; calls wait until the actor is constructed."""
        return [member.handle for member in self._members]

    def __len__(self) -> int:
        return len(self._members)

    def wait_ready(self, count: int | None = None, timeout: float = 900.0) -> list[Any]:
        """Wait until ``count`` actors (default all) are constructed.

        Returns:
            Their handles, by index.
        Raises:
            JobRequestError: ``count`` is more than there are, or less than one.
            ActorUnavailableError: An actor could not be constructed, or died; the constructor's exception is its cause.
            TimeoutError: Too few are ready in time; tells how many.
        """
        remedy = "Wait longer, or ask for less than the cluster has."
        return wait_until_ready(self.name, self._members, lambda: self._failure, count, timeout, remedy)

    def restart(self, index: int) -> None:
        """Replace one actor by a fresh one under the same name; returns when the old process is gone."""
        member = self._members[index]
        if self._closing or member.ended:
            raise ActorUnavailableError(member.label, member.why)
        old, gone = member.actor, threading.Event()
        member.ready = Future(f"{member.label} ready")
        member.generation += 1  # what is heard of the old one from here on is of no interest
        _stop(old, gone)
        self._start(member)

    def pid(self, index: int) -> int | None:
        """Return the process number of an actor on its machine; None while it has no process."""
        return self._members[index].pid

    def logs(self, index: int, max_lines: int = 100) -> list[str]:
        """Return the last lines that a living actor printed since it started, up to a moment ago."""
        text = board.get(f"{self._members[index].key}/log") or b""
        lines = text.decode("utf-8", "replace").splitlines()
        return lines[-max_lines:] if max_lines > 0 else []

    def is_done(self) -> bool:
        """Tell whether every actor has ended for good."""
        return all(member.ended for member in self._members)

    def begin_shutdown(self) -> None:
        """Ask all actors to end; does not wait."""
        post(self._begin_shutdown)

    def shutdown(self) -> None:
        """End all actors: running calls may finish within a second, then the processes are killed."""
        post(self._begin_shutdown)
        end_s = time.monotonic() + _GRACE_S
        for member in self._members:
            member.gone.wait(max(0.0, end_s - time.monotonic()))
        for member in self._members:
            if not member.ended:
                _kill(member.actor)
        end_s = time.monotonic() + _KILL_S
        for member in self._members:
            member.gone.wait(max(0.0, end_s - time.monotonic()))

    def _begin_shutdown(self) -> None:
        if not self._closing:
            self._closing = True
            for member in self._members:
                if not member.ended:
                    member.actor.end.remote()


def _kill(actor: Any) -> None:
    try:
        ray.kill(actor, no_restart=True)
    except (ray.exceptions.RayError, ValueError):
        pass  # it has ended


def _stop(actor: Any, gone: threading.Event) -> None:
    when_ready(actor.wait_end.remote(), lambda value, error: gone.set() if error is not None else None)
    _kill(actor)
    gone.wait(_KILL_S)
