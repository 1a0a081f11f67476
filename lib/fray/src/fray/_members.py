"""What the actor groups of all backends do the same way."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fray._future import Future
from fray.errors import ActorUnavailableError, JobRequestError


class GroupMember(Protocol):
    """One actor of a group, over all its restarts."""

    index: int
    handle: Any
    ready: Future
    ended: bool
    why: str


def number_wanted(count: int | None, size: int) -> int:
    """Return for how many of ``size`` members to wait.

    Raises:
        JobRequestError: More than there are, or less than one.
    """
    if count is None:
        return size
    if not 1 <= count <= size:
        raise JobRequestError("count", count, f"1 to {size}, the actors of the group")
    return count


def wait_until_ready(
    group: str,
    members: Sequence[GroupMember],
    failure: Callable[[], BaseException | None],
    count: int | None,
    timeout: float,
    remedy: str,
) -> list[Any]:
    """Wait until ``count`` members (default all) are constructed, and return their handles, by index.

    Args:
        group: Name of the group.
        members: All members.
        failure: What a constructor raised, once one has.
        count: How many must be ready.
        timeout: Seconds to wait.
        remedy: What to do when too few are ready in time.
    Raises:
        JobRequestError: ``count`` is more than there are, or less than one.
        ActorUnavailableError: An actor could not be constructed, or died; the constructor's exception is its cause.
        TimeoutError: Too few are ready in time; tells how many.
    """
    wanted = number_wanted(count, len(members))
    end_s = time.monotonic() + timeout
    while True:
        ready = [member for member in members if member.ready.done() and not member.ended]
        if len(ready) >= wanted:
            return [member.handle for member in ready]
        if (cause := failure()) is not None:
            raise ActorUnavailableError(group, "an actor could not be constructed") from cause
        dead = [member for member in members if member.ended]
        if len(members) - len(dead) < wanted:
            raise ActorUnavailableError(f"{group}-{dead[0].index}", dead[0].why)
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(
                f"actors are not ready: group={group!r}, {len(ready)} of {wanted} after timeout={timeout} s; "
                f"expected all. {remedy}"
            )
        waiting = next(member for member in members if not member.ready.done())
        waiting.ready.wait(min(left_s, 0.05))
