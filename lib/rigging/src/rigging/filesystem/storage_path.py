"""One value for a place in storage, local or remote.

Strings that are sometimes ``/tmp/x`` and sometimes ``gs://bucket/x`` invite ``os.path.join`` on a URL, doubled slashes
and ``relative_to`` by text prefix (where ``a/bc`` seems to lie inside ``a/b``). ``StoragePath`` is parsed once,
compares by structure, and its verbs work the same on a disk and on an object store.

Invariants: parsing collapses ``//`` inside the path and drops a slash at the end; ``str`` of a path parses back to an
    equal
path; verbs keep no state; writes are atomic and create missing parents; results carry their scheme.
"""

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

from rigging.errors import StoragePathError
from rigging.filesystem._glob import brace_expand, has_magic
from rigging.filesystem._stored_entry import StoredEntry
from rigging.filesystem._stores import Store, store_for
from rigging.filesystem.atomic import unique_temp_path, write_bytes_atomic

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_NO_AUTHORITY: Final = frozenset({"mirror", "memory"})
_LOCAL: Final = frozenset({"file", "local"})

__all__ = [
    "StoragePath",
    "StoredEntry",
    "is_remote_path",
    "prefix_join",
    "rebase_file_path",
    "split_gcs_path",
    "unique_temp_path",
]


