"""Leases: one holder at a time, a number that fences off the previous one, and quick recovery from crashes.

A lock that a crashed process keeps for ever is useless, and one that expires by itself can have two holders at once:
the old one may be asleep, not dead. The way out has three parts.

*Epoch.* Every acquisition raises a counter in the lease file, also across releases. Whoever writes under a lease
stamps its epoch, and a reader or store that has seen epoch 8 refuses 7. The sleeper wakes up harmless.

*Heartbeat.* The holder rewrites the file every ``heartbeat_s``. Each rewrite is a compare-and-swap on the version that
the holder wrote last, so a holder whose lease was taken cannot miss it: ``LeaseLostError``.

*Death.* A holder on another machine is presumed dead when *we have watched* its file stay unchanged for ``timeout_s``
of our own monotonic clock. Nobody's wall clock is trusted, so a skewed writer can neither hold a lease for ever nor
lose it early; ``heartbeat_at`` is for people. A holder on this machine and boot whose process is gone is dead at once.

References:
    Gray and Cheriton, Leases, SOSP 1989; Burrows, The Chubby lock service, OSDI 2006, section 2.4 (sequencers).
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from rigging.errors import ConditionalWriteError, LeaseHeldError, LeaseLostError
from rigging.filesystem._lease_record import LeaseHolder, LeaseRecord
from rigging.filesystem.conditional import ConditionalObject, VersionedBytes, conditional_object
from rigging.timing import Clock, SystemClock

__all__ = [
    "HeldLease",
    "Lease",
    "LeaseHeldError",
    "LeaseHolder",
    "LeaseLostError",
    "LeaseState",
]

logger = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S: Final = 90.0
HEARTBEAT_INTERVAL_S: Final = 30.0
_RETRIES_PER_HEARTBEAT: Final = 10


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What a lease file says, and what we make of it.

    Args:
        holder: Who wrote it last; None after a release.
        epoch: Number of the latest acquisition.
        heartbeat_at: Time of the last heartbeat in epoch seconds **of the holder's clock**; for people.
        live: Whether an acquisition would be refused now.
        reason: Why, in words.
    """

    holder: LeaseHolder | None
    epoch: int
    heartbeat_at: float
    live: bool
    reason: str


