"""A local port that leads to a service elsewhere, for as long as somebody needs it.

The forwarding program runs in a session of its own, so that its whole family can be ended with it. What it says goes to
the log. When it ends by itself it is started again, with growing pauses. Nothing is left when the context is left, not
even after a failed start.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from typing import IO, Final, Protocol

from rigging.errors import TransportError
from rigging.redaction import redact_string
from rigging.timing import Clock, Deadline, ExponentialBackoff, SystemClock

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.05
_TERM_S: Final = 5.0


class ForwardTarget(Protocol):
    """Something that a program can forward a local port to."""

    def command(self, local_port: int) -> list[str]:
        """Return the words of the program that forwards ``local_port`` of 127.0.0.1."""
        ...


def _spawn(words: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


@contextlib.contextmanager
def open_tunnel(
    target: ForwardTarget,
    *,
    local_port: int | None = None,
    timeout: float = 60.0,
    watchdog: bool = True,
    spawn: Callable[[Sequence[str]], "subprocess.Popen[bytes]"] = _spawn,
    clock: Clock = SystemClock(),
) -> Generator[str]:
    """Forward a local port to ``target`` while the body runs.

    Args:
        target: Where to.
        local_port: Which port; default a free one.
        timeout: Seconds until the port must be open.
        watchdog: Whether to start the program again when it ends.
        spawn: Starts the program in a session of its own, stdout and stderr in one pipe.
        clock: Source of time.
    Yields:
        ``http://127.0.0.1:<port>``.
    Raises:
        TimeoutError: The port did not open in time.
        TransportError: The program is not installed.
    """
    port = _free_port() if local_port is None else local_port
    tunnel = _Tunnel(target.command(port), port, spawn, clock)
    try:
        tunnel.start()
        tunnel.wait_open(timeout)
        if watchdog:
            tunnel.watch()
        yield f"http://127.0.0.1:{port}"
    finally:
        tunnel.close()


class _Tunnel:
    def __init__(
        self,
        words: Sequence[str],
        port: int,
        spawn: Callable[[Sequence[str]], "subprocess.Popen[bytes]"],
        clock: Clock,
    ) -> None:
        self._words = words
        self._port = port
        self._spawn = spawn
        self._clock = clock
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        with self._lock:
            if self._done.is_set():
                return
            try:
                self._process = self._spawn(self._words)
            except FileNotFoundError as error:
                raise TransportError(self._words[0], "that program on PATH", "Install it.") from error
            if self._process.stdout is not None:
                self._background(_pump, self._process.stdout, self._words[0])

    def watch(self) -> None:
        self._background(self._watch)

    def _background(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, name=f"tunnel {self._port}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_open(self, timeout_s: float) -> None:
        deadline = Deadline.from_seconds(timeout_s, self._clock)
        while not _is_open(self._port):
            process = self._process
            if process is not None and process.poll() is not None:
                raise TimeoutError(
                    f"tunnel program ended: program={self._words[0]!r}, exit code={process.returncode}; expected port "
                    f"{self._port} to open. Its words are in the log."
                )
            deadline.raise_if_expired(
                f"tunnel did not open: program={self._words[0]!r}, port={self._port}; expected it open within "
                f"{timeout_s} s. Its words are in the log."
            )
            self._clock.sleep(_POLL_S)

    def _watch(self) -> None:
        pauses = ExponentialBackoff(initial=1.0, maximum=5.0, factor=1.5, jitter=0.1)
        while not self._done.is_set():
            process = self._process
            if process is None or process.poll() is None:
                self._done.wait(_POLL_S * 4)
                continue
            logger.warning("%s ended with code %s; starting it again", self._words[0], process.returncode)
            if self._done.wait(pauses.next_interval()):
                return
            try:
                self.start()
            except (OSError, TransportError) as error:
                logger.warning("tunnel cannot be started again: %s", error)

    def close(self) -> None:
        self._done.set()
        with self._lock:
            process = self._process
        if process is not None:
            _end_family(process)
        for thread in self._threads:
            thread.join(_TERM_S)


def _end_family(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_S)
            # Its children may outlive it: what is left of the family goes at once.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return


def _pump(stream: IO[bytes], name: str) -> None:
    with stream:
        for line in stream:
            logger.info("%s: %s", name, redact_string(line.decode("utf-8", "replace").rstrip()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
