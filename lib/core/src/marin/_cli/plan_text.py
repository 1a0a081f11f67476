"""A plan for people and for machines, made without touching the store."""

from collections.abc import Sequence
from typing import Any

from marin.execution.gates import NO_CLEARANCE, GateReport
from marin.execution.graph import StepGraph
from marin.execution.outcomes import Outcome, StepOutcome
from marin.execution.step_spec import StepKind, StepSpec
from marin.execution.versions import VersionKind


def what_would_happen(spec: StepSpec, forced: Sequence[str]) -> str:
    """What a run does with a step as far as the graph alone can say."""
    if spec.kind is StepKind.PIN:
        return f"served from the pinned {spec.source}"
    if spec.name in forced or spec.label in forced:
        return "runs (forced)"
    if spec.version_kind is VersionKind.MUTABLE:
        return "runs every time (mutable version)"
    if spec.kind is StepKind.ADOPT:
        return f"adopts {spec.source} unless it is recorded already"
    return "runs unless its output is in the store"


def plan_json(graph: StepGraph, forced: Sequence[str], report: GateReport) -> dict[str, Any]:
    """The plan as a JSON object."""
    steps = [
        {
            "step": spec.label,
            "name": spec.name,
            "version": spec.version or spec.hash_id,
            "kind": spec.kind.value,
            "version_kind": spec.version_kind.value,
            "fingerprint": spec.fingerprint,
            "path": graph.paths[spec],
            "deps": [dep.label for dep in graph.deps[spec]],
            "terminal": spec in graph.terminals,
            "would": what_would_happen(spec, forced),
            "purpose": spec.purpose,
            "licences": list(report.clearances.get(spec, NO_CLEARANCE).licences),
            "waivers": [dict(waiver) for waiver in report.clearances.get(spec, NO_CLEARANCE).waivers],
        }
        for spec in graph.steps
    ]
    return {"steps": steps, "policy": report.policy, "policy_notes": list(report.notes)}


def plan_lines(graph: StepGraph, forced: Sequence[str], report: GateReport) -> list[str]:
    """The plan as lines: steps in order, what each reads, what a run does with it."""
    lines = [f"{len(graph.steps)} steps, in order (the store was not looked at; --dry-run does)"]
    width = max((len(spec.label) for spec in graph.steps), default=0)
    for number, spec in enumerate(graph.steps, 1):
        star = "*" if spec in graph.terminals else " "
        lines.append(f"{number:>4}{star} {spec.label:<{width}}  {what_would_happen(spec, forced)}")
        if graph.deps[spec]:
            lines.append(f"      reads {', '.join(dep.label for dep in graph.deps[spec])}")
    lines.append("   * wanted")
    licences = sorted({item for spec in graph.terminals for item in report.clearances[spec].licences})
    made_of = f"what is wanted is made of {', '.join(licences)}" if licences else "no source is declared"
    lines.append(f"   policy: {report.policy} refuses nothing; {made_of}")
    lines += [f"   note: {note}" for note in report.notes]
    waivers = {str(w): w for spec in graph.steps for w in report.clearances[spec].waivers}
    for waiver in waivers.values():
        lines.append(f"   waived: {waiver['rule']} of {waiver['ref']} by {waiver['by']} until {waiver['expires']}")
    return lines


def explain_lines(outcomes: Sequence[StepOutcome]) -> list[str]:
    """What a run would do with each step, from the statuses on disk."""
    words = {Outcome.CACHED: "skip", Outcome.KNOWN_FAILURE: "known failure", Outcome.NOT_RUN: "run"}
    lines = []
    for outcome in outcomes:
        lines.append(f"  {words[outcome.outcome]:<13}  {outcome.step}  ({outcome.reason})")
    count = sum(outcome.outcome is Outcome.NOT_RUN for outcome in outcomes)
    lines.append(f"{count} of {len(outcomes)} steps would run")
    return lines
