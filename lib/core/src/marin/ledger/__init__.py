"""What happened in a store and why: records, attempts, failures and events, read without a server.

Example:
    >>> import tempfile
    >>> from marin.ledger import Ledger
    >>> Ledger(tempfile.mkdtemp()).records()
    []
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marin.ledger.explanation import Explanation
    from marin.ledger.failure_groups import FailureGroup
    from marin.ledger.ledger import Ledger, StepEntry
    from marin.ledger.verification import Verification, verify

_EXPORTS = {
    "Explanation": "marin.ledger.explanation",
    "FailureGroup": "marin.ledger.failure_groups",
    "Ledger": "marin.ledger.ledger",
    "StepEntry": "marin.ledger.ledger",
    "Verification": "marin.ledger.verification",
    "verify": "marin.ledger.verification",
}

__all__ = ["Explanation", "FailureGroup", "Ledger", "StepEntry", "Verification", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
