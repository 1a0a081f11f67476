"""Tokens from Google, for its services and for an identity-aware proxy (extra ``iap``).

The proxy wants an identity token for its own audience; behind it, the server sees a signed assertion of who came
through (``IapAssertionVerifier``). Keys of the proxy are read from the address that is configured here and kept.

References:
    Google Cloud documentation, "Securing your app with signed headers" (issuer, algorithm, header, keys).
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from rigging._adapters import es256, google_auth
from rigging.errors import AuthError, TokenError
from rigging.server_auth import AuthOutcome, AuthRequest, AuthResult, VerifiedIdentity
from rigging.timing import Clock, SystemClock
from rigging.token_authority import LEEWAY_S, fetch_jwks, unverified_claims

logger = logging.getLogger(__name__)

IAP_ISSUER: Final = "https://cloud.google.com/iap"
IAP_KEYS_URL: Final = "https://www.gstatic.com/iap/verify/public_key-jwk"
IAP_HEADER: Final = "x-goog-iap-jwt-assertion"
KEYS_TTL_S: Final = 3600.0
_MARGIN_S: Final = 300.0


class GcpAccessTokenProvider:
    """Access tokens of the application default credentials, for Google's own services."""

    def get_token(self) -> str:
        """Return a token that is good now.

        Raises:
            MissingExtraError: The extra ``iap`` is not installed.
            OSError: There are no credentials, or Google gives no token.
        """
        return google_auth.access_token()


class IapServiceAccountTokenProvider:
    """Identity tokens of a service account (key file or metadata server) for a proxy.

    Args:
        audience: What the proxy wants its tokens to be for.
        clock: What time it is.
    Raises:
        TokenError: An empty audience.
    """

    def __init__(self, audience: str, *, clock: Clock = SystemClock()) -> None:
        if not audience:
            raise TokenError("it would be for nobody", "the audience of the proxy", "Give audience=.")
        self.audience = audience
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._end_s = 0.0

    def get_token(self) -> str:
        """Return a token that is good now.

        Raises:
            MissingExtraError: The extra ``iap`` is not installed.
            OSError: There are no credentials, or Google gives no token.
        """
        with self._lock:
            if self._clock.time() >= self._end_s - _MARGIN_S:
                self._token = google_auth.identity_token(self.audience)
                self._end_s = float(unverified_claims(self._token).get("exp", 0))
            return self._token


class IapAssertionVerifier:
    """Verifies what an identity-aware proxy says about who came through it.

    Args:
        audience: What its assertions must be for (``/projects/N/global/backendServices/ID``).
        role_of: Role of a person by e-mail address; None refuses them.
        keys_url: Where its keys are.
        fetch: Reads them.
        clock: What time it is.
    Raises:
        TokenError: An empty audience.
    """

    def __init__(
        self,
        audience: str,
        role_of: Callable[[str], str | None] = lambda email: "user",
        *,
        keys_url: str = IAP_KEYS_URL,
        fetch: Callable[[str], object] = fetch_jwks,
        clock: Clock = SystemClock(),
    ) -> None:
        if not audience:
            raise TokenError("no audience is expected", "that of the proxy's backend", "Give audience=.")
        self._audience = audience
        self._role_of = role_of
        self._keys_url = keys_url
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: object = None
        self._read_s = 0.0

    def verify(self, assertion: str) -> VerifiedIdentity:
        """Return who came through the proxy.

        Raises:
            TokenError: The assertion is not good, or its person has no role here.
            MissingExtraError: The extra ``auth`` is not installed.
        """
        claims = es256.verify(assertion, self._current_keys(), self._audience, IAP_ISSUER)
        now_s = self._clock.time()
        if now_s >= claims["exp"] + LEEWAY_S or claims["iat"] > now_s + LEEWAY_S:
            raise TokenError("the assertion is of another time", "iat in the past, exp in the future")
        email = claims.get("email")
        role = self._role_of(email) if isinstance(email, str) and email else None
        if role is None:
            raise TokenError("nobody of that name has a role here", "a person with a role", "Ask for access.")
        return VerifiedIdentity(str(email).removeprefix("accounts.google.com:"), role)

    def _current_keys(self) -> object:
        with self._lock:
            now_s = self._clock.monotonic()
            if self._keys is None or now_s - self._read_s >= KEYS_TTL_S:
                try:
                    self._keys, self._read_s = self._fetch(self._keys_url), now_s
                except OSError as error:
                    if self._keys is None:
                        raise TokenError("the proxy's keys cannot be read", "an answer with its keys") from error
                    logger.warning("keys of %s cannot be read, the old ones stay: %s", self._keys_url, error)
            return self._keys


class IapAssertionAuthenticator:
    """Admits those whom an identity-aware proxy vouches for; a policy takes it as ``edge``.

    Args:
        verifier: Knows the proxy.
    """

    def __init__(self, verifier: IapAssertionVerifier) -> None:
        self._verifier = verifier

    def authenticate(self, request: AuthRequest) -> AuthResult:
        """Verify the assertion, if there is one."""
        assertion = request.headers.get(IAP_HEADER)
        if assertion is None:
            return AuthResult(AuthOutcome.ABSENT)
        try:
            return AuthResult(AuthOutcome.AUTHENTICATED, self._verifier.verify(assertion))
        except AuthError as error:
            return AuthResult(AuthOutcome.REJECTED, reason=str(error))
