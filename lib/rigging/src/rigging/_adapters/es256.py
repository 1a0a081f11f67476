"""Tokens that others sign with P-256 keys (ES256), by ``pyjwt`` (extra ``auth``)."""

from typing import Any, Final

from rigging.errors import MissingExtraError, TokenError

_UNJUDGED: Final = {
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "require": ["exp", "iat", "iss", "aud"],
}


def verify(token: str, key_set: object, audience: str, issuer: str) -> dict[str, Any]:
    """Return the claims of a token that a key of the set has signed, with its times still to be judged.

    Raises:
        TokenError: It is not good; the message holds none of it.
        MissingExtraError: The extra ``auth`` is not installed.
    """
    try:
        import jwt
    except ImportError as error:
        raise MissingExtraError("verifying a proxy's assertions", "auth") from error
    try:
        kid = jwt.get_unverified_header(token).get("kid")
        keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict(key_set).keys}  # type: ignore[arg-type]
        if kid not in keys:
            raise TokenError("its key is not one of the proxy's", "a kid of the published keys")
        claims = jwt.decode(
            token, keys[kid].key, algorithms=["ES256"], audience=audience, issuer=issuer, options=_UNJUDGED
        )
    except (jwt.PyJWTError, AttributeError, TypeError) as error:
        raise TokenError(type(error).__name__, "an assertion that the proxy has signed for us") from None
    if any(isinstance(claims[name], bool) or not isinstance(claims[name], int | float) for name in ("exp", "iat")):
        raise TokenError("its times are no numbers", "seconds since 1970")
    return claims
