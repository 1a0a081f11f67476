"""Signs of life: a worker leaves a small file beside its task every second, and watches its own memory.

The file says what the attempt has counted so far. The driver looks whether it changes, never at its time, so clocks
need not agree. Attempts shorter than a second leave none. A process that outgrows its memory leaves a last note and
ends itself: the driver then knows the peak, and the next attempt starts in a fresh process.
"""

import json
import os
import resource
import threading
from types import TracebackType
from typing import Final, Self

from zephyr.counters import Aggregation, CounterValue, CounterValues

INTERVAL_S: Final = 1.0
MEMORY_EXIT: Final = 77
"""Exit code of a worker that outgrew its memory."""

_WATCH_S: Final = 0.1
_BACKSTOP: Final = 4
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident memory of this process; its peak where the system does not tell the present value."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def beat_path(folder: str, label: str) -> str:
    """File of an attempt's signs of life."""
    return f"{folder}/beat-{label}"


def memory_path(folder: str, label: str) -> str:
    """File of the last note of a process that outgrew its memory."""
    return f"{folder}/memory-{label}"


class Pulse:
    """Beats while the block runs.

    Args:
        folder: Scratch folder of the execution.
        label: The attempt.
        counted: Its counters, which grow while it runs.
        at_once: Beat right at the start, so that the driver knows the process is up.
        limit_bytes: Resident memory beyond which the process ends itself; None does not watch.
    """

    def __init__(
        self, folder: str, label: str, counted: CounterValues, *, at_once: bool, limit_bytes: int | None
    ) -> None:
        self.folder, self.label, self.counted = folder, label, counted
        self.at_once = at_once
        self.limit_bytes = limit_bytes
        self.beats = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zephyr-pulse", daemon=True)

    def __enter__(self) -> Self:
        if self.limit_bytes is not None:
            _set_backstop(self.limit_bytes)
        if self.at_once:
            self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self.beats:
            _unlink(beat_path(self.folder, self.label))

    def _run(self) -> None:
        waited = 0.0
        step = INTERVAL_S if self.limit_bytes is None else _WATCH_S
        while not self._over.wait(step):
            waited += step
            if self.limit_bytes is not None and (size := resident_bytes()) > self.limit_bytes:
                self._give_up(size, self.limit_bytes)
            if waited >= INTERVAL_S - 1e-6:
                waited = 0.0
                self._beat()

    def _beat(self) -> None:
        self.beats += 1
        path = beat_path(self.folder, self.label)
        live = {name: list(seen) for name, seen in self.counted.copy().items()}
        try:
            with open(path + ".tmp", "w", encoding="utf-8") as stream:
                json.dump({"beat": self.beats, "rss": resident_bytes(), "live": live}, stream)
            os.replace(path + ".tmp", path)
        except OSError:
            # The execution may be over and its folder gone; a full disk looks like silence, which has a limit.
            return

    def _give_up(self, size: int, limit: int) -> None:
        try:
            with open(memory_path(self.folder, self.label), "w", encoding="utf-8") as stream:
                json.dump({"peak": size, "limit": limit}, stream)
        finally:
            os._exit(MEMORY_EXIT)


def _set_backstop(limit_bytes: int) -> None:
    """Let the system refuse memory far beyond the limit, for what grows faster than the watch looks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _BACKSTOP * limit_bytes + (2 << 30)
    if soft == resource.RLIM_INFINITY or soft > wanted:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def read_beat(folder: str, label: str) -> tuple[int, int, CounterValues] | None:
    """(number of the beat, resident bytes, counters so far) of an attempt; None when it left none."""
    try:
        with open(beat_path(folder, label), "rb") as stream:
            note = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    live = {
        name: CounterValue(None if how is None else Aggregation(how), value, observations)
        for name, (how, value, observations) in note["live"].items()
    }
    return note["beat"], note["rss"], live


def read_memory_note(folder: str, label: str) -> tuple[int, int] | None:
    """(peak, limit) in bytes that a process noted before it ended itself; None when it did not."""
    try:
        with open(memory_path(folder, label), "rb") as stream:
            note = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    return note["peak"], note["limit"]
