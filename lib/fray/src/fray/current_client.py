"""The client in whose context code runs, so that libraries need no client argument.

Order: the one set by ``set_current_client`` (also inside jobs that a thread-mode client runs), else one client per
process, made when first asked for: in a task of a cluster backend a client of that cluster, anywhere else a
``LocalClient``.
"""

import contextlib
import contextvars
import importlib
import sys
import threading
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

from fray.client import Client
from fray.local_backend import LocalClient

_explicit: contextvars.ContextVar[Client | None] = contextvars.ContextVar("fray_client", default=None)
_default: list[Client] = []
_factory: list[Callable[[], Client]] = []
_lock = threading.Lock()


def current_client() -> Client:
    """Return the current client; without one, this process's own: local, or of the cluster whose task this is.

    Example:
        >>> from fray import LocalClient
        >>> with LocalClient(mode="thread") as mine, set_current_client(mine):
        ...     current_client() is mine
        True
    """
    client = _explicit.get()
    if client is not None:
        return client
    with _lock:
        if not _default or _default[0].closed:
            _default[:] = [_factory[0]() if _factory else LocalClient()]
        return _default[0]


@contextlib.contextmanager
def set_current_client(client: Client) -> Generator[Client]:
    """Make ``client`` current for the body; nests, and restores the previous one.

    Example:
        >>> from fray import LocalClient
        >>> with LocalClient(mode="thread") as outer, LocalClient(mode="thread") as inner:
        ...     with set_current_client(outer):
        ...         with set_current_client(inner):
        ...             first = current_client() is inner
        ...         first, current_client() is outer
        (True, True)
    """
    token = _explicit.set(client)
    try:
        yield client
    finally:
        _explicit.reset(token)


def set_default_client_factory(make: Callable[[], Client]) -> None:
    """Let ``current_client`` make its client with ``make``; for backends, in the processes of their tasks."""
    _factory[:] = [make]


def shutdown_default_client() -> None:
    """End the process's own client, if it was ever made, with everything it runs."""
    with _lock:
        clients, _default[:] = list(_default), []
    for client in clients:
        client.shutdown()


class _CallableModule(ModuleType):
    """Importing this module hides the function ``fray.current_client``; so the module can be called in its place."""

    def __call__(self) -> Client:
        return current_client()

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that travels by value may hold the module under the function's name.
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _CallableModule
