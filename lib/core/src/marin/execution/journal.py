"""What one step writes about itself: attempts, the record of its output, ledger events."""

import dataclasses
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rigging.filesystem.prefix import marin_region
from rigging.timing import Clock

from marin.errors import ArtifactFieldError, ArtifactTypeMismatchError
from marin.execution.artifact import Artifact
from marin.execution.attempts import new_id, utc_text
from marin.execution.body import BodyResult
from marin.execution.describe import code_digest, environment, json_value, short_environment
from marin.execution.events import LedgerEvent, new_event, write_event
from marin.execution.failures import FailureCategory
from marin.execution.fingerprint import canonical_payload, type_name
from marin.execution.gates import NO_CLEARANCE, Clearance, Refusal
from marin.execution.layout import MANIFEST_FILE
from marin.execution.manifest import ManifestEntry
from marin.execution.patches import launch_record
from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
from marin.execution.secret_fields import find_secret
from marin.execution.step_spec import StepKind, StepSpec


@dataclass(frozen=True)
class StepJournal:
    """Makes the records and events of one step.

    Attributes:
        spec: The step.
        prefix: Root of the store.
        path: Output path.
        deps: Inputs as ``(label, path)``.
        clock: Source of time.
        clearance: What the gate knows about the step.
        policy: The policy that let the plan pass, or an empty string.
    """

    spec: StepSpec
    prefix: str
    path: str
    deps: Sequence[tuple[str, str]]
    clock: Clock
    clearance: Clearance = NO_CLEARANCE
    policy: str = ""

    def now(self) -> str:
        """The time for records."""
        return utc_text(self.clock.time())

    def opened(self, epoch: int, previous: AttemptRecord | None) -> AttemptRecord:
        """The record of an attempt that begins now."""
        host = socket.gethostname()
        return AttemptRecord(
            attempt=new_id(self.clock.time()),
            epoch=epoch,
            step=self.spec.label,
            output_path=self.path,
            fingerprint=self.spec.fingerprint,
            started_at=self.now(),
            worker_id=f"{host}-{os.getpid()}",
            host=host,
            region=marin_region(),
            pid=os.getpid(),
            inputs=self.inputs(),
            environment=short_environment(),
            provenance=launch_record(self.prefix),
            retry_of=previous.attempt if previous is not None else None,
        )

    def inputs(self) -> list[dict[str, Any]]:
        """Every input with its digest as it is now."""
        inputs = []
        for label, path in self.deps:
            record = read_record(path)
            inputs.append({"ref": label, "path": path, "digest": record.content_digest if record is not None else None})
        return inputs

    def result(self, value: Any) -> tuple[dict[str, Any], str]:
        """Fields and type of what the body returned.

        Raises:
            ArtifactTypeMismatchError: It is not of the declared type.
            ArtifactFieldError: A field cannot be stored, or holds a secret.
        """
        expected = self.spec.artifact_type
        if value is None:
            value = expected()
        if self.spec.function is None and not isinstance(value, Artifact):
            value = Artifact()
        if not isinstance(value, expected):
            raise ArtifactTypeMismatchError(self.path, type_name(expected), type_name(type(value)))
        payload = value.result_payload()
        if (found := find_secret(json.dumps(payload))) is not None:
            raise ArtifactFieldError(type_name(type(value)), found[0], f"it may not be recorded: {found[1]}")
        return payload, type_name(type(value))

    def record(
        self,
        attempt: AttemptRecord,
        result: BodyResult,
        parts: tuple[Any, Any, str],
        entries: Sequence[ManifestEntry],
        digest: str,
        begun: float,
    ) -> ArtifactRecord:
        """The record of an output that is complete.

        Args:
            attempt: Its attempt.
            result: How the body ended.
            parts: Canonical config, result fields, result type.
            entries: Manifest.
            digest: Content digest.
            begun: Monotonic time of the start.
        """
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
            seconds=round(self.clock.monotonic() - begun, 6),
            licences=list(self.clearance.licences),
            waivers=[dict(waiver) for waiver in self.clearance.waivers],
            purpose=self.spec.purpose,
            policy=self.policy,
        )

    def blocked(self, refusals: Sequence[Refusal], policy: str) -> AttemptRecord:
        """The record of a step that a gate refused: closed from the start, since no body ever ran."""
        opened = self.opened(0, None)
        message = "; ".join(refusal.line() for refusal in refusals)
        error = {
            "type": "marin.errors.PlanRefusedError",
            "message": f"refused by the policy {policy}: {message}"[:4_000],
            "traceback": "",
            "signature": "-".join(sorted({refusal.rule for refusal in refusals})),
        }
        return dataclasses.replace(
            opened, status="blocked", category=FailureCategory.GATE.value, ended_at=opened.started_at, error=error
        )

    def event(
        self, kind: str, attempt: str, *, digest: str | None = None, data: dict[str, Any] | None = None
    ) -> LedgerEvent:
        """An event about this step."""
        return new_event(
            kind,
            self.clock.time(),
            step=self.spec.name,
            version=self.spec.version or self.spec.hash_id,
            digest=digest,
            attempt=attempt,
            data=data,
        )

    def finished(self, record: ArtifactRecord, *, recovered: bool = False) -> None:
        """Write the event of a committed output."""
        data = {"seconds": record.seconds, "files": record.files, "bytes": record.bytes, "recovered": recovered}
        write_event(self.prefix, self.event("finished", record.attempt, digest=record.content_digest, data=data))

    def failed(self, attempt: AttemptRecord) -> None:
        """Write the event of an attempt that ended without success."""
        error = attempt.error or {}
        data = {"category": attempt.category, "type": error.get("type"), "signature": error.get("signature")}
        write_event(self.prefix, self.event("failed", attempt.attempt, data=data))
