"""Why a step failed: a category to act on, a signature to group by, and which failures are worth another try.

A category answers "whose turn is it?": the author's (``user_code``), the data's, the machine's (``oom``,
``preempted``), the operator's (``quota``, ``auth``, ``region``). An exception may name its own category with an
attribute ``failure_category``; otherwise its type and, for a remote job, the way its process ended decide.
"""

import errno
import hashlib
import re
import signal
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from marin.execution.fingerprint import type_name


class FailureCategory(StrEnum):
    """Whose turn it is after a failure."""

    USER_CODE = "user_code"
    DATA = "data"
    OOM = "oom"
    PREEMPTED = "preempted"
    LEASE_LOST = "lease_lost"
    REGION = "region"
    QUOTA = "quota"
    AUTH = "auth"
    DEPENDENCY = "dependency"
    TIMEOUT = "timeout"
    GATE = "gate"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"


KNOWN_FAILURE_CATEGORIES = frozenset({FailureCategory.DIVERGED})
"""A failure that is a result: the same recipe would end the same way, so it is not run again unless forced."""

_TRANSIENT = MappingProxyType({FailureCategory.PREEMPTED: 3})


@dataclass(frozen=True)
class RetryPolicy:
    """How many times each category is tried again at once, under the same lease.

    Attributes:
        retries: ``{category: number of further attempts}``; categories that are missing are not retried.
    Example:
        >>> policy = RetryPolicy()
        >>> policy.allows(FailureCategory.PREEMPTED, tried=0), policy.allows(FailureCategory.DATA, tried=0)
        (True, False)
    """

    retries: Mapping[FailureCategory, int] = field(default_factory=lambda: _TRANSIENT)

    def allows(self, category: FailureCategory, tried: int) -> bool:
        """Whether another attempt is due after ``tried`` retries for this category."""
        return tried < self.retries.get(category, 0)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it was raised from, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def classify(error: BaseException) -> FailureCategory:
    """The category of an exception.

    An explicit ``failure_category`` anywhere in the chain of causes wins; then the outermost exception whose type says
    something; an ordinary exception is the author's.

    Args:
        error: What the body raised.
    Returns:
        The category.
    Example:
        >>> classify(MemoryError()).value, classify(ValueError("x")).value
        ('oom', 'user_code')
    """
    chain = list(causes(error))
    for link in chain:
        named = getattr(link, "failure_category", None)
        if isinstance(named, str) and named in FailureCategory:
            return FailureCategory(named)
    for link in chain:
        if (category := _category_of(link)) is not None:
            return category
    return FailureCategory.USER_CODE if isinstance(error, Exception) else FailureCategory.INTERRUPTED


def _category_of(error: BaseException) -> FailureCategory | None:
    if isinstance(error, MemoryError):
        return FailureCategory.OOM
    if isinstance(error, TimeoutError):
        return FailureCategory.TIMEOUT
    if isinstance(error, UnicodeDecodeError):
        return FailureCategory.DATA
    if isinstance(error, ModuleNotFoundError):
        return FailureCategory.DEPENDENCY
    if isinstance(error, OSError):
        return _category_of_os_error(error)
    number = getattr(error, "signal", None)
    if isinstance(number, int) and number in (signal.SIGKILL, signal.SIGTERM):
        return FailureCategory.PREEMPTED
    # Accelerator runtimes report exhausted memory as a plain runtime error.
    if type(error).__name__ == "XlaRuntimeError" and "RESOURCE_EXHAUSTED" in str(error):
        return FailureCategory.OOM
    return None


def _category_of_os_error(error: OSError) -> FailureCategory | None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FailureCategory.QUOTA
    if error.errno in (errno.EACCES, errno.EPERM):
        return FailureCategory.AUTH
    return FailureCategory.DATA if isinstance(error, FileNotFoundError) else None


def error_signature(error: BaseException) -> str:
    """Sixteen hex digits that are equal for "the same" failure: type and innermost frames, without line numbers or
    values.

    Two failures that differ only in a path, a number or an unrelated edit above the raising function agree.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}" for frame in (own or frames)[-3:]]
    message = re.sub(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"|/\S+", "#", str(error))[:200]
    text = "|".join([type_name(type(error)), message, *places])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
