"""A limit on what a process reads from other regions, because such reads are billed by the byte and easy to cause.

``StoragePath`` charges each byte that it reads from a bucket in another region, before it is fetched; whoever reads by
other means calls ``record_transfer``. A read that would pass the limit is refused with ``TransferBudgetExceeded`` and
not counted. Where either region is not known nothing is charged: a wrong refusal would be worse than a missed one.
"""

import contextlib
import contextvars
import threading
from collections import Counter
from collections.abc import Generator
from typing import Final

from rigging import _env
from rigging.data_config import data_config
from rigging.errors import ConfigError, TransferBudgetExceeded
from rigging.filesystem.prefix import marin_region
from rigging.filesystem.regions import region_from_prefix, regions_match

DEFAULT_LIMIT_GB: Final = 10.0
_GB: Final = 1_000_000_000


class TransferBudget:
    """A limit in bytes and what was used of it, by bucket; safe for many threads.

    Args:
        limit_bytes: Most that may be read; None for no limit (still counted).

    Example:
        >>> budget = TransferBudget(limit_bytes=100)
        >>> budget.record(80, "gs://example-eu/x")
        >>> budget.record(30, "gs://example-eu/y")
        Traceback (most recent call last):
            ...
        rigging.errors.TransferBudgetExceeded: cross-region read refused: ...
        >>> budget.used_bytes, budget.by_bucket()
        (80, {'gs://example-eu': 80})
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._used: Counter[str] = Counter()
        self._total = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes charged so far."""
        return self._total

    def by_bucket(self) -> dict[str, int]:
        """Return the bytes charged so far by bucket, for a report."""
        with self._lock:
            return dict(self._used)

    def record(self, size_bytes: int, path: str) -> None:
        """Charge a read.

        Raises:
            TransferBudgetExceeded: The limit would be passed; nothing was charged.
        """
        scheme, _, rest = path.partition("://")
        with self._lock:
            if self.limit_bytes is not None and self._total + size_bytes > self.limit_bytes:
                raise TransferBudgetExceeded(self._total, size_bytes, self.limit_bytes, path)
            self._total += size_bytes
            self._used[f"{scheme}://{rest.partition('/')[0]}"] += size_bytes


_process_lock = threading.Lock()
_process_budget: TransferBudget | None = None
_override: contextvars.ContextVar[TransferBudget | None] = contextvars.ContextVar("transfer_budget", default=None)


def current_budget() -> TransferBudget:
    """Return the budget in force: that of ``mirror_budget`` around us, else the one of the process.

    Raises:
        ConfigError: ``MARIN_MIRROR_BUDGET_GB`` is no number of at least 0.
    """
    global _process_budget
    override = _override.get()
    if override is not None:
        return override
    with _process_lock:
        if _process_budget is None:
            _process_budget = TransferBudget(_limit_from_environment())
        return _process_budget


def _limit_from_environment() -> int | None:
    if _env.PAY_ALL_FEES.get() not in (None, "0"):
        return None
    text = _env.TRANSFER_BUDGET.get()
    try:
        limit_gb = DEFAULT_LIMIT_GB if text is None else float(text)
    except ValueError:
        limit_gb = -1.0
    if not 0 <= limit_gb < float("inf"):
        raise ConfigError(_env.TRANSFER_BUDGET.name, f"it is {text!r}", "a number of GB, 0 or more")
    return int(limit_gb * _GB)


@contextlib.contextmanager
def mirror_budget(limit_gb: float | None) -> Generator[TransferBudget]:
    """Let a budget of its own be in force in this context while the body runs.

    Args:
        limit_gb: Most that may be read, in 10**9 bytes; None for no limit.
    Raises:
        ConfigError: A negative limit.

    Example:
        >>> with mirror_budget(1.5) as budget:
        ...     budget.limit_bytes, current_budget() is budget
        (1500000000, True)
    """
    if limit_gb is not None and not limit_gb >= 0:
        raise ConfigError("mirror_budget", f"limit_gb is {limit_gb!r}", "0 or more, or None")
    token = _override.set(TransferBudget(None if limit_gb is None else int(limit_gb * _GB)))
    try:
        budget = _override.get()
        assert budget is not None
        yield budget
    finally:
        _override.reset(token)


def bucket_region(url: str) -> str | None:
    """Return the region of a bucket: what the cluster configuration says, else what its name says, else None.

    Example:
        >>> bucket_region("gs://example-us-central2/x"), bucket_region("gs://example/x"), bucket_region("/local")
        ('us-central2', None, None)
    """
    if "://" not in url:
        return None
    return data_config().bucket_region(url) or region_from_prefix(url)


def is_cross_region_url(url: str) -> bool:
    """Tell whether ``url`` is known to lie in another region than this machine.

    Example:
        >>> is_cross_region_url("/a/local/path")
        False
    """
    theirs = bucket_region(url)
    if theirs is None:
        return False
    ours = marin_region()
    return ours is not None and not regions_match(ours, theirs)


def record_transfer(size_bytes: int, url: str, budget: TransferBudget | None = None) -> None:
    """Charge a read of ``size_bytes`` from ``url`` if it comes from another region.

    Args:
        size_bytes: What is about to be read.
        url: Where from.
        budget: The budget to charge; default the one in force.
    Raises:
        TransferBudgetExceeded: The limit would be passed.

    Example:
        >>> record_transfer(100, "/a/local/path")  # charges nothing
    """
    if is_cross_region_url(url):
        (current_budget() if budget is None else budget).record(size_bytes, url)
