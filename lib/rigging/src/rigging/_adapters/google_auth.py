"""Google credentials and one authorised GET, by google-auth and requests (extra ``secrets``)."""

import functools
from typing import Any, Final

from rigging.errors import MissingExtraError

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


class GoogleRequestError(OSError):
    """A request to a Google service failed; ``status`` is its HTTP status, 0 when there was none."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"request to Google failed: status={status}, {reason}; expected an answer. Check access.")


@functools.cache
def _session() -> Any:
    """This process's session; credentials are the application defaults.

    Raises:
        MissingExtraError: The extra ``secrets`` is not installed.
        GoogleRequestError: There are no credentials.
    """
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as error:
        raise MissingExtraError("gcp-secret:// references", "secrets") from error
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except GoogleAuthError as error:
        raise GoogleRequestError(0, "no application default credentials") from error
    return AuthorizedSession(credentials)


def reset_session() -> None:
    """Forget the credentials; the next request finds them anew."""
    _session.cache_clear()


def get_json(url: str, timeout_s: float) -> Any:
    """Return the JSON answer of an authorised GET.

    Raises:
        MissingExtraError: The extra ``secrets`` is not installed.
        GoogleRequestError: No credentials, no answer, or another status than 200.
    """
    session = _session()
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        answer = session.get(url, timeout=timeout_s, allow_redirects=False)
        if answer.status_code != 200:
            raise GoogleRequestError(answer.status_code, "refused")
        return answer.json()
    except (GoogleAuthError, RequestException) as error:
        raise GoogleRequestError(0, type(error).__name__) from error


def access_token() -> str:
    """Return an access token of the application default credentials, renewed when its end is near.

    Raises:
        MissingExtraError: The extra ``secrets`` (or ``iap``) is not installed.
        GoogleRequestError: There are no credentials, or Google gives no token.
    """
    credentials = _session().credentials
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        if not credentials.valid:
            credentials.refresh(Request())
    except GoogleAuthError as error:
        raise GoogleRequestError(0, type(error).__name__) from error
    return str(credentials.token)


def identity_token(audience: str) -> str:
    """Return an identity token for ``audience``: of a key file, or of the metadata server.

    Raises:
        MissingExtraError: The extra ``iap`` is not installed.
        GoogleRequestError: There are no credentials that can make one, or Google gives none.
    """
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
        from google.oauth2 import id_token
    except ImportError as error:
        raise MissingExtraError("identity tokens for a Google proxy", "iap") from error
    try:
        return str(id_token.fetch_id_token(Request(), audience))
    except GoogleAuthError as error:
        raise GoogleRequestError(0, type(error).__name__) from error
