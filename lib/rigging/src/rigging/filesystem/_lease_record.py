"""The lease file and the identity of a holder: plain data, and the question whether a process still lives."""

import functools
import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from typing import Self

from rigging.errors import LeaseFormatError


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who holds a lease: enough to tell two holders apart, and to see that one on this machine is dead.

    Args:
        host: Host name.
        boot_id: Kernel boot and process-number space; empty where the system tells neither.
        pid: Process number.
        process_start: Start of the process in clock ticks since boot; 0 where unknown. Guards against reuse of ``pid``.
        nonce: Random text; two leases in one process are two holders.
    """

    host: str
    boot_id: str
    pid: int
    process_start: int
    nonce: str

    @classmethod
    def current(cls) -> Self:
        """Return a new holder for this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot_id(), pid, process_start(pid) or 0, os.urandom(16).hex())

    def shares_machine(self, other: "LeaseHolder") -> bool:
        """Tell whether both run on the same boot of one kernel and see the same process numbers."""
        return bool(self.boot_id) and (self.host, self.boot_id) == (other.host, other.boot_id)

    def process_is_gone(self) -> bool:
        """Tell whether the process is certainly dead; only meaningful on the holder's own machine."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        start = process_start(self.pid)
        # start is None for a zombie, which runs no code; a different start is another process with a reused number.
        return self.process_start != 0 and start != self.process_start

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


@functools.cache
def _boot_id() -> str:
    # The number space is part of it: two containers on one kernel may both have a process 7.
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return f"{stream.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None when it is gone, a zombie, or there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # The command name is in parentheses and may hold anything; fields count from behind it.
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Content of a lease file. ``holder`` is None after a release; the epoch stays."""

    holder: LeaseHolder | None
    epoch: int
    heartbeat_at: float

    def beaten(self, at: float) -> "LeaseRecord":
        """Return the record with a new heartbeat time."""
        return replace(self, heartbeat_at=at)

    def to_bytes(self) -> bytes:
        """Return the JSON text."""
        holder = None if self.holder is None else asdict(self.holder)
        raw = {"holder": holder, "epoch": self.epoch, "heartbeat_at": self.heartbeat_at}
        return (json.dumps(raw, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Self:
        """Read a record; unknown fields are ignored.

        Raises:
            LeaseFormatError: The bytes are no lease.
        """
        try:
            raw = json.loads(data)
            holder = raw["holder"]
            if holder is not None:
                holder = LeaseHolder(
                    str(holder["host"]),
                    str(holder["boot_id"]),
                    int(holder["pid"]),
                    int(holder["process_start"]),
                    str(holder["nonce"]),
                )
            return cls(holder, int(raw["epoch"]), float(raw["heartbeat_at"]))
        except (ValueError, KeyError, TypeError) as error:
            raise LeaseFormatError(path, f"{type(error).__name__}: {error}") from error
