"""Writes that happen completely or not at all.

A reader, or the next run after a power cut, must never see half a file. So: write beside the target under a unique
name, flush to disk, rename over the target, flush the folder. When anything fails the target still holds the old
content and the temporary is removed.

On object stores a single object appears atomically by itself; "renaming" there is copy and delete, so a *tree* does not
move atomically: let a marker file written last say that the tree is complete.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Generator
from typing import IO, Any, Final

from rigging.errors import DestinationExistsError
from rigging.filesystem._adapters.renameat2 import exchange
from rigging.filesystem._stores import Store, store_for
from rigging.filesystem._temp_name import unique_temp_path
from rigging.timing import ExponentialBackoff, retry_with_backoff

_TRANSIENT_S3: Final = (
    "InvalidPart",
    "InternalError",
    "ServiceUnavailable",
    "SlowDown",
    "RequestTimeout",
    "RequestTimeTooSkewed",
)


@contextlib.contextmanager
def atomic_rename(path: str, *, durable: bool = True) -> Generator[str]:
    """Yield a temporary sibling of ``path`` to write a file or directory at; put it in place when the body succeeds.

    A directory replaces an existing directory in one step where the kernel can swap (Linux); otherwise it is refused
    rather than merged.

    Args:
        path: Target, a local path or URL. Missing parent folders are created.
        durable: Flush content and folder to disk before returning (local only). Without it the write is still atomic
            for readers, but a power cut may undo it.
    Yields:
        The temporary path, in the spelling of ``path``.
    Raises:
        FileNotFoundError: The body wrote nothing at the temporary path.
        DestinationExistsError: A directory stands in the way and cannot be swapped.
        OSError: Disk full, no permission; the target is unchanged.

    Example:
        >>> import os, pathlib, tempfile
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with atomic_rename(str(target)) as temp:
        ...     _ = pathlib.Path(temp).write_text("all or nothing")
        >>> target.read_text(), os.listdir(target.parent)
        ('all or nothing', ['notes.txt'])
    """
    store, native = store_for(path)
    if store.is_local:
        os.makedirs(os.path.dirname(os.path.abspath(native)), exist_ok=True)
    native = native.rstrip("/")
    temp = unique_temp_path(native)
    try:
        yield temp
        if not store.exists(temp):
            raise FileNotFoundError(
                f"nothing was written: temporary={temp!r}, target={native!r}; expected a file or directory at the "
                "temporary path. Write to the path that atomic_rename yields."
            )
        if store.is_local:
            _commit_local(temp, native, durable)
        else:
            _commit_remote(store, temp, native)
    except BaseException:
        _discard(store, temp)
        raise


def write_bytes_atomic(path: str, data: bytes, *, durable: bool = True) -> None:
    """Replace the content of ``path`` by ``data``, completely or not at all.

    Raises:
        OSError: The write failed; the old content stands.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "x")
        >>> write_bytes_atomic(path, b"abc"); os.path.getsize(path)
        3
    """
    store, native = store_for(path)
    if not store.is_local:
        store.put(native, data)  # one request: the object appears whole
        return
    with atomic_rename(path, durable=durable) as temp:
        store.put(temp, data)


@contextlib.contextmanager
def atomic_stream(path: str, *, durable: bool = True) -> Generator[IO[bytes]]:
    """Yield a binary stream whose content appears at ``path`` when the body succeeds, and not at all when it raises.

    Args:
        path: Target file, a local path or URL. Missing parent folders are created.
        durable: Flush to disk before returning (local only).
    Yields:
        The stream; write to it and leave the closing to the context.
    Raises:
        OSError: Disk full, no permission, the store refused; the target is unchanged.

    Example:
        >>> import os, tempfile
        >>> target = os.path.join(tempfile.mkdtemp(), "x")
        >>> with atomic_stream(target) as stream:
        ...     _ = stream.write(b"all of it")
        >>> os.path.getsize(target)
        9
    """
    store, native = store_for(path)
    if store.is_local:
        with atomic_rename(path, durable=durable) as temp, store.create(temp) as stream:
            yield stream
    else:
        with store.create(native) as stream:
            yield stream


def write_text_atomic(path: str, text: str, *, durable: bool = True) -> None:
    """Replace the content of ``path`` by ``text`` in UTF-8, completely or not at all.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "x")
        >>> write_text_atomic(path, "ä"); os.path.getsize(path)
        2
    """
    write_bytes_atomic(path, text.encode("utf-8"), durable=durable)


def write_json_atomic(path: str, obj: Any, *, durable: bool = True) -> None:
    """Replace ``path`` by the JSON text of ``obj``: keys sorted, two blanks of indent, a newline at the end.

    Raises:
        ValueError: ``obj`` holds NaN or infinity, which JSON does not have.
        TypeError: ``obj`` holds something that is not JSON.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/x.json"
        >>> write_json_atomic(path, {"loss": float("nan")})
        Traceback (most recent call last):
            ...
        ValueError: Out of range float values are not JSON compliant...
    """
    text = json.dumps(obj, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomic(path, text + "\n", durable=durable)


def _commit_local(temp: str, target: str, durable: bool) -> None:
    if durable:
        fsync_tree(temp)
    if os.path.isdir(temp) and os.path.lexists(target):
        _replace_directory(temp, target)
    else:
        os.replace(temp, target)
    if durable:
        fsync_path(os.path.dirname(os.path.abspath(target)))


def _replace_directory(temp: str, target: str) -> None:
    if not os.path.isdir(target) or os.path.islink(target):
        raise DestinationExistsError(target, "nothing, or a directory")
    if not exchange(temp, target):
        raise DestinationExistsError(target, "nothing there, as this file system cannot swap directories")
    shutil.rmtree(temp)  # it holds the old content now


def _commit_remote(store: Store, temp: str, target: str) -> None:
    retry_with_backoff(
        lambda: store.rename(temp, target),
        retryable=lambda error: any(code in str(error) for code in _TRANSIENT_S3),
        max_attempts=4,
        backoff=ExponentialBackoff(initial=1, maximum=8, factor=2),
        operation=f"commit of {target}",
    )


def _discard(store: Store, temp: str) -> None:
    # The original error matters more than a temporary that cannot be removed.
    with contextlib.suppress(OSError):
        if store.isdir(temp):
            store.rmtree(temp)
        elif store.exists(temp) or store.is_local:
            store.rm(temp)


def fsync_path(path: str) -> None:
    """Flush one file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(path: str) -> None:
    """Flush a file, or a folder with everything in it, to disk."""
    if os.path.isdir(path):
        for folder, _, files in os.walk(path):
            for name in files:
                entry = os.path.join(folder, name)
                if not os.path.islink(entry):
                    fsync_path(entry)
            fsync_path(folder)
    else:
        fsync_path(path)
