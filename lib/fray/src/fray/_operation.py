"""A call that can be cancelled, over a future of any backend."""

import threading
import time
from collections.abc import Callable
from typing import Any

from fray.actor import ActorFuture
from fray.errors import CallCancelledError


class Operation:
    """See ``fray.actor.ActorOperation``.

    Args:
        label: Name of the call, for messages.
        inner: The answer.
        send_cancel: Tells the actor; must not block.

    Example:
        >>> from fray._future import Future
        >>> operation = Operation("demo", Future("demo"), lambda: None)
        >>> operation.cancel(), type(operation.exception()).__name__
        (True, 'CallCancelledError')
    """

    def __init__(self, label: str, inner: ActorFuture, send_cancel: Callable[[], object]) -> None:
        self._label = label
        self._inner = inner
        self._send_cancel = send_cancel
        self._lock = threading.Lock()
        self._cancelled: CallCancelledError | None = None

    def cancel(self) -> bool:
        """Cancel the call; tell whether it had no answer yet."""
        return self._cancel("cancel() was called")

    def _cancel(self, reason: str) -> bool:
        with self._lock:
            if self._cancelled is not None or self._inner.done():
                return False
            self._cancelled = CallCancelledError(self._label, reason)
        self._send_cancel()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Return the value.

        Raises:
            TimeoutError: Not there after ``timeout`` seconds; the call is cancelled.
            CallCancelledError: It was cancelled before.
            BaseException: What the call raised.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._inner.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception, or None when there is a value; waits like ``result``."""
        if self._cancelled is not None:
            return self._cancelled
        started_s = time.monotonic()
        try:
            return self._inner.exception(timeout)
        except TimeoutError:
            if self._cancel(f"no answer within timeout={timeout} s"):
                raise TimeoutError(
                    f"no answer in time, so the call was cancelled: call={self._label}, timeout={timeout} s, waited "
                    f"{time.monotonic() - started_s:.1f} s; expected an answer. Allow more time, or call with .remote, "
                    "which goes on after a timeout."
                ) from None
            return self.exception(timeout)  # the answer came just now, or somebody else cancelled

    def done(self) -> bool:
        """Tell whether the call has an outcome."""
        return self._cancelled is not None or self._inner.done()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(operation)`` when the actor answers, a cancelled call included; it must not block."""
        self._inner.add_done_callback(lambda _: fn(self))
