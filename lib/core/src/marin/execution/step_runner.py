"""Running a graph: find the least that has to run, then run it in order, several steps at a time.

From the wanted steps downwards, a step whose output can be served ends the walk: its inputs are not even looked at.
What is left runs as soon as its inputs are there, in a pool of threads. A step that another driver works on does not
occupy a thread; it is tried again until that driver is done, and its result is then served. One failure leaves
independent branches alone.
"""

import collections
import concurrent.futures
import contextvars
import dataclasses
import threading
from collections.abc import Mapping, Sequence

from rigging.data_config import data_config
from rigging.memory import peak_rss_bytes

from marin.errors import CrossRegionError, MarinError, PlanRefusedError
from marin.execution._files import check_store, exists
from marin.execution.decision import Action, Reason, ReasonKind
from marin.execution.facts import moved_inputs
from marin.execution.failures import classify
from marin.execution.gates import NO_CLEARANCE, Clearance, GateReport, PlanGate
from marin.execution.graph import plan_graph
from marin.execution.layout import StepLayout
from marin.execution.outcomes import Outcome, RunSummary, StepOutcome
from marin.execution.patches import launch_record
from marin.execution.regions import region_conflicts
from marin.execution.replicate import find_original, replicate
from marin.execution.reporter import QuietReporter, RunReporter
from marin.execution.run_events import RunEvents
from marin.execution.run_plan import PlanNode, RunOptions, RunPlan, default_concurrency
from marin.execution.settings import RunnerSettings, Waiting
from marin.execution.step_execution import StepExecution
from marin.execution.step_spec import StepKind, StepSpec
from marin.execution.step_status import settled_epoch
from marin.execution.transaction import is_settled
from marin.execution.versions import VersionKind

_WAIT_NOTE_S = 60.0
_WAKE_S = 0.5


