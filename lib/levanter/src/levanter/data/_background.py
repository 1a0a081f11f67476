"""Produce items in a thread, ahead of the consumer.

The queue is bounded, so a slow consumer holds the producer back; an exception in the producer reaches the consumer as
the same object with its own traceback; dropping the iterator ends the thread, because the thread holds only the queue.

At the end of the process the threads are waited for: one that is inside compiled code (a transfer to a device, a read
of TensorStore) when the interpreter goes down takes the process with it (`FATAL: exception not rethrown`).
"""

import atexit
import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar, final

T = TypeVar("T")

logger = logging.getLogger(__name__)

REPORT_EVERY_S = 10.0
EXIT_WAIT_S = 30.0

_THREADS: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


@atexit.register
def _wait_for_threads() -> None:
    """Runs after every finalizer, each of which tells its thread to stop."""
    for thread in list(_THREADS):
        thread.join(EXIT_WAIT_S)


class _Channel[T]:
    """What producer and consumer share."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.items: collections.deque[T] = collections.deque()
        self.changed = threading.Condition()
        self.stopped = False
        self.ended = False
        self.error: BaseException | None = None

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def put(self, item: T) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.capacity is None or len(self.items) < self.capacity)
            if self.stopped:
                return False
            self.items.append(item)
            self.changed.notify_all()
            return True

    def end(self, error: BaseException | None) -> None:
        with self.changed:
            self.ended = True
            self.error = error
            self.changed.notify_all()


def _produce[T](channel: _Channel[T], make: Callable[[], Iterator[T]]) -> None:
    error: BaseException | None = None
    try:
        for item in make():
            if not channel.put(item):
                return
    except BaseException as caught:  # Thread boundary: the consumer raises it.
        error = caught
    finally:
        channel.end(error)


@final
class BackgroundIterator(Iterator[T]):
    """Iterate over what ``make()`` yields, with up to ``capacity`` items made in advance.

    Args:
        make: Called in the thread; returns the iterator to drain.
        capacity: Items kept ready; ``None`` for no bound; 0 or less runs ``make()`` in the calling thread.
        name: For log messages and the thread.
    """

    def __init__(self, make: Callable[[], Iterator[T]], capacity: int | None, *, name: str = "background") -> None:
        self.wait_s = 0.0
        self._name = name
        self._direct: Iterator[T] | None = None
        self._channel: _Channel[T] = _Channel(capacity)
        self._thread: threading.Thread | None = None
        if capacity is not None and capacity <= 0:
            self._direct = make()
            return
        self._thread = threading.Thread(target=_produce, args=(self._channel, make), name=name, daemon=True)
        self._finalizer = weakref.finalize(self, self._channel.stop)
        _THREADS.add(self._thread)
        self._thread.start()

    def __iter__(self) -> "BackgroundIterator[T]":
        return self

    def __next__(self) -> T:
        began = time.perf_counter()
        try:
            if self._direct is not None:
                return next(self._direct)
            return self._take()
        finally:
            self.wait_s += time.perf_counter() - began

    def _take(self) -> T:
        channel = self._channel
        with channel.changed:
            waited = 0.0
            while not channel.items and not channel.ended and not channel.stopped:
                if not channel.changed.wait(REPORT_EVERY_S):
                    waited += REPORT_EVERY_S
                    logger.warning("%s: still waiting for the next item after %.0f s", self._name, waited)
            if channel.items:
                item = channel.items.popleft()
                channel.changed.notify_all()
                return item
            if channel.error is not None:
                raise channel.error
            raise StopIteration

    @property
    def num_ready(self) -> int:
        """Items that can be taken without waiting."""
        return len(self._channel.items)

    def stop(self, timeout_s: float | None = 10.0) -> None:
        """End the producer and wait for its thread. Idempotent; iterating afterwards ends at once."""
        self._direct = iter(()) if self._direct is not None else None
        with self._channel.changed:
            self._channel.items.clear()
        self._channel.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
