"""Handles to actors, wherever the actor lives: in this process, or behind a socket."""

import itertools
import socket
import threading
from typing import Any, Final

from fray._codec import dumps_call
from fray._future import Future
from fray._local.addresses import connect
from fray._local.executor import ActorExecutor
from fray._local.frames import FrameReader, Kind, send_frame
from fray._local.hub import get_hub
from fray._operation import Operation
from fray.errors import ActorUnavailableError

_in_process: Final[dict[str, ActorExecutor]] = {}
_connections: Final[dict[str, "Connection"]] = {}
_connections_lock = threading.Lock()


def register_in_process(endpoint: str, executor: ActorExecutor) -> None:
    """Let handles of this process reach the actor without a socket."""
    _in_process[endpoint] = executor


def unregister_in_process(endpoint: str) -> None:
    """Forget an actor of this process; fine if it is not known."""
    _in_process.pop(endpoint, None)


class Connection:
    """One socket from this process to one actor, shared by all threads."""

    def __init__(self, endpoint: str, label: str) -> None:
        self._label = label
        self._endpoint = endpoint
        try:
            self._socket = connect(endpoint)
        except OSError as error:
            raise ActorUnavailableError(label, f"its address does not answer ({error.strerror or error})") from error
        self._reader = FrameReader(self._socket)
        self._numbers = itertools.count(1)
        self._pending: dict[int, Future] = {}
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._dead = False
        hub = get_hub()
        hub.post(lambda: hub.watch(self._socket, self._readable))

    def call(self, payload: bytes, label: str) -> Future:
        """Send a call and return its future."""
        return self._send(Kind.CALL, payload, label)[1]

    def submit(self, payload: bytes, label: str) -> Operation:
        """Send a call that can be cancelled."""
        number, future = self._send(Kind.SUBMIT, payload, label)
        return Operation(label, future, lambda: self._cancel(number))

    def _cancel(self, number: int) -> None:
        try:
            with self._send_lock:
                send_frame(self._socket, Kind.CANCEL, number, b"")
        except OSError:
            pass  # the actor is gone, and the call with it

    def _send(self, kind: Kind, payload: bytes, label: str) -> tuple[int, Future]:
        future = Future(label)
        number = next(self._numbers)
        with self._lock:
            if self._dead:
                raise ActorUnavailableError(self._label, "its connection was closed")
            self._pending[number] = future
        try:
            with self._send_lock:
                send_frame(self._socket, kind, number, payload)
        except OSError:
            self._fail()
        return number, future

    def abandon(self) -> None:
        """End a connection that nobody uses; the hub sees the end and frees it."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def _readable(self) -> None:
        for kind, number, payload in self._reader.read_available():
            with self._lock:
                future = self._pending.pop(number, None)
            if future is not None:
                future.set_raw(kind is Kind.RESULT, payload)
        if self._reader.closed:
            get_hub().unwatch(self._socket)
            self._socket.close()
            self._fail()

    def _fail(self) -> None:
        with _connections_lock:
            if _connections.get(self._endpoint) is self:
                del _connections[self._endpoint]  # the next call looks the name up again
        with self._lock:
            self._dead = True
            pending, self._pending = list(self._pending.values()), {}
        for future in pending:
            future.set_error(ActorUnavailableError.during_call(self._label))


def _connection(endpoint: str, label: str) -> Connection:
    connection = _connections.get(endpoint)
    if connection is None:
        made = Connection(endpoint, label)
        with _connections_lock:
            connection = _connections.setdefault(endpoint, made)
        if connection is not made:
            made.abandon()  # another thread was faster; one connection is enough
    return connection


def drop_connection(endpoint: str) -> None:
    """Let the next call open a new connection; calls under way on the old one are not disturbed."""
    with _connections_lock:
        _connections.pop(endpoint, None)


class LocalActorHandle:
    """A name for an actor; its public attributes are the actor's methods. Pickles to the name."""

    def __init__(self, endpoint: str, group_name: str, index: int) -> None:
        self._endpoint = endpoint
        self._group_name = group_name
        self._index = index

    def __getattr__(self, name: str) -> "LocalActorMethod":
        if name.startswith("_"):
            raise AttributeError(f"private name on an actor handle: name={name!r}; expected a public method. Use one.")
        method = LocalActorMethod(self._endpoint, f"{self._group_name}-{self._index}", name)
        self.__dict__[name] = method
        return method

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalActorHandle, (self._endpoint, self._group_name, self._index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalActorHandle) and other._endpoint == self._endpoint

    def __hash__(self) -> int:
        return hash(self._endpoint)

    def __repr__(self) -> str:
        return f"<actor {self._group_name}-{self._index}>"


class LocalActorMethod:
    """One method of an actor: call it, or call ``remote`` for a future."""

    __slots__ = ("_actor", "_endpoint", "_name")

    def __init__(self, endpoint: str, actor: str, name: str) -> None:
        self._endpoint = endpoint
        self._actor = actor
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call and wait for the value."""
        executor = _in_process.get(self._endpoint)
        if executor is not None:
            return executor.call(self._name, args, kwargs)
        return self.remote(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> Operation:
        """Start a long call that can be cancelled.

        Raises:
            SerializationError: The arguments cannot travel. Every other failure is the operation's.
        """
        label = f"{self._actor}.{self._name}"
        executor = _in_process.get(self._endpoint)
        if executor is not None:
            cancellation = threading.Event()
            future = executor.submit(label, self._name, args, kwargs, cancellation)
            return Operation(label, future, cancellation.set)
        payload = dumps_call(self._name, args, kwargs)
        try:
            return _connection(self._endpoint, self._actor).submit(payload, label)
        except ActorUnavailableError as error:
            failed = Future(label)
            failed.set_error(error)
            return Operation(label, failed, lambda: None)

    def remote(self, *args: Any, **kwargs: Any) -> Future:
        """Call without waiting.

        Raises:
            SerializationError: The arguments cannot travel. Every other failure is the future's.
        """
        label = f"{self._actor}.{self._name}"
        executor = _in_process.get(self._endpoint)
        if executor is not None:
            return executor.submit(label, self._name, args, kwargs)
        payload = dumps_call(self._name, args, kwargs)
        try:
            return _connection(self._endpoint, self._actor).call(payload, label)
        except ActorUnavailableError as error:
            future = Future(label)
            future.set_error(error)
            return future
