"""Tokens on the caller's side: where they come from, when they are renewed, how they ride on a request.

A provider is asked for every request, so a long-lived client never sends a token that has run out. Two tokens can be on
one request: the service's own in ``authorization``, and one for a proxy in front of it in ``proxy-authorization``.
"""

import json
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from rigging.errors import TokenError
from rigging.filesystem._temp_name import unique_temp_path
from rigging.timing import Clock, SystemClock
from rigging.token_authority import unverified_claims

logger = logging.getLogger(__name__)

APP_HEADER: Final = "authorization"
EDGE_HEADER: Final = "proxy-authorization"
REFRESH_MARGIN_S: Final = 300.0
_RETRY_S: Final = 30.0


class TokenProvider(Protocol):
    """Somebody who has a token."""

    def get_token(self) -> str | None:
        """Return a token that is good now; None to send none."""
        ...


class StaticTokenProvider:
    """Always the same token, which ``repr`` does not show.

    Raises:
        TokenError: The token is empty, or holds a line break, which would end a header.

    Example:
        >>> StaticTokenProvider("abc").get_token()
        'abc'
    """

    def __init__(self, token: str) -> None:
        if not token.strip() or any(char in token for char in "\r\n\0"):
            raise TokenError("it is empty or holds a line break", "one line of text", "Check where it comes from.")
        self._token = token

    def get_token(self) -> str:
        """Return the token."""
        return self._token


class RefreshingTokenProvider:
    """A token that is renewed before it runs out.

    When the issuer fails the present token stays in use while it is good, and the issuer is asked again after 30 s. A
    renewal must be good for longer than what it replaces. The cache file is taken only if it speaks of the same
    subject, issuer and audience.

    Args:
        token: The first token.
        refresh: Returns a new one; raises ``OSError`` when the issuer does not answer.
        refresh_margin: Seconds before its end at which a token is renewed.
        cache_path: File to keep the newest token in (mode 0600); None for none.
        clock: What time it is.
    Raises:
        TokenError: ``token`` is no token with an ``exp``.
    """

    def __init__(
        self,
        token: str,
        refresh: Callable[[str], str],
        *,
        refresh_margin: float = REFRESH_MARGIN_S,
        cache_path: str | None = None,
        clock: Clock = SystemClock(),
    ) -> None:
        self._refresh = refresh
        self._margin_s = refresh_margin
        self._cache_path = cache_path
        self._clock = clock
        self._lock = threading.Lock()
        self._token, self._claims = token, _claims_with_end(token)
        self._again_s = 0.0
        self._take_cached()

    def get_token(self) -> str:
        """Return a token, renewed first if its end is near.

        Raises:
            TokenError: It has run out and the issuer gives no new one.
        """
        with self._lock:
            now_s = self._clock.time()
            if now_s >= self._claims["exp"] - self._margin_s and self._clock.monotonic() >= self._again_s:
                self._renew()
            if now_s >= self._claims["exp"]:
                raise TokenError("it has run out and was not renewed", "an issuer that answers", "Log in again.")
            return self._token

    def run(self, stop: threading.Event) -> None:
        """Keep the token fresh until ``stop`` is set; for a thread of its own."""
        while not self._clock.wait(stop, _RETRY_S):
            try:
                self.get_token()
            except TokenError as error:
                logger.warning("%s", error)

    def _renew(self) -> None:
        try:
            token = self._refresh(self._token)
            claims = _claims_with_end(token)
            if claims["exp"] <= self._claims["exp"]:
                raise TokenError("the renewal does not last longer", "a later exp", "Check the issuer.")
        except (OSError, TokenError) as error:
            self._again_s = self._clock.monotonic() + _RETRY_S
            logger.warning("a token was not renewed, again in %.0f s: %s", _RETRY_S, type(error).__name__)
            return
        self._token, self._claims = token, claims
        if self._cache_path is not None:
            write_private(self._cache_path, json.dumps({"token": token}))

    def _take_cached(self) -> None:
        if self._cache_path is None:
            return
        try:
            with open(self._cache_path, encoding="utf-8") as stream:
                token = json.load(stream)["token"]
            claims = _claims_with_end(token)
        except (OSError, ValueError, KeyError, TypeError):
            return  # nothing there, or nothing of use: the token that we were given stands
        same = all(claims.get(name) == self._claims.get(name) for name in ("sub", "iss", "aud"))
        if same and claims["exp"] > self._claims["exp"]:
            self._token, self._claims = token, claims


def _claims_with_end(token: str) -> dict[str, Any]:
    claims = unverified_claims(token)
    if isinstance(claims.get("exp"), bool) or not isinstance(claims.get("exp"), int | float):
        raise TokenError("it says not when it ends", "a token with exp", "Ask its issuer for one.")
    return claims


class BearerTokenInjector:
    """Puts a token on each Connect request: a metadata interceptor, so it covers every shape of RPC.

    Args:
        provider: Asked for each request.
        header: Which header carries it.

    Example:
        >>> BearerTokenInjector(StaticTokenProvider("abc")).headers()
        {'authorization': 'Bearer abc'}
    """

    def __init__(self, provider: TokenProvider, header: str = APP_HEADER) -> None:
        self._provider = provider
        self.header = header

    def headers(self) -> dict[str, str]:
        """Return what to add to a request made by other means."""
        token = self._provider.get_token()
        return {} if token is None else {self.header: f"Bearer {token}"}

    async def on_start(self, ctx: Any) -> None:
        """Add the header; called by connectrpc for an asynchronous client."""
        self.on_start_sync(ctx)

    def on_start_sync(self, ctx: Any) -> None:
        """Add the header; called by connectrpc for a synchronous client."""
        for name, value in self.headers().items():
            ctx.request_headers[name] = value

    async def on_end(self, token: None, ctx: Any, error: Exception | None = None) -> None:
        """Nothing to do."""

    def on_end_sync(self, token: None, ctx: Any, error: Exception | None = None) -> None:
        """Nothing to do."""


def write_private(path: str, text: str) -> None:
    """Replace a file that only its owner may read: mode 0600 before it holds anything, in a folder of mode 0700.

    Args:
        path: Local path.
        text: Content, UTF-8.
    Raises:
        OSError: It cannot be written; what was there stands.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "token")
        >>> write_private(path, "abc"); oct(os.stat(path).st_mode & 0o777)
        '0o600'
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    temp = unique_temp_path(path)
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temp, path)
    except BaseException:
        os.remove(temp)
        raise
