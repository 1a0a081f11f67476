"""From an address in a configuration to a client that works, tunnel and credentials included.

``connect("k8s://web:80?namespace=prod", MyClient)`` digs what has to be dug, calls the factory with an ``Endpoint`` and
returns the factory's own object. The tunnel lives as long as that object, or until ``disconnect``.
"""

import contextlib
import urllib.parse
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rigging.auth import EDGE_HEADER, BearerTokenInjector, TokenProvider
from rigging.errors import TransportError
from rigging.transports import (
    GcpSshForwardTarget,
    HttpTransport,
    IapTransport,
    K8sPortForwardTarget,
    Transport,
    parse_transport,
)
from rigging.tunnel import open_tunnel

__all__ = [
    "AuthMethod",
    "ChainedAuth",
    "ConnectionOptions",
    "Endpoint",
    "GcpSshForwardTarget",
    "HttpTransport",
    "IapAuth",
    "IapTransport",
    "JwtAuth",
    "K8sPortForwardTarget",
    "NoAuth",
    "Transport",
    "closing_connection",
    "connect",
    "disconnect",
    "explain",
    "parse_transport",
    "proxy_path",
]

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a service is now, and what puts credentials on its requests."""

    url: str
    interceptors: tuple[BearerTokenInjector, ...] = ()

    def headers(self) -> dict[str, str]:
        """Return the credential headers for one request made by other means than Connect."""
        return {name: value for item in self.interceptors for name, value in item.headers().items()}

    def socket_address(self) -> tuple[str, int]:
        """Return host and port.

        Raises:
            TransportError: The URL has a path, which a socket cannot carry.

        Example:
            >>> Endpoint("http://127.0.0.1:8000").socket_address()
            ('127.0.0.1', 8000)
        """
        parts = urllib.parse.urlsplit(self.url)
        if parts.path not in ("", "/"):
            raise TransportError(self.url, "a URL without a path")
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]


class AuthMethod(Protocol):
    """Credentials for a connection."""

    def interceptors(self, transport: Transport) -> list[BearerTokenInjector]:
        """Return what puts them on requests."""
        ...


@dataclass(frozen=True, slots=True)
class NoAuth:
    """No credentials."""

    def interceptors(self, transport: Transport) -> list[BearerTokenInjector]:
        """Return nothing."""
        return []


@dataclass(frozen=True, slots=True)
class JwtAuth:
    """The service's own token, in ``authorization``."""

    provider: TokenProvider

    def interceptors(self, transport: Transport) -> list[BearerTokenInjector]:
        """Return what puts the token on requests."""
        return [BearerTokenInjector(self.provider)]


@dataclass(frozen=True, slots=True)
class IapAuth:
    """The proxy's token, in ``proxy-authorization``; made for the audience that the transport names.

    Args:
        provider_for: Audience to provider.
    """

    provider_for: Callable[[str], TokenProvider]

    def interceptors(self, transport: Transport) -> list[BearerTokenInjector]:
        """Return what puts the token on requests.

        Raises:
            TransportError: The transport leads through no such proxy.
        """
        if not isinstance(transport, IapTransport):
            raise TransportError(type(transport).__name__, "an iap+https:// transport", "Leave IapAuth out.")
        return [BearerTokenInjector(self.provider_for(transport.audience), EDGE_HEADER)]


