"""Copy files between stores so that what arrives is what was sent.

A copy is streamed, digested on the way, and appears at its target only when it is complete; then the target is checked:
by the digest that the store keeps where it has one, else by reading the copy again. A copy that does not match is
removed and is an error. MD5 is used because it is the digest that object stores keep; it guards against accidents here,
not against malice.
"""

import contextlib
import contextvars
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import IO, Any, Final

from rigging.errors import StoragePathError, TransferVerificationError
from rigging.filesystem._stores import store_for
from rigging.filesystem.atomic import atomic_rename, atomic_stream
from rigging.filesystem.storage_path import StoragePath, StoredEntry

BLOCK_BYTES: Final = 4 << 20
_ONE_REQUEST_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """One file to copy: where from, where to, and its size in bytes."""

    source: str
    target: str
    size: int


@dataclass(frozen=True, slots=True)
class Copied:
    """One file that was copied: its bytes, MD5 in hex, and how the target was checked."""

    source: str
    target: str
    size: int
    md5: str
    verified: str


def blocks(stream: IO[bytes], size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield what is left of a stream in blocks.

    Example:
        >>> import io
        >>> list(blocks(io.BytesIO(b"abcde"), 2))
        [b'ab', b'cd', b'e']
    """
    while block := stream.read(size):
        yield block


def digest_of(path: str, algorithm: str = "md5", advance: Callable[[int], object] = lambda n: None) -> bytes:
    """Return the digest of a file's content, as bytes.

    Args:
        path: Local path or URL.
        algorithm: A name that ``hashlib`` knows.
        advance: Called with the number of bytes after each block.
    Raises:
        OSError: The file cannot be read.
        ValueError: No such algorithm.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "x")
        >>> StoragePath(path).write_text("abc")
        >>> digest_of(path).hex()
        '900150983cd24fb0d6963f7d28e17f72'
    """
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with StoragePath(path).open("rb") as stream:
        for block in blocks(stream):
            digest.update(block)
            advance(len(block))
    return digest.digest()


def copy_file(
    source: str, target: str, *, verify: bool = True, advance: Callable[[int], object] = lambda n: None
) -> Copied:
    """Copy one file; the target appears whole.

    A local target is checked before it takes the place of what is there; an object is checked after, and removed when
    it does not match.

    Args:
        source: Local path or URL of a file.
        target: Where it goes; replaced if it is there.
        verify: Whether to check what arrived.
        advance: Called with the number of bytes after each block.
    Raises:
        StoragePathError: Source and target are the same.
        TransferVerificationError: What arrived is not what was sent.
        OSError: A store refused; the target is unchanged.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> StoragePath(folder + "/a").write_text("abc")
        >>> done = copy_file(folder + "/a", folder + "/b/c")
        >>> done.size, done.verified
        (3, 'read back')
    """
    if StoragePath(source).normalize() == StoragePath(target).normalize():
        raise StoragePathError("copy", target, "a target that is not the source")
    if StoragePath(target).is_local:
        return _copy_to_disk(source, target, verify, advance)
    if StoragePath(source).is_local and os.path.getsize(_native(source)) >= _ONE_REQUEST_BYTES:
        return _send_large(source, target, verify, advance)
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    with StoragePath(source).open("rb") as reading:
        first = reading.read(_ONE_REQUEST_BYTES)
        if len(first) < _ONE_REQUEST_BYTES:
            # One request, and the store keeps a plain MD5, which an upload in parts would not have.
            StoragePath(target).write_bytes(first)
            digest.update(first)
            size = len(first)
            advance(size)
        else:
            with atomic_stream(target) as writing:
                size = _pour(itertools.chain((first,), blocks(reading)), writing, digest, advance)
    sent = digest.hexdigest()
    how = _verified(source, target, size, sent) if verify else "not verified"
    return Copied(source, target, size, sent, how)


def _copy_to_disk(source: str, target: str, verify: bool, advance: Callable[[int], object]) -> Copied:
    """Copy to a local file; it is checked before it takes the place of what is there."""
    digest = hashlib.md5(usedforsecurity=False)
    with atomic_rename(_native(target)) as temp:
        with StoragePath(source).open("rb") as reading, open(temp, "wb") as writing:
            size = _pour(blocks(reading), writing, digest, advance)
        how = _verified(source, temp, size, digest.hexdigest(), shown=target) if verify else "not verified"
    return Copied(source, target, size, digest.hexdigest(), how)


def _pour(source: Iterable[bytes], target: IO[bytes], digest: Any, advance: Callable[[int], object]) -> int:
    size = 0
    for block in source:
        digest.update(block)
        target.write(block)
        size += len(block)
        advance(len(block))
    return size


def _send_large(source: str, target: str, verify: bool, advance: Callable[[int], object]) -> Copied:
    """Upload in parts at once. The file is read before, for its digest; a change between shows in the check."""
    size, sent = os.path.getsize(_native(source)), digest_of(source).hex()
    store, native = store_for(target)
    store.send(_native(source), native, advance)
    how = _verified(source, target, size, sent) if verify else "not verified"
    return Copied(source, target, size, sent, how)


def _native(path: str) -> str:
    return store_for(path)[1]


def _verified(source: str, target: str, size: int, sent: str, *, shown: str | None = None) -> str:
    arrived = StoragePath(target).info()
    how = "store digest" if arrived.md5 is not None else "read back"
    md5 = arrived.md5 if arrived.md5 is not None else digest_of(target).hex()
    if (arrived.size, md5) != (size, sent):
        with contextlib.suppress(OSError):
            StoragePath(target).rm()
        raise TransferVerificationError(
            source, shown or target, f"{size} bytes, md5 {sent}", f"{arrived.size} bytes, md5 {md5}"
        )
    return how


def files_below(path: str) -> list[StoredEntry]:
    """Return every file at or below ``path``, sorted by path.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    place = StoragePath(path)
    entry = place.info()
    return [entry] if not entry.is_folder else sorted(place.scan(recursive=True), key=lambda found: found.path)


