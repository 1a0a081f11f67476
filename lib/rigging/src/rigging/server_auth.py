"""Who is calling, decided in a fixed order, for any server.

A policy is a list of authenticators. Each says AUTHENTICATED, ABSENT (this caller brought nothing for me) or REJECTED;
the first that does not say ABSENT decides. A bad credential is never downgraded to a weaker one: a forged token from a
trusted network is refused.

The network is trusted only for the socket's own peer, and only if no proxy stands between: a request with
``X-Forwarded-For`` comes from somebody else than the peer.
"""

import contextlib
import contextvars
import ipaddress
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie
from typing import Final, Protocol

from rigging.errors import AuthError, ConfigError, NotAuthenticatedError
from rigging.token_authority import JwksVerifier

logger = logging.getLogger(__name__)

DEFAULT_ROLE: Final = "user"
ANONYMOUS_USER: Final = "anonymous"
LOCAL_USER: Final = "local"
_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")


class AuthOutcome(StrEnum):
    """What an authenticator says."""

    AUTHENTICATED = "authenticated"
    ABSENT = "absent"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class VerifiedIdentity:
    """Who is calling. With an ``audience`` it is a scoped identity: good for that one service, for no RPC."""

    user_id: str
    role: str = DEFAULT_ROLE
    audience: str | None = None


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """What a caller brought: token, headers (names in lower case), and the address of the socket's peer."""

    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_address: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class AuthResult:
    """The outcome, the identity if there is one, and why, in words that a server may log."""

    outcome: AuthOutcome
    identity: VerifiedIdentity | None = None
    reason: str = ""


_ABSENT: Final = AuthResult(AuthOutcome.ABSENT)


class Authenticator(Protocol):
    """Looks at a request and says what it thinks."""

    def authenticate(self, request: AuthRequest) -> AuthResult:
        """Judge one request; never raises for what the caller sent."""
        ...


class JwtAuthenticator:
    """Admits good tokens, rejects bad ones.

    Args:
        verifier: Knows issuers and keys.
        primary_audience: Audience of full identities; a token for another expected audience is a scoped identity.
            None makes every token a full identity.
    """

    def __init__(self, verifier: JwksVerifier, primary_audience: str | None = None) -> None:
        self._verifier = verifier
        self._primary = primary_audience

    def authenticate(self, request: AuthRequest) -> AuthResult:
        """Verify the token, if there is one."""
        if request.token is None:
            return _ABSENT
        try:
            claims = self._verifier.verify(request.token)
        except AuthError as error:
            return AuthResult(AuthOutcome.REJECTED, reason=str(error))
        if not claims.sub:
            return AuthResult(AuthOutcome.REJECTED, reason="the token names no subject")
        scoped = self._primary is not None and claims.aud != self._primary
        role = claims.claims.get("role", DEFAULT_ROLE)
        identity = VerifiedIdentity(claims.sub, str(role), claims.aud if scoped else None)
        return AuthResult(AuthOutcome.AUTHENTICATED, identity)


class BestEffortJwtAuthenticator:
    """Admits good tokens and takes no notice of others; for servers that serve everybody anyway."""

    def __init__(self, verifier: JwksVerifier) -> None:
        self._strict = JwtAuthenticator(verifier)

    def authenticate(self, request: AuthRequest) -> AuthResult:
        """Verify the token, if there is one; a bad one counts as none."""
        result = self._strict.authenticate(request)
        return result if result.outcome is AuthOutcome.AUTHENTICATED else _ABSENT


