"""Logging set up once: short lines on stderr, and the last records kept in memory for whoever asks.

A line reads ``<L><YYYYMMDD> HH:MM:SS <thread id> <logger> <message>`` with one letter for the level, so a reader and
``parse_log_level`` can tell a level at a glance. The ring buffer keeps every record, DEBUG included, whatever the
stderr level is: the detail is there when a failure needs explaining.
"""

import collections
import contextlib
import faulthandler
import logging
import signal
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from rigging import _env

RING_CAPACITY: Final = 5_000
_LETTERS: Final = {"DEBUG": "D", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "C"}
_LEVELS: Final = {letter: name for name, letter in _LETTERS.items()}
_NOISY: Final = ("httpx", "httpcore", "fsspec")


class LineFormatter(logging.Formatter):
    """Format ``<L><YYYYMMDD> HH:MM:SS <thread id> <logger> <message>`` in local time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback when the record has one."""
        letter = _LETTERS.get(record.levelname, record.levelname[:1])
        stamp = time.strftime("%Y%m%d %H:%M:%S", time.localtime(record.created))
        line = f"{letter}{stamp} {record.thread} {record.name} {record.getMessage()}"
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        for extra in (record.exc_text, record.stack_info):
            if extra:
                line += "\n" + extra
        return line


def parse_log_level(line: str) -> str | None:
    """Return the level name of a line in our format, or None when it is not one.

    Example:
        >>> parse_log_level("W20260102 03:04:05 17 app low disk"), parse_log_level("Warning: low disk")
        ('WARNING', None)
    """
    return _LEVELS.get(line[0]) if len(line) > 1 and line[1].isdigit() else None


@dataclass(frozen=True, slots=True)
class BufferedRecord:
    """One record of the ring: its running number and the formatted parts."""

    seq: int
    timestamp: float
    level: str
    logger_name: str
    message: str


class LogRingBuffer:
    """The last ``capacity`` log records, numbered, safe for many threads.

    Example:
        >>> ring = LogRingBuffer(capacity=2)
        >>> for n in range(3):
        ...     _ = ring.append(0.0, "INFO", "app", f"line {n}")
        >>> [record.message for record in ring.query()]
        ['line 1', 'line 2']
    """

    def __init__(self, capacity: int = RING_CAPACITY) -> None:
        self._records: collections.deque[BufferedRecord] = collections.deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._seq = 0

    def append(self, timestamp: float, level: str, logger_name: str, message: str) -> BufferedRecord:
        """Add a record and return it with its number (from 1)."""
        with self._lock:
            self._seq += 1
            record = BufferedRecord(self._seq, timestamp, level, logger_name, message)
            self._records.append(record)
            return record

    def query(self, *, prefix: str = "", limit: int = 200) -> list[BufferedRecord]:
        """Return the newest ``limit`` records whose logger name begins with ``prefix``, oldest first."""
        return self.query_since(0, prefix=prefix, limit=limit)

    def query_since(self, last_seq: int, *, prefix: str = "", limit: int = 200) -> list[BufferedRecord]:
        """Return the newest ``limit`` matching records with a number above ``last_seq``, oldest first."""
        with self._lock:
            found = [r for r in self._records if r.seq > last_seq and r.logger_name.startswith(prefix)]
        return found[-limit:] if limit > 0 else []


class RingBufferHandler(logging.Handler):
    """A logging handler that feeds a ``LogRingBuffer``."""

    def __init__(self, buffer: LogRingBuffer) -> None:
        super().__init__(level=logging.DEBUG)
        self.buffer = buffer

    def emit(self, record: logging.LogRecord) -> None:
        """Store the record; a record that cannot be formatted is reported the way logging does."""
        try:
            self.buffer.append(record.created, record.levelname, record.name, self.format(record))
        except Exception:  # logging's own contract: a handler never raises into the code that logs
            self.handleError(record)


_GLOBAL_BUFFER = LogRingBuffer()
_configure_lock = threading.Lock()
_stderr_handler: logging.Handler | None = None


def get_global_buffer() -> LogRingBuffer:
    """Return the ring that ``configure_logging`` feeds."""
    return _GLOBAL_BUFFER


def configure_logging(level: int | str = logging.INFO) -> LogRingBuffer:
    """Send the root logger to stderr (at ``level``) and to the ring (at DEBUG). Later calls change the level only.

    Args:
        level: A logging level, as number or name.
    Returns:
        The global ring buffer.
    """
    global _stderr_handler
    with _configure_lock:
        root = logging.getLogger()
        if _stderr_handler is None:
            for handler in list(root.handlers):
                root.removeHandler(handler)
            _stderr_handler = logging.StreamHandler(sys.stderr)
            _stderr_handler.setFormatter(LineFormatter())
            ring = RingBufferHandler(_GLOBAL_BUFFER)
            ring.setFormatter(LineFormatter())
            root.addHandler(_stderr_handler)
            root.addHandler(ring)
            for name in _NOISY:
                logging.getLogger(name).setLevel(logging.WARNING)
        _stderr_handler.setLevel(level)
        root.setLevel(logging.DEBUG)
        return _GLOBAL_BUFFER


@contextlib.contextmanager
def slow_log(logger: logging.Logger, operation: str, threshold_ms: float = 100) -> Generator[None]:
    """Warn when the body takes longer than ``threshold_ms`` milliseconds, also when it raises."""
    start_s = time.monotonic()
    try:
        yield
    finally:
        took_ms = (time.monotonic() - start_s) * 1000
        if took_ms > threshold_ms:
            logger.warning("%s was slow: %.0f ms (threshold %.0f ms)", operation, took_ms, threshold_ms)


def install_fault_handler(sigusr_dump: bool = True) -> bool:
    """Print Python stacks on a crash, and on SIGUSR1 unless something else handles that signal already.

    Args:
        sigusr_dump: Also dump every thread's stack when SIGUSR1 arrives.
    Returns:
        Whether faulthandler is on. It is left alone when ``RIGGING_DISABLE_FAULTHANDLER`` is set and not ``0``.
    """
    if (_env.NO_FAULT_HANDLER.get() or "0") != "0":
        return False
    faulthandler.enable(file=sys.__stderr__ or sys.stderr, all_threads=True)
    if sigusr_dump and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__ or sys.stderr, all_threads=True, chain=False)
    return True
