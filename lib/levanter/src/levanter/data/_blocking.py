"""Run coroutines from ordinary code, on one event loop that lives in a daemon thread.

A loop per call would tear down every open read; a pool of helper threads deadlocks when calls nest deeper than the
pool. One shared loop does neither; a call from inside a running loop, which could wait for itself, gets its own.
"""

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


@functools.cache
def _shared_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    started = threading.Event()
    loop.call_soon(started.set)
    threading.Thread(target=loop.run_forever, name="levanter-data-loop", daemon=True).start()
    started.wait()
    return loop


def blocking_wait[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; exceptions come back with their own traceback.

    Safe to call from any thread, also while an event loop is running in it (that loop is then blocked).
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run_coroutine_threadsafe(coroutine, _shared_loop()).result()
    # This thread's loop is blocked while we wait, and the shared one may wait for it: neither can run the coroutine.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
