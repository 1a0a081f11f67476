"""Retrying with growing, jittered pauses."""

import logging
import random
from collections.abc import Callable

from rigging._timing.clock import Clock, SystemClock

_SYSTEM = SystemClock()
_FLOOR_S = 0.001
logger = logging.getLogger(__name__)


class ExponentialBackoff:
    """Pauses that grow by a factor up to a maximum, spread by jitter so that many clients do not march in step.

    Args:
        initial: First pause in seconds, ``> 0``.
        maximum: Longest pause in seconds, ``>= initial``; jitter never exceeds it.
        factor: Growth per pause, ``>= 1``.
        jitter: Relative spread, ``0 <= jitter < 1``: a pause is drawn from ``[p * (1 - jitter), p * (1 + jitter)]``.
        clock: Source of time for the waiting verbs.
        rng: Source of jitter; pass a seeded one for reproducible pauses.
    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> backoff = ExponentialBackoff(initial=1, maximum=5, factor=2, jitter=0)
        >>> [backoff.next_interval() for _ in range(4)]
        [1.0, 2.0, 4.0, 5.0]
    """

    def __init__(
        self,
        initial: float = 0.05,
        maximum: float = 1.0,
        factor: float = 1.5,
        jitter: float = 0.1,
        *,
        clock: Clock = _SYSTEM,
        rng: random.Random | None = None,
    ) -> None:
        if not (initial > 0 and maximum >= initial and factor >= 1 and 0 <= jitter < 1):
            raise ValueError(
                f"bad backoff: initial={initial}, maximum={maximum}, factor={factor}, jitter={jitter}; "
                "expected initial > 0, maximum >= initial, factor >= 1, 0 <= jitter < 1. Fix the arguments."
            )
        self.initial = float(initial)
        self.maximum = float(maximum)
        self.factor = float(factor)
        self.jitter = float(jitter)
        self._clock = clock
        self._rng = rng or random.Random()
        self._next_s = self.initial

    def next_interval(self) -> float:
        """Return the next pause in seconds: at least 1 ms, at most ``maximum``."""
        pause = self._next_s
        # Growing the stored pause, not a power of the attempt number, cannot overflow however long it runs.
        self._next_s = min(self.maximum, self._next_s * self.factor)
        if self.jitter:
            pause *= 1 + self.jitter * (2 * self._rng.random() - 1)
        return max(min(_FLOOR_S, self.maximum), min(self.maximum, pause))

    def reset(self) -> None:
        """Start again from the initial pause."""
        self._next_s = self.initial

    def copy(self) -> "ExponentialBackoff":
        """Return an independent backoff with the same settings, at its start."""
        return ExponentialBackoff(
            self.initial,
            self.maximum,
            self.factor,
            self.jitter,
            clock=self._clock,
            rng=random.Random(self._rng.random()),
        )

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Poll ``condition`` until it holds or ``timeout`` seconds have passed.

        The condition is tested before the deadline is, so a condition that holds always wins.
        """
        end_s = self._clock.monotonic() + timeout
        while True:
            if condition():
                return True
            left_s = end_s - self._clock.monotonic()
            if left_s <= 0:
                return False
            self._clock.sleep(min(left_s, self.next_interval()))

    def wait_until_or_raise(self, condition: Callable[[], bool], timeout: float, message: str) -> None:
        """Poll ``condition``; raise when it does not come true.

        Raises:
            TimeoutError: ``timeout`` seconds passed; the text is ``message``.
        """
        if not self.wait_until(condition, timeout):
            raise TimeoutError(message)


def retry_with_backoff[T](
    fn: Callable[[], T],
    *,
    retryable: Callable[[Exception], bool],
    max_attempts: int = 10,
    max_elapsed: float | None = None,
    backoff: ExponentialBackoff | None = None,
    on_retry: Callable[[Exception, int], None] | None = None,
    operation: str = "",
    clock: Clock = _SYSTEM,
) -> T:
    """Call ``fn`` until it succeeds, fails in a way that is not worth retrying, or patience ends.

    Args:
        fn: The call.
        retryable: Tells from an exception whether another attempt may help.
        max_attempts: Attempts in all, ``>= 1``.
        max_elapsed: Seconds after which no further attempt starts; None for no limit.
        backoff: Pauses between attempts; copied, so the caller's object is left alone.
        on_retry: Called with the exception and the number of the attempt that failed, before each pause.
        operation: Name for the log line.
        clock: Source of time.
    Returns:
        What ``fn`` returned.
    Raises:
        Exception: The last error of ``fn``, unchanged.
        ValueError: ``max_attempts < 1``.

    Example:
        >>> attempts = iter([OSError("flaky"), None])
        >>> def call():
        ...     error = next(attempts)
        ...     if error: raise error
        ...     return "done"
        >>> retry_with_backoff(call, retryable=lambda e: isinstance(e, OSError))
        'done'
    """
    if max_attempts < 1:
        raise ValueError(f"bad retry: max_attempts={max_attempts}; expected >= 1. Pass 1 for a single attempt.")
    pauses = backoff.copy() if backoff is not None else ExponentialBackoff()
    start_s = clock.monotonic()
    attempt = 1
    while True:
        try:
            return fn()
        except Exception as error:
            pause_s = pauses.next_interval()
            too_late = max_elapsed is not None and clock.monotonic() + pause_s - start_s > max_elapsed
            if attempt >= max_attempts or too_late or not retryable(error):
                raise
            logger.info("%s failed (attempt %d of %d), again in %.3f s: %r",
                        operation or "operation", attempt, max_attempts, pause_s, error)  # fmt: skip
            if on_retry is not None:
                on_retry(error, attempt)
        clock.sleep(pause_s)
        attempt += 1
