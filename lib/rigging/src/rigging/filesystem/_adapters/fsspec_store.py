"""Object stores and everything else that fsspec speaks; fsspec is imported when the first URL is opened."""

from collections.abc import Iterator
from typing import IO, Any, Final

from rigging.errors import MissingExtraError, StoragePathError

_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}


class FsspecStore:
    """The verbs of ``Store`` over fsspec. Paths in and out are full URLs.

    Raises:
        MissingExtraError: The scheme's package is not installed; names the extra.
        StoragePathError: Nobody serves the scheme.
    """

    is_local = False

    def __init__(self, url: str) -> None:
        import fsspec

        scheme = url.partition("://")[0]
        try:
            self._fs, _ = fsspec.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise MissingExtraError(f"{scheme}:// storage", _EXTRAS.get(scheme, scheme)) from error
        except ValueError as error:
            raise StoragePathError("open", url, "a scheme that fsspec knows") from error

    def _urls(self, paths: list[str]) -> list[str]:
        return sorted(self._fs.unstrip_protocol(path) for path in paths)

    def exists(self, path: str) -> bool:
        """Tell whether an object or prefix is there."""
        return self._fs.exists(path)

    def isdir(self, path: str) -> bool:
        """Tell whether the prefix holds objects."""
        return self._fs.isdir(path)

    def isfile(self, path: str) -> bool:
        """Tell whether the object is there."""
        return self._fs.isfile(path)

    def size(self, path: str) -> int:
        """Return bytes."""
        return int(self._fs.size(path))

    def mtime(self, path: str) -> float:
        """Return the modification time, epoch seconds."""
        return self._fs.modified(path).timestamp()

    def mkdirs(self, path: str, exist_ok: bool) -> None:
        """Create the prefix where the store has such a thing."""
        self._fs.makedirs(path, exist_ok=exist_ok)

    def open(self, path: str, mode: str) -> IO[Any]:
        """Open an object; text is UTF-8."""
        return self._fs.open(path, mode) if "b" in mode else self._fs.open(path, mode, encoding="utf-8")

    def ls(self, path: str) -> list[str]:
        """Return the entries below a prefix, sorted."""
        return self._urls(self._fs.ls(path, detail=False))

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield ``(prefix, prefix names, object names)`` from the top down, sorted."""
        for folder, folders, files in self._fs.walk(path):
            yield self._fs.unstrip_protocol(folder), sorted(folders), sorted(files)

    def glob(self, pattern: str) -> list[str]:
        """Return what matches; ``**`` crosses prefixes."""
        return self._urls(list(self._fs.glob(pattern)))

    def rm(self, path: str) -> None:
        """Remove one object."""
        self._fs.rm_file(path)

    def rmtree(self, path: str) -> None:
        """Remove everything below a prefix; fine if it is gone already."""
        if self._fs.exists(path):
            self._fs.rm(path, recursive=True)

    def rename(self, path: str, target: str) -> None:
        """Move: copy, then delete. A tree is not moved atomically."""
        self._fs.mv(path, target, recursive=self._fs.isdir(path))

    def download(self, path: str, local: str, recursive: bool) -> None:
        """Copy to the local disk."""
        self._fs.get(path, local, recursive=recursive)

    def upload(self, local: str, path: str, recursive: bool) -> None:
        """Copy from the local disk."""
        self._fs.put(local, path, recursive=recursive)