class CidrAuthenticator:
    """Admits peers of given networks.

    Args:
        cidrs: Networks such as ``10.0.0.0/8``.
        user_id: Who they are.
    Raises:
        ConfigError: A text that is no network.

    Example:
        >>> inside = CidrAuthenticator(["10.0.0.0/8"])
        >>> inside.authenticate(AuthRequest(client_address=("::ffff:10.1.2.3", 4242))).outcome.value
        'authenticated'
        >>> behind_proxy = AuthRequest(headers={"x-forwarded-for": "1.2.3.4"}, client_address=("10.1.2.3", 4242))
        >>> inside.authenticate(behind_proxy).outcome.value
        'absent'
    """

    def __init__(self, cidrs: Sequence[str], user_id: str = LOCAL_USER) -> None:
        try:
            self._networks = [ipaddress.ip_network(cidr) for cidr in cidrs]
        except ValueError as error:
            raise ConfigError("trusted networks", str(error), "networks such as 10.0.0.0/8") from error
        self._identity = VerifiedIdentity(user_id)

    def authenticate(self, request: AuthRequest) -> AuthResult:
        """Compare the socket's peer; nothing that the caller says counts."""
        if request.client_address is None or "x-forwarded-for" in request.headers:
            return _ABSENT
        host, port = request.client_address
        if port == 0:
            return _ABSENT  # no socket: a Unix socket or a test client says whatever it likes
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return _ABSENT
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped if mapped is not None else address
        if any(address in network for network in self._networks if network.version == address.version):
            return AuthResult(AuthOutcome.AUTHENTICATED, self._identity)
        return _ABSENT


class LoopbackAuthenticator(CidrAuthenticator):
    """Admits whoever calls from this machine itself."""

    def __init__(self) -> None:
        super().__init__(_LOOPBACK)


class AnonymousAuthenticator:
    """Admits everybody, as nobody in particular."""

    def authenticate(self, request: AuthRequest) -> AuthResult:
        """Admit."""
        return AuthResult(AuthOutcome.AUTHENTICATED, VerifiedIdentity(ANONYMOUS_USER, "anonymous"))


def resolve_auth(authenticators: Sequence[Authenticator], request: AuthRequest) -> AuthResult:
    """Ask in order; the first answer that is not ABSENT decides, and nobody means ABSENT.

    Example:
        >>> resolve_auth([LoopbackAuthenticator()], AuthRequest(client_address=("127.0.0.1", 9))).identity.user_id
        'local'
        >>> resolve_auth([], AuthRequest()).outcome.value
        'absent'
    """
    for authenticator in authenticators:
        result = authenticator.authenticate(request)
        if result.outcome is not AuthOutcome.ABSENT:
            return result
    return _ABSENT


