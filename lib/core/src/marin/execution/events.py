"""Ledger events: small immutable files, one a fact, written without a server.

``ledger/YYYY/MM/DD/<id>.json`` below the prefix. They make "what happened, in order" cheap to read; the truth about a
step stays in its record, status and attempts, from which the index can be rebuilt.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any, Self

from rigging.provenance import launch_provenance

from marin.execution._files import create_text, json_text
from marin.execution.attempts import new_id, utc_text
from marin.execution.records import RECORD_FORMAT, parse_object, read_text

LEDGER_FOLDER = "ledger"


@dataclass(frozen=True, kw_only=True)
class LedgerEvent:
    """One fact.

    Attributes:
        id: Unique, sorts by time; equal ids are the same fact.
        at: UTC, ISO-8601.
        kind: ``started``, ``finished``, ``failed``, ``served_cached``, ``drift``, ``verified``, ``hypothesis``,
            ``verdict``, ``gate``, ``waiver`` or ``planned``.
        step: Step name.
        version: Step version.
        digest: Content digest, where there is one.
        attempt: Attempt concerned.
        actor: Who ran the driver.
        commit: Commit of the code.
        data: More, by kind.
    """

    id: str
    at: str
    kind: str
    step: str = ""
    version: str = ""
    digest: str | None = None
    attempt: str | None = None
    actor: str | None = None
    commit: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    record_format: int = RECORD_FORMAT

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read a stored event; unknown fields are ignored."""
        known = {item.name for item in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


def new_event(
    kind: str,
    now: float,
    *,
    step: str = "",
    version: str = "",
    digest: str | None = None,
    attempt: str | None = None,
    data: dict[str, Any] | None = None,
) -> LedgerEvent:
    """A fact as this process states it: with the time, who runs it, and the commit of the code.

    Args:
        kind: As in ``LedgerEvent``.
        now: Seconds since 1970.
        step: Step name, or the experiment; empty for a run as a whole.
        version: Step version.
        digest: Content digest, where there is one.
        attempt: Attempt concerned. It also makes the id: an attempt has one event of each kind, whoever writes it.
        data: More, by kind.
    Example:
        >>> event = new_event("finished", 0.0, step="tokens", attempt="19700101T000000.000000Z-00000000")
        >>> event.id, event.at
        ('19700101T000000.000000Z-00000000-finished', '1970-01-01T00:00:00.000000Z')
    """
    launched = launch_provenance()
    return LedgerEvent(
        id=f"{attempt or new_id(now)}-{kind}",
        at=utc_text(now),
        kind=kind,
        step=step,
        version=version,
        digest=digest,
        attempt=attempt,
        actor=launched.built_by,
        commit=launched.base_commit,
        data=data or {},
    )


def event_path(prefix: str, event: LedgerEvent) -> str:
    """Where an event lies: by the day in its ``at``."""
    year, month, day = event.at[:10].split("-")
    return os.path.join(prefix, LEDGER_FOLDER, year, month, day, f"{event.id}.json")


def write_event(prefix: str, event: LedgerEvent) -> bool:
    """Write an event once.

    Returns:
        False when the same fact is on record already.
    """
    # Events can be rebuilt from records and attempts, so the disk is not waited for.
    return create_text(event_path(prefix, event), json_text(dataclasses.asdict(event)), durable=False)


def read_event(path: str) -> LedgerEvent | None:
    """One event, or None when the file is gone.

    Raises:
        CorruptRecordError: It does not parse.
    """
    text = read_text(path)
    return None if text is None else LedgerEvent.from_json(parse_object(path, text))
