"""The commit of one output: staged, hashed, recorded, renamed; and what the next owner does after a crash.

Order of durable writes: data files, ``.manifest.jsonl``, ``.artifact.json``, the rename, status ``SUCCESS``, the closed
attempt, the ledger event. Everything before the rename happens in a staging folder that carries the lease's epoch in
its name. A new owner first takes every older staging folder away (or gives it its own name, when only the rename is
missing), so a driver that lost its lease has nothing left to rename: the fence holds even when that driver sleeps
through its own checks. What is taken away belongs to earlier epochs, and where names carry none (status, scratch) the
lease itself is read first: a driver that wakes up late tidies nothing that is in use.

In an object store the rename is an upload, object by object, each only over the version that was there when this owner
began (``_objects``); the fence is the store's compare-and-swap.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rigging.errors import LeaseLostError
from rigging.filesystem.lease import Lease

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
        lease: The lease.
        epoch: Its epoch of this owner.
        check: Raises when the lease is lost; called before every write that others see. Trusts heartbeats on time.
        hook: Told about every boundary.
    """

    layout: StepLayout
    label: str
    lease: Lease
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

    def confirm(self) -> None:
        """Read the lease: needed before what no epoch fences, since others may count time differently than ``check``.

        Raises:
            LeaseLostError: It is somebody else's.
        """
        state = self.lease.read()
        if state is None or state.epoch != self.epoch or state.holder != self.lease.holder:
            now = "the lease file is gone" if state is None else f"the lease is at epoch {state.epoch}"
            raise LeaseLostError(self.lease.path, self.epoch, now)

    def recover(self, status: StatusRecord | None, at: str) -> Recovery:
        """Clean up after earlier owners; only the owner of the lease may call this.

        A commit whose record is complete is finished rather than repeated. Attempts without an end are closed as
        ``abandoned`` and their staging folders removed; the scratch folder stays.

        Args:
            status: The status file.
            at: Time for the closed attempts, ISO-8601.
        Raises:
            LeaseLostError: Somebody else owns the lease.
            FileNotFoundError: The same, met at a folder that the new owner took away.
        """
        self.confirm()
        if self.layout.remote:
            make_private(self.layout.work)
            self._seen = object_versions(self.layout.output_path)
            # Only versions that were there while the lease was ours may be replaced later.
            self.confirm()
        finished = self._finish_commit(status, at)
        if finished is None:
            self._sweep()
        else:
            self.settle(finished, at)
        keep = finished.attempt if finished is not None else ""
        note = f"its driver was gone when epoch {self.epoch} took over"
        abandoned = close_orphans(self.layout, at=at, note=note, except_attempt=keep, may_close=self._is_past)
        return Recovery(finished, tuple(abandoned))

    def _is_past(self, epoch: int) -> bool:
        """Whether what carries this epoch is an earlier owner's, so that it may be ended.

        A later epoch means a later owner, or a lease file that was deleted and counts from the start again.

        Raises:
            LeaseLostError: There is a later owner.
        """
        if epoch >= self.epoch:
            self.confirm()
        return True

    def _finish_commit(self, status: StatusRecord | None, at: str) -> ArtifactRecord | None:
        if status is None or status.status not in (Status.RUNNING, Status.SUCCESS):
            return None
        record = read_record(self.layout.output_path)
        if status.status is Status.SUCCESS:
            # Only the end of the attempt can be missing; whoever waited for the lease sees this first.
            unsettled = record is not None and record.attempt and not is_closed(self.layout, record.attempt)
            return record if unsettled else None
        if record is None or record.attempt != status.attempt:
            complete = self._complete_staging(status)
            if complete is None:
                return None
            folder, record = complete
            self._move_into_place(self._claim(folder))
            self.passed(Boundary.OUTPUT_RENAMED)
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
        for epoch, path in self.layout.staging_epochs().items():
            if self._is_past(epoch):
                take_away(path, self.layout.work)
        empty_trash(self.layout.work)
        remove_temporaries(self.layout.work)

    def _complete_staging(self, status: StatusRecord) -> tuple[str, ArtifactRecord] | None:
        """The staging folder to which only the rename is missing, and its record.

        It has the name of the epoch that made it, or of one that died when it had claimed it. After an exchange a
        staging folder holds the *old* output; its record names another attempt and does not count.
        """
        for staging in self.layout.staging_epochs().values():
            record = read_record(staging)
            if record is None or record.attempt != status.attempt or record.epoch != status.epoch:
                continue
            entries = read_manifest(os.path.join(staging, MANIFEST_FILE))
            if entries is not None and not compare_manifest(staging, entries, deep=False):
                return staging, record
        return None

    def _claim(self, staging: str) -> str:
        """Give a dead driver's staging folder this owner's name: whoever still means to rename the old name cannot."""
        if staging != self.staging:
            take_away(self.staging, self.layout.work)
            os.rename(staging, self.staging)
        return self.staging

    def open(self, attempt: AttemptRecord) -> None:
        """Put on record that an attempt begins."""
        self.check()
        open_attempt(self.layout, attempt)
        self.passed(Boundary.ATTEMPT_OPENED)

    def begin(self, attempt: AttemptRecord, at: str) -> None:
        """Say that an attempt runs and make its staging folder."""
        self.check()
        status = StatusRecord(
            status=Status.RUNNING, epoch=self.epoch, attempt=attempt.attempt, at=at, fingerprint=attempt.fingerprint
        )
        self._say(status)
        self.passed(Boundary.STATUS_RUNNING)
        self.confirm()
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
            LeaseLostError: The lease is gone; what a body wrote into a folder of that name since then is nobody's.
        """
        self.confirm()
        entries = build_manifest(self.staging, volatile=volatile, sync=True)
        return self.seal_copy(entries, make_record(entries, content_digest(entries)))

    def seal_copy(self, entries: Sequence[ManifestEntry], record: ArtifactRecord) -> SealedOutput:
        """Write manifest and record into a staging folder whose files are durable and fit the manifest."""
        # The folder is not made again here: a new owner may have taken it away.
        create_text(os.path.join(self.staging, MANIFEST_FILE), manifest_text(entries), make_folder=False)
        self.passed(Boundary.MANIFEST_WRITTEN)
        create_text(os.path.join(self.staging, RECORD_FILE), json_text(record.to_json()), make_folder=False)
        self.passed(Boundary.RECORD_WRITTEN)
        return SealedOutput(record, tuple(entries))

    def publish(self, sealed: SealedOutput, at: str) -> None:
        """Rename the staging folder into place and say ``SUCCESS``.

        Raises:
            LeaseLostError: The lease is gone; nothing was written.
            FileNotFoundError: A newer owner took the staging folder away, which is the same.
        """
        self.check()
        self.confirm()
        self._move_into_place(self.staging)
        self.passed(Boundary.OUTPUT_RENAMED)
        self.mark_success(sealed.record, at)
        self.passed(Boundary.STATUS_SUCCESS)

    def _move_into_place(self, staging: str) -> None:
        target = self.layout.output_path
        if self.layout.remote:
            entries = read_manifest(os.path.join(staging, MANIFEST_FILE)) or []
            data = [entry.path for entry in entries]
            upload_output(staging, target, data, (MANIFEST_FILE, RECORD_FILE), self._seen, self.check, self.confirm)
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
        self._say(status)

    def _say(self, status: StatusRecord) -> None:
        write_status(self.layout, status, confirm=self.confirm)

    def finish(self, attempt: AttemptRecord) -> None:
        """Remove the scratch folder and close a successful attempt; the closing tells that nothing is left to do.

        Raises:
            LeaseLostError: A new owner has begun. The output is committed; that owner closes the attempt.
        """
        self.clean_up()
        self.passed(Boundary.SCRATCH_REMOVED)
        close_attempt(self.layout, attempt)
        self.passed(Boundary.ATTEMPT_CLOSED)

    def clean_up(self) -> None:
        """Remove what only a running attempt needs: the scratch folder and the trash.

        Raises:
            LeaseLostError: Somebody else owns the lease, and may be using that scratch folder.
        """
        self.confirm()
        take_away(os.path.join(self.layout.work, "scratch"), self.layout.work)
        empty_trash(self.layout.work)

    def abandon(self) -> None:
        """Remove what the body of a driver that lost its lease wrote after its folder had been taken away.

        A complete folder stays: the new owner may be about to finish that commit.
        """
        if read_record(self.staging) is None:
            take_away(self.staging, self.layout.work)

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
        self._say(status)
        self.passed(Boundary.STATUS_FAILED)


def is_settled(layout: StepLayout, status: StatusRecord | None) -> bool:
    """Whether nothing is left to do after the commit that a status tells of: its attempt is closed, or it has none."""
    return status is None or not status.attempt or is_closed(layout, status.attempt)


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
