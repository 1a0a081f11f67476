"""Gather an audit from a store: nothing is taken on trust that a record, a manifest or an attempt can show."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rigging.timing import Clock, SystemClock

from marin.errors import RecordNotFoundError
from marin.execution.attempts import utc_text
from marin.execution.records import ArtifactRecord, AttemptRecord
from marin.ledger import Ledger, Verification, verify
from marin.ledger.hypotheses import Claim, claims
from marin.ledger.trusted_keys import TrustedKeys
from marin.policy.judgement import Judgement
from marin.policy.policy_file import load_policy
from marin.policy.rules import Policy
from marin.reports.audit_code import code_states
from marin.reports.audit_data import decontamination_lines, loss_lines, material_lines
from marin.reports.audit_lineage import Ancestor, descendants, judge_lineage, lineage_of
from marin.reports.audit_view import (
    AttemptLine,
    AuditView,
    ClaimLine,
    CodeState,
    Cost,
    LineageStep,
    MetricLine,
    PolicyLine,
)

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How to audit.

    Attributes:
        deep: Hash every file again.
        policy: Rules to judge the lineage by; None takes those in force.
        keys: Keys whose signatures count.
        require_signature: Whether an output without a valid signature is unverified.
        watts_per_core: Power of one busy core, for the estimate of energy. The default lies in the range that
            Lannelongue et al., Green Algorithms (2021), tabulate for server processors.
        clock: Source of time.
    """

    deep: bool = True
    policy: Policy | None = None
    keys: TrustedKeys | None = None
    require_signature: bool = False
    watts_per_core: float = 12.0
    clock: Clock = field(default_factory=SystemClock)


def audit_view(ledger: Ledger, name: str, version: str = "", *, options: AuditOptions | None = None) -> AuditView:
    """Everything that an audit of one output shows.

    Args:
        ledger: The store.
        name: Step name.
        version: Step version; the latest without.
        options: How to audit.
    Returns:
        The view; ``ok`` is False when something is unverified.
    Raises:
        RecordNotFoundError: There is no such step.
    """
    options = options or AuditOptions()
    lineage = lineage_of(ledger, name, version)
    target = lineage[-1]
    policy = options.policy or load_policy()
    day = _day(target.record) or dt.datetime.fromtimestamp(options.clock.time(), dt.UTC).date()
    judgement = judge_lineage(policy, lineage, day)
    checked = verify(
        ledger,
        target.name,
        target.version,
        deep=options.deep,
        keys=options.keys,
        require_signature=options.require_signature,
    )
    attempts = {step.label: _attempts(ledger, step) for step in lineage}
    code = code_states(ledger.prefix, lineage)
    below = descendants(ledger, target.path)
    steps = _lineage_steps(lineage, checked, attempts)
    problems = _problems(lineage, steps, judgement, code)
    return AuditView(
        step=target.label,
        at=utc_text(options.clock.time()),
        deep=options.deep,
        ok=not problems,
        problems=problems,
        notes=_notes(lineage, code, attempts, options, judgement),
        lineage=steps,
        materials=material_lines(lineage, judgement),
        licences=judgement.clearances[target.label].licences,
        policy=_policy_line(policy, lineage, judgement, day, options),
        decontamination=decontamination_lines(policy, lineage, judgement),
        losses=loss_lines(lineage, judgement),
        code=code,
        environment=target.record.environment if target.record is not None else {},
        cost=_cost(lineage, attempts, options.watts_per_core),
        attempts=[_attempt_line(item) for found in attempts.values() for item in found],
        metrics=_metrics(lineage, below),
        claims=_claims(ledger, lineage, below),
        reproduce=_reproduce(target, code),
    )


def _day(record: ArtifactRecord | None) -> dt.date | None:
    try:
        return dt.date.fromisoformat(record.created_at[:10]) if record is not None else None
    except ValueError:
        return None


def _attempts(ledger: Ledger, step: Ancestor) -> list[AttemptRecord]:
    try:
        return ledger.attempts(step.name, step.version) if step.version else []
    except RecordNotFoundError:  # a pin, or an output that came from another store
        return []


