"""Replicas: take a committed output over from another store instead of computing it again.

What is not bit-stable (a k-means, int8 embeddings) must not be computed once a region, and what is expensive should
not be. A replica is copied under the step's own lease into a staging folder, hashed file by file against the manifest
of the original, and only then committed; it keeps the original's record, so provenance, inputs and digest say what
they said there, and ``replica_of`` says where it came from. Bytes from another region count against the transfer
budget (``rigging.filesystem.transfer_budget``).
"""

import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rigging.errors import LeaseHeldError, LeaseLostError
from rigging.filesystem.lease import Lease
from rigging.filesystem.prefix import marin_region
from rigging.filesystem.storage_path import StoragePath
from rigging.provenance import launch_provenance

from marin.errors import RecordNotFoundError, ReplicaMismatchError
from marin.execution.attempts import new_id, utc_text
from marin.execution.describe import error_payload, provenance_payload, short_environment
from marin.execution.events import new_event, write_event
from marin.execution.failures import classify
from marin.execution.layout import StepLayout, store_join
from marin.execution.manifest import ManifestEntry, build_manifest, content_digest, read_manifest
from marin.execution.records import ArtifactRecord, AttemptRecord, read_record
from marin.execution.settings import RunnerSettings
from marin.execution.step_status import Status, read_status
from marin.execution.transaction import StepTransaction

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Original:
    """A committed output in another store.

    Attributes:
        path: Its folder.
        record: Its record.
        entries: Its manifest.
    """

    path: str
    record: ArtifactRecord
    entries: tuple[ManifestEntry, ...]

    @property
    def bytes(self) -> int:
        """Bytes to copy."""
        return sum(entry.size for entry in self.entries)


def find_original(address: str, prefixes: Sequence[str], *, fingerprint: str = "") -> Original | None:
    """The first committed output at an address in other stores.

    Args:
        address: ``name/version``, relative to a prefix.
        prefixes: Roots of the other stores, in order of preference.
        fingerprint: Recipe that it must have; any when empty.
    Returns:
        The original, or None when no store has a complete one. An output without a manifest cannot be checked and does
        not count.
    """
    for prefix in prefixes:
        path = store_join(prefix.rstrip("/"), address)
        layout = StepLayout(path)
        status = read_status(layout)
        record = read_record(path) if status is not None and status.status is Status.SUCCESS else None
        if record is None or record.manifest is None or (fingerprint and record.fingerprint != fingerprint):
            continue
        entries = read_manifest(layout.manifest)
        if entries is not None and content_digest(entries) == record.content_digest:
            return Original(path, record, tuple(entries))
    return None


