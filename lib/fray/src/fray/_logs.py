"""The last lines of a task's output, bounded in lines and bytes."""

import collections
import logging
from typing import Final

logger = logging.getLogger("fray.logs")

MAX_LINES: Final = 2_000
MAX_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 16_384


class LogTail:
    """Collects raw output and keeps its tail.

    Example:
        >>> tail = LogTail("job", max_lines=2)
        >>> tail.feed(b"one\\ntwo\\nthr"); tail.feed(b"ee\\n")
        >>> tail.lines(10)
        ['two', 'three']
    """

    def __init__(self, label: str, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> None:
        self._label = label
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._lines: collections.deque[str] = collections.deque()
        self._bytes = 0
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Add output; lines end at a newline or after 16 KiB."""
        *complete, self._partial = (self._partial + data).split(b"\n")
        for raw in complete:
            self._add(raw)
        while len(self._partial) > MAX_LINE_BYTES:
            self._add(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]

    def finish(self) -> None:
        """Take an unfinished last line as a line."""
        if self._partial:
            self._add(self._partial)
            self._partial = b""

    def lines(self, max_lines: int) -> list[str]:
        """Return the newest ``max_lines`` lines, oldest first."""
        kept = list(self._lines)
        if self._partial:
            kept.append(self._partial.decode("utf-8", "replace"))
        return kept[-max_lines:] if max_lines > 0 else []

    def _add(self, raw: bytes) -> None:
        line = raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        logger.info("[%s] %s", self._label, line)
        self._lines.append(line)
        self._bytes += len(line)
        while len(self._lines) > self._max_lines or self._bytes > self._max_bytes:
            self._bytes -= len(self._lines.popleft())
