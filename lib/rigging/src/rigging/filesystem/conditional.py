"""Compare and swap on a stored object: the base of every lock and ledger.

``write`` succeeds only when the stored version is the expected one, so of two writers that read the same state exactly
one wins and the other learns that it lost. A store that cannot do this is refused, never treated as last-writer-wins.

Local disk: writers take an exclusive ``flock`` on a hidden sidecar file (the kernel frees it when a process dies),
compare, write a temporary, flush and rename. Content is never changed in place, so readers need no lock. The version
is made of the modification time, which writers force to grow strictly, and a digest: an object that is changed and
changed back has a new version.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Generator
from typing import Final, Protocol

from rigging.errors import ConditionalWriteError, StoragePathError, StoreBusyError, UnsupportedConditionalWrite
from rigging.filesystem._adapters.gcs import GcsConditionalObject
from rigging.filesystem._adapters.s3 import S3ConditionalObject
from rigging.filesystem._stores import local_path
from rigging.filesystem._versioned import VersionedBytes
from rigging.filesystem.atomic import fsync_path, unique_temp_path

__all__ = [
    "ConditionalObject",
    "ConditionalWriteError",
    "LocalConditionalObject",
    "UnsupportedConditionalWrite",
    "VersionedBytes",
    "conditional_object",
]

_LOCK_PATIENCE_S: Final = 30.0
_OBJECT_STORES: Final = {"s3": S3ConditionalObject, "gs": GcsConditionalObject}


class ConditionalObject(Protocol):
    """One object with compare-and-swap."""

    @property
    def path(self) -> str:
        """Path or URL of the object."""
        ...

    def read(self) -> VersionedBytes | None:
        """Return the content and its version; None when the object does not exist."""
        ...

    def version(self) -> str | None:
        """Return the version alone; None when the object does not exist. Stores of objects send no content for it."""
        ...

    def write(self, data: bytes, *, expected_version: str | None) -> str:
        """Replace the content if the stored version is ``expected_version`` (None: must not exist); return the new one.

        Raises:
            ConditionalWriteError: Another version is stored.
        """
        ...

    def write_file(self, source: str, *, expected_version: str | None) -> str:
        """``write`` the content of a local file; it streams to stores of objects instead of passing through memory.

        Raises:
            ConditionalWriteError: Another version is stored.
            FileNotFoundError: There is no such file.
        """
        ...

    def delete(self, *, expected_version: str) -> None:
        """Delete the object if the stored version is ``expected_version``.

        Raises:
            ConditionalWriteError: Another version is stored, or none.
        """
        ...


def conditional_object(path: str) -> ConditionalObject:
    """Return the object at ``path`` with compare-and-swap.

    Args:
        path: A local path, a ``file://``, ``s3://`` or ``gs://`` URL.
    Raises:
        UnsupportedConditionalWrite: The store cannot compare and swap, or no adapter for it ships.
        MissingExtraError: ``s3://`` without the extra ``s3``, ``gs://`` without the extra ``gcs``.
        StoragePathError: A URL of an object store without a bucket or key.

    Example:
        >>> import tempfile, os
        >>> counter = conditional_object(os.path.join(tempfile.mkdtemp(), "counter"))
        >>> version = counter.write(b"1", expected_version=None)
        >>> _ = counter.write(b"2", expected_version=version)
        >>> counter.write(b"3", expected_version=version)
        Traceback (most recent call last):
            ...
        rigging.errors.ConditionalWriteError: conditional write refused: ...
    """
    native = local_path(path)
    if native is not None:
        return LocalConditionalObject(native)
    scheme, _, rest = path.partition("://")
    if scheme not in _OBJECT_STORES:
        raise UnsupportedConditionalWrite(path, scheme)
    bucket, _, key = rest.partition("/")
    if not bucket or not key:
        raise StoragePathError("conditional_object", path, f"{scheme}://bucket/key")
    return _OBJECT_STORES[scheme](path, bucket, key)


class LocalConditionalObject:
    """Compare-and-swap on a file of the local disk (or of any file system with ``flock`` and atomic rename)."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._folder, name = os.path.split(self.path)
        self._lock_path = os.path.join(self._folder, f".{name}.lock")

    def read(self) -> VersionedBytes | None:
        """Return content and version of one moment; None when there is no file."""
        try:
            with open(self.path, "rb") as stream:
                # The open file is never written again, so its content and time belong together whatever happens
                # meanwhile.
                data = stream.read()
                return VersionedBytes(data, _version(data, os.fstat(stream.fileno()).st_mtime_ns))
        except FileNotFoundError:
            return None

    def version(self) -> str | None:
        """Return the version alone; it is made from the content, which is read."""
        stored = self.read()
        return None if stored is None else stored.version

    def write(self, data: bytes, *, expected_version: str | None) -> str:
        """Replace the content if the stored version matches; durable when it returns.

        Raises:
            ConditionalWriteError: Another version is stored.
            StoreBusyError: The lock stayed taken for 30 s.
            OSError: The disk refused; the old content stands.
        """
        os.makedirs(self._folder, exist_ok=True)
        with self._locked():
            previous_ns = self._compare(expected_version)
            stamp_ns = max(time.time_ns(), previous_ns + 1)
            temp = unique_temp_path(self.path)
            try:
                descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                try:
                    _write_all(descriptor, data)
                    os.utime(descriptor, ns=(stamp_ns, stamp_ns))
                    os.fsync(descriptor)
                    # Read the stamp back: a file system may keep fewer digits than we asked for.
                    stamp_ns = os.fstat(descriptor).st_mtime_ns
                finally:
                    os.close(descriptor)
                os.replace(temp, self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.remove(temp)
                raise
            fsync_path(self._folder)
            return _version(data, stamp_ns)

    def write_file(self, source: str, *, expected_version: str | None) -> str:
        """``write`` the content of a local file, through memory."""
        with open(source, "rb") as stream:
            return self.write(stream.read(), expected_version=expected_version)

    def delete(self, *, expected_version: str) -> None:
        """Delete the file if the stored version matches.

        Raises:
            ConditionalWriteError: Another version is stored, or none.
            StoreBusyError: The lock stayed taken for 30 s.
        """
        if not os.path.isdir(self._folder):
            raise ConditionalWriteError(self.path, expected_version, None)
        with self._locked():
            self._compare(expected_version)
            os.remove(self.path)
            fsync_path(self._folder)

    def _compare(self, expected_version: str | None) -> int:
        """Return the stored modification time in ns (0 without a file), or raise when the version differs."""
        stored = self.read()
        actual = None if stored is None else stored.version
        if actual != expected_version:
            raise ConditionalWriteError(self.path, expected_version, actual)
        return 0 if actual is None else int(actual.partition("-")[0], 16)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        descriptor = self._acquire_lock()
        try:
            yield
        finally:
            os.close(descriptor)  # closing the last descriptor frees the flock

    def _acquire_lock(self) -> int:
        start_s = time.monotonic()
        pause_s = 0.0002
        while True:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Somebody may have removed the folder and with it the file that we locked: then it guards nothing.
                if _same_file(descriptor, self._lock_path):
                    return descriptor
            except BlockingIOError:
                if time.monotonic() - start_s > _LOCK_PATIENCE_S:
                    os.close(descriptor)
                    raise StoreBusyError(self.path, time.monotonic() - start_s) from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.005)


def _version(data: bytes, mtime_ns: int) -> str:
    return f"{mtime_ns:x}-{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _same_file(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
