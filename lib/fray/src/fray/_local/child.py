"""One child process as the driver sees it: started, watched, killed with everything it started.

All methods run in the hub's thread unless they say otherwise.
"""

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fray._local import guardian as guardian_module
from fray._local.frames import FrameReader, Kind, send_frame
from fray._local.guardian import MARK_VARIABLE, kill_quietly, marked_processes
from fray._local.hub import Hub
from fray._logs import LogTail
from fray._overlay import VARIABLE

logger = logging.getLogger(__name__)

_PIPE_BYTES: Final = 1 << 16
_FALLBACK_POLL_S: Final = 0.05
_SEND_INLINE_BYTES: Final = 65_536


def worker_command(environ: Mapping[str, str]) -> list[str]:
    """Return the command of a child that speaks frames; the descriptor of its socket is appended.

    The driver's search path goes along, so whatever the driver can import the child can. ``-P`` keeps the current
    folder from shadowing modules before that.
    """
    path = [entry if entry else os.getcwd() for entry in sys.path]
    if VARIABLE in environ:
        path.insert(0, environ[VARIABLE])
    code = f"import sys; sys.path[:] = {path!r}; from fray._local.worker_main import main; main(sys.argv)"
    return [sys.executable, "-P", "-u", "-c", code, str(os.getpid())]