@dataclass(frozen=True, slots=True, init=False)
class StoragePath:
    """A local path or URL, as scheme, authority and segments.

    Args:
        path: Text, a ``pathlib.Path`` or another ``StoragePath``.
    Raises:
        StoragePathError: Empty text, or a URL without the authority its scheme needs.

    Example:
        >>> base = StoragePath("gs://example-bucket//runs/")
        >>> str(base / "a" / "b.txt"), (base / "a/b.txt").name, base.bucket
        ('gs://example-bucket/runs/a/b.txt', 'b.txt', 'example-bucket')
        >>> str((base / "a/b.txt").relative_to(base))
        'a/b.txt'
    """

    scheme: str | None
    netloc: str
    segments: tuple[str, ...]
    rooted: bool

    def __init__(self, path: "str | os.PathLike[str] | StoragePath") -> None:
        if isinstance(path, StoragePath):
            parts = (path.scheme, path.netloc, path.segments, path.rooted)
        else:
            parts = _parse(os.fspath(path))
        for name, value in zip(("scheme", "netloc", "segments", "rooted"), parts, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text``; the same as the constructor.

        Example:
            >>> str(StoragePath.parse("a//b/"))
            'a/b'
        """
        return cls(text)

    def _with(self, segments: tuple[str, ...]) -> "StoragePath":
        made = object.__new__(StoragePath)
        for name, value in (
            ("scheme", self.scheme),
            ("netloc", self.netloc),
            ("segments", segments),
            ("rooted", self.rooted),
        ):
            object.__setattr__(made, name, value)
        return made

    def __str__(self) -> str:
        tail = "/".join(self.segments)
        if self.scheme is None:
            return ("/" if self.rooted else "") + tail or "."
        head = f"{self.scheme}://{self.netloc}"
        if self.rooted and (tail or not self.netloc):
            head += "/"
        return head + tail

    __fspath__ = __str__

    def __truediv__(self, relative: "str | os.PathLike[str]") -> "StoragePath":
        text = os.fspath(relative)
        if "://" in text or text.startswith("/"):
            raise StoragePathError("join", text, f"a relative path to join to {self}")
        joined = tuple(part for part in text.split("/") if part)
        return self._with(self.segments + joined if self.segments != (".",) else joined)

    def normalize(self) -> "StoragePath":
        """Return the path with ``.`` dropped and ``..`` resolved by text, never above the root.

        Example:
            >>> str(StoragePath("a/./b/../c").normalize())
            'a/c'
        """
        kept: list[str] = []
        for part in self.segments:
            if part == "..":
                if kept and kept[-1] != "..":
                    kept.pop()
                elif not (self.rooted or self.netloc):
                    kept.append(part)
            elif part != ".":
                kept.append(part)
        return self._with(tuple(kept))

    def relative_to(self, base: "str | StoragePath") -> "StoragePath":
        """Return this path relative to ``base``, compared segment by segment.

        Raises:
            StoragePathError: This path is not ``base`` or inside it.

        Example:
            >>> str(StoragePath("/a/b/c").relative_to("/a"))
            'b/c'
            >>> StoragePath("/ab/c").relative_to("/a")
            Traceback (most recent call last):
                ...
            rigging.errors.StoragePathError: bad storage path: ...
        """
        base = StoragePath(base)
        count = len(base.segments)
        same_root = (self.scheme, self.netloc, self.rooted) == (base.scheme, base.netloc, base.rooted)
        if not same_root or self.segments[:count] != base.segments:
            raise StoragePathError("relative_to", self, f"a path inside {base}")
        return StoragePath("/".join(self.segments[count:]) or ".")

    @property
    def bucket(self) -> str:
        """The authority of a URL; empty for local paths.

        Example:
            >>> StoragePath("gs://example-bucket/a/b").bucket
            'example-bucket'
        """
        return self.netloc

    @property
    def key(self) -> str:
        """The segments joined by ``/``: an object's key inside its bucket.

        Example:
            >>> StoragePath("gs://example-bucket/a/b").key
            'a/b'
        """
        return "/".join(self.segments)

    @property
    def name(self) -> str:
        """The last segment; empty at the root.

        Example:
            >>> StoragePath("/a/b.txt").name
            'b.txt'
        """
        return self.segments[-1] if self.segments else ""

    @property
    def suffix(self) -> str:
        """The last extension of the name, dot included; empty when there is none.

        Example:
            >>> StoragePath("/a/b.tar.gz").suffix
            '.gz'
        """
        return Path(self.name).suffix

    @property
    def parent(self) -> "StoragePath":
        """The path without its last segment; the root is its own parent.

        Example:
            >>> str(StoragePath("gs://example-bucket/a/b").parent), str(StoragePath("/").parent)
            ('gs://example-bucket/a', '/')
        """
        if len(self.segments) == 1 and self.scheme is None and not self.rooted:
            return self._with((".",))
        return self._with(self.segments[:-1])

    @property
    def is_local(self) -> bool:
        """Whether the operating system serves this path.

        Example:
            >>> StoragePath("file:///a").is_local, StoragePath("s3://example-bucket/a").is_local
            (True, False)
        """
        return self.scheme is None or self.scheme in _LOCAL

    @property
    def is_remote(self) -> bool:
        """Whether an object store or another service serves this path.

        Example:
            >>> StoragePath("gs://example-bucket/a").is_remote
            True
        """
        return not self.is_local

    @property
    def _store(self) -> Store:
        return store_for(str(self))[0]

    @property
    def _native(self) -> str:
        return store_for(str(self))[1] if self.is_local else str(self)

    def exists(self) -> bool:
        """Tell whether something is there."""
        return self._store.exists(self._native)

    def isdir(self) -> bool:
        """Tell whether a folder is there (on an object store: whether objects lie below)."""
        return self._store.isdir(self._native)

    def isfile(self) -> bool:
        """Tell whether a file is there."""
        return self._store.isfile(self._native)

    def size(self) -> int:
        """Return the size in bytes."""
        return self._store.size(self._native)

    def mtime(self) -> float:
        """Return the modification time in epoch seconds."""
        return self._store.mtime(self._native)

    def mkdirs(self, exist_ok: bool = True) -> None:
        """Create the folder and its parents."""
        self._store.mkdirs(self._native, exist_ok)

    def open(self, mode: str = "r") -> IO[Any]:
        """Open for reading or (not atomically) writing; text is UTF-8."""
        return self._store.open(self._native, mode)

    def read_bytes(self) -> bytes:
        """Return the whole content."""
        with self.open("rb") as stream:
            return stream.read()

    def read_text(self) -> str:
        """Return the whole content as UTF-8 text."""
        return self.read_bytes().decode("utf-8")

    def write_bytes(self, data: bytes) -> None:
        """Replace the content, completely or not at all."""
        write_bytes_atomic(str(self), data)

    def write_text(self, text: str) -> None:
        """Replace the content by UTF-8 text, completely or not at all.

        Example:
            >>> import tempfile
            >>> path = StoragePath(tempfile.mkdtemp()) / "deep" / "x"
            >>> path.write_text("ä")
            >>> path.read_text(), path.size(), path.isfile()
            ('ä', 2, True)
        """
        self.write_bytes(text.encode("utf-8"))

    def ls(self) -> list["StoragePath"]:
        """Return the entries of a folder, sorted.

        Example:
            >>> import tempfile
            >>> base = StoragePath(tempfile.mkdtemp())
            >>> (base / "a").write_text("1")
            >>> [path.name for path in base.ls()]
            ['a']
        """
        return [StoragePath(entry) for entry in self._store.ls(self._native)]

    def scan(self, recursive: bool = False) -> Iterator[StoredEntry]:
        """Yield the entries of a folder with size and time, from one listing; recursively, the files only.

        Raises:
            OSError: No such folder, or the store refused.

        Example:
            >>> import tempfile
            >>> base = StoragePath(tempfile.mkdtemp())
            >>> (base / "a/b.txt").write_text("abc")
            >>> [(StoragePath(entry.path).name, entry.size) for entry in base.scan(recursive=True)]
            [('b.txt', 3)]
        """
        yield from self._store.scan(self._native, recursive)

    def info(self) -> StoredEntry:
        """Return size, time and, where the store knows it, MD5 of what is here.

        Raises:
            FileNotFoundError: Nothing is here.
        """
        return self._store.info(self._native)

    def walk(self) -> Iterator[tuple["StoragePath", list[str], list[str]]]:
        """Yield ``(folder, folder names, file names)`` from the top down."""
        for folder, folders, files in self._store.walk(self._native):
            yield StoragePath(folder), folders, files

    def glob(self) -> list["StoragePath"]:
        """Return what exists and matches this path as a pattern, after brace expansion; absent literals vanish.

        Example:
            >>> import tempfile
            >>> base = StoragePath(tempfile.mkdtemp())
            >>> (base / "a-1.txt").write_text("1")
            >>> [path.name for path in (base / "{a,b}-{1..3}.txt").glob()]
            ['a-1.txt']
        """
        store = self._store
        patterns = dict.fromkeys(brace_expand(self._native))
        found = dict.fromkeys(entry for pattern in patterns for entry in store.glob(pattern))
        return [StoragePath(entry) for entry in found]

    def expand_glob(self) -> list["StoragePath"]:
        """Like ``glob``, but a literal that was named is kept even if nothing is there.

        Example:
            >>> [str(path) for path in StoragePath("/nowhere/part-{0..1}").expand_glob()]
            ['/nowhere/part-0', '/nowhere/part-1']
        """
        store = self._store
        found: dict[str, None] = {}
        for pattern in brace_expand(self._native):
            found.update(dict.fromkeys(store.glob(pattern) if has_magic(pattern) else [pattern]))
        return [StoragePath(entry) for entry in found]

    def rm(self) -> None:
        """Remove one file."""
        self._store.rm(self._native)

    def rmtree(self) -> None:
        """Remove a folder with everything in it; fine if it is gone already.

        Example:
            >>> import tempfile
            >>> base = StoragePath(tempfile.mkdtemp())
            >>> base.rmtree(); base.rmtree(); base.exists()
            False
        """
        self._store.rmtree(self._native)

    def rename(self, target: "str | StoragePath") -> "StoragePath":
        """Move to ``target`` in the same store and return it.

        Raises:
            StoragePathError: ``target`` lies in another store.

        Example:
            >>> import tempfile
            >>> base = StoragePath(tempfile.mkdtemp())
            >>> (base / "a").write_text("1")
            >>> (base / "a").rename(base / "b").read_text(), (base / "a").exists()
            ('1', False)
        """
        target = StoragePath(target)
        if (target.is_local, target.netloc) != (self.is_local, self.netloc):
            raise StoragePathError("rename", target, f"a target in the store of {self}")
        self._store.rename(self._native, target._native)
        return target

    def download_to(self, local: str, recursive: bool = False) -> None:
        """Copy to a local path."""
        self._store.download(self._native, local, recursive)

    def upload_from(self, local: str, recursive: bool = False) -> None:
        """Copy from a local path."""
        self._store.upload(local, self._native, recursive)


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[str | None, str, tuple[str, ...], bool]:
    if not text:
        raise StoragePathError("parse", text, "a path or URL; '.' is the current folder")
    match = _SCHEME.fullmatch(text)
    if match is None:
        return None, "", tuple(part for part in text.split("/") if part), text.startswith("/")
    scheme, rest = match[1].lower(), match[2]
    if scheme in _LOCAL or scheme in _NO_AUTHORITY:
        rooted = scheme in _LOCAL or rest.startswith("/")
        return scheme, "", tuple(part for part in rest.split("/") if part), rooted
    netloc, _, key = rest.partition("/")
    if not netloc:
        raise StoragePathError("parse", text, f"a bucket or host after {scheme}://")
    return scheme, netloc, tuple(part for part in key.split("/") if part), True


def prefix_join(prefix: str, rel: str) -> str:
    """Join a relative path to a prefix, local or URL, with exactly one slash between.

    Raises:
        StoragePathError: ``rel`` is absolute or a URL.

    Example:
        >>> prefix_join("gs://example-bucket/", "a/b"), prefix_join("/store", "a")
        ('gs://example-bucket/a/b', '/store/a')
    """
    return str(StoragePath(prefix) / rel)


def is_remote_path(path: str) -> bool:
    """Tell whether ``path`` is a URL that the operating system cannot open.

    Example:
        >>> is_remote_path("gs://example-bucket/a"), is_remote_path("a/b")
        (True, False)
    """
    return StoragePath(path).is_remote


def split_gcs_path(uri: str) -> tuple[str, Path]:
    """Split ``gs://bucket/key`` into the bucket and the key as a path.

    Raises:
        StoragePathError: Not a ``gs://`` URL.

    Example:
        >>> split_gcs_path("gs://example-bucket/a/b.txt")
        ('example-bucket', PosixPath('a/b.txt'))
    """
    path = StoragePath(uri)
    if path.scheme != "gs":
        raise StoragePathError("split_gcs_path", uri, "a gs:// URL")
    return path.bucket, Path(path.key)


def rebase_file_path(
    in_base: str, file: str, out_base: str, new_extension: str | None = None, old_extension: str | None = None
) -> str:
    """Move a file's path from one base to another, and give it another extension.

    Args:
        in_base: Base that ``file`` lies in.
        file: Path to move.
        out_base: New base.
        new_extension: Extension to put in place of the old one; None keeps the name.
        old_extension: Extension to take away (such as ``.jsonl.gz``); default the last one.
    Raises:
        StoragePathError: ``file`` is outside ``in_base``, or does not end in ``old_extension``.

    Example:
        >>> rebase_file_path("/in", "/in/a/b.jsonl.gz", "gs://example-bucket/out", ".parquet", ".jsonl.gz")
        'gs://example-bucket/out/a/b.parquet'
    """
    relative = str(StoragePath(file).relative_to(in_base))
    if new_extension is not None:
        old = old_extension if old_extension is not None else StoragePath(file).suffix
        if not relative.endswith(old):
            raise StoragePathError("rebase_file_path", file, f"a name that ends in {old!r}")
        relative = relative[: len(relative) - len(old)] + new_extension
    return prefix_join(out_base, relative)
