"""Relative names from a manifest, an archive or a request, made safe before anything is written.

Whoever writes files under names that others chose must not be led out of the folder, nor let one name be a file and a
folder at once. The names are POSIX: ``/`` separates; a colon, a backslash and letter case are ordinary characters.
"""

from collections.abc import Iterable

from rigging.errors import UnsafePathError


def validate_relative_path(name: str) -> str:
    """Return ``name`` if it is a plain relative path.

    Raises:
        UnsafePathError: Empty, absolute, with a NUL, or with an empty, ``.`` or ``..`` part.

    Example:
        >>> validate_relative_path("data/part-0.parquet")
        'data/part-0.parquet'
        >>> validate_relative_path("../etc/passwd")
        Traceback (most recent call last):
            ...
        rigging.errors.UnsafePathError: unsafe relative path: ...
    """
    if not name:
        raise UnsafePathError(name, "it is empty")
    if "\0" in name:
        raise UnsafePathError(name, "it holds a NUL")
    if name.startswith("/"):
        raise UnsafePathError(name, "it is absolute")
    for part in name.split("/"):
        if part in ("", ".", ".."):
            raise UnsafePathError(name, f"it has the part {part!r}")
    return name


def validate_relative_paths(names: Iterable[str]) -> list[str]:
    """Return the names if each is safe and all can stand in one folder together.

    Raises:
        UnsafePathError: A name is unsafe, is there twice, or is a file where another needs a folder.

    Example:
        >>> validate_relative_paths(["a/b", "a/c"])
        ['a/b', 'a/c']
        >>> validate_relative_paths(["a", "a/c"])
        Traceback (most recent call last):
            ...
        rigging.errors.UnsafePathError: unsafe relative path: name='a/c', 'a' is a file ...
    """
    checked = [validate_relative_path(name) for name in names]
    seen: set[str] = set()
    for name in checked:
        if name in seen:
            raise UnsafePathError(name, "it is named twice")
        seen.add(name)
    for name in checked:
        parts = name.split("/")
        for count in range(1, len(parts)):
            if (folder := "/".join(parts[:count])) in seen:
                raise UnsafePathError(name, f"{folder!r} is a file in the same list")
    return checked
