"""Authentication for the routes of a Starlette application: every route says whom it serves, and silence means nobody.

``@public`` serves everybody, ``@requires_auth`` those whom the policy admits. A route with neither mark answers 401,
so a forgotten mark is a closed door. Mounted applications pass through: they look after themselves.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rigging._adapters.starlette_routes import endpoint_of
from rigging.errors import NotAuthenticatedError
from rigging.redaction import redact_string
from rigging.server_auth import RequestAuthPolicy, extract_bearer_token, identity_scope

logger = logging.getLogger(__name__)

_MARK: Final = "__rigging_route_auth__"
_PUBLIC: Final = "public"
_REQUIRED: Final = "required"

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def public[Endpoint: Callable[..., Any]](endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint (a function or a class) as serving everybody.

    Example:
        >>> @public
        ... async def health(request): ...
    """
    setattr(endpoint, _MARK, _PUBLIC)
    return endpoint


def requires_auth[Endpoint: Callable[..., Any]](endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint (a function or a class) as serving those whom the policy admits.

    Example:
        >>> @requires_auth
        ... async def secrets(request): ...
    """
    setattr(endpoint, _MARK, _REQUIRED)
    return endpoint


class RouteAuthMiddleware:
    """Wraps a Starlette application and admits, or refuses, each request.

    Inside an admitted request ``get_verified_identity`` tells who is calling; on a public route too, if they are known.

    Args:
        app: The application, with its routes.
        policy: Who is admitted.
        cookie_name: Cookie that may hold the token; None for none.
    """

    def __init__(self, app: Any, policy: RequestAuthPolicy, *, cookie_name: str | None = None) -> None:
        self._app = app
        self._policy = policy
        self._cookie_name = cookie_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        taken, endpoint = endpoint_of(self._app, scope)
        if not taken:
            await self._app(scope, receive, send)
            return
        mark = getattr(endpoint, _MARK, None)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        identity, reason = None, "the route says not whom it serves"
        try:
            identity = self._policy.resolve(
                extract_bearer_token(headers, self._cookie_name),
                client_address=tuple(scope["client"]) if scope.get("client") else None,
                headers=headers,
            )
        except NotAuthenticatedError as error:
            reason = str(error)
        if mark == _PUBLIC:
            with identity_scope(identity):
                await self._app(scope, receive, send)
        elif mark != _REQUIRED or identity is None:
            logger.info("refused %s: %s", scope["path"], redact_string(reason))
            await _refuse(scope, send, 401, "not authenticated")
        elif identity.audience is not None:
            await _refuse(scope, send, 403, "this token is good for another service")
        else:
            with identity_scope(identity):
                await self._app(scope, receive, send)


async def _refuse(scope: Scope, send: Send, status: int, problem: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": problem})
        return
    body = json.dumps({"error": problem}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
