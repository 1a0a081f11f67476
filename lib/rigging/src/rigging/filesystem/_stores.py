"""What a storage path can do, over the local disk or over fsspec."""

import glob as glob_module
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol

from rigging.filesystem._adapters.fsspec_store import FsspecStore
from rigging.filesystem._stored_entry import StoredEntry

_LOCAL_SCHEMES = ("file://", "local://")


class Store(Protocol):
    """The verbs behind ``StoragePath``. Every path is in the store's own spelling: a local path, or a full URL."""

    is_local: bool

    def exists(self, path: str) -> bool: ...
    def isdir(self, path: str) -> bool: ...
    def isfile(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def mtime(self, path: str) -> float: ...
    def mkdirs(self, path: str, exist_ok: bool) -> None: ...
    def open(self, path: str, mode: str) -> IO[Any]: ...
    def ls(self, path: str) -> list[str]: ...
    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]: ...
    def glob(self, pattern: str) -> list[str]: ...
    def rm(self, path: str) -> None: ...
    def rmtree(self, path: str) -> None: ...
    def rename(self, path: str, target: str) -> None: ...
    def download(self, path: str, local: str, recursive: bool) -> None: ...
    def upload(self, local: str, path: str, recursive: bool) -> None: ...
    def scan(self, path: str, recursive: bool) -> Iterator[StoredEntry]: ...
    def info(self, path: str) -> StoredEntry: ...
    def put(self, path: str, data: bytes) -> None: ...
    def create(self, path: str) -> Any: ...
    def send(self, local: str, path: str, advance: Callable[[int], object]) -> None: ...


class LocalStore:
    """The local disk. Writing creates missing parent folders, as an object store would."""

    is_local = True

    def exists(self, path: str) -> bool:
        """Tell whether something is there (a dangling link counts as nothing)."""
        return os.path.exists(path)

    def isdir(self, path: str) -> bool:
        """Tell whether a folder is there."""
        return os.path.isdir(path)

    def isfile(self, path: str) -> bool:
        """Tell whether a file is there."""
        return os.path.isfile(path)

    def size(self, path: str) -> int:
        """Return bytes."""
        return os.path.getsize(path)

    def mtime(self, path: str) -> float:
        """Return the modification time, epoch seconds."""
        return os.path.getmtime(path)

    def mkdirs(self, path: str, exist_ok: bool) -> None:
        """Create the folder and its parents."""
        os.makedirs(path, exist_ok=exist_ok)

    def open(self, path: str, mode: str) -> IO[Any]:
        """Open a file; text is UTF-8."""
        if any(flag in mode for flag in "wxa"):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        return open(path, mode, encoding=None if "b" in mode else "utf-8")

    def ls(self, path: str) -> list[str]:
        """Return the entries of a folder, sorted."""
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield ``(folder, folder names, file names)`` from the top down, sorted."""
        for folder, folders, files in os.walk(path):
            folders.sort()
            yield folder, list(folders), sorted(files)

    def glob(self, pattern: str) -> list[str]:
        """Return what matches; ``**`` crosses folders."""
        return sorted(glob_module.glob(pattern, recursive=True))

    def rm(self, path: str) -> None:
        """Remove one file."""
        os.remove(path)

    def rmtree(self, path: str) -> None:
        """Remove a folder with everything in it; fine if it is gone already."""
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass  # the goal is reached; somebody else was faster

    def rename(self, path: str, target: str) -> None:
        """Move within one file system, replacing a file that is there."""
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        os.replace(path, target)

    def download(self, path: str, local: str, recursive: bool) -> None:
        """Copy to another local path."""
        os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
        if recursive:
            shutil.copytree(path, local, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, local)

    def upload(self, local: str, path: str, recursive: bool) -> None:
        """Copy from another local path."""
        self.download(local, path, recursive)

    def scan(self, path: str, recursive: bool) -> Iterator[StoredEntry]:
        """Yield what lies in a folder, sorted by name; links to folders are shown, not entered.

        Raises:
            OSError: No such folder, or it may not be read.
        """
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            is_folder = entry.is_dir(follow_symlinks=False)
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # a dangling link, or gone since
            if not (is_folder and recursive):
                size = None if entry.is_dir() else status.st_size
                yield StoredEntry(os.path.join(path, entry.name), size, status.st_mtime)
            else:
                yield from self.scan(os.path.join(path, entry.name), True)

    def info(self, path: str) -> StoredEntry:
        """Return what is known of one path.

        Raises:
            FileNotFoundError: Nothing is there.
        """
        status = os.stat(path)
        return StoredEntry(path, None if os.path.isdir(path) else status.st_size, status.st_mtime)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        with self.open(path, "wb") as stream:
            stream.write(data)

    @contextmanager
    def create(self, path: str) -> Generator[IO[bytes]]:
        """Open a new file for writing; see ``atomic.atomic_stream`` for one that appears whole."""
        with self.open(path, "wb") as stream:
            yield stream

    def send(self, local: str, path: str, advance: Callable[[int], object]) -> None:
        """Copy a file from another local path."""
        self.download(local, path, False)
        advance(os.path.getsize(path))


_LOCAL = LocalStore()


def local_path(path: str) -> str | None:
    """Return the operating system's spelling of a local path or ``file://`` URL; None for any other URL."""
    for scheme in _LOCAL_SCHEMES:
        if path.startswith(scheme):
            return "/" + path[len(scheme) :].lstrip("/")
    return None if "://" in path else path


def store_for(path: str) -> tuple[Store, str]:
    """Return the store that serves ``path`` and the path in that store's spelling.

    Raises:
        MissingExtraError: The URL's scheme needs a package that is not installed.
    """
    native = local_path(path)
    if native is not None:
        return _LOCAL, native
    return FsspecStore(path), path
