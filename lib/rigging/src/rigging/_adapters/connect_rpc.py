"""What a Connect server is told when a call is refused (extra ``rpc``), and waiting without holding its loop up."""

import weakref
from collections.abc import Callable
from typing import Any

from rigging.errors import MissingExtraError


def refusal(code: str, message: str) -> Exception:
    """Return the error that makes a server answer with ``code``, a name of the Connect protocol.

    Raises:
        MissingExtraError: The extra ``rpc`` is not installed.
    """
    try:
        from connectrpc.code import Code
        from connectrpc.errors import ConnectError
    except ImportError as error:
        raise MissingExtraError("interceptors of a Connect server", "rpc") from error
    return ConnectError(Code(code), message)


async def in_thread[Result](function: Callable[[], Result]) -> Result:
    """Run what may wait for the network beside the server's loop."""
    import asyncio

    return await asyncio.to_thread(function)


class LoopPermits:
    """Permits for tasks of whatever loop asks; each loop counts its own."""

    def __init__(self, num_permits: int) -> None:
        self._num_permits = num_permits
        self._by_loop: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def _here(self) -> Any:
        import asyncio

        return self._by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._num_permits))

    async def acquire(self, timeout_s: float | None) -> bool:
        """Wait for a permit; False when the time is over."""
        import asyncio

        try:
            async with asyncio.timeout(timeout_s):
                return await self._here().acquire()
        except TimeoutError:
            return False

    def release(self) -> None:
        """Give a permit back."""
        self._here().release()
