"""What a running body can know about itself, and the log lines it leaves.

A body is a plain function of its config. One that runs long should look at ``step_attempt().cancel`` now and then: it
is set when the driver loses its lease, is interrupted, or the step's time is up. Bodies that never look are stopped
anyway (an exception is raised in their thread, a remote job is terminated), only less politely.
"""

import collections
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from rigging.redaction import redact_string

LOG_TAIL_BYTES = 65_536
_LOG_TAIL_LINES = 2_000


class StepCancelled(BaseException):
    """Raised in a body's thread that goes on after ``cancel`` was set. No ``Exception``, so that bodies let it pass."""

    failure_category = "interrupted"


@dataclass(frozen=True)
class StepAttempt:
    """The attempt that the calling body belongs to.

    Attributes:
        step: ``name@version``.
        attempt: Id of the attempt record.
        epoch: Lease epoch.
        output_path: Staging folder that the body writes.
        scratch_path: Folder that survives failed attempts of the same recipe.
        retry: 0 for the first attempt under this lease.
        cancel: Set when the body should stop.
        report: Takes a line about how far the body is; None where nobody listens.
    """

    step: str
    attempt: str
    epoch: int
    output_path: str
    scratch_path: str
    retry: int = 0
    cancel: threading.Event = field(default_factory=threading.Event, compare=False)
    report: Callable[[str], None] | None = field(default=None, compare=False)


_ATTEMPT: contextvars.ContextVar[StepAttempt | None] = contextvars.ContextVar("marin_step_attempt", default=None)


def step_attempt() -> StepAttempt | None:
    """The attempt that this code runs in, or None outside of a step.

    Example:
        >>> step_attempt() is None
        True
    """
    return _ATTEMPT.get()


@contextlib.contextmanager
def attempt_scope(attempt: StepAttempt) -> Generator[StepAttempt]:
    """Make an attempt the current one for the body of a ``with``."""
    token = _ATTEMPT.set(attempt)
    try:
        yield attempt
    finally:
        _ATTEMPT.reset(token)


class _AttemptLogRouter(logging.Handler):
    """Keeps the last log lines of every running attempt apart, by the attempt that the logging thread belongs to."""

    def __init__(self) -> None:
        super().__init__(level=logging.DEBUG)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._tails: dict[str, collections.deque[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line for the attempt that the logging thread belongs to."""
        attempt = _ATTEMPT.get()
        tail = self._tails.get(attempt.attempt) if attempt is not None else None
        if tail is None:
            return
        try:
            tail.append(self.format(record))
        except Exception:  # logging's own contract: a handler never raises into the code that logs
            self.handleError(record)

    def open(self, attempt: str) -> None:
        """Begin to keep lines of an attempt."""
        self._tails[attempt] = collections.deque(maxlen=_LOG_TAIL_LINES)

    def close_tail(self, attempt: str) -> list[str]:
        """Forget an attempt and return its lines."""
        return list(self._tails.pop(attempt, ()))


_ROUTER = _AttemptLogRouter()


def start_log_tail(attempt: str) -> None:
    """Begin to keep the log lines of an attempt."""
    root = logging.getLogger()
    if _ROUTER not in root.handlers:
        root.addHandler(_ROUTER)
    _ROUTER.open(attempt)


def finish_log_tail(attempt: str, more: str = "") -> str:
    """The last lines of an attempt's log, redacted, at most 64 KiB.

    Args:
        attempt: Its id.
        more: Log lines from elsewhere, such as a remote job's.
    """
    text = "\n".join([*_ROUTER.close_tail(attempt), *more.splitlines()])
    return trim_log(redact_string(text))


def trim_log(text: str) -> str:
    """The end of a text, at most 64 KiB of UTF-8."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= LOG_TAIL_BYTES else data[-LOG_TAIL_BYTES:].decode("utf-8", "ignore")
