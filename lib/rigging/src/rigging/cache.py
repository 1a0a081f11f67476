"""A cache of bytes in a folder: bounded, shared by processes, and never wrong after a crash.

Each entry is one file that holds a digest and the content. It appears by rename, so a reader sees all of it or nothing;
the digest is checked on every load, so a file that a power cut or a bad disk has changed is a miss and is removed. The
last writer of a key wins. When the folder grows beyond its limit the entries that were used longest ago go; processes
that share the folder take turns at that.
"""

import contextlib
import fcntl
import hashlib
import os
import threading
from typing import Final

from rigging.filesystem.atomic import unique_temp_path
from rigging.timing import Clock, SystemClock

_DIGEST_BYTES: Final = 16
_KEEP_SHARE: Final = 0.9
_STALE_TEMP_S: Final = 3600.0
_TEMP_MARK: Final = ".tmp."


class PersistentKvCache:
    """Bytes by key in a folder.

    Args:
        directory: Where; made when the first entry is stored. Processes may share it.
        suffix: End of the file names, for people.
        limit_bytes: Most bytes of entries on disk; None for no limit. Checked after each store that may have passed it.
        clock: What time it is; entries remember when they were used.
    Raises:
        ValueError: A limit that is not above 0.

    Example:
        >>> import tempfile
        >>> cache = PersistentKvCache(tempfile.mkdtemp(), limit_bytes=1 << 20)
        >>> cache.load("a") is None; cache.store("a", b"1"); cache.load("a")
        True
        b'1'
    """

    def __init__(
        self, directory: str, suffix: str = "", *, limit_bytes: int | None = None, clock: Clock = SystemClock()
    ) -> None:
        if limit_bytes is not None and limit_bytes < 1:
            raise ValueError(f"bad cache: limit_bytes={limit_bytes}; expected 1 or more, or None. Give it room.")
        self.directory = os.path.abspath(directory)
        self.suffix = suffix
        self.limit_bytes = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._size: int | None = None  # what we believe lies there; others write too, so it is only a hint
        self._hits = self._misses = self._evicted = 0

    def statistics(self) -> dict[str, int]:
        """Return hits, misses and evictions of this object."""
        return {"hits": self._hits, "misses": self._misses, "evicted": self._evicted}

    def load(self, key: str) -> bytes | None:
        """Return the bytes of a key; None when there are none, or they are damaged.

        Raises:
            OSError: The folder cannot be read.
        """
        path = self._path(key)
        try:
            with open(path, "rb") as stream:
                stored = stream.read()
            data = stored[_DIGEST_BYTES:]
            if stored[:_DIGEST_BYTES] != _digest(data):
                os.remove(path)
                raise FileNotFoundError(path)
            now_s = self._clock.time()
            os.utime(path, (now_s, now_s))  # used now: it will go last
        except FileNotFoundError:
            self._misses += 1
            return None
        self._hits += 1
        return data

    def store(self, key: str, value: bytes) -> None:
        """Keep the bytes of a key; one larger than the limit is not kept.

        Raises:
            OSError: The disk refused; what was there stands.
        """
        entry = _digest(value) + value
        if self.limit_bytes is not None and len(entry) > self.limit_bytes:
            self.remove(key)
            return
        path = self._path(key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temp = unique_temp_path(path)
        try:
            with open(temp, "wb") as stream:
                stream.write(entry)
            now_s = self._clock.time()
            os.utime(temp, (now_s, now_s))
            os.replace(temp, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temp)
            raise
        self._grown(len(entry))

    def remove(self, key: str) -> None:
        """Forget a key; fine if there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path(key))

    def _path(self, key: str) -> str:
        name = hashlib.sha256(key.encode()).hexdigest()
        return os.path.join(self.directory, name[:2], name[2:] + self.suffix)

    def _grown(self, size: int) -> None:
        if self.limit_bytes is None:
            return
        with self._lock:
            self._size = None if self._size is None else self._size + size
            if self._size is None or self._size > self.limit_bytes:
                self._size = self._evict()

    def _evict(self) -> int:
        """Remove what was used longest ago until there is room; return the bytes that are left."""
        assert self.limit_bytes is not None
        descriptor = os.open(os.path.join(self.directory, ".evict.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            entries = self._entries()
            total = sum(size for _, size, _ in entries)
            if total <= self.limit_bytes:
                return total
            for _, size, path in sorted(entries):
                if total <= self.limit_bytes * _KEEP_SHARE:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)
                    self._evicted += 1
                total -= size
            return total
        finally:
            os.close(descriptor)

    def _entries(self) -> list[tuple[float, int, str]]:
        """When each entry was used, its size and its path; left-overs of writers that died are removed on the way."""
        found = []
        for folder, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(path)
                    if _TEMP_MARK in name:
                        if self._clock.time() - status.st_mtime > _STALE_TEMP_S:
                            os.remove(path)
                    elif name != ".evict.lock":
                        found.append((status.st_mtime, status.st_size, path))
        return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
