"""Durable file operations that the commit protocol is made of: create once, replace, exchange, take away.

Each write is on disk before the function returns. Texts may also lie in an object store; folders are local only.
"""

import contextlib
import ctypes
import errno
import json
import os
import secrets
import shutil
import stat
from typing import Any

from marin.errors import StoreUnavailableError
from marin.execution._objects import (
    STORE_FILE,
    check_remote_prefix,
    create_object,
    is_remote,
    object_exists,
    put_file,
    remove_object,
    replace_object_text,
)
from marin.execution.records import RECORD_FORMAT, parse_object, read_text

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def json_text(value: dict[str, Any]) -> str:
    """JSON as every record is written: sorted keys, one line a field, a newline at the end."""

    def dump(item: Any) -> str:
        return json.dumps(item, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)

    return "{\n" + ",\n".join(f" {dump(key)}: {dump(value[key])}" for key in sorted(value)) + "\n}\n"


def exists(path: str) -> bool:
    """Whether a file, folder, object or non-empty prefix is there."""
    return object_exists(path) if is_remote(path) else os.path.exists(path)


def remove_file(path: str) -> None:
    """Delete a file or object; fine if it is gone already."""
    with contextlib.suppress(FileNotFoundError):
        if is_remote(path):
            remove_object(path)
        else:
            os.unlink(path)


def fsync_directory(path: str) -> None:
    """Make renames and creations in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_temporary(path: str, data: bytes, *, durable: bool = True) -> str:
    folder, leaf = os.path.split(path)
    temporary = os.path.join(folder, f".{leaf}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return temporary


def replace_text(path: str, text: str, *, durable: bool = True) -> None:
    """Write a whole file; a reader sees the old text or the new one, never a part.

    Args:
        path: The file.
        text: Its new content.
        durable: Whether it must be on disk when this returns. Other processes see it at once either way; only after a
            power failure may the old text be back.
    """
    if is_remote(path):
        replace_object_text(path, text)
        return
    data = text.encode("utf-8")
    temporary = _write_temporary(path, data, durable=durable)
    try:
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            # A driver that woke up late took it for what a dead one had left (``remove_temporaries``).
            temporary = _write_temporary(path, data, durable=durable)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        fsync_directory(os.path.dirname(path))


def create_text(path: str, text: str, *, durable: bool = True, make_folder: bool = True) -> bool:
    """``create_bytes`` of a text in UTF-8."""
    return create_bytes(path, text.encode("utf-8"), durable=durable, make_folder=make_folder)


def create_bytes(path: str, data: bytes, *, durable: bool = True, make_folder: bool = True) -> bool:
    """Create a file that must not exist yet; the first of several writers wins.

    The content is written to a file without a name, which is then given its name: a writer that dies leaves nothing
    behind.

    Args:
        path: The file.
        data: Its content.
        durable: As for ``replace_text``.
        make_folder: Whether folders above it are made when they are not there.
    Returns:
        Whether this call created it.
    Raises:
        FileNotFoundError: Its folder is not there and is not to be made.
    """
    if is_remote(path):
        return create_object(path, data)
    folder = os.path.dirname(path)
    if make_folder:
        os.makedirs(folder, exist_ok=True)
    elif not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    descriptor = _open_nameless(folder)
    if descriptor is None:
        return _create_named(path, data, durable=durable)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            # Only with a directory descriptor does Python ask the kernel to follow the link to the nameless file.
            source = f"/proc/self/fd/{file.fileno()}"
            os.link(source, os.path.basename(path), dst_dir_fd=directory, follow_symlinks=True)
        if durable:
            os.fsync(directory)
    except FileExistsError:
        return False
    finally:
        os.close(directory)
    return True


def _open_nameless(folder: str) -> int | None:
    """A file in a folder that has no name yet, or None where the system has no such files."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, flag | os.O_WRONLY, 0o644)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