class StepRunner:
    """One run of one graph. Make it, call ``run`` once."""

    def __init__(
        self,
        prefix: str,
        options: RunOptions = RunOptions(),
        *,
        reporter: RunReporter | None = None,
        settings: RunnerSettings | None = None,
        gate: PlanGate | None = None,
    ) -> None:
        self._gate = gate
        self._policy = ""
        self._clearances: Mapping[StepSpec, Clearance] = {}
        self._prefix = prefix
        self._options = options
        self._reporter = reporter or QuietReporter()
        self._settings = settings or RunnerSettings()
        self._events = RunEvents(prefix, self._settings.clock)
        self._outcomes: dict[StepSpec, StepOutcome] = {}
        self._candidates: collections.deque[StepSpec] = collections.deque()
        self._lock = threading.Lock()
        self._context = contextvars.copy_context()

    def run(self, terminals: Sequence[StepSpec]) -> RunSummary:
        """Bring every terminal up to date.

        Args:
            terminals: The steps that are wanted.
        Returns:
            What became of every step of the graph.
        Raises:
            PlanError: The graph is refused.
            CrossRegionError: Data would cross regions, and no reason was given why it may.
            PlanRefusedError: The gate refused it; each refused step has a ``blocked`` attempt on record.
            StoreUnavailableError: The store cannot be written, and something has to be.
            RecordFormatError: The store was written by a newer version.
        """
        clock = self._settings.clock
        begun = clock.monotonic()
        self._graph = plan_graph(terminals, self._prefix)
        report = self._ask_gate()
        if report is not None and report.refusals:
            self._events.refused(self._graph, report)
            raise PlanRefusedError(report.refusals, report.policy)
        self._prepare()
        if self._plan.writes:
            check_store(self._prefix)
            launch_record(self._prefix)
            self._take_replicas()
            self._guard_regions()
            self._events.waivers(self._clearances, self._policy)
        self._settle_decided()
        self._loop()
        summary = self._summary(clock.monotonic() - begun)
        self._events.served(summary)
        self._reporter.run_finished(summary)
        return summary

    def explain(self, terminals: Sequence[StepSpec]) -> list[StepOutcome]:
        """What a run would do with each step, from statuses alone; writes nothing.

        Returns:
            Outcomes in which ``NOT_RUN`` stands for "would run" (or wait, as the reason says).
        Raises:
            PlanRefusedError: The gate refuses it; nothing is recorded.
        """
        self._graph = plan_graph(terminals, self._prefix)
        report = self._ask_gate()
        if report is not None and report.refusals:
            raise PlanRefusedError(report.refusals, report.policy)
        self._prepare()
        outcomes = []
        for spec in self._graph.steps:
            node = self._plan.nodes.get(spec)
            if node is None:
                outcomes.append(self._plain(spec, Outcome.CACHED, (_not_needed(),)))
                continue
            served = node.decision.action is Action.SERVE and not node.deferred
            known = node.decision.action is Action.KNOWN_FAILURE
            outcome = Outcome.CACHED if served else Outcome.KNOWN_FAILURE if known else Outcome.NOT_RUN
            outcomes.append(self._plain(spec, outcome, node.decision.reasons))
        return outcomes

    def _prepare(self) -> None:
        self._plan = RunPlan(self._graph, self._options, self._reporter.notice)
        self._dependents = self._graph.dependents()

    # ---- the gate ----------------------------------------------------------------------------------------------------

    def _ask_gate(self) -> GateReport | None:
        if self._gate is None:
            return None
        report = self._gate(self._graph)
        self._policy, self._clearances = report.policy, report.clearances
        return report

    # ---- other stores ------------------------------------------------------------------------------------------------

    def _guard_regions(self) -> None:
        conflicts = region_conflicts(self._graph, self._plan.running())
        if not conflicts:
            return
        if not self._options.allow_cross_region:
            raise CrossRegionError(conflicts)
        reason = self._options.allow_cross_region
        self._reporter.notice(conflicts[0].step, f"data crosses regions {len(conflicts)} times, allowed: {reason}")
        self._events.write(
            "waiver", {"rule": "region", "reason": reason, "conflicts": [conflict.to_json() for conflict in conflicts]}
        )

    def _take_replicas(self) -> None:
        """Copy what mirrored steps have in other stores, from the wanted steps downwards.

        The plan is made again after each: what only the copied step needed does not run any more.
        """
        others = self._options.mirrors or data_config().region_buckets.values()
        mirrors = [url for url in others if url.rstrip("/") != self._prefix]
        tried: set[StepSpec] = set()
        while mirrors:
            candidates = [spec for spec in reversed(self._plan.running()) if spec.mirrored and spec not in tried]
            spec = next((item for item in candidates if item not in self._plan.forced), None)
            if spec is None:
                return
            tried.add(spec)
            original = find_original(spec.address, mirrors, fingerprint=spec.fingerprint)
            if original is not None:
                self._reporter.notice(spec.label, f"is copied from {original.path} ({original.bytes:,} bytes)")
                replicate(spec.address, self._prefix, mirrors, fingerprint=spec.fingerprint, settings=self._settings)
                self._prepare()

    # ---- running -----------------------------------------------------------------------------------------------------

    def _settle_decided(self) -> None:
        ordered = self._plan.ordered()
        for node in ordered:
            node.pending = {dep for dep in self._graph.deps[node.spec] if dep in self._plan.nodes}
            if not node.pending:
                self._candidates.append(node.spec)
        for node in ordered:
            self._settle_one(node)

    def _settle_one(self, node: PlanNode) -> None:
        """Settle a step whose decision needs no work."""
        spec = node.spec
        if node.decision.action is Action.SERVE and not node.deferred:
            self._serve(spec, node)
        elif node.decision.action in (Action.KNOWN_FAILURE, Action.REFUSE):
            self._refuse(spec, node)

    def _serve(self, spec: StepSpec, node: PlanNode) -> None:
        if spec.kind is StepKind.PIN and not exists(self._graph.paths[spec]):
            reason = Reason(ReasonKind.ERROR, "the pinned location does not exist")
            message = f"nothing exists at the pinned location {self._graph.paths[spec]!r}"
            self._settle(spec, self._plain(spec, Outcome.FAILED, (reason,), category="data", message=message))
            return
        status = node.status
        if not is_settled(StepLayout(self._graph.paths[spec]), status):
            self._heal(spec, node)
        digest = status.content_digest if status is not None else None
        self._settle(spec, self._plain(spec, Outcome.CACHED, node.decision.reasons, content_digest=digest))

    def _heal(self, spec: StepSpec, node: PlanNode) -> None:
        """Finish what a dead driver left; a store that may only be read is served as it is."""
        try:
            self._execution(spec, node).heal()
        except OSError as error:
            self._reporter.notice(spec.label, f"could not finish an earlier driver's last writes: {error}")

    def _refuse(self, spec: StepSpec, node: PlanNode) -> None:
        known = node.decision.action is Action.KNOWN_FAILURE
        assert node.status is not None
        outcome = self._plain(
            spec,
            Outcome.KNOWN_FAILURE if known else Outcome.FAILED,
            node.decision.reasons,
            category=node.status.category,
            message=node.status.message,
            attempt=node.status.attempt,
        )
        self._settle(spec, outcome)

    def _loop(self) -> None:
        limit = self._options.max_concurrent or default_concurrency()
        running: dict[concurrent.futures.Future[StepOutcome | Waiting], StepSpec] = {}
        waiting: dict[StepSpec, float] = {}
        clock = self._settings.clock
        with concurrent.futures.ThreadPoolExecutor(limit, thread_name_prefix="marin-step") as pool:
            try:
                while True:
                    # No more is handed to the pool than it can start, so that a failure can still stop the rest.
                    for spec in self._ready(limit - len(running), waiting):
                        running[pool.submit(self._try_run, spec)] = spec
                    if not running and not waiting:
                        return
                    if running:
                        # Never for ever: an interrupt may arrive in another thread and does not end the wait.
                        timeout = self._settings.poll_s if waiting else _WAKE_S
                        done, _ = concurrent.futures.wait(
                            running, timeout, return_when=concurrent.futures.FIRST_COMPLETED
                        )
                    else:
                        done = set()
                        clock.sleep(self._settings.poll_s)
                    for future in done:
                        spec = running.pop(future)
                        result = future.result()
                        if isinstance(result, Waiting):
                            waiting[spec] = clock.monotonic() + self._settings.poll_s
                            self._tell_waiting(spec, result)
                        else:
                            self._settle(spec, result)
            except BaseException:
                self._interrupt()
                raise

    def _ready(self, free: int, waiting: dict[StepSpec, float]) -> list[StepSpec]:
        """At most ``free`` steps to start now; settles those that need not run after all."""
        now = self._settings.clock.monotonic()
        for spec in [spec for spec, due in waiting.items() if due <= now]:
            del waiting[spec]
            self._candidates.append(spec)
        ready: list[StepSpec] = []
        while self._candidates and len(ready) < free:
            spec = self._candidates.popleft()
            if spec not in self._outcomes and not self._settle_without_running(spec, self._plan.nodes[spec]):
                ready.append(spec)
        return ready

    def _settle_without_running(self, spec: StepSpec, node: PlanNode) -> bool:
        failed = [
            self._outcomes[dep]
            for dep in self._graph.deps[spec]
            if dep in self._outcomes and not self._outcomes[dep].ok
        ]
        if failed and not (node.deferred and node.decision.action is Action.SERVE):
            self._dependency_failed(spec, node, failed)
            return True
        stopped = not self._options.keep_going and any(
            item.outcome is Outcome.FAILED and not item.allowed for item in self._outcomes.values()
        )
        if stopped:
            reason = Reason(ReasonKind.STOPPED, "another step failed and the run does not keep going")
            self._settle(spec, self._plain(spec, Outcome.NOT_RUN, (reason,), message=reason.message))
            return True
        if node.deferred:
            node.deferred = False
            layout = StepLayout(self._graph.paths[spec])
            fresh = {
                self._outcomes[dep].path: self._outcomes[dep].content_digest
                for dep in self._graph.deps[spec]
                if dep in self._outcomes and self._outcomes[dep].outcome is Outcome.EXECUTED
            }
            node.decision = self._plan.decide(spec, layout, node.status, moved_inputs(layout, fresh))
            if node.decision.action is Action.SERVE:
                self._serve(spec, node)
                return True
            # Its other inputs were not looked at while it seemed to be served.
            missing = [dep for dep in self._graph.deps[spec] if dep not in self._plan.nodes]
            if missing:
                self._add_late(node, missing)
                return True
        return False

    def _add_late(self, node: PlanNode, missing: Sequence[StepSpec]) -> None:
        """Take further inputs of a step into the run, with whatever these need in turn."""
        added = self._plan.add(missing)
        for item in [*added, node]:
            deps = self._graph.deps[item.spec]
            item.pending = {dep for dep in deps if dep in self._plan.nodes and dep not in self._outcomes}
            if not item.pending:
                self._candidates.append(item.spec)
        for item in added:
            self._settle_one(item)

    def _dependency_failed(self, spec: StepSpec, node: PlanNode, failed: Sequence[StepOutcome]) -> None:
        roots: dict[str, None] = {}
        for item in failed:
            fields = item.reasons[0].fields if item.outcome is Outcome.DEP_FAILED and item.reasons else ()
            roots.update(dict.fromkeys(fields or (item.step,)))
        message = f"an input has no output: {', '.join(roots)}"
        reason = Reason(ReasonKind.DEPENDENCY_FAILED, message, tuple(roots))
        known = node.status is not None and tuple(node.status.causes) == tuple(roots)
        if not known:
            self._leave_trace(spec, node, list(roots))
        allowed = all(item.allowed for item in failed)
        outcome = self._plain(
            spec, Outcome.DEP_FAILED, (reason,), category="dependency", message=message, allowed=allowed
        )
        self._settle(spec, outcome)

    def _leave_trace(self, spec: StepSpec, node: PlanNode, roots: list[str]) -> None:
        """Write ``DEP_FAILED``; a store that does not let us is no reason to end the run."""
        try:
            self._execution(spec, node).mark_dependency_failed(roots)
        except OSError as error:
            self._reporter.notice(spec.label, f"could not record that an input failed: {error}")

    def _execution(self, spec: StepSpec, node: PlanNode) -> StepExecution:
        if node.execution is None:
            node.execution = StepExecution(
                spec=spec,
                prefix=self._prefix,
                path=self._graph.paths[spec],
                deps=[(dep.label, self._graph.paths[dep]) for dep in self._graph.deps[spec]],
                settings=self._settings,
                reasons=node.decision.reasons,
                forced=spec in self._plan.forced or spec.version_kind is VersionKind.MUTABLE,
                seen_epoch=settled_epoch(node.status),
                context=self._context,
                started=self._started,
                progress=self._progress,
                clearance=self._clearances.get(spec, NO_CLEARANCE),
                policy=self._policy,
            )
        return node.execution

    def _try_run(self, spec: StepSpec) -> StepOutcome | Waiting:
        node = self._plan.nodes[spec]
        try:
            return self._execution(spec, node).try_run()
        except (MarinError, OSError) as error:
            # Trouble with the store itself: this step fails, other branches may not be concerned.
            reason = Reason(ReasonKind.ERROR, f"{type(error).__name__}: {error}")
            category = classify(error).value
            return self._plain(spec, Outcome.FAILED, (reason,), category=category, error=error, message=reason.message)

    def _interrupt(self) -> None:
        """Stop every body; the pool's threads record the attempts as interrupted and end."""
        for node in self._plan.nodes.values():
            if node.execution is not None and node.spec not in self._outcomes:
                node.execution.interrupt()

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def _started(self, step: str, why: str) -> None:
        with self._lock:
            self._reporter.step_started(step, why)

    def _progress(self, step: str, text: str) -> None:
        with self._lock:
            self._reporter.step_progress(step, text)

    def _tell_waiting(self, spec: StepSpec, waiting: Waiting) -> None:
        node, now = self._plan.nodes[spec], self._settings.clock.monotonic()
        holder, told_at = node.told
        if holder != waiting.holder or now - told_at >= _WAIT_NOTE_S:
            node.told = (waiting.holder, now)
            with self._lock:
                self._reporter.step_waiting(spec.label, waiting.holder)

    def _settle(self, spec: StepSpec, outcome: StepOutcome) -> None:
        if spec in self._plan.allowed and not outcome.allowed:
            outcome = dataclasses.replace(outcome, allowed=True)
        self._outcomes[spec] = outcome
        for dependent in self._dependents[spec]:
            if dependent in self._plan.nodes:
                pending = self._plan.nodes[dependent].pending
                if spec in pending:
                    pending.remove(spec)
                    if not pending:
                        self._candidates.append(dependent)
        with self._lock:
            self._reporter.step_finished(outcome, len(self._outcomes), len(self._plan.nodes))

    def _plain(self, spec: StepSpec, outcome: Outcome, reasons: tuple[Reason, ...], **values: object) -> StepOutcome:
        return StepOutcome(
            step=spec.label,
            name=spec.name,
            version=spec.version or spec.hash_id,
            outcome=outcome,
            reasons=reasons,
            path=self._graph.paths[spec],
            **values,  # pyrefly: ignore[bad-argument-type]
        )

    def _summary(self, seconds: float) -> RunSummary:
        outcomes = []
        for spec in self._graph.steps:
            outcome = self._outcomes.get(spec)
            if outcome is None:
                outcome = self._plain(spec, Outcome.CACHED, (_not_needed(),))
            outcomes.append(outcome)
        peaks = [int(item.resources.get("ram_peak") or 0) for item in outcomes]
        return RunSummary(self._prefix, tuple(outcomes), seconds, max([peak_rss_bytes(), *peaks]))


def _not_needed() -> Reason:
    return Reason(ReasonKind.NOT_NEEDED, "nothing that runs needs it: every step that reads it is cached")
