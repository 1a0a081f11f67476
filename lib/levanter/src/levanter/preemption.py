"""Turning a termination signal into an orderly stop.

The first signal sets a flag that the training loop reads between steps; a second one gets the default behaviour, so a
stuck run can still be ended.
"""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType

EXIT_PREEMPTED = 75
"""Exit code after a preemption whose state was saved (``EX_TEMPFAIL``: try again)."""


class PreemptionFlag:
    """Set once a signal arrives.

    Attributes:
        signal_name: The signal, or None.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def is_set(self) -> bool:
        """Whether a signal arrived."""
        return self.signal_name is not None


@contextlib.contextmanager
def watch_for_preemption(signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)) -> Generator[PreemptionFlag]:
    """Catch the signals for the length of a block.

    Off the main thread Python allows no handlers; the flag then never gets set and the caller's cancel event is the way
    to stop.
    """
    flag = PreemptionFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    previous = {number: signal.getsignal(number) for number in signals}

    def handle(number: int, frame: FrameType | None) -> None:
        flag.signal_name = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)

    for number in signals:
        signal.signal(number, handle)
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