def _create_named(path: str, data: bytes, *, durable: bool) -> bool:
    """``create_bytes`` where the file system has no nameless files."""
    temporary = _write_temporary(path, data, durable=durable)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    if durable:
        fsync_directory(os.path.dirname(path))
    return True


def remove_temporaries(folder: str) -> None:
    """Delete what writers that died left of ``replace_text`` in a folder that only the caller writes."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name.startswith(".") and name.endswith(".tmp"):
                remove_file(os.path.join(folder, name))


def exchange(first: str, second: str) -> None:
    """Swap two paths in one atomic step where the kernel can, so that neither name is ever missing.

    Raises:
        OSError: ``first`` or ``second`` does not exist.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(number, os.strerror(number), first, None, second)
    aside = f"{first}.swap-{secrets.token_hex(4)}"
    os.rename(first, aside)
    try:
        os.rename(second, first)
    except BaseException:
        os.rename(aside, first)
        raise
    os.rename(aside, second)


def keep_file(source: str, target: str) -> None:
    """Move a local file to where evidence is kept, locally or in an object store."""
    if is_remote(target):
        put_file(source, target)
        os.unlink(source)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(source, target)


def take_away(path: str, trash_folder: str) -> bool:
    """Move a folder out of its place at once, then delete it.

    The move is what fences a late writer: its next rename of that folder fails. Deleting may meet files that such a
    writer still creates; what cannot be deleted stays in the trash for the next owner.

    Returns:
        Whether there was anything.
    """
    os.makedirs(trash_folder, exist_ok=True)
    target = os.path.join(trash_folder, f"trash-{secrets.token_hex(6)}")
    try:
        os.rename(path, target)
    except FileNotFoundError:
        return False
    empty_trash(trash_folder)
    return True


def empty_trash(trash_folder: str) -> None:
    """Delete what ``take_away`` left in a folder."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(trash_folder):
            if name.startswith("trash-"):
                remove_tree(os.path.join(trash_folder, name))


def remove_tree(path: str) -> None:
    """Delete a folder with everything in it, read-only parts too; what a live writer still fills may stay."""

    def unlock(function: Any, name: str, error: BaseException) -> None:
        if isinstance(error, PermissionError):
            with contextlib.suppress(OSError):
                os.chmod(os.path.dirname(name), stat.S_IRWXU)
                function(name)

    shutil.rmtree(path, onexc=unlock)


def check_store(prefix: str) -> None:
    """Prove that the store can be used before any work starts: right format, writable, not full.

    Args:
        prefix: Root of the store; created when missing.
    Raises:
        StoreUnavailableError: It cannot be written.
        RecordFormatError: It was written by a newer version.
    """
    marker = os.path.join(prefix, STORE_FILE)
    try:
        if not is_remote(prefix):
            os.makedirs(prefix, exist_ok=True)
        text = read_text(marker)
        if text is not None:
            parse_object(marker, text)
        else:
            create_text(marker, json_text({"record_format": RECORD_FORMAT, "store": "marin"}))
        if not is_remote(prefix):
            # 64 KiB is what closing one attempt may need; a full disk fails here and not after hours of work.
            _probe(prefix, 65_536)
    except OSError as error:
        if type(error).__module__.startswith("marin."):
            raise
        raise StoreUnavailableError(prefix, f"{type(error).__name__}: {error.strerror or error}") from error


def _probe(folder: str, size: int) -> None:
    """Write that many bytes, durably, and leave nothing."""
    descriptor = _open_nameless(folder)
    if descriptor is None:
        os.unlink(_write_temporary(os.path.join(folder, ".probe"), b" " * size))
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(b" " * size)
        file.flush()
        os.fsync(file.fileno())


def check_prefix(prefix: str) -> str:
    """The prefix as an absolute local path, or as a URL without a slash at its end.

    Raises:
        StoreUnavailableError: It names a remote store that cannot compare and swap.
    """
    if prefix.startswith("file://"):
        prefix = prefix.removeprefix("file://")
    if is_remote(prefix):
        return check_remote_prefix(prefix)
    return os.path.abspath(prefix)
