"""Actors that live in this process and are called from others."""

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from fray._local.actor_server import serve_connections
from fray._local.executor import ActorExecutor
from fray._local.handles import LocalActorHandle, register_in_process, unregister_in_process
from fray.actor import ActorContext, set_current_actor


class HostedLocalActor:
    """An actor in this process; see ``fray.client.HostedActor``."""

    def __init__(self, handle: Any, stop: Callable[[], object]) -> None:
        self.handle = handle
        self._stop = stop

    def shutdown(self) -> None:
        """Stop serving calls."""
        self._stop()


def host_in_process(
    make: Callable[[], object], name: str, max_concurrency: int, address: str, listener: socket.socket
) -> HostedLocalActor:
    """Construct an actor in a thread of its own and answer calls that come to ``listener``.

    Raises:
        BaseException: What ``make`` raises.
    """
    handle: Any = LocalActorHandle(address, name, 0)
    ending = threading.Event()
    context = ActorContext(handle, 0, name, ending)
    try:
        instance = _construct(context, make)
    except BaseException:
        _close(listener, address)
        raise
    executor = ActorExecutor(instance, context, max_concurrency)
    register_in_process(address, executor)
    serve = (listener, executor, executor.post, address)
    threading.Thread(target=serve_connections, args=serve, name=f"host {name}", daemon=True).start()

    def stop() -> None:
        ending.set()
        unregister_in_process(address)
        executor.close()
        _close(listener, address)

    return HostedLocalActor(handle, stop)


def _close(listener: socket.socket, address: str) -> None:
    # Closing alone does not wake a thread that is blocked in accept.
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was closed already
    listener.close()
    if os.path.exists(address):
        os.unlink(address)


def _construct(context: ActorContext, make: Callable[[], object]) -> object:
    made: list[object] = []
    raised: list[BaseException] = []

    def run() -> None:
        set_current_actor(context)
        try:
            made.append(make())
        except BaseException as error:  # thread boundary: raised by the caller
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return made[0]
