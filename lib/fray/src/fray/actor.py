"""Actors: an object that lives in a job of its own and answers calls.

The contract, the same on every backend (``tests/contract`` runs it over all of them):

* ``handle.method(...)`` blocks; ``handle.method.remote(...)`` returns a future; ``handle.method.submit(...)`` returns
  an operation, which can be cancelled.
* There is no order between calls, even from one caller. Up to ``max_concurrency`` calls run at once.
* An exception comes back as itself, with the remote traceback as a note.
* A timeout of ``result`` leaves a ``remote`` call running, and the same future may be waited for again; it cancels an
  operation. A cancelled call that has not begun never runs; one that runs is told (``cancel_requested``).
* A call is sent once. An actor that died raises ``ActorUnavailableError``; the call may have taken effect, so only a
  caller who knows that this is harmless repeats it.
* A restarted actor answers under the same name with fresh state, and its ``attempt`` is greater than that of any
  earlier one: what it writes elsewhere can carry that number, so that a late write of an old one is told apart.
* A handle can be pickled and used in another process of the same client.
"""

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class ActorFuture(Protocol):
    """The answer to one call.

    Example:
        >>> from fray import LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     client.create_actor(list, [3, 1], name="items").count.remote(3).result(timeout=10)
        1
    """

    def result(self, timeout: float | None = None) -> Any:
        """Return the value, waiting up to ``timeout`` seconds.

        Raises:
            TimeoutError: No answer yet; the call goes on and the future can be waited for again.
            ActorUnavailableError: The actor died before it answered.
            BaseException: What the method raised.
        """
        ...

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what ``result`` would raise, or None; waits like ``result``."""
        ...

    def done(self) -> bool:
        """Tell whether the answer is there."""
        ...

    def add_done_callback(self, fn: "Callable[[ActorFuture], object]") -> None:
        """Call ``fn(future)`` when the answer is there (at once if it is); ``fn`` must be short and must not block."""
        ...


class ActorOperation(ActorFuture, Protocol):
    """A long call that can be cancelled; a timeout of ``result`` or ``exception`` cancels it too.

    Example:
        >>> from fray import LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     operation = client.create_actor(list, [3, 1], name="items").count.submit(3)
        ...     operation.result(timeout=10), operation.cancel()
        (1, False)
    """

    def cancel(self) -> bool:
        """Cancel the call; tell whether it had no answer yet. From then on ``result`` raises ``CallCancelledError``."""
        ...


class ActorMethod(Protocol):
    """One method of a remote actor.

    Example:
        >>> from fray import LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     items = client.create_actor(list, [3, 1], name="items")
        ...     items.append(1)
        ...     items.count(1), items.count.remote(1).result(), items.count.submit(1).result()
        (2, 2, 2)
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call and wait for the value."""
        ...

    def remote(self, *args: Any, **kwargs: Any) -> ActorFuture:
        """Call without waiting."""
        ...

    def submit(self, *args: Any, **kwargs: Any) -> ActorOperation:
        """Start a long call that can be cancelled."""
        ...


class ActorHandle(Protocol):
    """A name for an actor. Any public attribute is one of its methods."""

    def __getattr__(self, name: str) -> ActorMethod: ...


class ActorGroup(Protocol):
    """Equal actors created together.

    Example:
        >>> from fray import LocalClient
        >>> with LocalClient(mode="thread") as client:
        ...     group = client.create_actor_group(list, [3, 1], name="lists", count=2)
        ...     [actor.count(3) for actor in group.wait_ready()], group.is_done()
        ([1, 1], False)
    """

    name: str

    @property
    def handles(self) -> list[ActorHandle]:
        """All handles, by index."""
        ...

    def wait_ready(self, count: int | None = None, timeout: float = 900.0) -> list[ActorHandle]:
        """Wait until ``count`` actors (default all) have been constructed and return their handles.

        Raises:
            JobRequestError: ``count`` is more than there are, or less than one.
            ActorUnavailableError: An actor could not be constructed, or died; the constructor's exception is its cause.
            TimeoutError: Too few are ready in time; tells how many.
        """
        ...

    def restart(self, index: int) -> None:
        """Replace one actor by a fresh one under the same name."""
        ...

    def is_done(self) -> bool:
        """Tell whether every actor has ended for good."""
        ...

    def shutdown(self) -> None:
        """End all actors."""
        ...


@dataclass(frozen=True, slots=True)
class ActorContext:
    """What an actor may know about itself.

    Args:
        handle: A handle to this actor, to be handed out.
        index: Its number in the group.
        group_name: Name of the group.
        shutdown_event: Set it to end the actor cleanly; a clean end is not replaced.
        attempt: How often the actor was started before under this name, from 0.
    """

    handle: ActorHandle
    index: int
    group_name: str
    shutdown_event: threading.Event
    attempt: int = 0


_current: contextvars.ContextVar[ActorContext] = contextvars.ContextVar("fray_actor")


def current_actor() -> ActorContext:
    """Return the context of the actor whose code is running; valid in ``__init__`` and in methods.

    Raises:
        RuntimeError: This is not actor code (or a thread that the actor started; stash the context in ``__init__``).

    Example:
        >>> from fray import LocalClient
        >>> class Member:
        ...     def place(self):
        ...         return current_actor().group_name, current_actor().index
        >>> with LocalClient(mode="thread") as client:
        ...     client.create_actor(Member, name="members").place()
        ('members', 0)
    """
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(
            "no current actor: this code does not run in an actor; expected to be called from an actor's method. "
            "Call it in __init__ and keep the result."
        ) from None


def set_current_actor(context: ActorContext) -> None:
    """Make ``context`` the current actor of this thread; for backends."""
    _current.set(context)


_cancellation: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("fray_call", default=None)


def cancel_requested() -> bool:
    """Tell whether the caller of the present method has cancelled it; a long method asks now and then and returns.

    Always False outside an actor and in calls that were not made with ``submit``.

    Example:
        >>> cancel_requested()
        False
    """
    event = _cancellation.get()
    return event is not None and event.is_set()


def set_cancellation(event: threading.Event | None) -> None:
    """Make ``event`` what ``cancel_requested`` looks at in this context; for backends."""
    _cancellation.set(event)
