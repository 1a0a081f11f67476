"""Runs the calls of one actor: at most ``max_concurrency`` at once, in this process."""

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

from fray._codec import through_pickle
from fray._future import Future
from fray.actor import ActorContext, set_cancellation, set_current_actor
from fray.errors import ActorUnavailableError, CallCancelledError


class ActorExecutor:
    """The calls of one actor.

    Args:
        instance: The object whose public methods are called.
        context: What ``current_actor`` returns inside.
        max_concurrency: Calls that run at once.
        strict_pickle: Send arguments and values of calls within this process through pickle, as between processes.
    """

    def __init__(
        self, instance: object, context: ActorContext, max_concurrency: int, strict_pickle: bool = False
    ) -> None:
        self._strict = strict_pickle
        self._instance = instance
        self._context = context
        self._max = max_concurrency
        self._slots = threading.Semaphore(max_concurrency)
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def invoke(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method in this thread, without taking a slot.

        Raises:
            AttributeError: No public method of that name.
        """
        if method.startswith("_"):
            raise AttributeError(f"private method: name={method!r}; expected a public method. Use one.")
        return getattr(self._instance, method)(*args, **kwargs)

    def call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        cancellation: threading.Event | None = None,
    ) -> Any:
        """Call the method in the caller's thread when a slot is free, as if it were the actor's.

        Raises:
            ActorUnavailableError: The actor was shut down.
            CallCancelledError: ``cancellation`` was set before it began.
        """
        if self._closed:
            raise ActorUnavailableError(self._context.group_name, "it was shut down")
        if self._strict:
            args, kwargs = through_pickle((args, kwargs), f"the arguments of {method}")
        with self._slots:
            if cancellation is not None and cancellation.is_set():
                raise CallCancelledError(f"{self._context.group_name}.{method}", "it had not begun")
            value = contextvars.copy_context().run(self._as_actor, method, args, kwargs, cancellation)
        return through_pickle(value, f"the result of {method}") if self._strict else value

    def end(self) -> None:
        """Set the actor's own shutdown event, so that code that waits for it goes on."""
        self._context.shutdown_event.set()

    def _as_actor(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], cancellation: threading.Event | None
    ) -> Any:
        set_current_actor(self._context)
        set_cancellation(cancellation)
        return self.invoke(method, args, kwargs)

    def submit(
        self,
        label: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        cancellation: threading.Event | None = None,
    ) -> Future:
        """Call the method in a thread of this actor."""
        future = Future(label)

        def run() -> None:
            try:
                future.set_value(self.call(method, args, kwargs, cancellation))
            except BaseException as error:  # thread boundary: the future's owner gets it
                future.set_error(error)

        if self._closed:
            future.set_error(ActorUnavailableError(self._context.group_name, "it was shut down"))
        else:
            self.post(run)
        return future

    def post(self, fn: Callable[[], object]) -> None:
        """Queue ``fn`` for one of the actor's threads, of which at most ``max_concurrency`` are started."""
        with self._lock:
            start = self._idle == 0 and self._threads < self._max
            self._threads += start
        self._queue.put(fn)
        if start:
            threading.Thread(target=self._serve, name=f"actor {self._context.group_name}", daemon=True).start()

    def enqueue(self, fn: Callable[[], object]) -> None:
        """Queue ``fn`` for a thread that runs ``drain``."""
        self._queue.put(fn)

    def drain(self) -> None:
        """Run queued calls in this thread until ``close``."""
        set_current_actor(self._context)
        while (fn := self._queue.get()) is not None:
            fn()

    def close(self, drainers: int | None = None) -> None:
        """Refuse further calls; threads end after the calls that are queued."""
        self._closed = True
        for _ in range(self._threads if drainers is None else drainers):
            self._queue.put(None)

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            fn = self._queue.get()
            with self._lock:
                self._idle -= 1
            if fn is None:
                return
            fn()
