"""The client in whose context code runs, so that libraries need no client argument.

Order: the one set by ``set_current_client`` (also inside jobs that a thread-mode client runs), else one
    ``LocalClient`` per
process, made when first asked for.
"""

import contextlib
import contextvars
import sys
import threading
from collections.abc import Generator
from types import ModuleType

from fray.client import Client
from fray.local_backend import LocalClient

_explicit: contextvars.ContextVar[Client | None] = contextvars.ContextVar("fray_client", default=None)
_default: list[LocalClient] = []
_lock = threading.Lock()


def current_client() -> Client:
    """Return the current client; without one, this process's own local client.

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
            _default[:] = [LocalClient()]
        return _default[0]


@contextlib.contextmanager
def set_current_client(client: Client) -> Generator[Client]:
    """Make ``client`` current for the body; nests, and restores the previous one."""
    token = _explicit.set(client)
    try:
        yield client
    finally:
        _explicit.reset(token)


def shutdown_default_client() -> None:
    """End the process's own local client, if it was ever made, with everything it runs."""
    with _lock:
        clients, _default[:] = list(_default), []
    for client in clients:
        client.shutdown()


class _CallableModule(ModuleType):
    """Importing this module hides the function ``fray.current_client``; so the module can be called in its place."""

    def __call__(self) -> Client:
        return current_client()


sys.modules[__name__].__class__ = _CallableModule
