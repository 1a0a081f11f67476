"""A file that says how far a run has come, for whoever watches from another process.

The supervisor names the file in ``LEVANTER_HEARTBEAT``; the trainer writes the number of updates done into it, at most
once a second. A file that does not change for too long means that the run is stuck, whatever the process looks like.
"""

import os

from rigging.timing import Clock, SystemClock

from levanter._env import heartbeat_path_from_environment

INTERVAL_S = 1.0


class Heartbeat:
    """Writes the file; does nothing without a path.

    Args:
        path: The file; None takes ``LEVANTER_HEARTBEAT``.
        clock: Source of time.
    """

    def __init__(self, path: str | None = None, *, clock: Clock | None = None) -> None:
        self._path = path or heartbeat_path_from_environment()
        self._clock = clock or SystemClock()
        self._last = -INTERVAL_S

    def beat(self, step: int) -> None:
        """Say that ``step`` updates are done."""
        if self._path is None or self._clock.monotonic() - self._last < INTERVAL_S:
            return
        self._last = self._clock.monotonic()
        partial = f"{self._path}.{os.getpid()}"
        with open(partial, "w", encoding="ascii") as stream:
            stream.write(str(step))
        os.replace(partial, self._path)


def read_heartbeat(path: str) -> tuple[int, float] | None:
    """``(updates done, time of the last beat in epoch seconds)``; None before the first beat.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/beat"
        >>> read_heartbeat(path) is None
        True
        >>> Heartbeat(path).beat(3)
        >>> read_heartbeat(path)[0]
        3
    """
    try:
        with open(path, encoding="ascii") as stream:
            return int(stream.read()), os.fstat(stream.fileno()).st_mtime
    except (FileNotFoundError, ValueError):
        return None
