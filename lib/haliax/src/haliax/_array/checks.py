"""A switch for the shape check of `NamedArray(...)`, scoped to the context (thread or task) that flips it."""

import contextlib
import contextvars
from collections.abc import Iterator

_enabled: contextvars.ContextVar[bool] = contextvars.ContextVar("haliax_shape_checks", default=True)


@contextlib.contextmanager
def enable_shape_checks(enabled: bool) -> Iterator[bool]:
    """Switch the check on or off for the block; yields the previous state.

    Example:
        >>> with enable_shape_checks(False) as before:
        ...     (before, are_shape_checks_enabled())
        (True, False)
    """
    before = _enabled.get()
    token = _enabled.set(enabled)
    try:
        yield before
    finally:
        _enabled.reset(token)


def are_shape_checks_enabled() -> bool:
    """Tell whether `NamedArray(...)` compares the axes with the shape of the payload."""
    return _enabled.get()
