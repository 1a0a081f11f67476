"""The gate that the engine asks: a policy applied to the graph of a plan."""

import datetime as dt

from rigging.timing import Clock, SystemClock

from marin.execution.gates import GateReport, PlanGate
from marin.execution.graph import StepGraph
from marin.execution.step_spec import StepKind, StepSpec
from marin.policy.judgement import PolicyNode, judge
from marin.policy.policy_file import load_policy
from marin.policy.rules import Policy
from marin.policy.terms import declared_sources, declared_suites


def policy_gate(policy: Policy | str | None = None, *, clock: Clock | None = None) -> PlanGate:
    """A gate for ``marin.execution.run(..., gate=...)``.

    Args:
        policy: A policy, the path of one, or None for the one in force (``./policy.toml``, else the shipped one).
        clock: Source of the day on which waivers are judged.
    Returns:
        The gate. It reads nothing but the graph.
    Raises:
        PolicyError: The policy file cannot be used.
    Example:
        >>> import tempfile
        >>> from marin.execution import ArtifactStep, run
        >>> raw = ArtifactStep.adopt("raw", "2026.12.01", tempfile.mkdtemp(), config={"licence": "CC-BY-NC-4.0"})
        >>> run(raw, prefix=tempfile.mkdtemp(), gate=policy_gate()).ok  # looking at data is free, training is not
        True
    """
    rules = policy if isinstance(policy, Policy) else load_policy(policy)
    day_clock = clock or SystemClock()

    def gate(graph: StepGraph) -> GateReport:
        nodes = [_node(spec, graph) for spec in graph.steps]
        today = dt.datetime.fromtimestamp(day_clock.time(), dt.UTC).date()
        judgement = judge(rules, nodes, today)
        return GateReport(
            policy=rules.label,
            refusals=judgement.refusals,
            clearances={spec: judgement.clearances[spec.label] for spec in graph.steps},
            notes=tuple(
                f"nothing here needs the waiver of {waiver.rule} for {waiver.ref} by {waiver.by}"
                for waiver in judgement.unused
            ),
        )

    return gate


def _node(spec: StepSpec, graph: StepGraph) -> PolicyNode:
    return PolicyNode(
        label=spec.label,
        name=spec.name,
        deps=tuple(dep.label for dep in graph.deps[spec]),
        purpose=spec.purpose,
        sources=tuple(declared_sources(spec.payload, step=spec.name)),
        decontaminates=declared_suites(spec.payload),
        external=spec.kind is not StepKind.BUILD,
    )
