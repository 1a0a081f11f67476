"""Read a run's page out of the store: outcomes, records, attempts, curves and samples.

Nothing here knows which experiment it reads: data stages, models, measurements and samples are recognised by the type
that their record names.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence

from rigging.provenance import environment_report

from marin.errors import RecordNotFoundError
from marin.execution import Outcome, RunSummary, StepSpec, read_record
from marin.execution.fingerprint import type_name
from marin.execution.records import ArtifactRecord, AttemptRecord
from marin.inference.results import SampleSet
from marin.ledger import Ledger
from marin.reports._format import format_bytes, format_seconds
from marin.reports.data_loss import loss_row
from marin.reports.view import AttemptView, Curve, LossRow, RunView, Sample, StepView
from marin.training.artifacts import LevanterCheckpoint
from marin.training.curves import TRAIN_LOSS, VALIDATION_LOSS, curve

METRICS_FILE = "metrics.jsonl"
REPORTED_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "pyarrow", "tokenizers", "tensorstore", "numpy")


def run_view(summary: RunSummary, *, title: str, command: str, figures: Sequence[tuple[str, str, str]] = ()) -> RunView:
    """Everything that the page of a run shows.

    Args:
        summary: What the run did.
        title: Heading.
        command: How to run it again.
        figures: Headline numbers of the experiment, ``(label, value, note)``; those of the run are added.
    Returns:
        The view.
    """
    ledger = Ledger(summary.prefix)
    names = [item.name for item in summary.steps]
    common = _common_folder(names)
    records = {item.step: read_record(item.path) if item.ok else None for item in summary.steps}
    attempts = {item.step: _attempts(ledger, item.name, item.version) for item in summary.steps}
    deps = {spec.label: [dep.label for dep in spec.deps] for spec in _specs(summary)}
    steps = []
    for item in summary.steps:
        record = records[item.step]
        steps.append(
            StepView(
                key=item.step,
                name=item.name.removeprefix(common).strip("/"),
                version=item.version,
                status=item.outcome.value,
                reason=item.reason,
                fingerprint=record.fingerprint if record else "",
                content_digest=(record.content_digest or "") if record else "",
                deps=deps.get(item.step, ()),
                result=(record.result or {}) if record else {},
                attempts=[_attempt_view(n, attempt) for n, attempt in enumerate(attempts[item.step], start=1)],
            )
        )
    short = {item.step: view.name for item, view in zip(summary.steps, steps, strict=True)}
    return RunView(
        title=title,
        started_at=_to_second(min((a.started_at for found in attempts.values() for a in found), default="")),
        command=command,
        figures=[*figures, *_run_figures(summary)],
        steps=steps,
        curves=_curves(ledger, summary, attempts, short),
        data=_data_rows(records, short),
        samples=_samples(records.values()),
        environment=_environment(records.values()),
    )


def _common_folder(names: Sequence[str]) -> str:
    """Leading path segments that all step names share."""
    parents = [name.split("/")[:-1] for name in names]
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*parents, strict=False))
    return "/".join(level[0] for level in shared)


def _specs(summary: RunSummary) -> list[StepSpec]:
    seen: dict[str, StepSpec] = {}

    def visit(spec: StepSpec) -> None:
        if spec.label not in seen:
            seen[spec.label] = spec
            for dep in spec.deps:
                visit(dep)

    for spec in summary.specs.values():
        visit(spec)
    return list(seen.values())


def _attempts(ledger: Ledger, name: str, version: str) -> list[AttemptRecord]:
    try:
        return ledger.attempts(name, version)
    except RecordNotFoundError:  # nothing was ever tried: an input failed first
        return []


def _to_second(timestamp: str) -> str:
    return timestamp[:19].replace("T", " ")


def _attempt_view(number: int, attempt: AttemptRecord) -> AttemptView:
    error = attempt.error or {}
    used = attempt.resources.get("used", {})
    return AttemptView(
        number=number,
        status=attempt.status,
        category=attempt.category,
        started_at=_to_second(attempt.started_at),
        seconds=attempt.seconds,
        peak_bytes=used.get("ram_peak"),
        cpu_seconds=used.get("cpu_s"),
        host=attempt.host,
        message=str(error.get("message", "")),
        traceback=str(error.get("traceback", "")),
        log_tail=attempt.log_tail,
    )


def _run_figures(summary: RunSummary) -> list[tuple[str, str, str]]:
    counts = [f"{summary.count(outcome)} {outcome.value.replace('_', ' ')}" for outcome in Outcome]
    present = ", ".join(text for text in counts if not text.startswith("0 "))
    return [
        ("wall", format_seconds(summary.seconds), present),
        ("peak memory", format_bytes(summary.peak_memory_bytes), "largest process of the run"),
    ]


def _is(record: ArtifactRecord | None, kind: type) -> bool:
    return record is not None and record.result_type == type_name(kind)


def _curves(
    ledger: Ledger,
    summary: RunSummary,
    attempts: Mapping[str, Sequence[AttemptRecord]],
    short: Mapping[str, str],
) -> list[Curve]:
    """One curve a training step; a failed arm's curve is what its last attempt left as evidence."""
    found = []
    for spec in _specs(summary):
        if not issubclass(spec.artifact_type, LevanterCheckpoint):
            continue
        item = summary.outcome(spec.label)
        path = os.path.join(item.path, METRICS_FILE)
        if not item.ok:
            kept = [a.evidence for a in attempts[item.step] if a.evidence]
            control = ledger.find(item.name, item.version).layout.control
            path = os.path.join(control, kept[-1], METRICS_FILE) if kept else ""
        if os.path.isfile(path):
            validation = curve(path, VALIDATION_LOSS) if item.ok else []
            found.append(Curve(short[item.step], curve(path, TRAIN_LOSS), validation, not item.ok))
    return found


def _data_rows(records: Mapping[str, ArtifactRecord | None], short: Mapping[str, str]) -> list[LossRow]:
    rows = [loss_row(short[step], record) for step, record in records.items() if record is not None]
    return [row for row in rows if row is not None]


def _samples(records: Iterable[ArtifactRecord | None]) -> list[Sample]:
    found = []
    for record in records:
        if record is not None and _is(record, SampleSet):
            with open(SampleSet(path=record.output_path).samples_file, encoding="utf-8") as file:
                found += [Sample(row["prompt"], row["text"]) for row in json.load(file)]
    return found


def _environment(records: Iterable[ArtifactRecord | None]) -> list[tuple[str, str]]:
    report = environment_report()
    packages = report["packages"]
    assert isinstance(packages, Mapping)
    provenance = next((record.provenance for record in records if record is not None and record.provenance), {})
    rows = [(key, str(report[key])) for key in ("python", "platform", "cpu", "lock_digest") if report.get(key)]
    rows += [(name, packages[name]) for name in REPORTED_PACKAGES if name in packages]
    rows += [
        (f"revision {key}", str(provenance[key])) for key in ("tree_hash", "base_commit", "dirty") if key in provenance
    ]
    return rows
