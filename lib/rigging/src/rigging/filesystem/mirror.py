"""Read from this region what may lie in another: copy it here once, check the copy, and read that from then on.

A relative path such as ``tokenizers/base.json`` is looked for in the local root first, then in the other roots, all at
once. What is found elsewhere is copied under a lease, so that processes that need it together cause one transfer; the
bytes are charged to the transfer budget before they move. A folder that is half copied is marked so, and whoever comes
next completes it. A name that is nowhere is remembered as absent for a while, since asking every region is slow.
"""

import contextlib
import contextvars
import hashlib
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rigging.data_config import data_config
from rigging.errors import StoragePathError, UnsupportedConditionalWrite
from rigging.filesystem.lease import Lease
from rigging.filesystem.prefix import marin_prefix
from rigging.filesystem.storage_path import StoragePath
from rigging.filesystem.transfer import Copy, run_copies
from rigging.path_validation import validate_relative_path
from rigging.timing import Clock, SystemClock

logger = logging.getLogger(__name__)

SCHEME: Final = "mirror"
LOCK_WAIT_S: Final = 120.0
ABSENT_S: Final = 60.0
_LOCKS: Final = ".mirror_locks"


class Mirror:
    """One local root and the roots that things are copied from.

    Args:
        root: Where copies go and where is looked first: a local path or URL; default ``marin_prefix()``.
        sources: Other roots, in order of preference; default the buckets of the cluster's other regions.
        clock: Source of time.
        jobs: Copies at once.

    Example:
        >>> import tempfile
        >>> there, here = tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> (StoragePath(there) / "data/x").write_text("abc")
        >>> mirror = Mirror(here, [there])
        >>> str(mirror.resolve("mirror://data/x")) == f"{here}/data/x", mirror.resolve("data/x").read_text()
        (True, 'abc')
    """

    def __init__(
        self,
        root: str | None = None,
        sources: Sequence[str] | None = None,
        *,
        clock: Clock = SystemClock(),
        jobs: int = 8,
    ) -> None:
        self.root = StoragePath(marin_prefix() if root is None else root)
        others = data_config().region_buckets.values() if sources is None else sources
        self.sources = [StoragePath(other) for other in others if StoragePath(other) != self.root]
        self._clock = clock
        self._jobs = jobs
        self._absent: dict[str, float] = {}
        self._lock = threading.Lock()

    def resolve(self, path: str) -> StoragePath:
        """Return the local place of a file or folder, after copying it if it lies elsewhere.

        Args:
            path: ``mirror://a/b`` or the relative path ``a/b``.
        Raises:
            FileNotFoundError: It is in none of the roots.
            UnsafePathError: An absolute path, or one that leaves the root.
            StoragePathError: A URL of another scheme.
            TransferBudgetExceeded: Copying it would pass the limit; nothing is left behind.
            TransferVerificationError: The copy does not match; it was removed.
            LeaseHeldError: Somebody else has been copying it for longer than two minutes.
        """
        relative = _relative(path)
        local = self.root / relative
        if self._is_complete(relative, local):
            return local
        self._refuse_absent(relative)
        with self._exclusively(relative):
            if not self._is_complete(relative, local):
                self._fetch(relative, self._find(relative), local)
        return local

    def ls(self, path: str) -> list[str]:
        """Return the names in a folder, over all roots, sorted.

        Raises:
            FileNotFoundError: It is in none of the roots.
            UnsafePathError: An absolute path, or one that leaves the root.

        Example:
            >>> import tempfile
            >>> there, here = tempfile.mkdtemp(), tempfile.mkdtemp()
            >>> (StoragePath(there) / "d/x").write_text(""); (StoragePath(here) / "d/y").write_text("")
            >>> Mirror(here, [there]).ls("d")
            ['x', 'y']
        """
        relative = _relative(path)
        places = [root / relative for root in (self.root, *self.sources)]
        with ThreadPoolExecutor(max_workers=len(places)) as pool:
            listings = list(pool.map(_in_context(_names), places))
        if all(names is None for names in listings):
            raise FileNotFoundError(f"nothing is at {relative!r} in any of {[str(place) for place in places]}")
        return sorted({name for names in listings for name in names or ()} - {_LOCKS})

    def _is_complete(self, relative: str, local: StoragePath) -> bool:
        return local.exists() and not self._mark(relative).exists()

    def _mark(self, relative: str) -> StoragePath:
        """Stands while a folder is being copied; a folder that was never mirrored has none."""
        return self.root / _LOCKS / f"{_short(relative)}.partial"

    def _refuse_absent(self, relative: str) -> None:
        with self._lock:
            until_s = self._absent.get(relative)
            if until_s is not None and self._clock.monotonic() < until_s:
                raise FileNotFoundError(f"{relative!r} was in none of the mirrored roots a moment ago")
            self._absent.pop(relative, None)

    def _find(self, relative: str) -> StoragePath:
        places = [source / relative for source in self.sources]
        if places:
            with ThreadPoolExecutor(max_workers=len(places)) as pool:
                for place, there in zip(places, pool.map(_in_context(StoragePath.exists), places), strict=True):
                    if there:
                        return place
        with self._lock:
            self._absent[relative] = self._clock.monotonic() + ABSENT_S
        raise FileNotFoundError(f"{relative!r} is in none of {[str(root) for root in (self.root, *self.sources)]}")

    def _fetch(self, relative: str, source: StoragePath, local: StoragePath) -> None:
        logger.info("mirroring %s to %s", source, local)
        if not source.info().is_folder:
            run_copies([Copy(str(source), str(local), source.size())])
            return
        mark = self._mark(relative)
        mark.write_text(f"{source}\n")
        entries = [entry for entry in source.scan(recursive=True) if not entry.is_folder]
        plan = []
        for entry in entries:
            inside = str(StoragePath(entry.path).relative_to(source))
            plan.append(Copy(entry.path, str(local / inside), entry.size or 0))
        run_copies(plan, jobs=self._jobs)
        mark.rm()

    @contextlib.contextmanager
    def _exclusively(self, relative: str) -> Generator[None]:
        try:
            lease = Lease(str(self.root / _LOCKS / f"{_short(relative)}.lock"), clock=self._clock)
        except UnsupportedConditionalWrite:
            yield  # copies appear whole anyway: without the lease they are at worst made twice
            return
        with lease.hold(wait_s=LOCK_WAIT_S):
            yield


def _relative(path: str) -> str:
    scheme, separator, rest = path.partition("://")
    if separator and scheme != SCHEME:
        raise StoragePathError("mirror", path, "mirror://a/b or the relative path a/b")
    return validate_relative_path((rest if separator else path).rstrip("/"))


def _in_context[Result](function: Callable[[StoragePath], Result]) -> Callable[[StoragePath], Result]:
    """Run in a copy of this thread's context, so that what is in force around us is so in the pool's threads too."""
    context = contextvars.copy_context()
    return lambda place: context.copy().run(function, place)


def _short(relative: str) -> str:
    return hashlib.sha256(relative.encode()).hexdigest()[:32]


def _names(place: StoragePath) -> list[str] | None:
    try:
        return [StoragePath(entry.path).name for entry in place.scan()]
    except (FileNotFoundError, NotADirectoryError):
        return None
