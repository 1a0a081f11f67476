"""One step under its lease: decide again, run the body, commit or record the failure.

Everything here happens between acquiring the lease and releasing it. The thread that runs it is never the body's
thread, so a lost lease, an interrupt or a time limit is acted upon while the body is still busy.
"""

import contextlib
import contextvars
import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rigging.errors import LeaseHeldError, LeaseLostError
from rigging.filesystem.lease import Lease
from rigging.filesystem.prefix import marin_region

from marin.errors import InputMissingError, RecordFormatError, StepLeaseLostError
from marin.execution._files import exists, json_text
from marin.execution.attempt_context import StepAttempt, finish_log_tail, start_log_tail
from marin.execution.attempts import utc_text
from marin.execution.body import BodyResult, run_body
from marin.execution.boundaries import Boundary
from marin.execution.decision import Action, Reason, ReasonKind, decide
from marin.execution.describe import (
    config_digest,
    error_payload,
    json_value,
    shown_error,
)
from marin.execution.events import write_event
from marin.execution.facts import gather_facts
from marin.execution.failures import FailureCategory, classify
from marin.execution.fingerprint import canonical_payload
from marin.execution.gates import NO_CLEARANCE, Clearance
from marin.execution.journal import StepJournal
from marin.execution.layout import StepLayout
from marin.execution.manifest import ManifestEntry
from marin.execution.outcomes import Outcome, StepOutcome
from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
from marin.execution.secret_fields import refuse_secrets
from marin.execution.settings import RunnerSettings, Waiting
from marin.execution.step_spec import RunPaths, StepKind, StepSpec
from marin.execution.step_status import Status, StatusRecord, read_status, write_status
from marin.execution.transaction import Recovery, StepTransaction

logger = logging.getLogger(__name__)


