"""Look up ``fray.backends`` entry points; reading them costs tens of milliseconds, so only when asked."""

from collections.abc import Callable
from typing import Any

from fray.errors import BackendNotFoundError

GROUP = "fray.backends"


def load_backend(name: str) -> Callable[..., Any]:
    """Return the factory of the backend ``name``.

    Raises:
        BackendNotFoundError: Nobody offers that name.
    """
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    for entry in found:
        if entry.name == name:
            return entry.load()
    raise BackendNotFoundError(name, sorted({entry.name for entry in found}))