def _lineage_steps(
    lineage: Sequence[Ancestor], checked: Verification, attempts: dict[str, list[AttemptRecord]]
) -> list[LineageStep]:
    findings = {finding.path: finding for finding in checked.findings}
    steps = []
    for step in lineage:
        record = step.record or ArtifactRecord()
        finding = findings.get(step.path)
        steps.append(
            LineageStep(
                step=step.label,
                name=step.name,
                version=step.version,
                kind=step.kind,
                purpose=record.purpose,
                inputs=[label for label, _ in step.inputs],
                fingerprint=record.fingerprint,
                content_digest=record.content_digest or "",
                files=record.files,
                bytes=record.bytes,
                seconds=record.seconds,
                made_at=record.created_at,
                attempts=len(attempts[step.label]),
                policy=record.policy,
                signature=finding.signature.value if finding is not None else "absent",
                signed_by=finding.signed_by if finding is not None else "",
                problems=list(finding.problems) if finding is not None else [],
                result=record.result or {},
            )
        )
    return steps


def _problems(
    lineage: Sequence[Ancestor], steps: Sequence[LineageStep], judgement: Judgement, code: Sequence[CodeState]
) -> list[str]:
    found = [f"{step.step}: {problem}" for step in steps for problem in step.problems]
    found += [f"{step.label}: nobody recorded how it came about" for step in lineage if step.kind == "pinned"]
    found += [f"{refusal.step}: {refusal.line()}" for refusal in judgement.refusals]
    for state in code:
        if state.dirty and state.patch_text is None:
            found.append(f"{', '.join(state.steps)}: the working copy was dirty and its patch was not kept")
    return list(dict.fromkeys(found))


def _notes(
    lineage: Sequence[Ancestor],
    code: Sequence[CodeState],
    attempts: dict[str, list[AttemptRecord]],
    options: AuditOptions,
    judgement: Judgement,
) -> list[str]:
    notes = []
    if not options.deep:
        notes.append("files were compared by name and size only")
    for state in code:
        if not state.commit:
            notes.append(f"{', '.join(state.steps)}: ran outside of a repository, so no revision is on record")
        if state.patch_redacted:
            fate = "it still applies, without them" if state.patch_applies else "it does not apply as it is"
            notes.append(f"secrets were taken out of the patch {state.patch[:12]}: {fate}")
    ungated = [step.label for step in lineage if step.record is not None and not step.record.policy]
    if ungated:
        notes.append(f"no policy was asked when these ran: {', '.join(ungated)} (judged here instead)")
    running = [item.step for found in attempts.values() for item in found if item.status == "running"]
    notes += [f"{step} is being worked on" for step in dict.fromkeys(running)]
    if not judgement.sources:
        notes.append("no step of the lineage declares a source")
    return notes


def _policy_line(
    policy: Policy, lineage: Sequence[Ancestor], judgement: Judgement, day: dt.date, options: AuditOptions
) -> PolicyLine:
    today = dt.datetime.fromtimestamp(options.clock.time(), dt.UTC).date().isoformat()
    records = [step.record for step in lineage if step.record is not None]
    waivers = {str(sorted(waiver.items())): dict(waiver) for record in records for waiver in record.waivers}
    for clearance in judgement.clearances.values():
        waivers.update({str(sorted(waiver.items())): dict(waiver) for waiver in clearance.waivers})
    return PolicyLine(
        policy=policy.label,
        judged_for=day.isoformat(),
        refusals=[refusal.to_json() for refusal in judgement.refusals],
        waivers=[{**waiver, "expired": str(waiver.get("expires", "")) < today} for waiver in waivers.values()],
        recorded=sorted({record.policy for record in records if record.policy}),
    )


def _used(attempt: AttemptRecord) -> dict[str, Any]:
    return attempt.resources.get("used") or {}


def _cost(lineage: Sequence[Ancestor], attempts: dict[str, list[AttemptRecord]], watts: float) -> Cost:
    everything = [item for found in attempts.values() for item in found]
    failed = [item for item in everything if item.status not in ("success", "running")]
    cpu_s = sum(float(_used(item).get("cpu_s") or 0.0) for item in everything)
    return Cost(
        attempts=len(everything),
        failed_attempts=len(failed),
        wall_s=round(sum(item.seconds or 0.0 for item in everything), 3),
        failed_wall_s=round(sum(item.seconds or 0.0 for item in failed), 3),
        cpu_s=round(cpu_s, 3),
        peak_bytes=max((int(_used(item).get("ram_peak") or 0) for item in everything), default=0),
        stored_bytes=sum(step.record.bytes for step in lineage if step.record is not None),
        energy_kwh=cpu_s * watts / JOULES_PER_KWH,
        watts_per_core=watts,
    )