@dataclass
class StepExecution:
    """Runs one step; made once a run and step, tried again while another driver holds the lease.

    Attributes:
        spec: The step.
        prefix: Root of the store.
        path: Output path.
        deps: Inputs as ``(label, path)``.
        settings: How to behave.
        reasons: Why it is run.
        forced: Whether the user wants it rebuilt.
        seen_epoch: Last epoch whose success was known when the decision was made.
        context: Context variables for the body.
        started: Called when a body begins.
        progress: Called with a line about how far it is.
        clearance: What the gate knows about the step.
        policy: The policy that let the plan pass, or an empty string.
    """

    spec: StepSpec
    prefix: str
    path: str
    deps: Sequence[tuple[str, str]]
    settings: RunnerSettings
    reasons: tuple[Reason, ...]
    forced: bool
    seen_epoch: int
    context: contextvars.Context
    started: Callable[[str, str], None]
    progress: Callable[[str, str], None]
    clearance: Clearance = NO_CLEARANCE
    policy: str = ""
    cancel: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False

    def __post_init__(self) -> None:
        """Make the lease: one object for all tries, since it watches a foreign holder's heartbeat."""
        self.layout = StepLayout(self.path)
        clock, settings = self.settings.clock, self.settings
        self.journal = StepJournal(self.spec, self.prefix, self.path, self.deps, clock, self.clearance, self.policy)
        if not self.layout.remote:
            os.makedirs(self.layout.control, exist_ok=True)
        self.lease = Lease(
            self.layout.lease, clock=clock, timeout_s=settings.lease_timeout_s, heartbeat_s=settings.heartbeat_s
        )

    def interrupt(self) -> None:
        """Stop the body; the attempt is recorded as interrupted."""
        self.interrupted = True
        self.cancel.set()

    def now(self) -> str:
        """The time for records."""
        return utc_text(self.settings.clock.time())

    def try_run(self) -> StepOutcome | Waiting:
        """Run the step unless another driver works on it.

        Returns:
            The outcome, or whom to wait for.
        """
        with contextlib.ExitStack() as stack:
            try:
                held = stack.enter_context(self.lease.hold(on_lost=lambda error: self.cancel.set()))
            except LeaseHeldError as error:
                return Waiting(error.holder)
            self.settings.hook(Boundary.LEASE_ACQUIRED, self.spec.label)
            transaction = self._transaction(held.epoch, held.check)
            try:
                outcome = self._run_owned(transaction)
            except (LeaseLostError, OSError) as error:
                lost = self._lease_lost(transaction, error)
                if lost is None:
                    raise
                outcome = self.outcome(
                    Outcome.FAILED, category=FailureCategory.LEASE_LOST.value, error=lost, message=str(lost)
                )
        self.settings.hook(Boundary.LEASE_RELEASED, self.spec.label)
        if outcome.category == FailureCategory.LEASE_LOST and not self.interrupted:
            # Somebody else owns the step now: wait for that result like for any other driver's.
            self.cancel = threading.Event()
            return Waiting(f"it took the lease over ({outcome.message})")
        return outcome

    def _recover(self, transaction: StepTransaction, status: StatusRecord | None) -> Recovery:
        """Do what earlier owners left to do, and put it into the ledger."""
        # A newer record is refused before anything of it is replaced.
        read_record(self.layout.output_path)
        recovery = transaction.recover(status, self.now())
        if recovery.finished is not None:
            self.journal.finished(recovery.finished, recovered=True)
            transaction.passed(Boundary.EVENT_WRITTEN)
        for orphan in recovery.abandoned:
            self.journal.failed(orphan)
        return recovery

    def _run_owned(self, transaction: StepTransaction) -> StepOutcome:
        status = read_status(self.layout)
        recovery = self._recover(transaction, status)
        # What was finished just now is a dead driver's work: no news that could stand for a rebuild that is wanted.
        newer = status is not None and status.status is Status.SUCCESS and status.epoch > self.seen_epoch
        if recovery.finished is not None:
            status = read_status(self.layout)
        if newer or (recovery.finished is not None and not self.forced):
            decision = decide(self.spec, gather_facts(self.spec, self.layout, status))
            if decision.action is Action.SERVE or newer:
                assert status is not None
                reason = Reason(ReasonKind.BUILT_BY_OTHER, "another driver built it meanwhile")
                if recovery.finished is not None:
                    reason = Reason(ReasonKind.CACHED, "an earlier driver had all but finished its commit")
                return self.outcome(Outcome.CACHED, reasons=(reason,), content_digest=status.content_digest)
        if status is not None and status.status is Status.FAILED and not self.forced:
            # It was not a known failure when this driver decided to run it: another one has found out meanwhile.
            decision = decide(self.spec, gather_facts(self.spec, self.layout, status))
            if decision.action is Action.KNOWN_FAILURE:
                return self.outcome(
                    Outcome.KNOWN_FAILURE,
                    reasons=decision.reasons,
                    category=status.category,
                    message=status.message,
                    attempt=status.attempt,
                )
        return self._attempts(transaction)

    def _attempts(self, transaction: StepTransaction) -> StepOutcome:
        tried: dict[FailureCategory, int] = {}
        previous: AttemptRecord | None = None
        while True:
            outcome, attempt = self._attempt(transaction, previous)
            if outcome.ok or self.interrupted or self.cancel.is_set():
                return outcome
            category = FailureCategory(outcome.category)
            if not self.spec.retry.allows(category, tried.get(category, 0)):
                return outcome
            tried[category] = tried.get(category, 0) + 1
            previous = attempt

    def _attempt(
        self, transaction: StepTransaction, previous: AttemptRecord | None
    ) -> tuple[StepOutcome, AttemptRecord]:
        clock = self.settings.clock
        begun = clock.monotonic()
        attempt = self.journal.opened(transaction.epoch, previous)
        transaction.open(attempt)
        start_log_tail(attempt.attempt)
        result = BodyResult()
        try:
            transaction.begin(attempt, self.now())
            why = [item.message for item in self.reasons]
            if previous is not None:
                why.insert(0, f"tried again after {previous.category}")
            self.started(self.spec.label, why[0])
            event = self.journal.event("started", attempt.attempt, data={"reasons": why})
            write_event(self.prefix, event)
            argument, config = self._argument(transaction)
            result = self._body(argument, attempt, transaction, previous)
            if result.error is not None:
                raise result.error
            transaction.passed(Boundary.BODY_RETURNED)
            return self._commit(transaction, attempt, result, config, begun), attempt
        except BaseException as error:  # the attempt's boundary: whatever happened becomes part of its record
            seconds = clock.monotonic() - begun
            return self._failure(transaction, attempt, error, result, seconds)

    def _argument(self, transaction: StepTransaction) -> tuple[Any, Any]:
        """The body's argument, and its canonical form with the final path in place of the staging one."""
        for label, path in self.deps:
            if not exists(path):
                raise InputMissingError(path, f"the output of {label} vanished", hint="Run again to rebuild it.")
        if self.spec.kind is StepKind.ADOPT:
            assert self.spec.source is not None
            if not exists(self.spec.source):
                raise InputMissingError(self.spec.source, f"{self.spec.label} adopts it")
            return None, None
        paths = RunPaths(
            output_path=transaction.staging,
            scratch_path=self.layout.scratch(self.spec.fingerprint),
            final_path=self.path,
            prefix=self.prefix,
            region=marin_region(),
        )
        argument = self.context.copy().run(self.spec.argument, paths)
        text = canonical_payload(argument, step=self.spec.name)
        # The config that runs may hold more than the one that was planned: runtime arguments, real paths.
        refuse_secrets(text, self.spec.name)
        return argument, text.replace(transaction.staging, self.path)

    def _body(
        self, argument: Any, attempt: AttemptRecord, transaction: StepTransaction, previous: AttemptRecord | None
    ) -> BodyResult:
        body = self.spec.body
        if body is None:
            return BodyResult()
        scope = StepAttempt(
            step=self.spec.label,
            attempt=attempt.attempt,
            epoch=attempt.epoch,
            output_path=transaction.staging,
            scratch_path=self.layout.scratch(self.spec.fingerprint),
            retry=0 if previous is None else 1,
            cancel=self.cancel,
            report=functools.partial(self.progress, self.spec.label),
        )
        return run_body(
            body,
            argument,
            scope,
            clock=self.settings.clock,
            context=self.context.copy(),
            timeout_s=self.spec.timeout_s,
        )

    def _commit(
        self, transaction: StepTransaction, attempt: AttemptRecord, result: BodyResult, config: Any, begun: float
    ) -> StepOutcome:
        payload, result_type = self.journal.result(result.value)
        text = json_text(payload).replace(transaction.staging, self.path)
        clock = self.settings.clock

        def record_of(entries: Sequence[ManifestEntry], digest: str) -> ArtifactRecord:
            return self.journal.record(attempt, result, (config, json_value(text), result_type), entries, digest, begun)

        sealed = transaction.seal(self.spec.artifact_type.volatile, record_of)
        transaction.publish(sealed, self.now())
        record = sealed.record
        log_tail = finish_log_tail(attempt.attempt, result.logs)
        closed = dataclasses.replace(
            attempt,
            status="success",
            ended_at=self.now(),
            seconds=clock.monotonic() - begun,
            content_digest=record.content_digest,
            resources=record.resources,
            job_id=result.job_id,
            log_tail=log_tail,
            config_digest=config_digest(config),
        )
        try:
            transaction.finish(closed)
            self.journal.finished(record)
            transaction.passed(Boundary.EVENT_WRITTEN)
        except (OSError, LeaseLostError) as error:
            # The output is committed; what was not written here is written by the next owner, or by the next run that
            # looks at it.
            logger.warning("%s is committed, but its attempt could not be closed: %s", self.spec.label, error)
        return self.outcome(
            Outcome.EXECUTED,
            seconds=clock.monotonic() - begun,
            content_digest=record.content_digest,
            attempt=attempt.attempt,
            resources=result.resources,
        )

    def _failure(
        self,
        transaction: StepTransaction,
        attempt: AttemptRecord,
        error: BaseException,
        result: BodyResult,
        seconds: float,
    ) -> tuple[StepOutcome, AttemptRecord]:
        log_tail = finish_log_tail(attempt.attempt, result.logs)
        lost = self._lease_lost(transaction, error)
        if lost is not None:
            error, category, status = lost, FailureCategory.LEASE_LOST, "lease_lost"
        elif self.interrupted or isinstance(error, KeyboardInterrupt | SystemExit):
            category, status = FailureCategory.INTERRUPTED, "interrupted"
        else:
            category, status = classify(error), "failed"
        closed = dataclasses.replace(
            attempt,
            status=status,
            category=category.value,
            ended_at=self.now(),
            seconds=seconds,
            error=error_payload(error),
            log_tail=log_tail,
            job_id=result.job_id,
            resources={"requested": None, "used": result.resources},
        )
        problem = self._write_failure(transaction, closed, lost is not None)
        shown = shown_error(error)
        message = f"{type(shown).__name__}: {shown}".split("\n", 1)[0]
        outcome = self.outcome(
            Outcome.FAILED,
            seconds=seconds,
            category=category.value,
            error=error,
            message=message + (f" (and the failure could not be recorded: {problem})" if problem else ""),
            attempt=attempt.attempt,
            resources=result.resources,
        )
        return outcome, closed

    def _lease_lost(self, transaction: StepTransaction, error: BaseException) -> StepLeaseLostError | None:
        """Whether the lease is gone, whatever exception that surfaced as."""
        if isinstance(error, RecordFormatError):
            return None
        try:
            transaction.check()
            # The check trusts heartbeats that are on time by this driver's own clock and settings. A body that meets a
            # staging folder somebody took away fails before that, so here the store itself is asked.
            self.lease.refresh()
        except LeaseLostError as loss:
            return StepLeaseLostError(self.spec.label, transaction.epoch, loss.reason)
        except OSError as trouble:
            logger.warning("%s: could not ask whether the lease still holds: %s", self.spec.label, trouble)
        if isinstance(error, LeaseLostError):
            return StepLeaseLostError(self.spec.label, transaction.epoch, error.reason)
        return None

    def _write_failure(self, transaction: StepTransaction, closed: AttemptRecord, lost: bool) -> str:
        """Record a failure; returns what went wrong with that, or an empty string.

        On a full disk the staging folder goes first, which makes room for the record.
        """
        try:
            if lost:
                # The new owner closes the attempt as abandoned; whatever this driver wrote now could only disturb it.
                transaction.abandon()
                return ""
            patterns = self.spec.artifact_type.evidence
            partial, evidence = transaction.salvage(closed.attempt, patterns)
            closed = dataclasses.replace(closed, partial_outputs=partial, evidence=evidence)
            transaction.fail(closed, self.now(), interrupted=closed.status == "interrupted")
            self.journal.failed(closed)
        except OSError as problem:
            return f"{type(problem).__name__}: {problem.strerror or problem}"
        except LeaseLostError as loss:
            return str(loss)
        return ""

    def mark_dependency_failed(self, root_causes: Sequence[str]) -> None:
        """Leave a trace of a step that could not run because an input failed. Does nothing when it would disturb."""
        if self.lease.try_acquire() is None:
            return
        try:
            status = read_status(self.layout)
            if status is None or status.status is Status.DEP_FAILED:
                record = StatusRecord(
                    status=Status.DEP_FAILED,
                    epoch=self.lease.epoch or 0,
                    at=self.now(),
                    fingerprint=self.spec.fingerprint,
                    causes=list(root_causes),
                )
                write_status(self.layout, record, confirm=self.lease.refresh)
        except LeaseLostError as error:
            logger.info("%s: another driver has something to say about it: %s", self.spec.label, error)
        finally:
            self.lease.release()

    def heal(self) -> None:
        """Do what a driver that died right after ``SUCCESS`` left to do. Nothing, while another driver is at work."""
        try:
            with self.lease.hold() as held:
                self.settings.hook(Boundary.LEASE_ACQUIRED, self.spec.label)
                self._recover(self._transaction(held.epoch, held.check), read_status(self.layout))
        except (LeaseHeldError, LeaseLostError) as error:
            logger.info("%s: another driver does the last writes of its commit: %s", self.spec.label, error)

    def _transaction(self, epoch: int, check: Callable[[], None]) -> StepTransaction:
        return StepTransaction(self.layout, self.spec.label, self.lease, epoch, check, self.settings.hook)

    def outcome(self, outcome: Outcome, **values: Any) -> StepOutcome:
        """The outcome of this step."""
        values.setdefault("reasons", self.reasons)
        return StepOutcome(
            step=self.spec.label,
            name=self.spec.name,
            version=self.spec.version or self.spec.hash_id,
            outcome=outcome,
            path=self.path,
            **values,
        )
