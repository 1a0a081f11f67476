"""The ledger of a store: a reader over the files that the engine left.

There is no server and no database to keep in step: every answer is a function of records, statuses, attempts and
events.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rigging.filesystem.lease import Lease, LeaseState
from rigging.filesystem.prefix import marin_prefix

from marin.errors import CorruptRecordError, RecordFormatError, RecordNotFoundError, UsageError
from marin.execution._files import check_prefix, exists
from marin.execution.attempts import read_attempts
from marin.execution.decision import StepFacts
from marin.execution.events import LedgerEvent, read_event
from marin.execution.fingerprint import describe_drift
from marin.execution.layout import StepLayout
from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
from marin.execution.step_status import Status, StatusRecord, read_status
from marin.execution.versions import DERIVED_DIGITS
from marin.ledger.compaction import compacted_events
from marin.ledger.derived_events import missing_ends
from marin.ledger.explanation import Explanation, explain_step
from marin.ledger.failure_groups import FailureGroup, group_failures
from marin.ledger.scan import address_of, compacted_paths, event_paths, step_paths


@dataclass(frozen=True)
class StepEntry:
    """One step of a store.

    Attributes:
        name: Step name.
        version: Step version.
        path: Output path, whether or not there is an output.
        status: ``SUCCESS``, ``FAILED``, ``RUNNING``, ``DEP_FAILED``; None where only a record exists.
        problem: Why its status cannot be read; empty when it can, or when there is none.
    """

    name: str
    version: str
    path: str
    status: StatusRecord | None
    problem: str = ""

    @property
    def label(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    @property
    def layout(self) -> StepLayout:
        """Where its files lie."""
        return StepLayout(self.path)

    @property
    def state(self) -> str:
        """The status in lower case; without one ``recorded``, or how the latest attempt ended (``blocked``, say).

        ``corrupt`` when the status cannot be read: one torn file must not hide the rest of a store.
        """
        if self.problem:
            return "corrupt"
        if self.status is not None:
            return self.status.status.value.lower()
        attempts = read_attempts(self.layout) if not exists(self.layout.record) else []
        return attempts[-1].status if attempts else "recorded"


def split_reference(reference: str) -> tuple[str, str]:
    """``NAME@VERSION`` in two parts; the version may be missing.

    Raises:
        UsageError: There is no name.
    Example:
        >>> split_reference("tokens/web@2026.12.01")
        ('tokens/web', '2026.12.01')
    """
    name, _, version = reference.partition("@")
    if not name:
        raise UsageError(f"bad step {reference!r}; expected NAME@VERSION.", hint="List steps with 'marin ls'.")
    return name, version


class Ledger:
    """Reads what happened under one prefix.

    Args:
        prefix: Root of the store; ``MARIN_PREFIX`` or ``./marin_store`` by default.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = check_prefix(prefix if prefix is not None else marin_prefix())

    def steps(self) -> list[StepEntry]:
        """Every step that left anything, by name and version."""
        entries = []
        for path in step_paths(self.prefix):
            layout = StepLayout(path)
            name, version = address_of(self.prefix, layout)
            try:
                entries.append(StepEntry(name, version, path, read_status(layout)))
            except (CorruptRecordError, RecordFormatError) as error:
                entries.append(StepEntry(name, version, path, None, str(error)))
        return sorted(entries, key=lambda entry: (entry.name, entry.version))

    def records(self) -> list[ArtifactRecord]:
        """Record of every committed output, by name and version."""
        found = [read_record(entry.path) for entry in self.steps() if entry.state in ("success", "recorded")]
        return [record for record in found if record is not None]

    def find(self, name: str, version: str = "") -> StepEntry:
        """One step. Without a version, or with ``auto``, the latest of that kind.

        Raises:
            RecordNotFoundError: The store has no such step; names the versions there are.
        """
        entries = [entry for entry in self.steps() if entry.name == name]
        exact = [entry for entry in entries if entry.version == version]
        if exact:
            return exact[0]
        stem = f"{version}-" if version.endswith("auto") else ""
        usable = [entry for entry in entries if not version or (stem and entry.version.startswith(stem))]
        if not usable and version:
            usable = [entry for entry in entries if len(version) > 8 and entry.version.startswith(version)]
        if usable:
            return max(usable, key=lambda entry: (entry.status.at if entry.status is not None else "", entry.version))
        versions = ", ".join(entry.version for entry in entries)
        reason = f"no step {name}@{version}" if version else f"no step {name}"
        raise RecordNotFoundError(self.prefix, reason + (f"; versions: {versions}" if versions else ""))

    def record(self, name: str, version: str = "") -> ArtifactRecord:
        """The record of one output.

        Raises:
            RecordNotFoundError: There is no such step, or it has no output.
        """
        entry = self.find(name, version)
        record = read_record(entry.path)
        if record is None:
            raise RecordNotFoundError(entry.path, f"{entry.label} has no output; its status is {entry.state}")
        return record

    def attempts(self, name: str | None = None, version: str = "") -> list[AttemptRecord]:
        """Attempts at one step, or at all of them, oldest first.

        An attempt whose closing got lost in a crash is shown as what it became: ``success`` when the record names it,
        ``abandoned`` when nobody holds its lease any more.

        Raises:
            RecordNotFoundError: There is no such step.
        """
        entries = self.steps() if name is None else [self.find(name, version)]
        found = [attempt for entry in entries for attempt in self._attempts_of(entry)]
        return sorted(found, key=lambda attempt: attempt.attempt)

    def _attempts_of(self, entry: StepEntry) -> list[AttemptRecord]:
        attempts = read_attempts(entry.layout)
        if all(attempt.closed for attempt in attempts):
            return attempts
        record = read_record(entry.path)
        live = self.lease(entry)
        return [_settled(attempt, record, live) for attempt in attempts]

    def lease(self, entry: StepEntry) -> LeaseState | None:
        """Who works on a step, or None when nobody ever did."""
        return Lease(entry.layout.lease).read() if exists(entry.layout.lease) else None

    def events(self) -> list[LedgerEvent]:
        """Every event, in order of time; also the end of a closed attempt whose driver died before it could tell."""
        found = {event.id: event for path in event_paths(self.prefix) if (event := read_event(path)) is not None}
        # Compacted ones last: what a compaction took away between the two looks is there by now.
        found.update((event.id, event) for event in self._compacted())
        attempts = [attempt for entry in self.steps() for attempt in read_attempts(entry.layout)]
        found.update((event.id, event) for event in list(missing_ends(attempts, found)))
        return sorted(found.values(), key=lambda event: (event.at, event.id))

    def _compacted(self) -> list[LedgerEvent]:
        return compacted_events(self.prefix) if compacted_paths(self.prefix) else []

    def failures(self) -> list[FailureGroup]:
        """Attempts without success, grouped by category and signature; largest group first."""
        return group_failures(self.attempts())

    def why(self, name: str, version: str = "", *, payload: str | None = None) -> Explanation:
        """Why a step is as it is.

        Args:
            name: Step name.
            version: Step version; the latest without.
            payload: Recipe at hand (``step.fingerprint_payload()``), to compare with the recorded one.
        Raises:
            RecordNotFoundError: Nothing is known about a step of that name.
        """
        try:
            entry = self.find(name, version)
            read_status(entry.layout)  # a status that cannot be read is no reason for anything
        except RecordNotFoundError:
            if not version or not any(entry.name == name for entry in self.steps()):
                raise
            entry = StepEntry(name, version, os.path.join(self.prefix, name, version), None)
        record = read_record(entry.path)
        recipe = payload if payload is not None else (record.fingerprint_payload if record is not None else "")
        drift: Sequence[str] = ()
        if payload is not None and record is not None and record.fingerprint_payload:
            drift = describe_drift(record.fingerprint_payload, payload)
        sibling, changes = self._sibling(entry, recipe)
        facts = StepFacts(entry.status, record is not None, drift, sibling=sibling, sibling_drift=tuple(changes))
        attempts = self._attempts_of(entry)
        return explain_step(entry.label, facts, record, attempts, self.lease(entry), self._started_because(attempts))

    def _started_because(self, attempts: Sequence[AttemptRecord]) -> list[str]:
        """Reasons on the ``started`` event of the latest attempt."""
        if not attempts:
            return []
        latest = attempts[-1]
        year, month, day = latest.started_at[:10].split("-")
        path = os.path.join(self.prefix, "ledger", year, month, day, f"{latest.attempt}-started.json")
        event = read_event(path)
        if event is None:
            event = next((item for item in self._compacted() if item.id == f"{latest.attempt}-started"), None)
        return list(event.data.get("reasons", [])) if event is not None else []

    def _sibling(self, entry: StepEntry, recipe: str) -> tuple[str, list[str]]:
        """The output of the same step at another derived version that was there before, and how recipes differ."""
        stem = entry.version[:-DERIVED_DIGITS]
        if not stem.endswith("auto-") or not recipe:
            return "", []
        best: tuple[str, list[str]] = ("", [])
        at = entry.status.at if entry.status is not None else "9"
        for other in self.steps():
            earlier = other.status is not None and other.status.status is Status.SUCCESS and other.status.at < at
            if other.name != entry.name or other.version == entry.version or not other.version.startswith(stem):
                continue
            record = read_record(other.path) if earlier else None
            if record is None or not record.fingerprint_payload:
                continue
            changes = describe_drift(record.fingerprint_payload, recipe)
            if not best[0] or len(changes) < len(best[1]):
                best = (other.version, changes)
        return best

    def show(self, name: str, version: str = "") -> dict[str, Any]:
        """Everything about one step as a JSON object: entry, record, attempts.

        Raises:
            RecordNotFoundError: There is no such step.
        """
        entry = self.find(name, version)
        record = read_record(entry.path)
        return {
            "step": entry.label,
            "name": entry.name,
            "version": entry.version,
            "path": entry.path,
            "status": entry.state,
            "record": record.to_json() if record is not None else None,
            "attempts": [attempt.to_json() for attempt in self._attempts_of(entry)],
        }


def _settled(attempt: AttemptRecord, record: ArtifactRecord | None, lease: LeaseState | None) -> AttemptRecord:
    """What an attempt without an end became."""
    if attempt.closed:
        return attempt
    values = attempt.to_json()
    if record is not None and record.attempt == attempt.attempt:
        values.update(status="success", ended_at=record.created_at, seconds=record.seconds)
        values.update(content_digest=record.content_digest, resources=record.resources)
    elif lease is None or not lease.live or lease.epoch != attempt.epoch:
        error = {"type": "Abandoned", "message": "its driver is gone", "traceback": "", "signature": "abandoned"}
        values.update(status="abandoned", category="abandoned", error=error)
    return AttemptRecord.from_json(values)
