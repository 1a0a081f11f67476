"""Decide what it takes to make one tree like another."""

import math
from dataclasses import dataclass, field

from rigging.errors import StoragePathError
from rigging.filesystem.storage_path import StoragePath, StoredEntry
from rigging.filesystem.transfer import Copy, digest_of, refuse_overlap


@dataclass(slots=True)
class MirrorPlan:
    """What to copy, what the target has beyond the source, and how many files are the same already."""

    copies: list[Copy] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    same: int = 0


def plan_mirror(source: str, target: str, *, by_content: bool = False) -> MirrorPlan:
    """Compare two trees file by file.

    A file is the same when its size is, and it is newer at the target than at the source; where a store tells no time,
    or only the same second, or with ``by_content``, the MD5 decides.

    Args:
        source: A folder.
        target: A folder; need not exist.
        by_content: Whether to compare content whatever the times say.
    Raises:
        FileNotFoundError: The source is not there.
        NotADirectoryError: The source is a file.
        StoragePathError: One tree lies in the other.

    Example:
        >>> import tempfile
        >>> base = StoragePath(tempfile.mkdtemp())
        >>> (base / "a/x").write_text("1"); (base / "b/y").write_text("2")
        >>> plan = plan_mirror(str(base / "a"), str(base / "b"))
        >>> [StoragePath(copy.target).name for copy in plan.copies], [StoragePath(path).name for path in plan.extra]
        (['x'], ['y'])
    """
    here, there = StoragePath(source), StoragePath(target)
    if not here.info().is_folder:
        raise NotADirectoryError(f"{source} is a file; rsync takes folders")
    refuse_overlap(here, there)
    wanted, present = _tree(here), _tree(there) if there.exists() else {}
    plan = MirrorPlan(extra=[entry.path for name, entry in sorted(present.items()) if name not in wanted])
    for name, entry in sorted(wanted.items()):
        if name in present and _same(entry, present[name], by_content):
            plan.same += 1
        else:
            plan.copies.append(Copy(entry.path, str(there / name), entry.size or 0))
    return plan


def _tree(folder: StoragePath) -> dict[str, StoredEntry]:
    found = (entry for entry in folder.scan(recursive=True) if not entry.is_folder)
    try:
        return {str(StoragePath(entry.path).relative_to(folder)): entry for entry in found}
    except StoragePathError as error:
        raise StoragePathError("rsync", folder, "a path in its plain form, without '.' and '..'") from error


def _same(first: StoredEntry, second: StoredEntry, by_content: bool) -> bool:
    if first.size != second.size:
        return False
    if not by_content and first.mtime is not None and second.mtime is not None:
        # Object stores tell whole seconds, so within one second the times prove nothing.
        if second.mtime > first.mtime or second.mtime < math.floor(first.mtime):
            return second.mtime > first.mtime
    return _md5(first) == _md5(second)


def _md5(entry: StoredEntry) -> str:
    return entry.md5 or digest_of(entry.path).hex()
