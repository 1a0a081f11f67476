"""Failures that are "the same" put together: by category, then by signature."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marin.execution.records import AttemptRecord


@dataclass(frozen=True)
class FailureGroup:
    """Failed attempts with one category and signature.

    Attributes:
        category: Whose turn it is.
        signature: Equal for equal failures.
        error_type: Class of the exception.
        message: Message of the latest one.
        attempts: Oldest first.
    """

    category: str
    signature: str
    error_type: str
    message: str
    attempts: tuple[AttemptRecord, ...]

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps concerned."""
        return tuple(dict.fromkeys(attempt.step for attempt in self.attempts))

    def to_json(self) -> dict[str, Any]:
        """JSON object for ``--json``."""
        return {
            "category": self.category,
            "signature": self.signature,
            "type": self.error_type,
            "message": self.message,
            "count": len(self.attempts),
            "first": self.attempts[0].started_at,
            "last": self.attempts[-1].started_at,
            "steps": list(self.steps),
            "attempts": [attempt.attempt for attempt in self.attempts],
        }


def group_failures(attempts: Iterable[AttemptRecord]) -> list[FailureGroup]:
    """Group attempts that ended without success; largest group first."""
    groups: dict[tuple[str, str], list[AttemptRecord]] = {}
    for attempt in sorted(attempts, key=lambda item: item.attempt):
        if attempt.status in ("running", "success"):
            continue
        signature = (attempt.error or {}).get("signature", "")
        groups.setdefault((attempt.category, signature), []).append(attempt)
    found = []
    for (category, signature), members in groups.items():
        error = members[-1].error or {}
        found.append(FailureGroup(category, signature, error.get("type", ""), error.get("message", ""), tuple(members)))
    return sorted(found, key=lambda group: (-len(group.attempts), group.category, group.signature))
