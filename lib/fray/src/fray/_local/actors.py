"""Actor groups in child processes: created, watched, restarted under the same name.

All state belongs to the hub's thread.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fray._codec import dumps, unpack_error
from fray._future import Future
from fray._job import wait_quietly
from fray._local.actor_server import ActorSpec
from fray._local.addresses import unix_listener
from fray._local.child import Child, Guardian, worker_command
from fray._local.frames import Kind
from fray._local.handles import LocalActorHandle, drop_connection
from fray._local.hub import Hub
from fray._logs import LogTail
from fray._members import wait_until_ready
from fray.errors import ActorUnavailableError, describe_exit
from fray.types import ActorConfig

_GRACE_S: Final = 1.0


@dataclass(frozen=True)
class GroupSpec:
    """What all members of a group share."""

    name: str
    target: bytes
    config: ActorConfig
    environ: Mapping[str, str]
    cwd: str | None


@dataclass
class Member:
    """One actor of a group, over all its restarts."""

    index: int
    endpoint: str
    handle: LocalActorHandle
    listener: socket.socket
    log: LogTail
    restarts_left: int
    ready: Future
    child: Child | None = None
    replacing: bool = False
    ended: bool = False
    why: str = "it has not started"
    generation: int = field(default=0)


class ProcessActorGroup:
    """Equal actors, each in a process of its own; see ``fray.actor.ActorGroup``."""

    def __init__(self, hub: Hub, guardian: Guardian, spec: GroupSpec, folder: str, count: int, prefix: str) -> None:
        self.name = spec.name
        self._hub = hub
        self._guardian = guardian
        self._spec = spec
        self._closing = False
        self._failure: BaseException | None = None
        self._members = [self._member(index, os.path.join(folder, f"{prefix}.{index}")) for index in range(count)]

    def _member(self, index: int, endpoint: str) -> Member:
        listener = unix_listener(endpoint)
        label = f"{self.name}-{index}"
        return Member(
            index,
            endpoint,
            LocalActorHandle(endpoint, self.name, index),
            listener,
            LogTail(label),
            self._spec.config.max_restarts or 0,
            Future(f"{label} ready"),
        )

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
        remedy = "Wait longer or look at group.logs(index)."
        return wait_until_ready(self.name, self._members, lambda: self._failure, count, timeout, remedy)

    def restart(self, index: int) -> None:
        """Replace one actor by a fresh one under the same name; returns when the old process is gone.

        Calls of this process that come after wait for the new actor.
        """
        member = self._members[index]
        child = self._hub.call(lambda: self._restart(member))
        wait_quietly(lambda: child is None or child.ended, 10.0)
        drop_connection(member.endpoint)

    def pid(self, index: int) -> int | None:
        """Return the process number of an actor; None while it has no process."""
        child = self._members[index].child
        return None if child is None or child.ended else child.pid

    def logs(self, index: int, max_lines: int = 100) -> list[str]:
        """Return the last lines that an actor printed, over all its restarts."""
        return self._members[index].log.lines(max_lines)

    def is_done(self) -> bool:
        """Tell whether every actor has ended for good."""
        return all(member.ended for member in self._members)

    def shutdown(self) -> None:
        """End all actors: running calls may finish within a second, then the processes are killed."""
        children = self._hub.call(self._begin_shutdown)
        wait_quietly(lambda: all(child.ended for child in children), _GRACE_S)
        for child in children:
            child.kill()
        wait_quietly(self.is_done, 10.0)

    def start(self) -> None:
        """Start all members. Hub thread only."""
        for member in self._members:
            self._start(member)

    def _start(self, member: Member) -> None:
        spec = self._spec
        member.child = Child(
            self._hub,
            self._guardian,
            worker_command(spec.environ),
            spec.environ,
            spec.cwd,
            with_socket=True,
            extra_fds=[member.listener.fileno()],
            on_frame=lambda child, kind, number, payload: self._on_frame(member, kind, payload),
            on_exit=lambda child, code, signal: self._on_exit(member, code, signal),
        )
        member.child.log = member.log
        member.why = "it is starting"
        actor = ActorSpec(
            spec.target,
            member.endpoint,
            member.listener.fileno(),
            self.name,
            member.index,
            spec.config.max_concurrency,
            member.generation,
        )
        member.child.send([(Kind.ACTOR, 0, dumps(actor, "an actor"))])

    def _on_frame(self, member: Member, kind: Kind, payload: bytes) -> None:
        if kind is Kind.READY:
            member.ready.set_value(None)
        elif kind is Kind.ERROR:
            # A constructor that fails will fail again; a group without one of its members is of no use to anybody.
            self._failure = unpack_error(payload)[0]
            member.why = "its constructor failed"
            self._begin_shutdown()
            for sibling in self._members:
                if sibling.child is not None and sibling is not member:
                    sibling.child.kill()

    def _on_exit(self, member: Member, code: int | None, signal: int | None) -> None:
        if self._closing:
            self._end(member, "it was shut down" if self._failure is None else member.why)
        elif member.replacing or (code != 0 and member.restarts_left > 0):
            member.restarts_left -= not member.replacing
            member.replacing = False
            member.generation += 1
            if member.ready.done():
                member.ready = Future(f"{self.name}-{member.index} ready")
            self._start(member)
        else:
            self._end(member, "it ended itself" if code == 0 else f"its process ended ({describe_exit(code, signal)})")

    def _end(self, member: Member, why: str) -> None:
        member.why = why
        member.ended = True
        member.listener.close()
        if os.path.exists(member.endpoint):
            os.unlink(member.endpoint)

    def _restart(self, member: Member) -> Child | None:
        if self._closing or member.ended:
            raise ActorUnavailableError(f"{self.name}-{member.index}", member.why)
        member.replacing = True
        member.ready = Future(f"{self.name}-{member.index} ready")
        if member.child is not None:
            member.child.kill()
        return member.child

    def _begin_shutdown(self) -> list[Child]:
        self._closing = True
        children = [member.child for member in self._members if member.child is not None and not member.child.ended]
        for child in children:
            child.send([(Kind.EXIT, 0, b"")])
        return children
