"""The data side of an audit: bill of materials, decontamination, and what each stage lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marin.policy.judgement import Judgement
from marin.policy.rules import Policy
from marin.policy.terms import declared_suites
from marin.reports._adapters.source_counts import count_by_source
from marin.reports.audit_lineage import Ancestor
from marin.reports.audit_view import DecontaminationLine, LossLine, MaterialLine
from marin.reports.data_loss import loss_row


def _counts(record_result: Mapping[str, Any] | None) -> dict[str, int]:
    """Whole numbers among the fields of a result."""
    return {
        key: value
        for key, value in (record_result or {}).items()
        if isinstance(value, int) and not isinstance(value, bool)
    }


def material_lines(lineage: Sequence[Ancestor], judgement: Judgement) -> list[MaterialLine]:
    """Every source with its terms and what the step that reads it kept."""
    lines = []
    for step in lineage:
        record = step.record
        counts = _counts(record.result) if record is not None else {}
        for terms in judgement.sources.get(step.label, ()):
            lines.append(
                MaterialLine(
                    source=terms.label,
                    licence=terms.licence,
                    allowed_uses=list(terms.allowed_uses) if terms.allowed_uses is not None else None,
                    eval_suite=terms.eval_suite,
                    pii_risk=terms.pii_risk,
                    evidence=terms.evidence,
                    read_by=step.label,
                    digest=(record.content_digest or "") if record is not None else "",
                    documents=counts.get("num_documents"),
                    bytes=counts.get("num_bytes", record.bytes if record is not None else None),
                )
            )
    return lines


def decontamination_lines(
    policy: Policy, lineage: Sequence[Ancestor], judgement: Judgement
) -> list[DecontaminationLine]:
    """Every suite that the policy asks for, or that a step of the lineage removed."""
    done: dict[str, list[Ancestor]] = {}
    for step in lineage:
        payload = step.record.fingerprint_payload if step.record is not None else ""
        for suite in declared_suites(payload):
            done.setdefault(suite, []).append(step)
    required: dict[str, None] = {}
    for step in lineage:
        rules = policy.rules_for(step.record.purpose) if step.record is not None else None
        required.update(dict.fromkeys(rules.decon if rules is not None else ()))
    missing = {refusal.subject for refusal in judgement.refusals if refusal.rule == "decontamination"}
    lines = []
    for suite in [*required, *(suite for suite in done if suite not in required)]:
        steps = done.get(suite, [])
        counts = {
            f"{step.label}: {key}": value
            for step in steps
            for key, value in _counts(step.record.result if step.record is not None else None).items()
        }
        lines.append(
            DecontaminationLine(
                suite=suite,
                required=suite in required,
                done_by=[step.label for step in steps],
                covered=bool(steps) and suite not in missing,
                counts=counts,
            )
        )
    return lines


def loss_lines(lineage: Sequence[Ancestor], judgement: Judgement) -> list[LossLine]:
    """What every curation stage handed on and lost, with the sources that reach it.

    Stages that keep a ``source`` column are counted by source; what one lost of a source is the difference to the stage
    before it.
    """
    reaching: dict[str, dict[str, None]] = {}
    counted: dict[str, dict[str, int]] = {}
    lines = []
    for step in lineage:
        own = {terms.label: None for terms in judgement.sources.get(step.label, ())}
        for label, _ in step.inputs:
            own.update(reaching.get(label, {}))
        reaching[step.label] = own
        row = loss_row(step.label, step.record) if step.record is not None else None
        if row is None:
            continue
        here = counted[step.label] = count_by_source(step.path)
        before = max(
            (counted.get(label, {}) for label, _ in step.inputs), key=lambda item: sum(item.values()), default={}
        )
        lines.append(
            LossLine(
                step=step.label,
                sources=list(own),
                documents=row.documents,
                bytes=row.text_bytes,
                lost=dict(row.lost),
                by_source=_by_source(here, before),
            )
        )
    return lines


def _by_source(here: Mapping[str, int], before: Mapping[str, int]) -> dict[str, dict[str, int]]:
    if not here:
        return {}
    found: dict[str, dict[str, int]] = {}
    for source in [*here, *(source for source in before if source not in here)]:
        found[source] = {"documents": here.get(source, 0)}
        if source in before:
            found[source]["lost"] = before[source] - here.get(source, 0)
    return found
