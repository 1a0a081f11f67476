"""What a run as a whole leaves in the ledger: what was served, which plan was refused, which waivers it leans on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rigging.timing import Clock

from marin.execution._files import check_store
from marin.execution.attempts import close_attempt
from marin.execution.events import new_event, write_event
from marin.execution.gates import Clearance, GateReport, Refusal
from marin.execution.graph import StepGraph
from marin.execution.journal import StepJournal
from marin.execution.layout import StepLayout
from marin.execution.outcomes import Outcome, RunSummary
from marin.execution.step_spec import StepSpec


@dataclass(frozen=True)
class RunEvents:
    """Writes the events of one run.

    Attributes:
        prefix: Root of the store.
        clock: Source of time.
    """

    prefix: str
    clock: Clock

    def write(self, kind: str, data: dict[str, Any]) -> None:
        """Write an event that belongs to no single step."""
        write_event(self.prefix, new_event(kind, self.clock.time(), data=data))

    def served(self, summary: RunSummary) -> None:
        """One event for everything that was served, when the run also wrote something."""
        if not any(step.outcome in (Outcome.EXECUTED, Outcome.FAILED) for step in summary.steps):
            return
        served = [step.step for step in summary.steps if step.outcome is Outcome.CACHED]
        if served:
            self.write("served_cached", {"steps": served})

    def refused(self, graph: StepGraph, report: GateReport) -> None:
        """One event for the plan, and an attempt for every refused step, so that failures and ``why`` show it.

        The attempt is written closed, without the lease: no body ever ran, and the status of the step stays.

        Raises:
            StoreUnavailableError: The store cannot be written.
        """
        check_store(self.prefix)
        by_step: dict[str, list[Refusal]] = {}
        for refusal in report.refusals:
            by_step.setdefault(refusal.step, []).append(refusal)
        for spec in graph.steps:
            if spec.label in by_step:
                layout = StepLayout(graph.paths[spec])
                journal = StepJournal(spec, self.prefix, layout.output_path, (), self.clock)
                attempt = journal.blocked(by_step[spec.label], report.policy)
                close_attempt(layout, attempt)
                journal.failed(attempt)
        refusals = [refusal.to_json() for refusal in report.refusals]
        self.write("gate", {"policy": report.policy, "outcome": "refused", "refusals": refusals})

    def waivers(self, clearances: Mapping[StepSpec, Clearance], policy: str) -> None:
        """One event for every waiver that a plan leans on."""
        used: dict[str, dict[str, Any]] = {}
        for spec, clearance in clearances.items():
            for waiver in clearance.waivers:
                key = json.dumps(dict(waiver), sort_keys=True)
                used.setdefault(key, {**waiver, "policy": policy, "steps": []})["steps"].append(spec.label)
        for data in used.values():
            self.write("waiver", data)
