"""What a gate is to the engine: a pure function of the graph that may refuse it before anything runs.

The engine knows no licences and no rules. It hands the checked graph to a gate, refuses the plan when the gate says
so, and writes what the gate knows about each step (licences, waivers in use) into that step's record. The rules live
in ``marin.policy``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marin.execution.graph import StepGraph
from marin.execution.step_spec import StepSpec


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why one step may not be built from one of its sources.

    Attributes:
        rule: Stable name of the rule: ``licence``, ``use``, ``eval_set``, ``decontamination`` or ``pii``.
        step: ``name@version`` of the step that is refused.
        name: Name of that step.
        kind: What the step does with its inputs, such as ``train``.
        subject: The source, or the evaluation suite, concerned.
        reason: One sentence without a full stop.
        path: From the source to the step, first the source's label, then every step in between.
        remedy: What to do about it, one sentence.
    """

    rule: str
    step: str
    name: str
    kind: str
    subject: str
    reason: str
    path: tuple[str, ...]
    remedy: str

    def to_json(self) -> dict[str, Any]:
        """JSON object for ``--json``, events and pages."""
        return {
            "rule": self.rule,
            "step": self.step,
            "kind": self.kind,
            "subject": self.subject,
            "reason": self.reason,
            "path": list(self.path),
            "remedy": self.remedy,
        }

    def line(self) -> str:
        """One line for people: rule, reason and the way from the source to the step."""
        return f"{self.rule}: {self.reason} ({' -> '.join(self.path)})"


@dataclass(frozen=True, kw_only=True)
class Clearance:
    """What a gate knows about a step that it lets pass; kept in the step's record.

    Attributes:
        licences: SPDX expressions of everything that the step is made from, sorted.
        waivers: Waivers without which it would have been refused.
    """

    licences: tuple[str, ...] = ()
    waivers: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """The answer of a gate about a whole graph.

    Attributes:
        policy: Name and digest of the policy, for records.
        refusals: Why the plan is refused; empty when it passes.
        clearances: What is known about each step.
        notes: What its author should know, such as waivers that nothing needs.
    """

    policy: str
    refusals: tuple[Refusal, ...] = ()
    clearances: Mapping[StepSpec, Clearance] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


PlanGate = Callable[[StepGraph], GateReport]
"""Judges a checked graph without input or output."""

NO_CLEARANCE = Clearance()