def replicate(
    address: str,
    prefix: str,
    sources: Sequence[str],
    *,
    fingerprint: str = "",
    settings: RunnerSettings = RunnerSettings(),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ArtifactRecord | None:
    """Copy an output into a store, unless it is there.

    Args:
        address: ``name/version``.
        prefix: Root of the store that gets it.
        sources: Roots of the stores that may have it.
        fingerprint: Recipe that it must have; any when empty.
        settings: Clock, lease times and hook.
        progress: Called with bytes copied and bytes in all.
    Returns:
        The record of the replica; None when it is there already or another driver works on it.
    Raises:
        RecordNotFoundError: No source has it.
        ReplicaMismatchError: What was copied is not what the manifest says; nothing was committed, and the attempt is
            on record.
        TransferBudgetExceeded: It would pass the limit on reads from other regions.
    Example:
        >>> import tempfile
        >>> from marin.execution import StepSpec, run
        >>> there, here = tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> step = StepSpec(name="tokens", version="2026.12.01", fn=lambda out: None, hash_attrs={"vocab": 4096})
        >>> _ = run(step, prefix=there)
        >>> replicate("tokens/2026.12.01", here, [there]).replica_of == f"{there}/tokens/2026.12.01"
        True
    """
    original = find_original(address, sources, fingerprint=fingerprint)
    layout = StepLayout(store_join(prefix, address))
    if original is None:
        raise RecordNotFoundError(address, f"no complete output in any of {list(sources)}")
    if not layout.remote:
        os.makedirs(layout.control, exist_ok=True)
    clock = settings.clock
    lease = Lease(layout.lease, clock=clock, timeout_s=settings.lease_timeout_s, heartbeat_s=settings.heartbeat_s)
    try:
        with lease.hold() as held:
            label = f"{original.record.name}@{original.record.version}"
            transaction = StepTransaction(layout, label, lease, held.epoch, held.check, settings.hook)
            status = read_status(layout)
            recovered = transaction.recover(status, utc_text(clock.time()))
            if recovered.finished is not None or (status is not None and status.status is Status.SUCCESS):
                return None
            return _Replication(original, prefix, layout, transaction, settings, progress).run()
    except (LeaseHeldError, LeaseLostError) as error:
        logger.info("%s is being made: %s", address, error)
        return None


@dataclass
class _Replication:
    """One copy under the lease."""

    original: Original
    prefix: str
    layout: StepLayout
    transaction: StepTransaction
    settings: RunnerSettings
    progress: Callable[[int, int], None]

    def now(self) -> str:
        return utc_text(self.settings.clock.time())

    def run(self) -> ArtifactRecord:
        begun = self.settings.clock.monotonic()
        attempt = self._attempt()
        self.transaction.open(attempt)
        self.transaction.begin(attempt, self.now())
        try:
            self._copy()
            record = dataclasses.replace(
                self.original.record,
                output_path=self.layout.output_path,
                attempt=attempt.attempt,
                epoch=attempt.epoch,
                replica_of=self.original.path,
            )
            sealed = self.transaction.seal_copy(self.original.entries, record)
            self.transaction.publish(sealed, self.now())
        except LeaseLostError:
            self.transaction.abandon()
            raise  # the new owner closes the attempt; whatever is written here could only disturb it
        except Exception as error:
            self._fail(attempt, error, self.settings.clock.monotonic() - begun)
            raise
        seconds = self.settings.clock.monotonic() - begun
        closed = dataclasses.replace(
            attempt, status="success", ended_at=self.now(), seconds=seconds, content_digest=record.content_digest
        )
        self.transaction.finish(closed)
        self._event("replicated", attempt, {"from": self.original.path, "bytes": self.original.bytes})
        return record

    def _attempt(self) -> AttemptRecord:
        record, host = self.original.record, socket.gethostname()
        return AttemptRecord(
            attempt=new_id(self.settings.clock.time()),
            epoch=self.transaction.epoch,
            step=self.transaction.label,
            output_path=self.layout.output_path,
            fingerprint=record.fingerprint,
            started_at=self.now(),
            worker_id=f"{host}-{os.getpid()}",
            host=host,
            region=marin_region(),
            pid=os.getpid(),
            inputs=[{"ref": self.transaction.label, "path": self.original.path, "digest": record.content_digest}],
            environment=short_environment(),
            provenance=provenance_payload(launch_provenance()),
        )

    def _copy(self) -> None:
        done = 0
        for entry in self.original.entries:
            self.transaction.check()
            target = os.path.join(self.transaction.staging, entry.path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if entry.link is not None:
                os.symlink(entry.link, target)
            else:
                StoragePath(f"{self.original.path}/{entry.path}").download_to(target)
            done += entry.size
            self.progress(done, self.original.bytes)
        arrived = {entry.path: entry for entry in build_manifest(self.transaction.staging, sync=True)}
        problems = [
            f"changed content: {entry.path}"
            for entry in self.original.entries
            if dataclasses.replace(entry, volatile=False) != arrived.get(entry.path)
        ]
        if problems:
            raise ReplicaMismatchError(self.original.path, "; ".join(problems[:5]))

    def _fail(self, attempt: AttemptRecord, error: Exception, seconds: float) -> None:
        category = classify(error).value
        closed = dataclasses.replace(
            attempt,
            status="failed",
            category=category,
            ended_at=self.now(),
            seconds=seconds,
            error=error_payload(error),
        )
        self.transaction.salvage(attempt.attempt, ())
        self.transaction.fail(closed, self.now(), interrupted=False)
        self._event("failed", closed, {"category": category, "type": type(error).__name__})

    def _event(self, kind: str, attempt: AttemptRecord, data: dict[str, object]) -> None:
        record, now = self.original.record, self.settings.clock.time()
        event = new_event(
            kind,
            now,
            step=record.name,
            version=record.version,
            digest=record.content_digest,
            attempt=attempt.attempt,
            data=data,
        )
        write_event(self.prefix, event)
