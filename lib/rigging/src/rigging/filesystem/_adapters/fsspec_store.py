"""Object stores and everything else that fsspec speaks; fsspec is imported when the first URL is opened."""

import base64
import io
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, Final

from rigging import _env
from rigging.errors import MissingExtraError, StoragePathError
from rigging.filesystem._google_credentials import require_google_credentials
from rigging.filesystem._stored_entry import StoredEntry
from rigging.filesystem._transfer import charge, charged_stream
from rigging.filesystem.transfer_budget import is_cross_region_url

_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}
_MD5_ETAG: Final = re.compile(r'"?([0-9a-f]{32})"?')
_CONFIGURED: Final = (("s3", "s3a"), ("gs", "gcs"))
_PART_BYTES: Final = 16 << 20
# Without bounds a dead connection hangs a job for ever.
_S3_CONFIG: Final = {"connect_timeout": 30, "read_timeout": 120, "retries": {"max_attempts": 5, "mode": "standard"}}


def _configure(scheme: str) -> None:
    """Set what rigging wants for a store, under what the user's fsspec configuration says.

    It is set for the process and not for our own instances, so that ours are the ones that everybody gets: of two
    instances, each would keep listings that the writes of the other have made wrong.
    """
    from fsspec.config import conf

    family = next((names for names in _CONFIGURED if scheme in names), ())
    if not family:
        return
    said = {key for name in family for key in conf.get(name, {})}
    settings = conf.setdefault(family[0], {})
    if not {"use_listings_cache", "listings_expiry_time"} & said:
        settings["use_listings_cache"] = False  # other processes write here too: a listing is old at once
    if family[0] == "s3":
        settings["config_kwargs"] = _S3_CONFIG | settings.get("config_kwargs", {})


def _token_is_configured() -> bool:
    """Whether the user's fsspec configuration says how to be admitted (a token file, or "anon")."""
    from fsspec.config import conf

    return any({"token", "session_kwargs", "endpoint_url"} & set(conf.get(name, {})) for name in ("gs", "gcs"))


class FsspecStore:
    """The verbs of ``Store`` over fsspec. Paths in and out are full URLs.

    Raises:
        MissingExtraError: The scheme's package is not installed; names the extra.
        MissingCredentials: A bucket of Google's, and nothing to be admitted by.
        StoragePathError: Nobody serves the scheme.
    """

    is_local = False

    def __init__(self, url: str) -> None:
        import fsspec

        scheme = url.partition("://")[0]
        if scheme in ("gs", "gcs"):
            _env.quieten_gcsfs_for_emulator()
        _configure(scheme)
        try:
            if fsspec.get_filesystem_class(scheme) and scheme in ("gs", "gcs") and not _token_is_configured():
                require_google_credentials(url)
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
        """Open an object; text is UTF-8. What is read from another region is charged to the transfer budget."""
        text = {} if "b" in mode else {"encoding": "utf-8"}
        if any(flag in mode for flag in "wax") or not is_cross_region_url(path):
            return self._fs.open(path, mode, **text)
        # Without read-ahead below us, what is charged is what is fetched.
        stream = charged_stream(self._fs.open(path, "rb", cache_type="none"), path)
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding="utf-8")

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
        """Copy to the local disk; charged to the transfer budget when it comes from another region."""
        charge(lambda: sum(item["size"] or 0 for item in self._fs.find(path, detail=True).values()), path)
        self._fs.get(path, local, recursive=recursive)

    def upload(self, local: str, path: str, recursive: bool) -> None:
        """Copy from the local disk."""
        self._fs.put(local, path, recursive=recursive)

    def scan(self, path: str, recursive: bool) -> Iterator[StoredEntry]:
        """Yield what lies below a prefix, sorted; recursively without the prefixes between.

        Raises:
            FileNotFoundError: Nothing lies there.
        """
        if recursive:
            found = self._fs.find(path, detail=True)
            if not found and not self._fs.exists(path):
                raise FileNotFoundError(path)
        else:
            found = {item["name"]: item for item in self._fs.ls(path, detail=True)}
        own = self._fs._strip_protocol(path).rstrip("/")
        for name in sorted(found):
            # A marker object that stands for the prefix itself is no entry of it.
            if name.rstrip("/") != own or (found[name].get("type") == "file" and not name.endswith("/")):
                yield self._entry(found[name])

    def info(self, path: str) -> StoredEntry:
        """Return what is known of one object or prefix.

        Raises:
            FileNotFoundError: Nothing is there.
        """
        return self._entry(self._fs.info(path))

    def _entry(self, item: dict[str, Any]) -> StoredEntry:
        folder = item.get("type") == "directory"
        return StoredEntry(
            self._fs.unstrip_protocol(item["name"].rstrip("/") or item["name"]),
            None if folder else int(item.get("size") or 0),
            _epoch_s(item.get("LastModified") or item.get("updated") or item.get("mtime") or item.get("created")),
            None if folder else _md5(item),
        )

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object in one request: it appears complete or not at all."""
        self._fs.pipe_file(path, data)

    @contextmanager
    def create(self, path: str) -> Generator[IO[bytes]]:
        """Yield a stream to a new object that appears when the body succeeds, and not at all when it raises."""
        stream = self._fs.open(path, "wb", autocommit=False, block_size=_PART_BYTES)
        try:
            yield stream
            stream.close()
        except BaseException:
            # Closing would upload what was written so far: say first that nobody wants it.
            stream.closed = True
            if hasattr(stream, "discard"):
                stream.discard()
            raise
        stream.commit()

    def send(self, local: str, path: str, advance: Callable[[int], object]) -> None:
        """Upload a local file as its store does best, in parts at once; the object appears when all are there."""
        from fsspec.callbacks import Callback

        class Told(Callback):
            told = 0

            def call(self, *arguments: Any, **more: Any) -> None:
                advance(int(self.value) - self.told)
                self.told = int(self.value)

        self._fs.put_file(local, path, callback=Told())


def _epoch_s(value: object) -> float | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float) else None


def _md5(item: dict[str, Any]) -> str | None:
    """The content's MD5 as the store knows it: GCS says so, the ETag of S3 is one unless the upload had parts."""
    if item.get("md5Hash"):
        return base64.b64decode(item["md5Hash"]).hex()
    match = _MD5_ETAG.fullmatch(str(item.get("ETag", "")))
    return match[1] if match else None
