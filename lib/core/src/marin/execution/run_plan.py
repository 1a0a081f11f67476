"""What a run has to look after: the least set of steps, each with its decision.

The walk goes from the wanted steps downwards and ends at every step that can be served, so a finished graph costs one
status read a wanted step. It does not end above a step that is rebuilt whatever its status says (forced, mutable):
such a step may come out different, and what reads it is then decided again.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from marin.errors import FingerprintMismatchError, UnknownStepError
from marin.execution.decision import Action, Decision, ReasonKind, decide
from marin.execution.facts import gather_facts
from marin.execution.graph import StepGraph
from marin.execution.layout import StepLayout
from marin.execution.step_execution import StepExecution
from marin.execution.step_spec import StepKind, StepSpec
from marin.execution.step_status import StatusRecord, read_status
from marin.execution.versions import VersionKind


def default_concurrency() -> int:
    """Steps at a time unless the caller says otherwise: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class RunOptions:
    """What the caller of a run decides.

    Attributes:
        max_concurrent: Steps at a time; None takes the number of cores.
        force: Names, or ``name@version``, of steps to rebuild.
        allow_failed: Names of steps whose failure does not fail the run.
        keep_going: Whether independent branches go on after a failure.
        retry_failed: Whether steps that failed in an earlier run are tried again.
        mirrors: Roots of other stores, from which the outputs of ``mirrored`` steps are taken over.
        allow_cross_region: Why data may cross regions; empty refuses it.
    """

    max_concurrent: int | None = None
    force: Sequence[str] = ()
    allow_failed: Sequence[str] = ()
    keep_going: bool = True
    retry_failed: bool = True
    mirrors: Sequence[str] = ()
    allow_cross_region: str = ""

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: ``max_concurrent`` is not positive.
        """
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ValueError(
                f"bad option: max_concurrent={self.max_concurrent}; expected at least 1. Leave it out for one per core."
            )


@dataclass
class PlanNode:
    """A step that this run has to look after.

    Attributes:
        spec: The step.
        status: Its status when it was looked at.
        decision: What to do with it.
        deferred: Served, unless an input that is rebuilt now comes out different.
        pending: Inputs that are not settled yet.
        execution: Made when it runs.
        told: Whom the user was told that it waits for, and when.
    """

    spec: StepSpec
    status: StatusRecord | None
    decision: Decision
    deferred: bool = False
    pending: set[StepSpec] = field(default_factory=set)
    execution: StepExecution | None = None
    told: tuple[str, float] = ("", 0.0)


class RunPlan:
    """The steps of a run with their decisions.

    Args:
        graph: The checked graph.
        options: What the caller decided.
        notice: Told about drift.
    """

    def __init__(self, graph: StepGraph, options: RunOptions, notice: Callable[[str, str], None]) -> None:
        self.graph = graph
        self.nodes: dict[StepSpec, PlanNode] = {}
        self.forced = self._select(options.force, "force")
        self.allowed = self._select(options.allow_failed, "allow_failed")
        self._retry_failed = options.retry_failed
        self._notice = notice
        self._visit()

    @property
    def writes(self) -> bool:
        """Whether carrying it out may write to the store."""
        return any(node.decision.action is Action.RUN or node.deferred for node in self.nodes.values())

    def running(self) -> list[StepSpec]:
        """Steps that will run, inputs first, as far as is known now."""
        return [node.spec for node in self.ordered() if node.decision.action is Action.RUN]

    def ordered(self) -> list[PlanNode]:
        """Nodes, inputs first."""
        return [self.nodes[spec] for spec in self.graph.steps if spec in self.nodes]

    def _select(self, names: Sequence[str], option: str) -> frozenset[StepSpec]:
        chosen: set[StepSpec] = set()
        for name in names:
            found = [step for step in self.graph.steps if name in (step.name, step.label)]
            if not found:
                raise UnknownStepError(name, {step.name for step in self.graph.steps}, option=option)
            chosen.update(found)
        return frozenset(chosen)

    def _restless(self) -> set[StepSpec]:
        """Steps that are rebuilt whatever their status says, and everything above them."""
        restless: set[StepSpec] = set()
        for step in self.graph.steps:
            moving = step in self.forced or (step.version_kind is VersionKind.MUTABLE and step.kind is StepKind.BUILD)
            if moving or any(dep in restless for dep in self.graph.deps[step]):
                restless.add(step)
        return restless

    def _visit(self) -> None:
        restless = self._restless()
        stack = list(self.graph.terminals)
        while stack:
            spec = stack.pop()
            if spec in self.nodes:
                continue
            node = self._look_at(spec)
            below = [dep for dep in self.graph.deps[spec] if dep in restless]
            if node.decision.action is Action.RUN:
                stack.extend(self.graph.deps[spec])
            elif node.decision.action is Action.SERVE and below:
                node.deferred = True
                stack.extend(below)

    def add(self, missing: Sequence[StepSpec]) -> list[PlanNode]:
        """Take further steps in, with whatever these need in turn; returns the new nodes."""
        stack, added = list(missing), []
        while stack:
            spec = stack.pop()
            if spec not in self.nodes:
                added.append(self._look_at(spec))
                if added[-1].decision.action is Action.RUN:
                    stack.extend(self.graph.deps[spec])
        return added

    def _look_at(self, spec: StepSpec) -> PlanNode:
        layout = StepLayout(self.graph.paths[spec])
        status = None if spec.kind is StepKind.PIN else read_status(layout)
        node = self.nodes[spec] = PlanNode(spec, status, self.decide(spec, layout, status))
        return node

    def decide(
        self, spec: StepSpec, layout: StepLayout, status: StatusRecord | None, moved: Sequence[str] = ()
    ) -> Decision:
        """Decide about one step; drift is told.

        Raises:
            FingerprintMismatchError: The output at hand is of another recipe than the pinned one.
        """
        facts = gather_facts(spec, layout, status, moved)
        decision = decide(spec, facts, forced=spec in self.forced, retry_failed=self._retry_failed)
        drifted = decision.action is Action.SERVE and facts.drift
        if drifted and spec.expected_fingerprint is not None:
            raise FingerprintMismatchError(
                spec.name, spec.expected_fingerprint, facts.recorded_fingerprint, "; ".join(facts.drift)
            )
        if decision.action is Action.SERVE and decision.reasons[0].kind is ReasonKind.DRIFT:
            self._notice(spec.label, f"drift: {decision.reasons[0].message}")
        return decision
