"""The commit of one output: staged, hashed, recorded, renamed; and what the next owner does after a crash.

Order of durable writes: data files, ``.manifest.jsonl``, ``.artifact.json``, the rename, status ``SUCCESS``, the closed
attempt, the ledger event. Everything before the rename happens in a staging folder that carries the lease's epoch in
its name. A new owner first takes every older staging folder away, so a driver that lost its lease has nothing left to
rename: the fence holds even when that driver sleeps through its own checks.

In an object store the rename is an upload, object by object, each only over the version that was there when this owner
began (``_objects``); the fence is the store's compare-and-swap.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marin.execution._files import (
    create_text,
    empty_trash,
    exchange,
    fsync_directory,
    json_text,
    keep_file,
    remove_temporaries,
    take_away,
)
from marin.execution._objects import make_private, object_versions, upload_output
from marin.execution.attempts import close_attempt, close_orphans, is_closed, open_attempt, read_attempts
from marin.execution.boundaries import Boundary, BoundaryHook
from marin.execution.layout import MANIFEST_FILE, RECORD_FILE, StepLayout, below
from marin.execution.manifest import (
    ManifestEntry,
    build_manifest,
    compare_manifest,
    content_digest,
    manifest_text,
    matches,
    read_manifest,
    walk_files,
)
from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
from marin.execution.step_status import Status, StatusRecord, write_status

_MAX_PARTIAL_OUTPUTS = 200
_MAX_EVIDENCE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Recovery:
    """What was found of earlier owners.

    Attributes:
        finished: Record of a commit that had only its last writes missing and was completed here.
        abandoned: Attempts closed because their driver is gone.
    """

    finished: ArtifactRecord | None
    abandoned: tuple[AttemptRecord, ...]


@dataclass(frozen=True)
class SealedOutput:
    """A staging folder that is complete and durable."""

    record: ArtifactRecord
    entries: tuple[ManifestEntry, ...]


@dataclass
class StepTransaction:
    """The writes of one owner of a step's lease.

    Attributes:
        layout: Where everything lies.
        label: ``name@version``.
        epoch: Lease epoch of this owner.
        check: Raises when the lease is lost; called before every write that others see.
        hook: Told about every boundary.
    """

    layout: StepLayout
    label: str
    epoch: int
    check: Callable[[], None]
    hook: BoundaryHook
    _seen: dict[str, str] = field(default_factory=dict)

    @property
    def staging(self) -> str:
        """Folder that this owner's body writes."""
        return self.layout.staging(self.epoch)

    def passed(self, boundary: Boundary) -> None:
        """Tell the hook."""
        self.hook(boundary, self.label)

    def recover(self, status: StatusRecord | None, at: str) -> Recovery:
        """Clean up after earlier owners; only the owner of the lease may call this.

        A commit whose record is complete is finished rather than repeated. Attempts without an end are closed as
        ``abandoned`` and their staging folders removed; the scratch folder stays.

        Args:
            status: The status file.
            at: Time for the closed attempts, ISO-8601.
        """
        if self.layout.remote:
            self.check()
            make_private(self.layout.work)
            self._seen = object_versions(self.layout.output_path)
        finished = self._finish_commit(status, at)
        if finished is None:
            self._sweep()
        else:
            self.settle(finished, at)
        keep = finished.attempt if finished is not None else ""
        note = f"its driver was gone when epoch {self.epoch} took over"
        abandoned = close_orphans(self.layout, at=at, note=note, except_attempt=keep)
        return Recovery(finished, tuple(abandoned))

    def _finish_commit(self, status: StatusRecord | None, at: str) -> ArtifactRecord | None:
        if status is None or status.status not in (Status.RUNNING, Status.SUCCESS):
            return None
        record = read_record(self.layout.output_path)
        if status.status is Status.SUCCESS:
            # Only the end of the attempt can be missing; whoever waited for the lease sees this first.
            unsettled = record is not None and record.attempt and not is_closed(self.layout, record.attempt)
            return record if unsettled else None
        if record is None or record.attempt != status.attempt:
            record = self._complete_staging(status)
            if record is None:
                return None
            self._move_into_place(self.layout.staging(status.epoch))
        self.mark_success(record, at)
        self.passed(Boundary.STATUS_SUCCESS)
        return record

    def settle(self, record: ArtifactRecord, at: str) -> bool:
        """End the attempt of a committed output whose driver died after the commit.

        Only the owner of the lease may call this. The attempt is closed last: that tells everybody else that nothing
        is left to do here, so whatever an earlier owner left must be gone by then, even when this one dies too.

        Returns:
            Whether the attempt was closed here.
        """
        self._sweep()
        self.clean_up()
        self.passed(Boundary.SCRATCH_REMOVED)
        closed = close_success(self.layout, record, at)
        self.passed(Boundary.ATTEMPT_CLOSED)
        return closed is not None

    def _sweep(self) -> None:
        """Remove what earlier owners left: staging folders, trash, half-written files."""
        for path in self.layout.staging_epochs().values():
            take_away(path, self.layout.work)
        empty_trash(self.layout.work)
        remove_temporaries(self.layout.work)

    def _complete_staging(self, status: StatusRecord) -> ArtifactRecord | None:
        """The record of a staging folder to which only the rename is missing.

        After an exchange a staging folder holds the *old* output; its record carries another epoch and does not count.
        """
        staging = self.layout.staging(status.epoch)
        record = read_record(staging)
        if record is None or record.attempt != status.attempt or record.epoch != status.epoch:
            return None
        entries = read_manifest(os.path.join(staging, MANIFEST_FILE))
        if entries is None or compare_manifest(staging, entries, deep=False):
            return None
        return record

    def open(self, attempt: AttemptRecord) -> None:
        """Put on record that an attempt begins."""
        open_attempt(self.layout, attempt)
        self.passed(Boundary.ATTEMPT_OPENED)

    def begin(self, attempt: AttemptRecord, at: str) -> None:
        """Say that an attempt runs and make its staging folder."""
        self.check()
        status = StatusRecord(
            status=Status.RUNNING, epoch=self.epoch, attempt=attempt.attempt, at=at, fingerprint=attempt.fingerprint
        )
        write_status(self.layout, status)
        self.passed(Boundary.STATUS_RUNNING)
        take_away(self.staging, self.layout.work)
        os.makedirs(self.staging)
        os.makedirs(self.layout.scratch(attempt.fingerprint), exist_ok=True)
        self.passed(Boundary.STAGING_CREATED)

    def seal(
        self, volatile: Sequence[str], make_record: Callable[[Sequence[ManifestEntry], str], ArtifactRecord]
    ) -> SealedOutput:
        """Hash the staging folder, then write manifest and record into it; all durable on return.

        Args:
            volatile: Patterns left out of the content digest.
            make_record: Makes the record from entries and digest.
        Raises:
            UnsupportedFileError: The body left something that cannot be committed.
        """
        entries = build_manifest(self.staging, volatile=volatile, sync=True)
        return self.seal_copy(entries, make_record(entries, content_digest(entries)))

    def seal_copy(self, entries: Sequence[ManifestEntry], record: ArtifactRecord) -> SealedOutput:
        """Write manifest and record into a staging folder whose files are durable and fit the manifest."""
        create_text(os.path.join(self.staging, MANIFEST_FILE), manifest_text(entries))
        self.passed(Boundary.MANIFEST_WRITTEN)
        create_text(os.path.join(self.staging, RECORD_FILE), json_text(record.to_json()))
        self.passed(Boundary.RECORD_WRITTEN)
        return SealedOutput(record, tuple(entries))

    def publish(self, sealed: SealedOutput, at: str) -> None:
        """Rename the staging folder into place and say ``SUCCESS``.

        Raises:
            LeaseLostError: The lease is gone; nothing was written.
            FileNotFoundError: A newer owner took the staging folder away, which is the same.
        """
        self.check()
        self._move_into_place(self.staging)
        self.passed(Boundary.OUTPUT_RENAMED)
        self.mark_success(sealed.record, at)
        self.passed(Boundary.STATUS_SUCCESS)

    def _move_into_place(self, staging: str) -> None:
        target = self.layout.output_path
        if self.layout.remote:
            entries = read_manifest(os.path.join(staging, MANIFEST_FILE)) or []
            data = [entry.path for entry in entries]
            upload_output(staging, target, data, (MANIFEST_FILE, RECORD_FILE), self._seen, self.check)
            take_away(staging, self.layout.work)
            return
        if not os.path.lexists(target):
            os.rename(staging, target)
        elif read_record(target) is None:
            # Somebody's data without a record is in the way: kept, not replaced.
            os.rename(target, os.path.join(self.layout.control, f"displaced-{self.epoch}"))
            os.rename(staging, target)
        else:
            exchange(staging, target)
        fsync_directory(os.path.dirname(target))
        take_away(staging, self.layout.work)

    def mark_success(self, record: ArtifactRecord, at: str) -> None:
        """Write the last word of a commit."""
        status = StatusRecord(
            status=Status.SUCCESS,
            epoch=record.epoch,
            attempt=record.attempt,
            at=at,
            fingerprint=record.fingerprint,
            content_digest=record.content_digest,
        )
        write_status(self.layout, status)

    def finish(self, attempt: AttemptRecord) -> None:
        """Remove the scratch folder and close a successful attempt; the closing tells that nothing is left to do."""
        self.clean_up()
        self.passed(Boundary.SCRATCH_REMOVED)
        close_attempt(self.layout, attempt)
        self.passed(Boundary.ATTEMPT_CLOSED)

    def clean_up(self) -> None:
        """Remove what only a running attempt needs: the scratch folder and the trash."""
        take_away(os.path.join(self.layout.work, "scratch"), self.layout.work)
        empty_trash(self.layout.work)

    def salvage(self, attempt: str, patterns: Sequence[str]) -> tuple[list[dict[str, Any]], str | None]:
        """Keep the evidence of a failed attempt and remove the rest of its staging folder.

        Returns:
            What the staging folder held, and the folder of what was kept (relative to the control folder) or None.
        """
        if not os.path.isdir(self.staging):
            return [], None
        partial: list[dict[str, Any]] = []
        kept_bytes, kept = 0, False
        evidence = self.layout.evidence(attempt)
        for relative, info in walk_files(self.staging):
            if len(partial) < _MAX_PARTIAL_OUTPUTS:
                partial.append({"path": relative, "bytes": info.st_size})
            if matches(relative, patterns) and kept_bytes + info.st_size <= _MAX_EVIDENCE_BYTES:
                kept_bytes += info.st_size
                kept = True
                keep_file(os.path.join(self.staging, relative), os.path.join(evidence, relative))
        take_away(self.staging, self.layout.work)
        return partial, below(evidence, self.layout.control) if kept else None

    def fail(self, attempt: AttemptRecord, at: str, *, interrupted: bool) -> None:
        """Close a failed attempt and say ``FAILED``."""
        close_attempt(self.layout, attempt)
        self.passed(Boundary.ATTEMPT_CLOSED)
        error = attempt.error or {}
        first_line = str(error.get("message", "")).split("\n", 1)[0][:300]
        status = StatusRecord(
            status=Status.FAILED,
            epoch=self.epoch,
            attempt=attempt.attempt,
            at=at,
            fingerprint=attempt.fingerprint,
            category=attempt.category,
            message=f"{error.get('type', '')}: {first_line}",
            interrupted=interrupted,
        )
        write_status(self.layout, status)
        self.passed(Boundary.STATUS_FAILED)


def close_success(layout: StepLayout, record: ArtifactRecord, at: str) -> AttemptRecord | None:
    """Close the attempt of a committed output, when a crash left it open.

    Safe without the lease: the commit is a fact, and only the first closing counts.

    Returns:
        The closed attempt, or None when there was nothing to do.
    """
    if not record.attempt or is_closed(layout, record.attempt):
        return None
    opened = next((item for item in read_attempts(layout) if item.attempt == record.attempt), None)
    if opened is None:
        return None
    closed = dataclasses.replace(
        opened,
        status="success",
        ended_at=record.created_at or at,
        seconds=record.seconds,
        content_digest=record.content_digest,
        resources=record.resources,
    )
    return closed if close_attempt(layout, closed) else None
