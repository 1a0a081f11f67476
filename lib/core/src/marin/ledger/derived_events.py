"""Events that a driver died too early to write, told from the attempts that it closed before.

An attempt is closed first and its event is written after that, so a crash in between leaves a closed attempt without
an event. Nothing is repaired on disk: the ledger's reader adds what is missing, and says so in the event's data.
"""

from collections.abc import Container, Iterable, Iterator

from marin.execution.events import LedgerEvent
from marin.execution.records import AttemptRecord


def missing_ends(attempts: Iterable[AttemptRecord], known: Container[str]) -> Iterator[LedgerEvent]:
    """The event of every closed attempt whose end no event tells.

    Args:
        attempts: Attempts.
        known: Ids of the events there are.
    Example:
        >>> ended = AttemptRecord(attempt="a1", epoch=1, step="tokens@dev", output_path="/store/tokens/dev",
        ...                       status="failed", ended_at="2026-12-01T00:00:00Z")
        >>> [(event.id, event.data["derived"]) for event in missing_ends([ended], known=set())]
        [('a1-failed', True)]
        >>> list(missing_ends([ended], known={"a1-failed"}))
        []
    """
    for attempt in attempts:
        kind = _kind_of_end(attempt)
        if not attempt.closed or f"{attempt.attempt}-{kind}" in known:
            continue
        name, _, version = attempt.step.rpartition("@")
        error = attempt.error or {}
        data: dict[str, object] = {"seconds": attempt.seconds, "derived": True}
        if kind == "failed":
            data.update(category=attempt.category, type=error.get("type"), signature=error.get("signature"))
        yield LedgerEvent(
            id=f"{attempt.attempt}-{kind}",
            at=attempt.ended_at or attempt.started_at,
            kind=kind,
            step=name,
            version=version,
            digest=attempt.content_digest,
            attempt=attempt.attempt,
            actor=attempt.provenance.get("built_by"),
            commit=attempt.provenance.get("base_commit"),
            data=data,
        )


def _kind_of_end(attempt: AttemptRecord) -> str:
    if attempt.status != "success":
        return "failed"
    # What was copied from another store has itself as its input.
    replica = any(item.get("ref") == attempt.step for item in attempt.inputs)
    return "replicated" if replica else "finished"
