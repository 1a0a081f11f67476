"""Actor handles and groups on Ray. The state of a group belongs to the dispatch thread.

A handle pickles to a name. The board says which Ray actor answers to that name now: Ray restarts a dead actor in place,
and a deliberate ``restart`` puts a new one there.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ray
import ray.exceptions

from fray._codec import dumps_call, loads, unpack_error
from fray._future import Future
from fray._operation import Operation
from fray.errors import ActorUnavailableError
from fray.ray_backend import _board as board
from fray.ray_backend._dispatch import post, when_ready
from fray.ray_backend._host import HostSpec, host_class
from fray.ray_backend._worker import Surroundings
from fray.types import ActorConfig

_NAMESPACE: Final = "fray"
_GRACE_S: Final = 1.0
_KILL_S: Final = 10.0
_host = host_class()
_PROBE_S: Final = 0.1
_resolved: Final[dict[str, Any]] = {}  # key of a member -> Ray's handle
_recovering: Final[dict[str, Future]] = {}  # key of a member that Ray starts again -> done when it answers


def _resolve(key: str, label: str) -> Any:
    actor = _resolved.get(key)
    if actor is None:
        name = board.get(key)
        if name is None:
            raise ActorUnavailableError(label, "it has ended")
        try:
            actor = _resolved[key] = ray.get_actor(name.decode(), namespace=_NAMESPACE)
        except ValueError as error:
            raise ActorUnavailableError(label, "it has ended") from error
    return actor


def _recover(key: str, actor: Any) -> None:
    """Hold further calls back until a restarted actor answers.

    For a moment after a death Ray still sends calls to the process that is gone, and they fail for no reason.
    """
    waiting = Future(key)
    if _recovering.setdefault(key, waiting) is waiting:
        post(lambda: _probe(key, actor, waiting))


def _probe(key: str, actor: Any, waiting: Future) -> None:
    def answered(value: Any, error: BaseException | None) -> None:
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            timer = threading.Timer(_PROBE_S, lambda: _probe(key, actor, waiting))
            timer.daemon = True
            timer.start()
        else:
            if _recovering.get(key) is waiting:
                del _recovering[key]
            waiting.set_value(None)

    when_ready(actor.ready.remote(), answered)


class RayFuture:
    """The answer to one call; see ``fray.actor.ActorFuture``."""

    def __init__(self, label: str, actor: str, key: str, submit: Callable[[], Any]) -> None:
        self._label = label
        self._actor = actor
        self._key = key
        self._submit = submit
        self._ref: Any = None
        self._sent = Future(label)
        self._lock = threading.Lock()
        self._outcome: tuple[Any, BaseException | None] | None = None
        waiting = _recovering.get(key)
        if waiting is None:
            self._send()
        else:
            waiting.add_done_callback(lambda _: self._send())

    def _send(self) -> None:
        try:
            self._ref = self._submit()
        except ActorUnavailableError as error:
            self._settle(None, error)
        except ray.exceptions.RayError as error:
            self._settle(None, ActorUnavailableError(self._actor, _one_line(error)))
        self._sent.set_value(None)

    def result(self, timeout: float | None = None) -> Any:
        """Return the value; see ``fray.actor.ActorFuture``.

        Raises:
            TimeoutError: Not there after ``timeout`` seconds; waiting again is fine.
            BaseException: What the call raised.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self._outcome is not None
        return self._outcome[0]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, or None when there is a value; waits like ``result``."""
        end_s = None if timeout is None else time.monotonic() + timeout
        if not self._sent.wait(timeout):
            raise self._too_late(timeout)
        if self._outcome is None:
            # In the caller's thread: a task of Ray lends its cores to others only while it waits in Ray.
            try:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                ok, payload = ray.get(self._ref, timeout=left_s)
            except ray.exceptions.GetTimeoutError:
                raise self._too_late(timeout) from None
            except (ray.exceptions.RayError, RuntimeError) as error:
                self._settle(None, self._lost(error))
            else:
                self._decode(ok, payload)
        assert self._outcome is not None
        return self._outcome[1]

    def _too_late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"no answer yet: call={self._label}, timeout={timeout} s; expected an answer in that time. "
            "The call goes on; ask the same future again."
        )

    def done(self) -> bool:
        """Tell whether the outcome is there."""
        if self._outcome is not None:
            return True
        return self._ref is not None and bool(ray.wait([self._ref], timeout=0, fetch_local=False)[0])

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(future)`` when the outcome is there, at once if it is; it must be short and must not block."""
        if self.done():
            fn(self)
        else:
            self._sent.add_done_callback(lambda _: self._call_when_ready(fn))

    def _call_when_ready(self, fn: Callable[[Any], object]) -> None:
        if self._ref is None:
            fn(self)
        else:
            when_ready(self._ref, lambda value, error: fn(self))

    def _decode(self, ok: bool, payload: bytes) -> None:
        try:
            if ok:
                self._settle(loads(payload), None)
            else:
                self._settle(None, unpack_error(payload)[0])
        except Exception as error:  # unpickling runs arbitrary code; its failure is the outcome
            self._settle(None, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if self._outcome is None:
                self._outcome = (value, error)

    def _lost(self, error: BaseException) -> ActorUnavailableError:
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            actor = _resolved.get(self._key)
            if actor is not None:
                _recover(self._key, actor)  # later calls wait
            return ActorUnavailableError.during_call(self._actor)
        _resolved.pop(self._key, None)  # the next call looks the name up again
        return ActorUnavailableError(self._actor, f"it ended before it answered ({_one_line(error)})")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else text[:300] + " ..."


class RayActorHandle:
    """A name for an actor; its public attributes are the actor's methods. Pickles to the name."""

    def __init__(self, key: str, group_name: str, index: int) -> None:
        self._key = key
        self._group_name = group_name
        self._index = index

    def __getattr__(self, name: str) -> "RayActorMethod":
        if name.startswith("_"):
            raise AttributeError(f"private name on an actor handle: name={name!r}; expected a public method. Use one.")
        method = RayActorMethod(self._key, f"{self._group_name}-{self._index}", name)
        self.__dict__[name] = method
        return method

    def __reduce__(self) -> tuple[Any, ...]:
        return RayActorHandle, (self._key, self._group_name, self._index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayActorHandle) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"<actor {self._group_name}-{self._index}>"


class RayActorMethod:
    """One method of an actor: call it, or call ``remote`` for a future."""

    __slots__ = ("_actor", "_key", "_name")

    def __init__(self, key: str, actor: str, name: str) -> None:
        self._key = key
        self._actor = actor
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call and wait for the value."""
        return self.remote(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> Operation:
        """Start a long call that can be cancelled.

        Raises:
            SerializationError: The arguments cannot travel. Every other failure is the operation's.
        """
        payload = dumps_call(self._name, args, kwargs)
        label, operation = f"{self._actor}.{self._name}", secrets.token_hex(8)

        def submit() -> Any:
            return _resolve(self._key, self._actor).call.remote(self._name, payload, operation)

        def cancel() -> None:
            try:
                _resolve(self._key, self._actor).cancel.remote(operation)
            except ActorUnavailableError:
                pass  # the actor is gone, and the call with it

        return Operation(label, RayFuture(label, self._actor, self._key, submit), cancel)

    def remote(self, *args: Any, **kwargs: Any) -> RayFuture:
        """Call without waiting.

        Raises:
            SerializationError: The arguments cannot travel. Every other failure is the future's.
        """
        payload = dumps_call(self._name, args, kwargs)
        label = f"{self._actor}.{self._name}"

        def submit() -> Any:
            return _resolve(self._key, self._actor).call.remote(self._name, payload)

        return RayFuture(label, self._actor, self._key, submit)


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
            namespace=_NAMESPACE,
            max_concurrency=spec.config.max_concurrency,
            max_restarts=spec.config.max_restarts or 0,
            max_task_retries=0,
            **options,
        ).remote(host, spec.tree)
        member.gone = threading.Event()
        member.why = "it is starting"
        _resolved[member.key] = member.actor
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
            self._end(member, "it was shut down" if self._closing else f"its process ended ({_one_line(error)})")

    def _end(self, member: Member, why: str) -> None:
        if self._failure is None:
            member.why = why
        member.pid = None
        member.ended = True
        member.gone.set()
        _resolved.pop(member.key, None)
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
            ActorUnavailableError: An actor could not be constructed, or died; the constructor's exception is its cause.
            TimeoutError: Too few are ready in time; tells how many.
        """
        wanted = len(self._members) if count is None else count
        end_s = time.monotonic() + timeout
        while True:
            ready = [member for member in self._members if member.ready.done() and not member.ended]
            if len(ready) >= wanted:
                return [member.handle for member in ready]
            if self._failure is not None:
                raise ActorUnavailableError(self.name, "an actor could not be constructed") from self._failure
            dead = [member for member in self._members if member.ended]
            if len(self._members) - len(dead) < wanted:
                raise ActorUnavailableError(f"{self.name}-{dead[0].index}", dead[0].why)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(
                    f"actors are not ready: group={self.name!r}, {len(ready)} of {wanted} after timeout={timeout} s; "
                    "expected all. Wait longer, or ask for less than the cluster has."
                )
            waiting = next(member for member in self._members if not member.ready.done())
            waiting.ready.wait(min(left_s, 0.05))

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