class Guardian:
    """The process that kills our children when we die; see ``fray._local.guardian``."""

    def __init__(self) -> None:
        outer = os.environ.get(MARK_VARIABLE)
        self.mark = secrets.token_hex(8)
        # Marks are nested: whoever cleans up an outer driver also finds what its jobs started.
        self.mark_value = f"{outer}:{self.mark}" if outer else self.mark
        self._groups: set[int] = set()
        self._folders: set[str] = set()
        self._start()

    def _start(self) -> None:
        read_end, self._write_end = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", guardian_module.__file__, str(read_end), self.mark],
            pass_fds=(read_end,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        os.close(read_end)
        self.pid = self._process.pid

    def add(self, group: int) -> None:
        """Tell it of a process group."""
        self._groups.add(group)
        self._tell(b"+%d\n" % group)

    def add_folder(self, path: str) -> None:
        """Tell it of a folder to remove when we are gone."""
        self._folders.add(path)
        self._tell(b"F%s\n" % os.fsencode(path))

    def remove(self, group: int) -> None:
        """Tell it that a process group is gone."""
        self._groups.discard(group)
        self._tell(b"-%d\n" % group)

    def _tell(self, line: bytes) -> None:
        try:
            os.write(self._write_end, line)
        except BrokenPipeError:
            # Somebody killed the guardian. Our children must not go unguarded.
            os.close(self._write_end)
            self._process.wait()
            self._start()
            folders = b"".join(b"F%s\n" % os.fsencode(path) for path in self._folders)
            os.write(self._write_end, b"".join(b"+%d\n" % known for known in self._groups) + folders)

    def close(self) -> None:
        """Let it kill what is left, and end it."""
        os.close(self._write_end)
        self._process.wait()


class Child:
    """A process in a session of its own, with a log pipe and optionally a message socket.

    Args:
        hub: The hub that watches it.
        guardian: Told of the process group.
        command: What to run.
        environ: Its whole environment.
        cwd: Its folder; None is ours.
        with_socket: Whether it speaks frames on a socket whose descriptor number is appended to the command.
        extra_fds: Descriptors that it inherits.
        on_frame: Called for every message.
        on_exit: Called once, when it has ended, its output is read and its group is dead.
    """

    def __init__(
        self,
        hub: Hub,
        guardian: Guardian,
        command: Sequence[str],
        environ: Mapping[str, str],
        cwd: str | None,
        *,
        with_socket: bool,
        extra_fds: Sequence[int] = (),
        on_frame: Callable[["Child", Kind, int, bytes], None],
        on_exit: Callable[["Child", int | None, int | None], None],
    ) -> None:
        self._hub = hub
        self._guardian = guardian
        self._on_frame = on_frame
        self._on_exit = on_exit
        self.log: LogTail | None = None
        self.ended = False
        self.doomed = False  # killed: what it still says counts, but it gets no other task
        self._send_lock = threading.Lock()
        self.mark = secrets.token_hex(8)
        environ = dict(environ) | {MARK_VARIABLE: f"{guardian.mark_value}:{self.mark}"}
        log_read, log_write = os.pipe()
        self.socket: socket.socket | None = None
        fds = list(extra_fds)
        command = list(command)
        theirs = None
        if with_socket:
            self.socket, theirs = socket.socketpair()
            fds.append(theirs.fileno())
            command.append(str(theirs.fileno()))
        try:
            self.process = subprocess.Popen(
                command,
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log_write,
                stderr=log_write,
                pass_fds=fds,
                start_new_session=True,
            )
        except BaseException:
            os.close(log_read)
            if self.socket is not None:
                self.socket.close()
            raise
        finally:
            os.close(log_write)
            if theirs is not None:
                theirs.close()
        self.pid = self.process.pid
        guardian.add(self.pid)
        self._log_read = log_read
        os.set_blocking(log_read, False)
        hub.watch(log_read, self._read_log)
        if self.socket is not None:
            self._reader = FrameReader(self.socket)
            hub.watch(self.socket, self._read_socket)
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        if self._pidfd is not None:
            hub.watch(self._pidfd, self._ended)

    def send(self, frames: Sequence[tuple[Kind, int, bytes]]) -> None:
        """Send messages in order. Large ones wait for the child, so they go from a thread of their own."""
        if sum(len(payload) for _, _, payload in frames) < _SEND_INLINE_BYTES:
            self._send_all(frames)
        else:
            threading.Thread(target=self._send_all, args=(frames,), name="fray-send", daemon=True).start()

    def _send_all(self, frames: Sequence[tuple[Kind, int, bytes]]) -> None:
        assert self.socket is not None
        try:
            with self._send_lock:
                for kind, number, payload in frames:
                    send_frame(self.socket, kind, number, payload)
        except OSError:
            pass  # the child has died; its exit tells the story

    def kill(self) -> None:
        """Kill the process, its group, and whatever carries its mark. Safe in any thread, at any time."""
        self.doomed = True
        if not self.ended:
            kill_quietly(os.killpg, self.pid)
            for number in marked_processes(self.mark):
                kill_quietly(os.kill, number)

    def terminate(self) -> None:
        """Ask the process group to end. Safe in any thread."""
        if not self.ended:
            try:
                os.killpg(self.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                pass  # it has ended

    def _read_log(self) -> None:
        while True:
            try:
                data = os.read(self._log_read, _PIPE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._hub.unwatch(self._log_read)
                return
            if self.log is not None:
                self.log.feed(data)
            if len(data) < _PIPE_BYTES:
                return

    def _read_socket(self) -> None:
        for kind, number, payload in self._reader.read_available():
            # What the child printed before it answered is in the pipe by now: logs never trail the result.
            self._read_log()
            self._on_frame(self, kind, number, payload)
        if self._reader.closed and self.socket is not None:
            self._hub.unwatch(self.socket)
            if self._pidfd is None:
                self._wait_without_pidfd()

    def _wait_without_pidfd(self) -> None:
        while self.process.poll() is None:
            time.sleep(_FALLBACK_POLL_S)
        self._ended()

    def _ended(self) -> None:
        """The process has ended: take its last words, kill what it left behind, then bury it."""
        if self.ended:
            return
        if self._pidfd is not None:
            self._hub.unwatch(self._pidfd)
            os.close(self._pidfd)
        if self.socket is not None:
            self._read_socket()
            self._hub.unwatch(self.socket)
            self.socket.close()
        # Before the process is reaped its number cannot be reused, so its group is certainly ours.
        kill_quietly(os.killpg, self.pid)
        for number in marked_processes(self.mark):
            if number != self.pid:
                kill_quietly(os.kill, number)
        self.ended = True
        code = self.process.wait()
        self._read_log()
        self._hub.unwatch(self._log_read)
        os.close(self._log_read)
        if self.log is not None:
            self.log.finish()
        self._guardian.remove(self.pid)
        self._on_exit(self, code if code >= 0 else None, -code if code < 0 else None)
