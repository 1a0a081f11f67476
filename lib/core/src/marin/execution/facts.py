"""What the store says about a step, gathered for the decision."""

import os
from collections.abc import Sequence

from marin.execution._files import exists
from marin.execution.decision import StepFacts
from marin.execution.fingerprint import describe_drift
from marin.execution.layout import StepLayout, list_folder
from marin.execution.records import ArtifactRecord, read_record
from marin.execution.step_spec import StepSpec
from marin.execution.step_status import Status, StatusRecord
from marin.execution.versions import DERIVED_DIGITS, VersionKind

_MAX_SIBLINGS = 8


def gather_facts(
    spec: StepSpec, layout: StepLayout, status: StatusRecord | None, moved: Sequence[str] = ()
) -> StepFacts:
    """What the store says about a step: the record is read only when the status does not settle the recipe."""
    if status is None and spec.version_kind is VersionKind.DERIVED:
        sibling, changes = nearest_sibling(spec, layout)
        return StepFacts(status, False, sibling=sibling, sibling_drift=tuple(changes))
    if status is None or status.status is not Status.SUCCESS:
        return StepFacts(status, False, moved_inputs=moved)
    present = exists(layout.output_path)
    if status.fingerprint == spec.fingerprint:
        return StepFacts(status, present, (), status.fingerprint, moved)
    record = read_record(layout.output_path) if present else None
    if record is None or not record.fingerprint or record.fingerprint == spec.fingerprint:
        return StepFacts(status, present, (), "", moved)
    lines = describe_drift(record.fingerprint_payload, spec.payload) if record.fingerprint_payload else []
    drift = tuple(lines) or (f"fingerprint: {record.fingerprint} -> {spec.fingerprint}",)
    return StepFacts(status, present, drift, record.fingerprint, moved)


def moved_inputs(layout: StepLayout, fresh: dict[str, str | None]) -> list[str]:
    """Inputs of a committed output whose digest is now another than the one it read.

    Args:
        layout: The committed step.
        fresh: Digest of each input built in this run, by path.
    """
    record = read_record(layout.output_path)
    if record is None:
        return []
    rows = zip(record.deps, record.dep_paths, record.dep_digests, strict=False)
    return [ref for ref, path, digest in rows if path in fresh and fresh[path] != digest]


def nearest_sibling(spec: StepSpec, layout: StepLayout) -> tuple[str, list[str]]:
    """The recent output of the same step whose recipe differs least from this one, and how it differs.

    Only derived versions have siblings: same name, same version up to the fingerprint.

    Returns:
        Version of the sibling (empty when there is none) and the lines of the drift.
    """
    parent, leaf = os.path.split(layout.output_path)
    stem = leaf[:-DERIVED_DIGITS]
    folders, _ = list_folder(parent)
    siblings = [os.path.join(parent, name) for name in folders if name.startswith(stem) and name != leaf]
    if not layout.remote:
        siblings.sort(key=os.path.getmtime, reverse=True)
    best: tuple[str, list[str]] = ("", [])
    for path in siblings[:_MAX_SIBLINGS]:
        record: ArtifactRecord | None = read_record(path)
        if record is None or not record.fingerprint_payload:
            continue
        changes = describe_drift(record.fingerprint_payload, spec.payload)
        if not best[0] or len(changes) < len(best[1]):
            best = (record.version, changes)
    return best
