"""The index of experiments: what runs, what worked, what failed, what was refuted and what has been replaced.

The problem: results are found by whoever remembers them, and failures by nobody. The idea: the index is a view of the
ledger, like every other page. An *experiment* is the first segment of its steps' names (``tutorial`` of
``tutorial/model``); what it gives are its *results*, the steps that no other step of the store reads.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
from marin.execution.step_status import Status
from marin.ledger.hypotheses import Claim, VerdictOutcome, claims
from marin.ledger.ledger import Ledger, StepEntry

_MAX_FIGURES = 4
_MAX_NOTE = 200


class ResultState(StrEnum):
    """What became of a result, the most urgent first."""

    RUNNING = "running"
    FAILED = "failed"
    REFUTED = "refuted"
    SUCCEEDED = "succeeded"
    SUPERSEDED = "superseded"


@dataclass(frozen=True)
class ResultRow:
    """One result.

    Attributes:
        step: ``name@version``.
        state: What became of it.
        when: UTC of its last change, to the second.
        seconds: Wall time of all its attempts, in seconds; None when nothing was tried.
        note: Its numbers, its verdict, why it failed, or what replaced it.
    """

    step: str
    state: ResultState
    when: str
    seconds: float | None
    note: str


@dataclass(frozen=True)
class ExperimentRow:
    """One experiment with its results, the latest first.

    Attributes:
        name: First segment of its steps' names.
        state: The most urgent state among the results that count (those not superseded).
        rows: Results.
    """

    name: str
    state: ResultState
    rows: tuple[ResultRow, ...]


@dataclass(frozen=True)
class ClaimRow:
    """One claim of an experiment, decided or open.

    Attributes:
        experiment: Name that ties claim and verdict together.
        claim: One sentence; empty for a verdict without a claim.
        rule: What decides, such as ``bpb below 2.0``.
        value: The number that decided, or ``–``.
        verdict: ``open``, ``confirmed``, ``refuted``, ``inconclusive`` or ``crashed``.
        post_hoc: Whether the claim was written down after the fact, or never.
    """

    experiment: str
    claim: str
    rule: str
    value: str
    verdict: str
    post_hoc: bool


@dataclass(frozen=True)
class ExperimentsIndex:
    """The whole page as plain data.

    Attributes:
        drawn_at: UTC, to the second.
        experiments: Those that need attention first, then by name.
        claims: In order of first mention.
        counts: Results by state.
    """

    drawn_at: str
    experiments: tuple[ExperimentRow, ...]
    claims: tuple[ClaimRow, ...]
    counts: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """JSON object of the page."""
        return asdict(self)


def experiments_index(ledger: Ledger, *, now: str) -> ExperimentsIndex:
    """Read the index out of a store.

    Args:
        ledger: The store.
        now: UTC, ISO-8601, for the heading.
    Returns:
        The page as plain data.
    Example:
        >>> import tempfile
        >>> experiments_index(Ledger(tempfile.mkdtemp()), now="2026-12-01T00:00:00Z").counts["failed"]
        0
    """
    entries = ledger.steps()
    records = {entry.label: read_record(entry.path) for entry in entries}
    read_by_others = {dep for record in records.values() if record is not None for dep in record.deps}
    attempts: dict[str, list[AttemptRecord]] = collections.defaultdict(list)
    for attempt in ledger.attempts():
        attempts[attempt.step].append(attempt)
    decided = claims(ledger)
    verdicts = {ref: claim for claim in decided if claim.verdicts for ref in claim.verdicts[-1].evidence}
    latest = _latest_successes(entries)

    by_experiment: dict[str, list[ResultRow]] = collections.defaultdict(list)
    for entry in entries:
        if entry.label not in read_by_others:
            row = _row(ledger, entry, records[entry.label], attempts[entry.label], verdicts.get(entry.label), latest)
            by_experiment[entry.name.split("/")[0]].append(row)
    experiments = [_experiment(name, rows) for name, rows in by_experiment.items()]
    states = collections.Counter(row.state for rows in by_experiment.values() for row in rows)
    order = list(ResultState)
    return ExperimentsIndex(
        drawn_at=now[:19].replace("T", " "),
        experiments=tuple(sorted(experiments, key=lambda item: (order.index(item.state), item.name))),
        claims=tuple(_claim_row(claim) for claim in decided),
        counts={state.value: states[state] for state in ResultState},
    )


def _latest_successes(entries: Iterable[StepEntry]) -> dict[str, StepEntry]:
    latest: dict[str, StepEntry] = {}
    for entry in entries:
        if entry.status is not None and entry.status.status is Status.SUCCESS:
            known = latest.get(entry.name)
            if known is None or known.status is None or known.status.at < entry.status.at:
                latest[entry.name] = entry
    return latest


def _row(
    ledger: Ledger,
    entry: StepEntry,
    record: ArtifactRecord | None,
    attempts: Sequence[AttemptRecord],
    claim: Claim | None,
    latest: dict[str, StepEntry],
) -> ResultRow:
    state, note = _state(ledger, entry, record, attempts, claim, latest)
    when = entry.status.at if entry.status is not None else record.created_at if record is not None else ""
    if not when and attempts:
        when = attempts[-1].ended_at or attempts[-1].started_at
    seconds = sum(attempt.seconds or 0.0 for attempt in attempts) if attempts else None
    return ResultRow(entry.label, state, when[:19].replace("T", " "), seconds, _short(note))


def _state(
    ledger: Ledger,
    entry: StepEntry,
    record: ArtifactRecord | None,
    attempts: Sequence[AttemptRecord],
    claim: Claim | None,
    latest: dict[str, StepEntry],
) -> tuple[ResultState, str]:
    lease = ledger.lease(entry)
    if lease is not None and lease.live:
        return ResultState.RUNNING, f"epoch {lease.epoch}, held by {lease.holder}"
    succeeded = record is not None and (entry.status is None or entry.status.status is Status.SUCCESS)
    if not succeeded:
        return ResultState.FAILED, _why_failed(entry, attempts)
    assert record is not None
    if claim is not None and claim.verdicts[-1].outcome is VerdictOutcome.REFUTED:
        return ResultState.REFUTED, f"{_claim_text(claim)}; measured {claim.verdicts[-1].value}"
    newer = latest.get(entry.name)
    if newer is not None and newer.version != entry.version:
        return ResultState.SUPERSEDED, f"by {newer.label}"
    figures = ", ".join(f"{name} {_number(value)}" for name, value in _figures(record))
    verdict = f"{claim.verdicts[-1].outcome.value}: {_claim_text(claim)}" if claim is not None else ""
    return ResultState.SUCCEEDED, "; ".join(part for part in (verdict, figures) if part)


def _why_failed(entry: StepEntry, attempts: Sequence[AttemptRecord]) -> str:
    status = entry.status
    if status is not None and status.status is Status.DEP_FAILED:
        return f"an input has no output: {', '.join(status.causes)}"
    if status is not None and status.status is Status.FAILED:
        return f"{status.category}: {status.message}"
    if attempts:
        error = attempts[-1].error or {}
        return f"{attempts[-1].category or attempts[-1].status}: {error.get('message', 'its driver is gone')}"
    return "it never ran to its end"


def _figures(record: ArtifactRecord) -> list[tuple[str, float]]:
    """The first numbers of a result."""
    numbers = [
        (name, value)
        for name, value in (record.result or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return numbers[:_MAX_FIGURES]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_NOTE else line[: _MAX_NOTE - 1] + "…"


def _experiment(name: str, rows: Sequence[ResultRow]) -> ExperimentRow:
    order = list(ResultState)
    state = min((row.state for row in rows), key=order.index)
    latest_first = sorted(rows, key=lambda row: (row.when, row.step), reverse=True)
    return ExperimentRow(name, state, tuple(latest_first))


def _claim_text(claim: Claim) -> str:
    return claim.hypothesis.claim if claim.hypothesis is not None else claim.experiment


def _claim_row(claim: Claim) -> ClaimRow:
    hypothesis = claim.hypothesis
    verdict = claim.verdicts[-1] if claim.verdicts else None
    rule = ""
    if hypothesis is not None:
        rule = f"{hypothesis.metric} {hypothesis.direction.value} {hypothesis.threshold:g}"
    return ClaimRow(
        experiment=claim.experiment,
        claim=hypothesis.claim if hypothesis is not None else "",
        rule=rule,
        value="–" if verdict is None or verdict.value is None else f"{verdict.value:.6g}",
        verdict="open" if verdict is None else verdict.outcome.value,
        post_hoc=verdict is not None and verdict.post_hoc,
    )
