"""What a run's record says about how it ended."""

from levanter.data.errors import DataError
from levanter.errors import CancelledError as CancelledError
from levanter.errors import CheckpointError, ConfigError

FAILURE_CATEGORIES = (
    (CheckpointError, "checkpoint"),
    (DataError, "data"),
    (ConfigError, "config"),
    (KeyboardInterrupt, "interrupted"),
    (MemoryError, "memory"),
)
"""Category of a failure in the run's summary, by kind of error; training errors carry their own."""


def failure_summary(error: BaseException) -> dict[str, str]:
    """What a run's record says about how it ended: a category to group by, and the reason in words.

    Example:
        >>> failure_summary(CancelledError(3))["failure_category"]
        'cancelled'
    """
    category = getattr(error, "failure_category", None)
    if category is None:
        category = next((name for kind, name in FAILURE_CATEGORIES if isinstance(error, kind)), "failed")
    return {"failure_category": category, "failure_reason": str(error) or repr(error)}
