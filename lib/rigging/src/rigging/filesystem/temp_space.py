"""Room for files that may be thrown away after some days.

The days stand in the path (``<root>/tmp/ttl=7d/...``), so a bucket's lifecycle rules, or ``fsutil clean-temp`` where
there are none, can remove what is old without asking anybody.
"""

import logging
import re
from dataclasses import dataclass, field
from typing import Final

from rigging.data_config import data_config
from rigging.errors import ConfigError
from rigging.filesystem.prefix import marin_prefix
from rigging.filesystem.storage_path import StoragePath
from rigging.timing import Clock, SystemClock

logger = logging.getLogger(__name__)

_TTL: Final = re.compile(r"ttl=(\d+)d")
_DAY_S: Final = 86_400.0


def marin_temp_bucket(ttl_days: int, prefix: str = "", *, source_prefix: str | None = None) -> str:
    """Return a folder for files that may be removed after ``ttl_days``.

    Args:
        ttl_days: How long they must stay, in days; rounded up to a life that the configuration allows. More than the
            longest is cut to that, with a warning.
        prefix: Relative folder below it.
        source_prefix: Root of the store; default ``marin_prefix()``.
    Raises:
        ConfigError: ``ttl_days`` is not above 0.
        StoragePathError: ``prefix`` is absolute.

    Example:
        >>> marin_temp_bucket(10, "shuffle", source_prefix="gs://example-bucket")
        'gs://example-bucket/tmp/ttl=14d/shuffle'
    """
    if ttl_days < 1:
        raise ConfigError("ttl_days", f"it is {ttl_days}", "1 or more days")
    config = data_config()
    allowed = config.ttl_days
    days = next((days for days in allowed if days >= ttl_days), allowed[-1])
    if days < ttl_days:
        logger.warning("temporary files are asked to live %d days; the longest life is %d days", ttl_days, days)
    root = StoragePath(source_prefix if source_prefix is not None else marin_prefix())
    folder = root / config.temp_path / f"ttl={days}d"
    return str(folder / prefix if prefix else folder)


@dataclass(slots=True)
class CleanUp:
    """What ``clean_temp`` removed (or would remove): paths, their bytes, and how many files it kept."""

    removed: list[str] = field(default_factory=list)
    size: int = 0
    kept: int = 0


def clean_temp(root: str | None = None, *, dry_run: bool = False, clock: Clock = SystemClock()) -> CleanUp:
    """Remove files below the temporary folder of ``root`` that are older than the days in their path.

    A file with a time in the future, or none, is kept. Local folders that came empty are removed.

    Args:
        root: Root of the store; default ``marin_prefix()``.
        dry_run: Only say what would go.
        clock: What time it is.
    Raises:
        OSError: A file cannot be removed.

    Example:
        >>> import tempfile
        >>> root = tempfile.mkdtemp()
        >>> StoragePath(marin_temp_bucket(1, "a", source_prefix=root)).mkdirs(); clean_temp(root).removed
        []
    """
    base = StoragePath(root if root is not None else marin_prefix()) / data_config().temp_path
    done = CleanUp()
    if not base.isdir():
        return done
    now_s = clock.time()
    for folder in base.scan():
        match = _TTL.fullmatch(StoragePath(folder.path).name)
        if match is None or not folder.is_folder:
            continue
        for entry in list(StoragePath(folder.path).scan(recursive=True)):
            if entry.size is None or entry.mtime is None or now_s - entry.mtime <= int(match[1]) * _DAY_S:
                done.kept += 1
                continue
            if not dry_run:
                _remove(entry.path)
            done.removed.append(entry.path)
            done.size += entry.size
    return done


def _remove(path: str) -> None:
    try:
        StoragePath(path).rm()
    except FileNotFoundError:
        pass  # somebody else cleans too
