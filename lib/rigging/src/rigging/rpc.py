"""What stands in front of the methods of a Connect server: who may call, and how many at once.

Both are *metadata* interceptors of ``connectrpc``: put first, they act before a request's body is read, and one class
serves synchronous and asynchronous servers and every shape of call. The caller's side is
``rigging.auth.BearerTokenInjector``.

Example:
    >>> from rigging.server_auth import RequestAuthPolicy
    >>> interceptors = [
    ...     PolicyAuthInterceptor(RequestAuthPolicy.enforcing(trusted_cidrs=["10.0.0.0/8"])),
    ...     ConcurrencyLimitInterceptor({"jobs.v1.Jobs/Submit": 16}),
    ... ]  # MyServiceASGIApplication(service, interceptors=interceptors)
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rigging._adapters import connect_rpc
from rigging.errors import ConfigError, NotAuthenticatedError
from rigging.redaction import redact_string
from rigging.server_auth import RequestAuthPolicy, VerifiedIdentity, extract_bearer_token, set_identity

logger = logging.getLogger(__name__)

__all__ = ["ConcurrencyLimitInterceptor", "PolicyAuthInterceptor", "method_name"]


def method_name(ctx: Any) -> str:
    """Return ``package.Service/Method`` of a call, as it stands in its URL."""
    return f"{ctx.method.service_name}/{ctx.method.name}"


class PolicyAuthInterceptor:
    """Admits a call, or refuses it with ``unauthenticated`` or ``permission_denied``.

    Inside an admitted call ``rigging.server_auth.get_verified_identity`` tells who is calling. The caller is told that
    it was refused and not why; the reason goes to the log. A scoped identity, good for another service, calls nothing.

    Args:
        policy: Who is admitted.
        cookie_name: Cookie that may hold the token; None for none.
        unauthenticated_methods: Methods (``package.Service/Method``) that serve everybody; who is calling is known
            there too, if they can be.
        authorize: Whether somebody may call a method, by identity and ``package.Service/Method``; None admits all.
    Raises:
        ConfigError: A method that is not written as ``package.Service/Method``.
    """

    def __init__(
        self,
        policy: RequestAuthPolicy,
        *,
        cookie_name: str | None = None,
        unauthenticated_methods: Collection[str] = (),
        authorize: Callable[[VerifiedIdentity, str], bool] | None = None,
    ) -> None:
        self._policy = policy
        self._cookie_name = cookie_name
        self._open = frozenset(_checked(unauthenticated_methods))
        self._authorize = authorize

    def on_start_sync(self, ctx: Any) -> None:
        """Judge a call; connectrpc calls this in the thread that serves it.

        Raises:
            ConnectError: The call is refused.
        """
        set_identity(self._judge(ctx))

    async def on_start(self, ctx: Any) -> None:
        """Judge a call; connectrpc awaits this in the task that serves it.

        Raises:
            ConnectError: The call is refused.
        """
        set_identity(await connect_rpc.in_thread(lambda: self._judge(ctx)))

    def on_end_sync(self, token: None, ctx: Any, error: Exception | None) -> None:
        """Forget who was calling: the thread serves others next."""
        set_identity(None)

    async def on_end(self, token: None, ctx: Any, error: Exception | None) -> None:
        """Forget who was calling."""
        set_identity(None)

    def _judge(self, ctx: Any) -> VerifiedIdentity | None:
        method = method_name(ctx)
        headers = _headers(ctx)
        try:
            identity = self._policy.resolve(
                extract_bearer_token(headers, self._cookie_name),
                client_address=_address(ctx.client_address),
                headers=headers,
            )
        except NotAuthenticatedError as error:
            if method in self._open:
                return None
            logger.info("refused %s: %s", method, redact_string(str(error)))
            raise connect_rpc.refusal("unauthenticated", "not authenticated") from None
        if method in self._open:
            return identity
        if identity.audience is not None:
            raise connect_rpc.refusal("permission_denied", "this token is good for another service")
        if self._authorize is not None and not self._authorize(identity, method):
            logger.info("refused %s: %s may not call it", method, redact_string(identity.user_id))
            raise connect_rpc.refusal("permission_denied", f"you may not call {method}")
        return identity


class ConcurrencyLimitInterceptor:
    """Serves at most so many calls of a method at once; others wait, for as long as their deadline lets them.

    A call whose time ran out while it waited is answered ``deadline_exceeded`` and never reaches the method: nobody
    would read what it makes. Methods that are not named have no limit.

    Args:
        limits: Calls at once by method (``package.Service/Method``).
    Raises:
        ConfigError: A limit below one, or a method that is not written as ``package.Service/Method``.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        _checked(limits)
        for method, limit in limits.items():
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
                raise ConfigError("concurrency limits", f"{method!r} has {limit!r}", "an integer of at least 1")
        self._threads = {method: threading.BoundedSemaphore(limit) for method, limit in limits.items()}
        self._tasks = {method: connect_rpc.LoopPermits(limit) for method, limit in limits.items()}

    def on_start_sync(self, ctx: Any) -> bool:
        """Wait for a permit; return whether one was needed.

        Raises:
            ConnectError: The call's time is over.
        """
        permits = self._threads.get(method_name(ctx))
        if permits is None:
            return False
        _in_time(ctx, permits.acquire(timeout=_left_s(ctx)), permits.release)
        return True

    async def on_start(self, ctx: Any) -> bool:
        """Wait for a permit; return whether one was needed.

        Raises:
            ConnectError: The call's time is over.
        """
        permits = self._tasks.get(method_name(ctx))
        if permits is None:
            return False
        _in_time(ctx, await permits.acquire(_left_s(ctx)), permits.release)
        return True

    def on_end_sync(self, token: bool, ctx: Any, error: Exception | None) -> None:
        """Give the permit back."""
        if token:
            self._threads[method_name(ctx)].release()

    async def on_end(self, token: bool, ctx: Any, error: Exception | None) -> None:
        """Give the permit back."""
        if token:
            self._tasks[method_name(ctx)].release()


def _in_time(ctx: Any, acquired: bool, release: Callable[[], None]) -> None:
    left_s = _left_s(ctx)
    if acquired and (left_s is None or left_s > 0):
        return
    if acquired:
        release()  # the call will not be told of its end
    raise connect_rpc.refusal("deadline_exceeded", f"{method_name(ctx)} was busy until the deadline")


def _left_s(ctx: Any) -> float | None:
    return None if ctx.timeout_ms is None else max(0.0, ctx.timeout_ms / 1000)


def _checked(methods: Collection[str]) -> Collection[str]:
    if isinstance(methods, str):
        raise ConfigError("methods of a service", f"{methods!r} is one text", "a collection of names")
    for method in methods:
        service, slash, name = method.partition("/")
        if not (service and slash and name) or "/" in name:
            raise ConfigError("methods of a service", f"{method!r}", "names such as jobs.v1.Jobs/Submit")
    return methods


def _headers(ctx: Any) -> dict[str, str]:
    """Headers by name in lower case; those of one name are joined, so that a second token cannot hide behind one."""
    joined: dict[str, str] = {}
    for name, value in ctx.request_headers.allitems():
        name = name.lower()
        between = "; " if name == "cookie" else ", "
        joined[name] = f"{joined[name]}{between}{value}" if name in joined else value
    return joined


def _address(text: str | None) -> tuple[str, int] | None:
    """The peer of the socket from connectrpc's ``host:port``; port 0 where the server does not tell it."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0