class RequestAuthPolicy:
    """An ordered list of authenticators.

    Args:
        authenticators: Asked in this order.

    Example:
        >>> policy = RequestAuthPolicy.enforcing(trusted_cidrs=["10.0.0.0/8"])
        >>> policy.resolve(None, client_address=("10.0.0.7", 555)).user_id, policy.allows_anonymous
        ('local', False)
    """

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self.authenticators = tuple(authenticators)

    @classmethod
    def enforcing(
        cls,
        *,
        verifier: JwksVerifier | None = None,
        edge: Authenticator | None = None,
        trusted_cidrs: Sequence[str] = (),
        optional: bool = False,
        primary_audience: str | None = None,
    ) -> "RequestAuthPolicy":
        """Token, then the assertion of an edge proxy, then networks, then loopback, then (``optional``) everybody.

        Raises:
            ConfigError: A text in ``trusted_cidrs`` that is no network.

        Example:
            >>> policy = RequestAuthPolicy.enforcing(trusted_cidrs=["10.0.0.0/8"])
            >>> [type(item).__name__ for item in policy.authenticators]
            ['CidrAuthenticator', 'LoopbackAuthenticator']
        """
        chain: list[Authenticator] = []
        if verifier is not None:
            chain.append(JwtAuthenticator(verifier, primary_audience))
        if edge is not None:
            chain.append(edge)
        if trusted_cidrs:
            chain.append(CidrAuthenticator(trusted_cidrs))
        chain.append(LoopbackAuthenticator())
        if optional:
            chain.append(AnonymousAuthenticator())
        return cls(chain)

    @classmethod
    def permissive(cls, *, verifier: JwksVerifier | None = None) -> "RequestAuthPolicy":
        """Admit everybody, and know those who bring a good token.

        Example:
            >>> RequestAuthPolicy.permissive().resolve("nonsense").user_id
            'anonymous'
        """
        known: list[Authenticator] = [] if verifier is None else [BestEffortJwtAuthenticator(verifier)]
        return cls([*known, AnonymousAuthenticator()])

    @property
    def allows_anonymous(self) -> bool:
        """Whether a caller without any credential is admitted from anywhere."""
        return any(isinstance(item, AnonymousAuthenticator) for item in self.authenticators)

    def resolve(
        self,
        token: str | None,
        *,
        client_address: tuple[str, int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> VerifiedIdentity:
        """Return who is calling.

        Args:
            token: Bearer token, if any.
            client_address: The socket's peer.
            headers: Request headers; names in any case.
        Raises:
            NotAuthenticatedError: A bad credential, or none that the policy admits.
        """
        lowered = {name.lower(): value for name, value in (headers or {}).items()}
        result = resolve_auth(self.authenticators, AuthRequest(token, lowered, client_address))
        if result.outcome is AuthOutcome.AUTHENTICATED and result.identity is not None:
            return result.identity
        raise NotAuthenticatedError(result.reason or "the request brought no credential")


def extract_bearer_token(headers: Mapping[str, str], cookie_name: str | None = None) -> str | None:
    """Return the token of an ``Authorization: Bearer`` header, else of a cookie, else None.

    Args:
        headers: Names in any case.
        cookie_name: Cookie to look in; None for none.

    Example:
        >>> extract_bearer_token({"Authorization": "bearer abc"}), extract_bearer_token({"Authorization": "Basic abc"})
        ('abc', None)
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    scheme, _, token = lowered.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if cookie_name is not None and "cookie" in lowered:
        with contextlib.suppress(CookieError):
            jar = SimpleCookie(lowered["cookie"])
            if cookie_name in jar:
                return jar[cookie_name].value or None
    return None


_identity: contextvars.ContextVar[VerifiedIdentity | None] = contextvars.ContextVar("identity", default=None)


@contextlib.contextmanager
def identity_scope(identity: VerifiedIdentity | None) -> Generator[None]:
    """Let ``identity`` be who is calling, in this context, while the body runs.

    Example:
        >>> with identity_scope(VerifiedIdentity("ada")):
        ...     get_verified_user()
        'ada'
    """
    token = _identity.set(identity)
    try:
        yield
    finally:
        _identity.reset(token)


def set_identity(identity: VerifiedIdentity | None) -> None:
    """Let ``identity`` be who is calling, in this context, until it is set again; for servers that call hooks.

    Example:
        >>> set_identity(VerifiedIdentity("ada")); get_verified_user()
        'ada'
        >>> set_identity(None)
    """
    _identity.set(identity)


def get_verified_identity() -> VerifiedIdentity | None:
    """Return who is calling; None outside a request.

    Example:
        >>> with identity_scope(VerifiedIdentity("ada", "admin")):
        ...     get_verified_identity().role
        'admin'
    """
    return _identity.get()


def get_verified_user() -> str | None:
    """Return the name of who is calling; None outside a request."""
    identity = _identity.get()
    return None if identity is None else identity.user_id


def require_identity() -> VerifiedIdentity:
    """Return who is calling.

    Raises:
        NotAuthenticatedError: Nobody is known, or only for another service.

    Example:
        >>> require_identity()
        Traceback (most recent call last):
            ...
        rigging.errors.NotAuthenticatedError: not authenticated: ...
    """
    identity = _identity.get()
    if identity is None:
        raise NotAuthenticatedError("nobody is known to be calling")
    if identity.audience is not None:
        raise NotAuthenticatedError(f"the identity is good for {identity.audience!r} only")
    return identity