def plan_copies(sources: Sequence[str], target: str, *, recursive: bool, into_folder: bool = False) -> list[Copy]:
    """Decide what goes where, as ``cp`` does: into the target if that is a folder, else to that very name.

    Args:
        sources: Files, folders (with ``recursive``) or patterns.
        target: A file name for one source, else a folder.
        recursive: Whether folders may be copied.
        into_folder: Treat the target as a folder even if it is not there yet.
    Returns:
        The copies; empty folders are left out, as object stores have none.
    Raises:
        FileNotFoundError: A source is not there, or a pattern matches nothing.
        IsADirectoryError: A folder without ``recursive``.
        NotADirectoryError: Several sources, and the target is a file.
        StoragePathError: A folder would be copied into itself, or two sources onto one name.

    Example:
        >>> import tempfile
        >>> base = StoragePath(tempfile.mkdtemp())
        >>> (base / "in/a/x").write_text("abc")
        >>> (copy,) = plan_copies([str(base / "in")], str(base / "out"), recursive=True)
        >>> str(StoragePath(copy.target).relative_to(base)), copy.size
        ('out/a/x', 3)
    """
    named = [found for source in sources for found in expand_source(source)]
    base = StoragePath(target)
    is_folder = into_folder or target.endswith("/") or base.isdir()
    if len(named) > 1 and not is_folder:
        if base.exists():
            raise NotADirectoryError(f"several sources need a folder as target: {target} is a file")
        is_folder = True
    plan: list[Copy] = []
    for source in named:
        entry = source.info()
        goal = base / source.name if is_folder else base
        if not entry.is_folder:
            plan.append(Copy(str(source), str(goal), entry.size or 0))
            continue
        if not recursive:
            raise IsADirectoryError(f"{source} is a folder; give -r to copy it with everything in it")
        refuse_overlap(source, goal)
        for found in source.scan(recursive=True):
            if not found.is_folder:
                relative = StoragePath(found.path).relative_to(source)
                plan.append(Copy(found.path, str(goal / str(relative)), found.size or 0))
    _refuse_clashes(plan)
    return plan


def expand_source(source: str) -> list[StoragePath]:
    """Return the place that ``source`` names, or what it matches as a pattern.

    Raises:
        FileNotFoundError: Nothing is there and nothing matches.

    Example:
        >>> expand_source("/nowhere/*.txt")
        Traceback (most recent call last):
            ...
        FileNotFoundError: nothing is at /nowhere/*.txt
    """
    path = StoragePath(source)
    if path.exists():
        return [path]
    found = path.glob()
    if not found:
        raise FileNotFoundError(f"nothing is at {source}")
    return found


def refuse_overlap(source: StoragePath, target: StoragePath) -> None:
    """Make sure that neither tree lies in the other.

    Raises:
        StoragePathError: One does.

    Example:
        >>> refuse_overlap(StoragePath("/a"), StoragePath("/ab"))
        >>> refuse_overlap(StoragePath("/a"), StoragePath("/a/b"))
        Traceback (most recent call last):
            ...
        rigging.errors.StoragePathError: bad storage path: ...
    """
    first, second = source.normalize(), target.normalize()
    shared = min(len(first.segments), len(second.segments))
    same_store = (first.is_local, first.netloc) == (second.is_local, second.netloc)
    if same_store and first.segments[:shared] == second.segments[:shared]:
        raise StoragePathError("copy", target, f"a folder that neither holds {source} nor lies in it")


def _refuse_clashes(plan: Iterable[Copy]) -> None:
    seen: dict[str, str] = {}
    for copy in plan:
        if seen.setdefault(copy.target, copy.source) != copy.source:
            raise StoragePathError("copy", copy.target, f"one source for it, not {seen[copy.target]} and {copy.source}")


def run_copies(
    plan: Sequence[Copy], *, jobs: int = 8, verify: bool = True, advance: Callable[[int], object] = lambda n: None
) -> list[Copied]:
    """Carry a plan out with ``jobs`` threads; the first failure stops what has not begun.

    Args:
        plan: What to copy.
        jobs: Copies at once.
        verify: Whether to check what arrived.
        advance: Called with numbers of bytes, one call at a time.
    Returns:
        What was copied, in the order of the plan.
    Raises:
        TransferVerificationError: What arrived is not what was sent.
        OSError: A store refused.
    """
    lock = threading.Lock()

    def count(size: int) -> None:
        with lock:
            advance(size)

    with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(plan)))) as pool:
        # Each thread is given what is in force around us: the transfer budget, the data configuration.
        running: list[Any] = [
            pool.submit(
                contextvars.copy_context().run, copy_file, item.source, item.target, verify=verify, advance=count
            )
            for item in plan
        ]
        done, waiting = wait(running, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        for future in done:
            future.result()
    return [future.result() for future in running]
