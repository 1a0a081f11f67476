"""Checks and packing that every backend does the same way."""

from typing import Any

from fray._codec import dumps, ship_by_value_if_needed
from fray.errors import JobRequestError
from fray.types import Entrypoint


def pack_call(entry: Entrypoint) -> bytes:
    """Return the callable of an entrypoint with its arguments, as bytes.

    Raises:
        SerializationError: It cannot be pickled.
    """
    assert entry.fn is not None
    ship_by_value_if_needed(entry.fn)
    return dumps((entry.fn, entry.args, dict(entry.kwargs)), "the entrypoint")


def same_fingerprint(first: Any, second: Any) -> bool:
    """Tell whether two requests run the same thing."""
    try:
        return bool(first == second)
    except Exception:  # arguments may compare in their own way (arrays): then they are not the same
        return False


def check_group(name: str, count: int) -> None:
    """Refuse what cannot be an actor group.

    Raises:
        JobRequestError: ``count < 1``, or a name with a slash or blank.
    """
    if count < 1:
        raise JobRequestError("count", count, "at least 1")
    if not name or "/" in name or any(char.isspace() for char in name):
        raise JobRequestError("name", name, "text without blanks and slashes", "Use dashes.")