class Lease:
    """One participant's view of a lease; safe to share between threads.

    Args:
        path: Lease file: a local path, or a URL whose store can compare and swap.
        holder: Identity; default a new one for this process and object.
        clock: Source of time.
        timeout_s: Seconds without a heartbeat after which a holder elsewhere is presumed dead. All participants should
            agree on it.
        heartbeat_s: Seconds between heartbeats of ``hold``; well below ``timeout_s``.
        store: The object behind ``path``; for tests and other stores.
    Raises:
        ValueError: Not ``0 < heartbeat_s < timeout_s``.

    Example:
        >>> import tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "job.lease")
        >>> mine, other = Lease(path), Lease(path)
        >>> mine.try_acquire(), other.try_acquire()
        (1, None)
        >>> mine.release(); other.try_acquire()
        2
        >>> mine.refresh()
        Traceback (most recent call last):
            ...
        rigging.errors.LeaseLostError: lease lost: ...
    """

    def __init__(
        self,
        path: str,
        *,
        holder: LeaseHolder | None = None,
        clock: Clock = SystemClock(),
        timeout_s: float = HEARTBEAT_TIMEOUT_S,
        heartbeat_s: float = HEARTBEAT_INTERVAL_S,
        store: ConditionalObject | None = None,
    ) -> None:
        if not 0 < heartbeat_s < timeout_s:
            raise ValueError(
                f"bad lease times: heartbeat_s={heartbeat_s}, timeout_s={timeout_s}; expected 0 < heartbeat_s "
                "< timeout_s. Beat at least three times per timeout."
            )
        self.path = path
        self.holder = LeaseHolder.current() if holder is None else holder
        self.timeout_s = timeout_s
        self.heartbeat_s = heartbeat_s
        self.clock = clock
        self._object = conditional_object(path) if store is None else store
        self._lock = threading.RLock()
        self._record: LeaseRecord | None = None  # ours, while we hold it
        self._version: str | None = None
        self._renewed_s = 0.0
        self._watched: tuple[str, float] | None = None  # version of a foreign record, and when we first saw it

    @property
    def epoch(self) -> int | None:
        """Our epoch while we hold the lease, as far as we know; else None."""
        record = self._record
        return None if record is None else record.epoch

    @property
    def overdue(self) -> bool:
        """Whether our last successful heartbeat is so old that others may presume us dead."""
        return self._record is None or self.clock.monotonic() - self._renewed_s >= self.timeout_s

    def try_acquire(self) -> int | None:
        """Take the lease if it is free or its holder is dead; never waits for the holder.

        Returns:
            The epoch, one more than that of the previous acquisition; our present epoch when we hold it already; None
            when somebody else holds it.
        Raises:
            LeaseFormatError: The file is not a lease.
            OSError: The store failed.
        """
        with self._lock:
            if self._record is not None:
                try:
                    self.refresh()
                    return self.epoch
                except LeaseLostError as error:
                    logger.info("taking the lease anew: %s", error)
            stored = self._object.read()
            epoch, expected = 1, None
            if stored is not None:
                record = LeaseRecord.from_bytes(stored.data, self.path)
                if self._judge(stored, record)[0]:
                    return None
                epoch, expected = record.epoch + 1, stored.version
            started_s = self.clock.monotonic()
            record = LeaseRecord(self.holder, epoch, self.clock.time())
            try:
                version = self._object.write(record.to_bytes(), expected_version=expected)
            except ConditionalWriteError:
                if not self._adopt_if_ours(record, started_s):
                    return None  # somebody else was faster
            else:
                self._set_held(record, version, started_s)
            return epoch

    def refresh(self) -> None:
        """Write a heartbeat.

        Raises:
            LeaseLostError: We do not hold the lease: never acquired, released, taken by another, or the file is gone.
            OSError: The store failed; whether we still hold the lease is open until ``timeout_s`` after the last
                success.
        """
        with self._lock:
            if self._record is None:
                raise LeaseLostError(self.path, None, "it is not held by this object")
            started_s = self.clock.monotonic()
            record = self._record.beaten(self.clock.time())
            try:
                version = self._object.write(record.to_bytes(), expected_version=self._version)
            except ConditionalWriteError:
                if self._adopt_if_ours(record, started_s):
                    return
                self._record = self._version = None
                raise LeaseLostError(self.path, record.epoch, self._usurper()) from None
            self._set_held(record, version, started_s)

    def release(self) -> None:
        """Give the lease up if we hold it; the epoch stays in the file. Does nothing otherwise.

        Raises:
            OSError: The store failed; the lease then runs out by itself.
        """
        with self._lock:
            record, version = self._record, self._version
            self._record = self._version = None
            if record is None:
                return
            freed = LeaseRecord(None, record.epoch, self.clock.time())
            try:
                self._object.write(freed.to_bytes(), expected_version=version)
            except ConditionalWriteError:
                logger.info("lease %s was no longer ours at release", self.path)

    def read(self) -> LeaseState | None:
        """Return what the lease file says and whether its holder looks alive; None without a file.

        Raises:
            LeaseFormatError: The file is not a lease.

        Example:
            >>> import os, tempfile
            >>> lease = Lease(os.path.join(tempfile.mkdtemp(), "lease"))
            >>> lease.read() is None, lease.try_acquire(), lease.read().live
            (True, 1, True)
        """
        with self._lock:
            stored = self._object.read()
            if stored is None:
                return None
            record = LeaseRecord.from_bytes(stored.data, self.path)
            live, reason = self._judge(stored, record)
            return LeaseState(record.holder, record.epoch, record.heartbeat_at, live, reason)

    @contextlib.contextmanager
    def hold(
        self, *, on_lost: Callable[[LeaseLostError], object] | None = None, wait_s: float = 0.0
    ) -> Generator["HeldLease"]:
        """Hold the lease while the body runs, with a heartbeat thread; release it at the end.

        The body must call ``check()`` before every effect that others can see; a lease can be lost at any time.

        Args:
            on_lost: Called from the heartbeat thread, once, when the lease is lost.
            wait_s: Seconds to wait for the present holder.
        Raises:
            LeaseHeldError: Somebody else holds it, also after ``wait_s``.

        Example:
            >>> import os, tempfile
            >>> with Lease(os.path.join(tempfile.mkdtemp(), "lease")).hold() as held:
            ...     held.check(); held.epoch
            1
        """
        epoch = self._acquire_within(wait_s)
        held = HeldLease(self, epoch, on_lost)
        held._start()
        try:
            yield held
        finally:
            held._stop()
            self.release()

    def _acquire_within(self, wait_s: float) -> int:
        end_s = self.clock.monotonic() + wait_s
        while (epoch := self.try_acquire()) is None:
            left_s = end_s - self.clock.monotonic()
            if left_s <= 0:
                state = self.read()
                if state is None or not state.live:
                    continue  # it came free just now
                raise LeaseHeldError(self.path, str(state.holder), state.epoch, state.reason)
            self.clock.sleep(min(left_s, self.heartbeat_s / _RETRIES_PER_HEARTBEAT, 1.0))
        return epoch

    def _judge(self, stored: VersionedBytes, record: LeaseRecord) -> tuple[bool, str]:
        """Tell whether the record's holder must be respected, and why."""
        holder = record.holder
        if holder is None:
            return False, "it was released"
        if holder == self.holder:
            return self._record is not None, "we hold it" if self._record is not None else "an earlier self held it"
        if holder.shares_machine(self.holder) and holder.process_is_gone():
            return False, f"process {holder.pid} on this machine is gone"
        now_s = self.clock.monotonic()
        if self._watched is None or self._watched[0] != stored.version:
            self._watched = (stored.version, now_s)
        quiet_s = now_s - self._watched[1]
        if quiet_s >= self.timeout_s:
            return False, f"no heartbeat was seen for {quiet_s:.1f} s"
        return True, f"its last heartbeat was first seen {quiet_s:.1f} s ago"

    def _set_held(self, record: LeaseRecord, version: str, started_s: float) -> None:
        # Time counts from before the write: others may have seen the new version the moment it landed.
        self._record, self._version, self._renewed_s = record, version, started_s
        self._watched = None

    def _adopt_if_ours(self, record: LeaseRecord, started_s: float) -> bool:
        """Recognise our own write whose confirmation was lost on the way (an object store's retry)."""
        stored = self._object.read()
        if stored is None or stored.data != record.to_bytes():
            return False
        self._set_held(record, stored.version, started_s)
        return True

    def _usurper(self) -> str:
        stored = self._object.read()
        if stored is None:
            return "the lease file is gone"
        now = LeaseRecord.from_bytes(stored.data, self.path)
        return f"{now.holder} has written epoch {now.epoch}"


