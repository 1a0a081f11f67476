"""Handles to actors on Ray, and calls through them.

A handle pickles to a name. The board says which Ray actor answers to that name now: Ray restarts a dead actor in place,
and a deliberate ``restart`` puts a new one there.
"""

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import ray
import ray.exceptions

from fray._codec import dumps_call, loads, unpack_error
from fray._future import Future
from fray._operation import Operation
from fray.errors import ActorUnavailableError
from fray.ray_backend import _board as board
from fray.ray_backend._dispatch import post, when_ready

NAMESPACE: Final = "fray"
_PROBE_S: Final = 0.1
resolved: Final[dict[str, Any]] = {}  # key of a member -> Ray's handle
_recovering: Final[dict[str, Future]] = {}  # key of a member that Ray starts again -> done when it answers


def _resolve(key: str, label: str) -> Any:
    actor = resolved.get(key)
    if actor is None:
        name = board.get(key)
        if name is None:
            raise ActorUnavailableError(label, "it has ended")
        try:
            actor = resolved[key] = ray.get_actor(name.decode(), namespace=NAMESPACE)
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
            self._settle(None, ActorUnavailableError(self._actor, one_line(error)))
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
            actor = resolved.get(self._key)
            if actor is not None:
                _recover(self._key, actor)  # later calls wait
            return ActorUnavailableError.during_call(self._actor)
        resolved.pop(self._key, None)  # the next call looks the name up again
        return ActorUnavailableError(self._actor, f"it ended before it answered ({one_line(error)})")


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line of bearable length."""
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
