"""Names for what is being written, beside where it will lie."""

import os
from typing import Final

_NAME_LIMIT_BYTES: Final = 255


def unique_temp_path(path: str) -> str:
    """Return a sibling of ``path`` that nobody else will choose: ``<path>.tmp.<32 hex digits>``.

    A name too long for the suffix is shortened, so that any legal target has a legal temporary.

    Example:
        >>> unique_temp_path("/a/b").startswith("/a/b.tmp."), unique_temp_path("x") == unique_temp_path("x")
        (True, False)
    """
    suffix = f".tmp.{os.urandom(16).hex()}"
    head, slash, name = path.rpartition("/")
    encoded = os.fsencode(name)
    if len(encoded) + len(suffix) > _NAME_LIMIT_BYTES:
        name = os.fsdecode(encoded[: _NAME_LIMIT_BYTES - len(suffix)])
    return f"{head}{slash}{name}{suffix}"
