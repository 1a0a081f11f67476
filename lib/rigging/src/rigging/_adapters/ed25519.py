"""Ed25519 keys and signed tokens, by the libraries ``cryptography`` and ``pyjwt`` (extra ``auth``)."""

import base64
import binascii
from typing import Any, Final

from rigging.errors import KeyFormatError, MissingExtraError, TokenError

ALGORITHM: Final = "EdDSA"
_REQUIRED: Final = ("exp", "iat", "iss", "aud")


def _libraries() -> tuple[Any, Any, Any]:
    try:
        import jwt
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingExtraError("Ed25519 tokens", "auth") from error
    return jwt, serialization, ed25519


def new_private_pem() -> str:
    """Return a new private key as PKCS8 PEM."""
    _, serialization, ed25519 = _libraries()
    return (
        ed25519.Ed25519PrivateKey.generate()
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


def private_pem_from_seed(seed: bytes) -> str:
    """Return the PKCS8 PEM of the key whose 32 secret bytes are given."""
    _, serialization, ed25519 = _libraries()
    if len(seed) != 32:
        raise KeyFormatError("private key", f"it has {len(seed)} bytes, not 32")
    key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def public_raw(private_pem: str) -> bytes:
    """Return the 32 bytes of the public key that belongs to a private PEM."""
    _, serialization, _ = _libraries()
    raw = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return _private_key(private_pem).public_key().public_bytes(*raw)


def raw_from_public_pem(pem: str) -> bytes:
    """Return the 32 bytes of a public key in SPKI PEM."""
    _, serialization, ed25519 = _libraries()
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, TypeError, AttributeError) as error:
        raise KeyFormatError("public key", "it is not SPKI PEM") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise KeyFormatError("public key", f"it is a {type(key).__name__}")
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def public_pem(raw: bytes) -> str:
    """Return the SPKI PEM of a public key of 32 bytes."""
    _, serialization, ed25519 = _libraries()
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return ed25519.Ed25519PublicKey.from_public_bytes(raw).public_bytes(*form).decode()


def _private_key(pem: str) -> Any:
    _, serialization, ed25519 = _libraries()
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, AttributeError) as error:
        raise KeyFormatError("private key", "it is not unencrypted PKCS8 PEM") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise KeyFormatError("private key", f"it is a {type(key).__name__}")
    return key


def sign(claims: dict[str, Any], private_pem: str, kid: str) -> str:
    """Return a signed token in compact form."""
    jwt, _, _ = _libraries()
    return jwt.encode(claims, _private_key(private_pem), algorithm=ALGORITHM, headers={"typ": "JWT", "kid": kid})


def header_of(token: str) -> dict[str, Any]:
    """Return the header of a token that nobody has verified.

    Raises:
        TokenError: It is no token.
    """
    jwt, _, _ = _libraries()
    try:
        return jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise TokenError("it is no signed token", "three base64url parts", "Check what is sent.") from error


def verify_signature(token: str, raw_keys: list[bytes], audiences: list[str], issuer: str) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed, with its times still to be judged.

    Raises:
        TokenError: No key fits, a claim is missing, or issuer or audience is another.
    """
    jwt, _, ed25519 = _libraries()
    unjudged = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "require": list(_REQUIRED)}
    reason = "no key of its issuer has signed it"
    for raw in raw_keys:
        key = ed25519.Ed25519PublicKey.from_public_bytes(raw)
        try:
            return jwt.decode(token, key, algorithms=[ALGORITHM], audience=audiences, issuer=issuer, options=unjudged)
        except jwt.InvalidSignatureError:
            continue
        except jwt.PyJWTError as error:
            # The words of the library name claims, never their values or the token.
            reason = type(error).__name__
            break
    raise TokenError(reason, "a token that this service accepts")


def unb64(text: str) -> bytes:
    """Decode base64url without padding.

    Raises:
        ValueError: Not base64url.
    """
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("not base64url") from error
