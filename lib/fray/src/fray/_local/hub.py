"""The hub: one thread per process that owns the state of the local backend.

It waits on sockets, pipes and process descriptors, calls the handler of whichever is ready, and runs functions that
other threads post. Everything it runs must be short.

It also starts all children, for a reason of the kernel: the parent-death signal that a child asks for is sent when the
*thread* that started it ends, so that thread must live as long as the process.
"""

import collections
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Hub:
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: collections.deque[Callable[[], object]] = collections.deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._drain_wakeups)
        self._thread = threading.Thread(target=self._run, name="fray-hub", daemon=True)
        self._thread.start()

    def post(self, fn: Callable[[], object]) -> None:
        """Run ``fn`` in the hub's thread soon, in the order of posting."""
        self._posted.append(fn)
        try:
            self._wake_out.send(b"x")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def call(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` in the hub's thread and return its value; must not be called from that thread."""
        done = threading.Event()
        outcome: list[Any] = [None, None]

        def run() -> None:
            try:
                outcome[0] = fn()
            except BaseException as error:  # handed to the caller, who raises it
                outcome[1] = error
            done.set()

        self.post(run)
        done.wait()
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def watch(self, source: Any, handler: Callable[[], object]) -> None:
        """Call ``handler`` whenever ``source`` (socket or descriptor) is readable. Hub thread only."""
        self._selector.register(source, selectors.EVENT_READ, handler)

    def unwatch(self, source: Any) -> None:
        """Stop watching; fine if it is not watched. Hub thread only."""
        try:
            self._selector.unregister(source)
        except (KeyError, ValueError):
            pass  # watched no more, or closed

    def in_thread(self) -> bool:
        """Tell whether the caller runs in the hub's thread."""
        return threading.current_thread() is self._thread

    def _drain_wakeups(self) -> None:
        try:
            while self._wake_in.recv(4096):
                pass
        except BlockingIOError:
            pass  # all taken

    def _run(self) -> None:
        while True:
            while self._posted:
                self._guarded(self._posted.popleft())
            for key, _ in self._selector.select(None if not self._posted else 0):
                self._guarded(key.data)

    def _guarded(self, fn: Callable[[], object]) -> None:
        try:
            fn()
        except Exception:  # thread boundary: one broken handler must not stop all the others
            logger.exception("a handler of the fray hub failed")


_hub: list[Hub] = []
_lock = threading.Lock()


def get_hub() -> Hub:
    """Return this process's hub, started when first asked for."""
    with _lock:
        if not _hub:
            _hub.append(Hub())
        return _hub[0]


def _forget_after_fork() -> None:
    # Threads do not survive a fork; the child must not post to a hub that nobody runs.
    global _lock
    _lock = threading.Lock()
    _hub.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
