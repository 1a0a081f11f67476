"""What an exit code says, and whether starting again can help; pure functions.

code              kind          restart
0                 done          no
1                 failed        no     storage or data: needs a person
2                 config        no     the same configuration fails the same way
3                 diverged      no
75                preempted     yes    the state was saved
124               stalled       yes    the watchdog left, or the supervisor ended a process without a heartbeat
125               device        yes    a sticky device fault: only a new process gets rid of it
killed by signal  crashed       yes    out of memory, segmentation fault, ``kill -9``
any other         failed        no
"""

import enum
from dataclasses import dataclass


class ExitKind(enum.StrEnum):
    """Why a process ended."""

    DONE = "done"
    FAILED = "failed"
    CONFIG = "config"
    DIVERGED = "diverged"
    PREEMPTED = "preempted"
    STALLED = "stalled"
    DEVICE = "device"
    CRASHED = "crashed"


BY_CODE = {
    0: ExitKind.DONE,
    2: ExitKind.CONFIG,
    3: ExitKind.DIVERGED,
    75: ExitKind.PREEMPTED,
    124: ExitKind.STALLED,
    125: ExitKind.DEVICE,
}
RESTARTABLE = frozenset({ExitKind.PREEMPTED, ExitKind.STALLED, ExitKind.DEVICE, ExitKind.CRASHED})


def classify_exit(code: int, *, stalled: bool = False) -> ExitKind:
    """The kind of an exit.

    Args:
        code: As :mod:`subprocess` gives it: negative for a signal; a shell's ``128 + signal`` counts as one too.
        stalled: The supervisor ended the process because its heartbeat stopped.

    Example:
        >>> [str(classify_exit(code)) for code in (0, 1, 75, -9, 137)]
        ['done', 'failed', 'preempted', 'crashed', 'crashed']
    """
    if stalled:
        return ExitKind.STALLED
    if code < 0 or 128 < code <= 128 + 64:
        return ExitKind.CRASHED
    return BY_CODE.get(code, ExitKind.FAILED)


@dataclass(frozen=True)
class Attempt:
    """One life of the run.

    Attributes:
        code: Exit code.
        kind: What it says.
        first_step: Updates done when it began, as far as known.
        last_step: Updates done when it ended.
    """

    code: int
    kind: ExitKind
    first_step: int
    last_step: int


def verdict(attempts: list[Attempt], *, max_restarts: int, max_without_progress: int) -> str | None:
    """Why the run is not started again, or None to start it again.

    Example:
        >>> verdict([Attempt(-9, ExitKind.CRASHED, 0, 4)], max_restarts=3, max_without_progress=2) is None
        True
        >>> verdict([Attempt(0, ExitKind.DONE, 0, 9)], max_restarts=3, max_without_progress=2)
        'done'
    """
    last = attempts[-1]
    if last.kind not in RESTARTABLE:
        return str(last.kind)
    if len(attempts) > max_restarts:
        return f"{max_restarts} restarts are used up"
    idle = [attempt.last_step <= attempt.first_step for attempt in attempts[-max_without_progress:]]
    if len(idle) == max_without_progress and all(idle):
        return f"{max_without_progress} attempts in a row made no progress"
    return None
