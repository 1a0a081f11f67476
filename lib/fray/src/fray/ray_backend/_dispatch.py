"""The one thread that moves the state of the Ray backend in a driver.

Ray calls back from threads of its own in which nothing may block; so a callback only puts a function here.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import ray

logger = logging.getLogger(__name__)

_queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
_started: list[threading.Thread] = []
_lock = threading.Lock()


def post(fn: Callable[[], object]) -> None:
    """Run ``fn`` in the dispatch thread soon, in the order of posting."""
    with _lock:
        if not _started:
            _started.append(threading.Thread(target=_run, name="fray-ray", daemon=True))
            _started[0].start()
    _queue.put(fn)


def when_ready(ref: "ray.ObjectRef[Any]", fn: Callable[[Any, BaseException | None], object]) -> None:
    """Call ``fn(value, None)`` or ``fn(None, error)`` in the dispatch thread when ``ref`` has an outcome."""

    def ready(future: Any) -> None:
        error = future.exception()
        value = None if error is not None else future.result()
        post(lambda: fn(value, error))

    ref.future().add_done_callback(ready)


def _run() -> None:
    while True:
        fn = _queue.get()
        try:
            fn()
        except Exception:  # thread boundary: one broken handler must not stop all the others
            logger.exception("a handler of the Ray backend failed")


def _forget_after_fork() -> None:
    global _lock, _queue
    _lock, _queue = threading.Lock(), queue.SimpleQueue()
    _started.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
