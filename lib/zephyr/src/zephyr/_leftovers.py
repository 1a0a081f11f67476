"""Names that tell whose they are, so that what a killed driver left can be removed by the next one.

An execution id names the host, the process and its start time. A scratch folder or staged file whose id belongs to a
process of this host that is gone is garbage; one of another host is left alone, since nothing here can tell.
"""

import functools
import hashlib
import os
import re
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

from zephyr._files import local_path, remove_file, remove_tree
from zephyr._paths import is_remote

_ID = re.compile(r"(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}")
_STAGED = re.compile(rf"\..+\.zephyr-{_ID.pattern}\.[0-9-]+w*\.tmp")


@functools.cache
def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = socket.gethostname() + (boot.read_text() if boot.exists() else "")
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _start_time(pid: int) -> int | None:
    """Start time of a live process in clock ticks; 0 where that cannot be known; None when it is gone."""
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return 0
        return 0
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def execution_id() -> str:
    """A fresh id of an execution of this process."""
    return f"{_host()}-{os.getpid()}-{_start_time(os.getpid()) or 0}-{secrets.token_hex(4)}"


def is_mine(execution: str) -> bool:
    """Whether this very process is the driver of an execution."""
    return execution.startswith(f"{_host()}-{os.getpid()}-{_start_time(os.getpid()) or 0}-")


def is_dead(match: re.Match[str]) -> bool:
    """Whether the process in an id is known to be gone."""
    if match["host"] != _host():
        return False
    start = _start_time(int(match["pid"]))
    return start is None or start not in (0, int(match["start"]))


def sweep(scratch: str, outputs: Iterable[str]) -> int:
    """Remove scratch folders and staged files of dead executions; returns how many."""
    removed = 0
    for entry in os.scandir(scratch) if os.path.isdir(scratch) else ():
        if (match := _ID.fullmatch(entry.name)) and is_dead(match):
            remove_tree(entry.path)
            removed += 1
    folders = {os.path.dirname(local_path(path)) or "." for path in outputs if not is_remote(path)}
    for folder in sorted(folders):
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            if (match := _STAGED.fullmatch(entry.name)) and is_dead(match):
                remove_file(entry.path)
                removed += 1
    return removed
