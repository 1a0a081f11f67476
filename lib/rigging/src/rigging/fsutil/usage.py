"""How much lies where: sizes of trees, one listing each."""

from dataclasses import dataclass

from rigging.filesystem.storage_path import StoragePath


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes and files at or below a path, links to folders not entered."""

    path: str
    size: int
    files: int


def usage_of(path: str) -> Usage:
    """Count one file or tree.

    Raises:
        FileNotFoundError: Nothing is there.

    Example:
        >>> import tempfile
        >>> base = StoragePath(tempfile.mkdtemp())
        >>> (base / "a/b").write_text("abc"); (base / "c").write_text("de")
        >>> usage_of(str(base)).size, usage_of(str(base)).files
        (5, 2)
    """
    place = StoragePath(path)
    entry = place.info()
    if entry.size is not None:
        return Usage(path, entry.size, 1)
    size = files = 0
    for found in place.scan(recursive=True):
        if found.size is not None:
            size += found.size
            files += 1
    return Usage(path, size, files)


def usage_by_child(path: str) -> list[Usage]:
    """Count each entry of a folder and, last, the folder itself, from one listing.

    Raises:
        FileNotFoundError: Nothing is there.

    Example:
        >>> import tempfile
        >>> base = StoragePath(tempfile.mkdtemp())
        >>> (base / "a/b").write_text("abc"); (base / "c").write_text("de")
        >>> [usage.size for usage in usage_by_child(str(base))]
        [3, 2, 5]
    """
    place = StoragePath(path)
    entry = place.info()
    if entry.size is not None:
        return [Usage(path, entry.size, 1)]
    depth = len(place.segments) if place.segments != (".",) else 0
    children: dict[str, list[int]] = {}
    for found in place.scan(recursive=True):
        if found.size is not None:
            name = StoragePath(found.path).segments[depth]
            counted = children.setdefault(name, [0, 0])
            counted[0] += found.size
            counted[1] += 1
    lines = [Usage(str(place / name), size, files) for name, (size, files) in sorted(children.items())]
    return [*lines, Usage(path, sum(line.size for line in lines), sum(line.files for line in lines))]