class HeldLease:
    """A lease that is being held, with its heartbeat thread. Made by ``Lease.hold``."""

    def __init__(self, lease: Lease, epoch: int, on_lost: Callable[[LeaseLostError], object] | None) -> None:
        self.epoch = epoch
        self.lost = threading.Event()
        self._lease = lease
        self._on_lost = on_lost
        self._reason: LeaseLostError | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {lease.path}", daemon=True)

    def check(self) -> None:
        """Make sure the lease is still ours; call it before every effect that others can see.

        Costs nothing while heartbeats are on time. When they are late (the process slept), it asks the store.

        Raises:
            LeaseLostError: The lease is lost, or cannot be proven to be ours.
        """
        if not self.lost.is_set() and self._lease.overdue:
            try:
                self._lease.refresh()
            except LeaseLostError as error:
                self._lose(error)
            except OSError as error:
                self._lose(LeaseLostError(self._lease.path, self.epoch, f"the store does not answer ({error})"))
        if self.lost.is_set():
            assert self._reason is not None
            raise LeaseLostError(self._reason.path, self._reason.epoch, self._reason.reason)

    def _start(self) -> None:
        self._thread.start()

    def _stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _lose(self, error: LeaseLostError) -> None:
        with self._lock:
            if self.lost.is_set():
                return
            self._reason = error
            self.lost.set()
        logger.warning("%s", error)
        if self._on_lost is not None:
            self._on_lost(error)

    def _beat(self) -> None:
        lease = self._lease
        pause_s = lease.heartbeat_s
        while not lease.clock.wait(self._done, pause_s) and not self.lost.is_set():
            pause_s = lease.heartbeat_s
            try:
                lease.refresh()
            except LeaseLostError as error:
                self._lose(error)
            except OSError as error:
                # A full disk or a store that is away for a moment: try again soon, give up when others may take over.
                if lease.overdue:
                    self._lose(LeaseLostError(lease.path, self.epoch, f"no heartbeat could be written ({error})"))
                pause_s = lease.heartbeat_s / _RETRIES_PER_HEARTBEAT
                logger.warning("heartbeat of %s failed, again in %.1f s: %r", lease.path, pause_s, error)
