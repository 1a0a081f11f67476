"""One step under its lease: decide again, run the body, commit or record the failure.

Everything here happens between acquiring the lease and releasing it. The thread that runs it is never the body's
thread, so a lost lease, an interrupt or a time limit is acted upon while the body is still busy.
"""

import contextlib
import contextvars
import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rigging.errors import LeaseHeldError, LeaseLostError
from rigging.filesystem.lease import Lease
from rigging.filesystem.prefix import marin_region
from rigging.provenance import launch_provenance

from marin.errors import ArtifactTypeMismatchError, InputMissingError, RecordFormatError, StepLeaseLostError
from marin.execution._files import json_text
from marin.execution.artifact import Artifact
from marin.execution.attempt_context import StepAttempt, finish_log_tail, start_log_tail
from marin.execution.attempts import new_id, open_attempt, utc_text
from marin.execution.body import BodyResult, run_body
from marin.execution.boundaries import Boundary
from marin.execution.decision import Action, Reason, ReasonKind, decide
from marin.execution.describe import (
    code_digest,
    config_digest,
    environment,
    error_payload,
    json_value,
    provenance_payload,
    short_environment,
    shown_error,
)
from marin.execution.events import LedgerEvent, write_event
from marin.execution.facts import gather_facts
from marin.execution.failures import FailureCategory, classify
from marin.execution.fingerprint import canonical_payload, type_name
from marin.execution.layout import MANIFEST_FILE, StepLayout
from marin.execution.manifest import ManifestEntry
from marin.execution.outcomes import Outcome, StepOutcome
from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
from marin.execution.settings import RunnerSettings, Waiting
from marin.execution.step_spec import RunPaths, StepKind, StepSpec
from marin.execution.step_status import Status, StatusRecord, read_status, write_status
from marin.execution.transaction import StepTransaction, close_success


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
        seen_epoch: Epoch in the status when the decision was made.
        context: Context variables for the body.
        started: Called when a body begins.
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
    cancel: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False

    def __post_init__(self) -> None:
        """Make the lease: one object for all tries, since it watches a foreign holder's heartbeat."""
        self.layout = StepLayout(self.path)
        clock, settings = self.settings.clock, self.settings
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
            outcome = self._run_owned(held.epoch, held.check)
        self.settings.hook(Boundary.LEASE_RELEASED, self.spec.label)
        return outcome

    def _run_owned(self, epoch: int, check: Callable[[], None]) -> StepOutcome:
        transaction = StepTransaction(self.layout, self.spec.label, epoch, check, self.settings.hook)
        status = read_status(self.layout)
        # A newer record is refused before anything of it is replaced.
        read_record(self.layout.output_path)
        recovery = transaction.recover(status, self.now())
        if recovery.finished is not None:
            status = read_status(self.layout)
            self._finished_event(recovery.finished, recovered=True)
        for orphan in recovery.abandoned:
            self._failed_event(orphan)
        newer = status is not None and status.status is Status.SUCCESS and status.epoch > self.seen_epoch
        if newer or (recovery.finished is not None and not self.forced):
            decision = decide(self.spec, gather_facts(self.spec, self.layout, status))
            if decision.action is Action.SERVE or newer:
                assert status is not None
                reason = Reason(ReasonKind.BUILT_BY_OTHER, "another driver built it meanwhile")
                if recovery.finished is not None:
                    reason = Reason(ReasonKind.CACHED, "an earlier driver had all but finished its commit")
                return self.outcome(Outcome.CACHED, reasons=(reason,), content_digest=status.content_digest)
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
        attempt = self._open(transaction.epoch, previous)
        open_attempt(self.layout, attempt)
        transaction.passed(Boundary.ATTEMPT_OPENED)
        start_log_tail(attempt.attempt)
        result = BodyResult()
        try:
            transaction.begin(attempt, self.now())
            why = [item.message for item in self.reasons]
            if previous is not None:
                why.insert(0, f"tried again after {previous.category}")
            self.started(self.spec.label, why[0])
            event = self._event("started", attempt.attempt, data={"reasons": why})
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

    def _open(self, epoch: int, previous: AttemptRecord | None) -> AttemptRecord:
        clock = self.settings.clock
        host = socket.gethostname()
        return AttemptRecord(
            attempt=new_id(clock.time()),
            epoch=epoch,
            step=self.spec.label,
            output_path=self.path,
            fingerprint=self.spec.fingerprint,
            started_at=self.now(),
            worker_id=f"{host}-{os.getpid()}",
            host=host,
            region=marin_region(),
            pid=os.getpid(),
            inputs=self._inputs(),
            environment=short_environment(),
            provenance=provenance_payload(launch_provenance()),
            retry_of=previous.attempt if previous is not None else None,
        )

    def _inputs(self) -> list[dict[str, Any]]:
        inputs = []
        for label, path in self.deps:
            record = read_record(path)
            inputs.append({"ref": label, "path": path, "digest": record.content_digest if record is not None else None})
        return inputs

    def _argument(self, transaction: StepTransaction) -> tuple[Any, Any]:
        """The body's argument, and its canonical form with the final path in place of the staging one."""
        for label, path in self.deps:
            if not os.path.exists(path):
                raise InputMissingError(path, f"the output of {label} vanished", hint="Run again to rebuild it.")
        if self.spec.kind is StepKind.ADOPT:
            assert self.spec.source is not None
            if not os.path.exists(self.spec.source):
                raise InputMissingError(self.spec.source, f"{self.spec.label} adopts it")
            return None, None
        paths = RunPaths(
            output_path=transaction.staging,
            scratch_path=self.layout.scratch(self.spec.fingerprint),
            final_path=self.path,
            prefix=self.prefix,
            region=marin_region(),
        )
        argument = self.spec.argument(paths)
        text = canonical_payload(argument, step=self.spec.name)
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
        payload, result_type = self._result(result.value)
        text = json_text(payload).replace(transaction.staging, self.path)
        clock = self.settings.clock

        def record_of(entries: Sequence[ManifestEntry], digest: str) -> ArtifactRecord:
            return self._record(attempt, result, (config, json_value(text), result_type), entries, digest, begun)

        sealed = transaction.seal(self.spec.artifact_type.volatile, record_of)
        transaction.publish(sealed, self.now())
        record = sealed.record
        log_tail = finish_log_tail(attempt.attempt, result.logs)
        transaction.finish(
            dataclasses.replace(
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
        )
        self._finished_event(record)
        transaction.passed(Boundary.EVENT_WRITTEN)
        return self.outcome(
            Outcome.EXECUTED,
            seconds=clock.monotonic() - begun,
            content_digest=record.content_digest,
            attempt=attempt.attempt,
            resources=result.resources,
        )

    def _result(self, value: Any) -> tuple[dict[str, Any], str]:
        expected = self.spec.artifact_type
        if value is None:
            value = expected()
        if self.spec.function is None and not isinstance(value, Artifact):
            value = Artifact()
        if not isinstance(value, expected):
            raise ArtifactTypeMismatchError(self.path, type_name(expected), type_name(type(value)))
        return value.result_payload(), type_name(type(value))

    def _record(
        self,
        attempt: AttemptRecord,
        result: BodyResult,
        parts: tuple[Any, Any, str],
        entries: Sequence[ManifestEntry],
        digest: str,
        begun: float,
    ) -> ArtifactRecord:
        config, payload, result_type = parts
        requested = getattr(self.spec.body, "resources", None) or self.spec.resources
        adopted = self.spec.kind is StepKind.ADOPT
        return ArtifactRecord(
            name=self.spec.name,
            version=self.spec.version or self.spec.hash_id,
            fingerprint=self.spec.fingerprint,
            fingerprint_payload=self.spec.payload,
            result_type=result_type,
            output_path=str(self.spec.source) if adopted else self.path,
            deps=[item["ref"] for item in attempt.inputs],
            dep_paths=[item["path"] for item in attempt.inputs],
            dep_digests=[item["digest"] for item in attempt.inputs],
            config=json_value(config) if config is not None else None,
            source=self.spec.source if adopted else None,
            result=payload,
            provenance=attempt.provenance,
            content_digest=digest,
            manifest=MANIFEST_FILE,
            files=len(entries),
            bytes=sum(entry.size for entry in entries),
            code_digest=code_digest(self.spec.body) if self.spec.body is not None else None,
            environment=environment(),
            resources={
                "requested": json_value(canonical_payload(requested)) if requested else None,
                "used": result.resources,
            },
            attempt=attempt.attempt,
            epoch=attempt.epoch,
            created_at=self.now(),
            seconds=round(self.settings.clock.monotonic() - begun, 6),
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
        except LeaseLostError as loss:
            return StepLeaseLostError(self.spec.label, transaction.epoch, loss.reason)
        if isinstance(error, LeaseLostError):
            return StepLeaseLostError(self.spec.label, transaction.epoch, error.reason)
        return None

    def _write_failure(self, transaction: StepTransaction, closed: AttemptRecord, lost: bool) -> str:
        """Record a failure; returns what went wrong with that, or an empty string.

        On a full disk the staging folder goes first, which makes room for the record.
        """
        if lost:
            # The new owner closes the attempt as abandoned; whatever this driver wrote now could only disturb it.
            return ""
        try:
            patterns = self.spec.artifact_type.evidence
            partial, evidence = transaction.salvage(closed.attempt, patterns)
            closed = dataclasses.replace(closed, partial_outputs=partial, evidence=evidence)
            transaction.fail(closed, self.now(), interrupted=closed.status == "interrupted")
            self._failed_event(closed)
        except OSError as problem:
            return f"{type(problem).__name__}: {problem.strerror or problem}"
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
                write_status(self.layout, record)
        finally:
            self.lease.release()

    def heal(self, record: ArtifactRecord) -> None:
        """Write the last words of a commit whose driver died right after ``SUCCESS``."""
        if close_success(self.layout, record, self.now()) is not None:
            self._finished_event(record, recovered=True)

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

    def _event(
        self, kind: str, attempt: str, *, digest: str | None = None, data: dict[str, Any] | None = None
    ) -> LedgerEvent:
        launched = launch_provenance()
        return LedgerEvent(
            id=f"{attempt}-{kind}",
            at=self.now(),
            kind=kind,
            step=self.spec.name,
            version=self.spec.version or self.spec.hash_id,
            digest=digest,
            attempt=attempt,
            actor=launched.built_by,
            commit=launched.base_commit,
            data=data or {},
        )

    def _finished_event(self, record: ArtifactRecord, *, recovered: bool = False) -> None:
        data = {"seconds": record.seconds, "files": record.files, "bytes": record.bytes, "recovered": recovered}
        write_event(self.prefix, self._event("finished", record.attempt, digest=record.content_digest, data=data))

    def _failed_event(self, attempt: AttemptRecord) -> None:
        error = attempt.error or {}
        data = {"category": attempt.category, "type": error.get("type"), "signature": error.get("signature")}
        write_event(self.prefix, self._event("failed", attempt.attempt, data=data))
