"""The guardian: a tiny process that outlives its driver by a moment, to take the driver's children along.

A driver that is killed with SIGKILL can clean up nothing itself. So every driver that starts children first starts
this program and keeps the other end of a pipe. When the pipe closes (the kernel does that however the driver died),
the guardian kills the process groups it was told of and then everything that carries the driver's mark in its
environment, wherever it moved: processes that changed their group or session, and children of children.

It runs as a plain script (``python -S -E guardian.py FD MARK``) so that it starts in milliseconds and imports nothing
of ours.
"""

import os
import select
import signal
import sys
from collections.abc import Callable

MARK_VARIABLE = "FRAY_MARK"
_POLL_S = 1.0


def marked_processes(mark: str) -> list[int]:
    """Return the numbers of all processes whose initial environment carries ``mark``, except this one."""
    found = []
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []  # no /proc: the process groups are all we know
    for entry in entries:
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as stream:
                    environ = stream.read()
            except OSError:
                continue  # gone, or not ours
            if _carries(environ, mark):
                found.append(int(entry))
    return found


def _carries(environ: bytes, mark: str) -> bool:
    name = MARK_VARIABLE.encode() + b"="
    values = [item[len(name) :] for item in environ.split(b"\0") if item.startswith(name)]
    return any(mark.encode() in value.split(b":") for value in values)


def kill_quietly(kill: Callable[[int, int], object], number: int) -> None:
    """Send SIGKILL to a process or group that may be gone."""
    try:
        kill(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, which is what we want


def kill_everything(groups: set[int], mark: str) -> None:
    """Kill the groups, then whatever carries the mark, until nothing new appears."""
    for group in groups:
        kill_quietly(os.killpg, group)
    for _ in range(20):
        found = marked_processes(mark)
        if not found:
            return
        for number in found:
            kill_quietly(os.kill, number)


def remove_folder(path: str) -> None:
    """Remove a folder with all it holds; what cannot be removed stays."""
    for root, folders, files in os.walk(path, topdown=False):
        for name in files:
            try:
                os.unlink(os.path.join(root, name))
            except OSError:
                pass  # the driver's own clean-up was faster
        for name in folders:
            try:
                os.rmdir(os.path.join(root, name))
            except OSError:
                pass  # as above, or a link
    try:
        os.rmdir(path)
    except OSError:
        pass  # as above


def main(descriptor: int, mark: str, detach: bool = False) -> None:
    """Serve one driver: lines ``+GROUP`` and ``-GROUP`` on the pipe; act when it closes or the parent is gone.

    With ``detach`` it leaves its parent at once, and goes by the pipe alone.
    """
    if detach and os.fork() != 0:
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    groups: set[int] = set()
    folders: set[str] = set()
    pending = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], _POLL_S)
        if not ready:
            # Somebody may have inherited the pipe; a driver that is gone is gone all the same.
            if not detach and os.getppid() != parent:
                break
            continue
        data = os.read(descriptor, 65_536)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if line[:1] == b"F":
                folders.add(os.fsdecode(line[1:]))
                continue
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    kill_everything(groups, mark)
    for folder in folders:
        remove_folder(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], detach="detach" in sys.argv[3:])
