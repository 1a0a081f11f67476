"""Serve an actor's calls over a listening socket, in an actor's own process or for one that is hosted in ours.

The driver owns the listening socket and hands it down, so callers can connect before the actor is constructed and
while it is being restarted: their calls wait in the socket instead of failing.
"""

import functools
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fray._codec import dumps_value, loads, pack_error
from fray._local.addresses import admit
from fray._local.executor import ActorExecutor
from fray._local.frames import Kind, read_frame, send_frame
from fray._local.handles import LocalActorHandle
from fray.actor import ActorContext, set_current_actor

Dispatch = Callable[[Callable[[], object]], object]


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """What a child needs to become an actor."""

    target: bytes  # cloudpickle of (class, args, kwargs)
    endpoint: str
    listener_fd: int
    group_name: str
    index: int
    max_concurrency: int
    attempt: int


def serve_connections(listener: socket.socket, executor: ActorExecutor, dispatch: Dispatch, address: str = "") -> None:
    """Accept callers until the listener is closed; every caller gets a reader thread that dispatches its calls."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(
            target=_read_calls, args=(connection, executor, dispatch, address), name="fray-caller", daemon=True
        ).start()


def _read_calls(connection: socket.socket, executor: ActorExecutor, dispatch: Dispatch, address: str) -> None:
    send_lock = threading.Lock()
    with connection:
        if not admit(connection, address):
            return
        operations: dict[int, threading.Event] = {}
        while (frame := read_frame(connection)) is not None:
            kind, number, payload = frame
            if kind is Kind.CANCEL:
                if (cancellation := operations.get(number)) is not None:
                    cancellation.set()
                continue
            if kind is Kind.SUBMIT:
                operations[number] = threading.Event()
            dispatch(functools.partial(_answer, connection, send_lock, executor, number, payload, operations))
        for cancellation in list(operations.values()):
            cancellation.set()  # the caller is gone


def _answer(
    connection: socket.socket,
    send_lock: threading.Lock,
    executor: ActorExecutor,
    number: int,
    payload: bytes,
    operations: dict[int, threading.Event],
) -> None:
    try:
        method, args, kwargs = loads(payload)
        value = executor.call(method, args, kwargs, operations.get(number))
        kind, outcome = Kind.RESULT, dumps_value(value, f"the result of {method}")
    except BaseException as error:  # process boundary: the caller gets it and raises it
        kind, outcome = Kind.ERROR, pack_error(error)
    operations.pop(number, None)
    try:
        with send_lock:
            send_frame(connection, kind, number, outcome)
    except OSError:
        pass  # the caller is gone; nobody wants the answer


def serve_actor(control: socket.socket, payload: bytes) -> None:
    """Construct the actor in this process and answer its calls until it is told to end or ends itself."""
    spec: ActorSpec = loads(payload)
    listener = socket.socket(fileno=spec.listener_fd)
    listener.set_inheritable(False)
    ending = threading.Event()
    handle: Any = LocalActorHandle(spec.endpoint, spec.group_name, spec.index)
    context = ActorContext(handle, spec.index, spec.group_name, ending, spec.attempt)
    set_current_actor(context)
    try:
        cls, args, kwargs = loads(spec.target)
        instance = cls(*args, **kwargs)
    except BaseException as error:  # process boundary: reported to the driver
        send_frame(control, Kind.ERROR, 0, pack_error(error))
        return
    executor = ActorExecutor(instance, context, spec.max_concurrency)
    send_frame(control, Kind.READY, 0, b"")
    for target, args in (
        (serve_connections, (listener, executor, executor.enqueue)),
        (_end_when_told, (control, ending)),
        (_close_at_end, (ending, executor, spec.max_concurrency)),
    ):
        threading.Thread(target=target, args=args, daemon=True).start()
    helpers = [threading.Thread(target=executor.drain, daemon=True) for _ in range(spec.max_concurrency - 1)]
    for helper in helpers:
        helper.start()
    executor.drain()  # the main thread constructs and runs, so a sequential actor lives in one thread only
    for helper in helpers:
        helper.join()


def _end_when_told(control: socket.socket, ending: threading.Event) -> None:
    read_frame(control)  # EXIT, or the end of the driver
    ending.set()


def _close_at_end(ending: threading.Event, executor: ActorExecutor, drainers: int) -> None:
    ending.wait()
    executor.close(drainers)