def _attempt_line(item: AttemptRecord) -> AttemptLine:
    error = item.error or {}
    used = _used(item)
    return AttemptLine(
        step=item.step,
        attempt=item.attempt,
        status=item.status,
        category=item.category,
        started_at=item.started_at,
        seconds=item.seconds,
        cpu_s=used.get("cpu_s"),
        peak_bytes=used.get("ram_peak"),
        host=item.host,
        message=str(error.get("message", "")),
        traceback=str(error.get("traceback", "")),
        log_tail=item.log_tail,
    )


def _numbers(step: str, result: Any, relation: str, above: str = "") -> Iterable[MetricLine]:
    for key, value in (result or {}).items():
        metric = f"{above}.{key}" if above else str(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield MetricLine(step=step, metric=metric, value=value, relation=relation)
        elif isinstance(value, dict) and not above and key != "counters":
            yield from _numbers(step, value, relation, metric)


def _metrics(lineage: Sequence[Ancestor], below: Sequence[ArtifactRecord]) -> list[MetricLine]:
    target = lineage[-1]
    found = list(_numbers(target.label, target.record.result if target.record is not None else {}, "own"))
    for record in below:
        if record.purpose == "eval":
            found += _numbers(f"{record.name}@{record.version}", record.result, "measured")
    for step in lineage[:-1]:
        if step.record is not None and step.record.purpose:
            found += _numbers(step.label, step.record.result, "lineage")
    return found


def _claims(ledger: Ledger, lineage: Sequence[Ancestor], below: Sequence[ArtifactRecord]) -> list[ClaimLine]:
    """Claims that are decided by a step of the lineage, or by one that was made from the output."""
    labels, names = {step.label for step in lineage}, {step.name for step in lineage}
    labels |= {f"{record.name}@{record.version}" for record in below}
    names |= {record.name for record in below}
    return [line for claim in claims(ledger) for line in _claim_lines(claim, labels, names)]


def _claim_lines(claim: Claim, labels: set[str], names: set[str]) -> Iterable[ClaimLine]:
    said = claim.hypothesis
    verdicts = [item for item in claim.verdicts if labels & set(item.evidence)]
    if not verdicts and (claim.verdicts or said is None or said.step not in names):
        return
    last = verdicts[-1] if verdicts else None
    yield ClaimLine(
        experiment=claim.experiment,
        claim=said.claim if said is not None else "",
        metric=said.metric if said is not None else "",
        direction=said.direction.value if said is not None else "",
        threshold=said.threshold if said is not None else None,
        declared_at=claim.declared_at,
        outcome=last.outcome.value if last is not None else "open",
        value=last.value if last is not None else None,
        post_hoc=last is not None and last.post_hoc,
        evidence=list(last.evidence) if last is not None else [],
    )


def _reproduce(target: Ancestor, code: Sequence[CodeState]) -> list[str]:
    state = next((item for item in code if target.label in item.steps), None)
    if state is None or not state.command:
        return []
    lines = []
    if state.commit:
        lines += [f"git clone {shlex.quote(state.remote)} work && cd work"] if state.remote else []
        lines.append(f"git checkout {shlex.quote(state.commit)}")
    if state.patch:
        lines.append(f"git apply {state.patch}.patch   # kept in the store as ledger/patches/{state.patch}.patch")
    lines.append(" ".join(shlex.quote(part) for part in _as_typed(state.command)))
    digest = target.record.content_digest if target.record is not None else None
    lines.append(f"marin verify {shlex.quote(target.label)} --deep   # expect content {digest}")
    return lines


def _as_typed(command: Sequence[str]) -> list[str]:
    """The command line as a person types it, without the path of the interpreter."""
    parts = list(command)
    if len(parts) >= 3 and parts[1] == "-m" and parts[2] in ("marin.cli", "marin"):
        return ["marin", *parts[3:]]
    if parts and parts[0].rsplit("/", 1)[-1].startswith("python"):
        if len(parts) > 1 and parts[1].rsplit("/", 1)[-1] == "marin":
            return ["marin", *parts[2:]]
        return ["python", *parts[1:]]
    return parts
