"""Find a backend by name among the installed distributions (entry point group ``fray.backends``)."""

from typing import Any

from fray._adapters.entry_points import load_backend
from fray.client import Client


def connect_backend(name: str, **options: Any) -> Client:
    """Return a client of the backend ``name``.

    Args:
        name: Name of an entry point, such as ``"local"``.
        **options: Handed to the backend.
    Raises:
        BackendNotFoundError: Nobody offers that name; lists what is installed.

    Example:
        >>> client = connect_backend("local", mode="thread")
        >>> client.shutdown()
    """
    return load_backend(name)(**options)
