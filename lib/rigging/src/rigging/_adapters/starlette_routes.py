"""Which endpoint of a Starlette application a request goes to (extra ``server``)."""

from typing import Any

from rigging.errors import MissingExtraError


def endpoint_of(app: Any, scope: dict[str, Any]) -> tuple[bool, Any]:
    """Return whether a route of the application itself takes the request, and its endpoint.

    A mounted application looks after itself, so its requests count as not taken; so do those that no route takes.

    Raises:
        MissingExtraError: The extra ``server`` is not installed.
    """
    try:
        from starlette.routing import Host, Match, Mount
    except ImportError as error:
        raise MissingExtraError("route authentication", "server") from error
    partial = None
    for route in app.routes:
        match, child = route.matches(scope)
        if match is Match.NONE:
            continue
        if isinstance(route, Mount | Host):
            return False, None
        if match is Match.FULL:
            return True, child.get("endpoint", getattr(route, "endpoint", None))
        partial = partial or (True, child.get("endpoint", getattr(route, "endpoint", None)))
    return partial or (False, None)