@dataclass(frozen=True, slots=True)
class ChainedAuth:
    """Several, on one request; each has a header of its own."""

    methods: tuple[AuthMethod, ...]

    def interceptors(self, transport: Transport) -> list[BearerTokenInjector]:
        """Return those of all.

        Raises:
            TransportError: Two want the same header.
        """
        found = [item for method in self.methods for item in method.interceptors(transport)]
        if len({item.header for item in found}) != len(found):
            raise TransportError("auth", "at most one credential a header", "Leave one out.")
        return found


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to connect: seconds until a tunnel must be open, and whether it is dug again when it breaks."""

    connect_timeout: float = 60.0
    watchdog: bool = True


_open: "weakref.WeakKeyDictionary[Any, contextlib.ExitStack]" = weakref.WeakKeyDictionary()


def connect[Client](
    transport: str | Transport,
    factory: Callable[[Endpoint], Client],
    *,
    path: str = "",
    auth: AuthMethod = NoAuth(),
    options: ConnectionOptions = ConnectionOptions(),
) -> Client:
    """Return ``factory``'s client of a service; what was dug for it is closed when the client is gone.

    Args:
        transport: A URL (see ``rigging.transports``) or a parsed one.
        factory: Makes the client from an ``Endpoint``.
        path: Path of the service, ``""`` or with one ``/`` in front; must agree with one in the transport.
        auth: Credentials.
        options: How to connect.
    Raises:
        TransportError: A transport that cannot be read, or paths that do not agree.
        TimeoutError: The tunnel did not open in time.
        TypeError: The client cannot be watched (no weak references), so its tunnel would never close; use
            ``closing_connection``.

    Example:
        >>> class Client:
        ...     def __init__(self, endpoint): self.url = endpoint.url
        >>> connect("http://127.0.0.1:8000", Client, path="/api").url
        'http://127.0.0.1:8000/api'
    """
    with contextlib.ExitStack() as stack:
        client = factory(stack.enter_context(_endpoint(transport, path, auth, options)))
        held = stack.pop_all()
    try:
        _open[client] = held
        weakref.finalize(client, held.close)
    except TypeError:
        held.close()
        raise TypeError(
            f"client cannot be watched: type={type(client).__name__}; expected one that weak references can point to. "
            "Use closing_connection, or add __weakref__ to its __slots__."
        ) from None
    return client


def disconnect(client: object) -> None:
    """Close what was dug for a client; does nothing the second time."""
    held = _open.pop(client, None)
    if held is not None:
        held.close()


@contextlib.contextmanager
def closing_connection[Client](
    transport: str | Transport,
    factory: Callable[[Endpoint], Client],
    *,
    path: str = "",
    auth: AuthMethod = NoAuth(),
    options: ConnectionOptions = ConnectionOptions(),
) -> Generator[Client]:
    """Like ``connect``, for the time of a ``with`` block.

    Raises:
        TransportError: A transport that cannot be read, or paths that do not agree.
        TimeoutError: The tunnel did not open in time.

    Example:
        >>> with closing_connection("http://127.0.0.1:8000", lambda endpoint: endpoint.url) as url:
        ...     url
        'http://127.0.0.1:8000'
    """
    with _endpoint(transport, path, auth, options) as endpoint:
        yield factory(endpoint)


@contextlib.contextmanager
def _endpoint(
    transport: str | Transport, path: str, auth: AuthMethod, options: ConnectionOptions
) -> Generator[Endpoint]:
    parsed = parse_transport(transport) if isinstance(transport, str) else transport
    interceptors = tuple(auth.interceptors(parsed))
    if isinstance(parsed, HttpTransport | IapTransport):
        yield Endpoint(_with_path(parsed.url, path), interceptors)
        return
    with open_tunnel(parsed, timeout=options.connect_timeout, watchdog=options.watchdog) as url:
        yield Endpoint(_with_path(url, path), interceptors)


def _with_path(url: str, path: str) -> str:
    if path and (not path.startswith("/") or path.startswith("//") or path == "/"):
        raise TransportError(path, "a path that is empty or begins with one slash")
    parts = urllib.parse.urlsplit(url)
    own = parts.path.rstrip("/")
    if own and path and own != path.rstrip("/"):
        raise TransportError(url, f"the path {path!r}, or none", "Give the path once.")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, own or path, "", ""))


def proxy_path(name: str) -> str:
    """Return the path under which a proxy serves a service of that name.

    Example:
        >>> proxy_path("jobs/web")
        '/proxy/jobs.web'
    """
    return "/proxy/" + name.replace("/", ".")


def explain(transport: str | Transport, auth: AuthMethod = NoAuth()) -> str:
    """Say in words how a service would be reached; nothing secret is in them.

    Raises:
        TransportError: A transport that cannot be read.

    Example:
        >>> explain("k8s://web:80?namespace=prod")
        'port 80 of service web in namespace prod by kubectl port-forward, without credentials'
    """
    parsed = parse_transport(transport) if isinstance(transport, str) else transport
    headers = [item.header for item in auth.interceptors(parsed)]
    with_what = f"with a token in {' and '.join(headers)}" if headers else "without credentials"
    if isinstance(parsed, HttpTransport):
        how = parsed.url
    elif isinstance(parsed, IapTransport):
        how = f"{parsed.url} through its identity-aware proxy"
    elif isinstance(parsed, K8sPortForwardTarget):
        how = f"port {parsed.port} of service {parsed.service} in namespace {parsed.namespace} by kubectl port-forward"
    else:
        how = f"port {parsed.port} of instance {parsed.instance} in zone {parsed.zone} by gcloud compute ssh"
    return f"{how}, {with_what}"
