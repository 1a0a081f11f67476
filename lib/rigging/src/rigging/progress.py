"""Tell a person how far a long job is, without drowning a log file.

On a terminal there is one live line, redrawn in place; elsewhere a log line every ten seconds
(``MARIN_PROGRESS_INTERVAL_S``). ``MARIN_PROGRESS=0`` silences both. The rate is the average since the start, so the
estimate settles instead of jumping about.
"""

import logging
import sys
import threading
from typing import Final, Self, TextIO

from rigging import _env
from rigging.timing import Clock, SystemClock

logger = logging.getLogger(__name__)

_TTY_INTERVAL_S: Final = 0.2
_LOG_INTERVAL_S: Final = 10.0
_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


def format_quantity(value: float) -> str:
    """Return a number with three significant digits and a decimal prefix.

    Example:
        >>> format_quantity(1234567), format_quantity(42), format_quantity(0.5)
        ('1.23M', '42', '0.5')
    """
    size = abs(value)
    step = 0
    while size >= 999.5 and step < len(_PREFIXES) - 1:
        size, value, step = size / 1000, value / 1000, step + 1
    return f"{value:.3g}{_PREFIXES[step]}"


def format_seconds(seconds: float) -> str:
    """Return a length of time as ``M:SS`` or ``H:MM:SS``.

    Example:
        >>> format_seconds(75), format_seconds(3723)
        ('1:15', '1:02:03')
    """
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Progress of one job, shown while the ``with`` block runs.

    Args:
        total: Amount of work, in ``unit``; None when it is not known.
        unit: What is counted, for example ``"docs"``.
        description: What is being done.
        clock: Source of time.
        stream: Where the live line goes; log lines go to the logger ``rigging.progress``.
        interval_s: Least seconds between two lines; default 0.2 on a terminal, 10 elsewhere.

    Example:
        >>> import io
        >>> with Progress(4, unit="files", description="copy", stream=io.StringIO()) as progress:
        ...     progress.advance(1); progress.update(4, skipped=0)
        >>> progress.done
        4
    """

    def __init__(
        self,
        total: float | None,
        *,
        unit: str,
        description: str,
        clock: Clock = SystemClock(),
        stream: TextIO | None = None,
        interval_s: float | None = None,
    ) -> None:
        self.total = total
        self.unit = unit
        self.description = description
        self.done: float = 0
        self._fields: dict[str, object] = {}
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream
        self._live = bool(getattr(self._stream, "isatty", lambda: False)())
        self._quiet = _env.PROGRESS.get() == "0"
        self._interval_s = interval_s if interval_s is not None else _default_interval_s(self._live)
        self._lock = threading.Lock()
        self._start_s = self._shown_s = clock.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        self._start_s = self._shown_s = self._clock.monotonic()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: object) -> None:
        with self._lock:
            self._show("failed" if exc_type else "done")
            if self._live and not self._quiet:
                self._stream.write("\n")
                self._stream.flush()

    def advance(self, n: float = 1, **fields: object) -> None:
        """Add ``n`` to the work done; ``fields`` are shown beside it (a loss, a file name)."""
        with self._lock:
            self._move(self.done + n, fields)

    def update(self, done: float, **fields: object) -> None:
        """Set the work done to ``done``."""
        with self._lock:
            self._move(done, fields)

    def _move(self, done: float, fields: dict[str, object]) -> None:
        self.done = done
        self._fields.update(fields)
        if self._clock.monotonic() - self._shown_s >= self._interval_s:
            self._show("")

    def render(self, outcome: str = "") -> str:
        """Return the line that would be shown now."""
        elapsed_s = self._clock.monotonic() - self._start_s
        rate = self.done / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{self.description}: {format_quantity(self.done)}"]
        if self.total is not None:
            percent = 100 * self.done / self.total if self.total else 100.0
            parts[0] += f"/{format_quantity(self.total)} {self.unit} ({percent:.0f}%)"
        else:
            parts[0] += f" {self.unit}"
        parts.append(f"{format_quantity(rate)} {self.unit}/s")
        if outcome:
            parts.append(f"{outcome} in {format_seconds(elapsed_s)}")
        elif self.total is not None and rate > 0:
            parts.append(f"{format_seconds((self.total - self.done) / rate)} left")
        parts += [f"{key}={_field_text(value)}" for key, value in self._fields.items()]
        return ", ".join(parts)

    def _show(self, outcome: str) -> None:
        self._shown_s = self._clock.monotonic()
        if self._quiet:
            return
        line = self.render(outcome)
        if self._live:
            # Pad to the longest line so far: \r alone leaves the tail of a longer line standing.
            self._width = max(self._width, len(line))
            self._stream.write("\r" + line.ljust(self._width))
            self._stream.flush()
        else:
            logger.info("%s", line)


def _default_interval_s(live: bool) -> float:
    """Seconds between two lines where the caller does not say.

    Raises:
        ValueError: The environment variable is no positive number.
    """
    if live:
        return _TTY_INTERVAL_S
    text = _env.PROGRESS_INTERVAL.get()
    try:
        interval_s = _LOG_INTERVAL_S if text is None else float(text)
    except ValueError:
        interval_s = -1.0
    if not interval_s > 0:
        raise ValueError(f"bad environment: {_env.PROGRESS_INTERVAL.name}={text!r}; expected seconds > 0. Unset it.")
    return interval_s


def _field_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
