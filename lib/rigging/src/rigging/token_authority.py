"""Signed tokens by which services recognise callers: Ed25519, one frozen format, keys that can be changed any time.

A token is a JWT with the header ``{"alg":"EdDSA","typ":"JWT","kid":K}``. ``K`` is the RFC 7638 thumbprint of the public
key, so a key names itself and two services never disagree on its name. The verifier knows its issuers and their keys
beforehand; it takes no key, address or algorithm from a token.

Keys are changed without a stop: publish the new key beside the old one (``JwtSigner.public_jwks``), sign with the new
one, and drop the old when its last token has run out. ``JwksSource`` follows such a set by URL.

Invariants: every failure to verify is a ``TokenError`` (a ``ValueError``); no error, log line or ``repr`` holds a token
or a private key.

References:
    RFC 7519 (JWT), RFC 8037 (Ed25519 in JOSE), RFC 7638 (thumbprints), RFC 7517 (key sets).
"""

import base64
import hashlib
import json
import logging
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rigging._adapters import ed25519
from rigging._adapters.http_get import get_bytes
from rigging.errors import KeyFormatError, TokenError
from rigging.timing import Clock, SystemClock

logger = logging.getLogger(__name__)

LEEWAY_S: Final = 60
_OWN_CLAIMS: Final = ("iss", "aud", "iat", "exp")
_LIMIT_CHARS: Final = 16_384
_LIMIT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key that signs; the private half stays out of ``repr``."""

    kid: str
    private_pem: str = field(repr=False)
    public_pem: str


@dataclass(frozen=True, slots=True)
class Ed25519Keypair:
    """A new key in every form: private (PKCS8), public (SPKI) and as JWK."""

    kid: str
    private_pem: str = field(repr=False)
    public_pem: str
    public_jwk: dict[str, str]

    @property
    def signing_key(self) -> SigningKey:
        """The key as ``JwtSigner`` takes it."""
        return SigningKey(self.kid, self.private_pem, self.public_pem)


@dataclass(frozen=True, slots=True)
class VerifiedClaims:
    """What a verified token says: subject, issuer, its audience among ours, scope, and every claim."""

    sub: str | None
    iss: str
    aud: str
    scope: str | None
    claims: dict[str, Any]


def jwk_thumbprint(jwk: Mapping[str, str]) -> str:
    """Return the RFC 7638 thumbprint of an OKP key: base64url of the SHA-256 of its canonical JSON.

    Raises:
        KeyFormatError: A member is missing.

    Example:
        >>> jwk_thumbprint({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"})
        'kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k'

    References:
        RFC 7638 section 3; the example is RFC 8037 appendix A.3.
    """
    try:
        members = {name: jwk[name] for name in ("crv", "kty", "x")}
    except KeyError as error:
        raise KeyFormatError("JWK", f"it has no {error.args[0]!r}") from error
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    return _b64(hashlib.sha256(canonical).digest())


def generate_ed25519_keypair() -> Ed25519Keypair:
    """Return a new key pair.

    Raises:
        MissingExtraError: The extra ``auth`` is not installed.
    """
    return _keypair(ed25519.new_private_pem())


def signing_key_from_private_pem(pem: str) -> SigningKey:
    """Return the signing key in a PKCS8 PEM.

    Raises:
        KeyFormatError: Not an Ed25519 private key, or an encrypted one.
        MissingExtraError: The extra ``auth`` is not installed.
    """
    return _keypair(pem).signing_key


def public_jwk_from_pem(pem: str) -> dict[str, str]:
    """Return the public JWK of a private or public PEM, with ``kid``.

    Raises:
        KeyFormatError: Not an Ed25519 key.
        MissingExtraError: The extra ``auth`` is not installed.
    """
    private = "PRIVATE KEY" in pem
    return _jwk(ed25519.public_raw(pem) if private else ed25519.raw_from_public_pem(pem))


def _keypair(private_pem: str) -> Ed25519Keypair:
    raw = ed25519.public_raw(private_pem)
    jwk = _jwk(raw)
    return Ed25519Keypair(jwk["kid"], private_pem, ed25519.public_pem(raw), jwk)


def _jwk(raw: bytes) -> dict[str, str]:
    core = {"kty": "OKP", "crv": "Ed25519", "x": _b64(raw)}
    return {**core, "use": "sig", "alg": "EdDSA", "kid": jwk_thumbprint(core)}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class JwtSigner:
    """Mints tokens of one issuer.

    Args:
        key: What to sign with.
        issuer: Goes into ``iss``; verifiers know it.
        clock: What time it is.
    Raises:
        TokenError: An empty issuer.
    """

    def __init__(self, key: SigningKey, *, issuer: str, clock: Clock = SystemClock()) -> None:
        if not issuer:
            raise TokenError("the issuer is empty", "a name that verifiers know", "Give issuer=.")
        self.key = key
        self.issuer = issuer
        self._clock = clock

    def mint(self, claims: Mapping[str, Any], *, audience: str, ttl_seconds: int) -> str:
        """Return a token that is good for ``ttl_seconds`` at ``audience``.

        Args:
            claims: What it says, such as ``{"sub": "ada"}``; not iss, aud, iat or exp.
            audience: The one service that it is for.
            ttl_seconds: Its life in seconds.
        Raises:
            TokenError: A claim that is ours to set, an empty audience, or a life that is not above 0.
            MissingExtraError: The extra ``auth`` is not installed.
        """
        taken = sorted(set(claims) & set(_OWN_CLAIMS))
        if taken:
            raise TokenError(f"the claims {taken} are set", "claims other than those", "Leave them to the signer.")
        if not audience or ttl_seconds <= 0:
            where = f"audience={audience!r}, ttl_seconds={ttl_seconds}"
            raise TokenError(f"it would be good for nothing: {where}", "an audience and a life above 0", "Give both.")
        now_s = int(self._clock.time())
        own = {"iss": self.issuer, "aud": audience, "iat": now_s, "exp": now_s + int(ttl_seconds)}
        return ed25519.sign({**claims, **own}, self.key.private_pem, self.key.kid)

    def public_jwks(self, also: Sequence[str] = ()) -> dict[str, list[dict[str, str]]]:
        """Return the key set to publish: our key, and the public PEMs ``also``, such as the next and the last key.

        Raises:
            KeyFormatError: One of ``also`` is no Ed25519 key.
        """
        keys = [public_jwk_from_pem(pem) for pem in (self.key.public_pem, *also)]
        return {"keys": list({key["kid"]: key for key in keys}.values())}


def raw_keys_of_jwks(document: object) -> dict[str, bytes]:
    """Return the Ed25519 keys of a key set by their thumbprint; keys of other kinds are left out.

    Raises:
        KeyFormatError: Not a key set, or an Ed25519 key that is broken or names itself wrongly.
    """
    entries = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        raise KeyFormatError("JWKS", "it has no list of keys")
    found = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or (entry.get("kty"), entry.get("crv")) != ("OKP", "Ed25519"):
            continue
        try:
            raw = ed25519.unb64(entry["x"])
        except (KeyError, TypeError, ValueError) as error:
            raise KeyFormatError("JWKS", "a key has no readable x") from error
        kid = jwk_thumbprint({"kty": "OKP", "crv": "Ed25519", "x": _b64(raw)})
        if len(raw) != 32 or entry.get("kid", kid) != kid:
            raise KeyFormatError("JWKS", "a key has not 32 bytes, or a kid that is not its thumbprint")
        found[kid] = raw
    return found


def fetch_jwks(url: str, timeout_s: float = 5.0) -> object:
    """Read a key set by HTTPS (plain HTTP only from this machine); redirects are not followed.

    Raises:
        OSError: It cannot be read, or is no JSON.
        KeyFormatError: Another scheme.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) not in (("http", "127.0.0.1"), ("http", "localhost")):
        raise KeyFormatError("JWKS URL", f"its scheme is {parts.scheme!r}, not https")
    try:
        return json.loads(get_bytes(url, timeout_s=timeout_s, limit_bytes=_LIMIT_BYTES))
    except ValueError as error:
        raise OSError(f"the key set at {url} is no JSON") from error


class JwksSource:
    """The keys of one issuer, read from a URL that *we* configured, and kept.

    Keys are read again when they are older than ``ttl_s``, and when a token names a key that we do not know: that is
    how a new key is noticed at once. The latter happens at most every ``min_refetch_s``, so nobody can make us ask by
    sending nonsense. When the issuer does not answer the old keys stay good for ``stale_s``.

    Args:
        url: Where the key set is.
        ttl_s: Seconds until keys are read again.
        min_refetch_s: Least seconds between two reads.
        stale_s: Seconds that keys stay good without an answer.
        clock: Source of time.
        fetch: Reads the set; for tests and other transports.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float = 300.0,
        min_refetch_s: float = 10.0,
        stale_s: float = 86_400.0,
        clock: Clock = SystemClock(),
        fetch: Callable[[str], object] = fetch_jwks,
    ) -> None:
        self.url = url
        self._ttl_s = ttl_s
        self._min_refetch_s = min_refetch_s
        self._stale_s = stale_s
        self._clock = clock
        self._fetch = fetch
        self._lock = threading.Lock()
        self._keys: dict[str, bytes] = {}
        self._read_s: float | None = None
        self._tried_s: float | None = None

    def keys(self, kid: str | None) -> dict[str, bytes]:
        """Return the keys by thumbprint, after reading them anew if that may help to know ``kid``."""
        with self._lock:
            now_s = self._clock.monotonic()
            old = self._read_s is None or now_s - self._read_s >= self._ttl_s
            unknown = kid is not None and kid not in self._keys
            rested = self._tried_s is None or now_s - self._tried_s >= self._min_refetch_s
            if (old or unknown) and rested:
                self._tried_s = now_s
                self._read(now_s)
            if self._read_s is None or now_s - self._read_s >= self._stale_s:
                return {}
            return self._keys

    def _read(self, now_s: float) -> None:
        try:
            self._keys = raw_keys_of_jwks(self._fetch(self.url))
            self._read_s = now_s
        except (OSError, KeyFormatError) as error:
            logger.warning("keys of %s cannot be read, the old ones stay: %s", self.url, error)


class _FixedKeys:
    def __init__(self, pems: Sequence[str]) -> None:
        self._keys = {}
        for pem in pems:
            raw = ed25519.raw_from_public_pem(pem)
            self._keys[_jwk(raw)["kid"]] = raw

    def keys(self, kid: str | None) -> dict[str, bytes]:
        """The keys by thumbprint."""
        return self._keys


class JwksVerifier:
    """Verifies tokens of known issuers.

    Args:
        issuers: For each issuer its public keys (SPKI PEM), or a ``JwksSource``.
        expected_audiences: What a token may be meant for.
        leeway_seconds: How wrong clocks may be.
        clock: What time it is.
    Raises:
        TokenError: No audience, no issuer, or an issuer without keys.
        KeyFormatError: A key that is no Ed25519 key.
        MissingExtraError: The extra ``auth`` is not installed.
    """

    def __init__(
        self,
        *,
        issuers: Mapping[str, "Sequence[str] | JwksSource"],
        expected_audiences: frozenset[str],
        leeway_seconds: int = LEEWAY_S,
        clock: Clock = SystemClock(),
    ) -> None:
        if isinstance(expected_audiences, str) or not expected_audiences or not all(expected_audiences):
            raise TokenError("no audience is expected", "a set of at least one", "Give expected_audiences=.")
        if not issuers:
            raise TokenError("no issuer is known", "at least one with its keys", "Give issuers=.")
        for issuer, keys in issuers.items():
            if isinstance(keys, str) or (not isinstance(keys, JwksSource) and not keys):
                raise TokenError(f"issuer {issuer!r} has no list of keys", "a list of PEM texts", "Give its keys.")
        self._issuers = {
            issuer: keys if isinstance(keys, JwksSource) else _FixedKeys(keys) for issuer, keys in issuers.items()
        }
        self._audiences = frozenset(expected_audiences)
        self._leeway_s = leeway_seconds
        self._clock = clock

    def verify(self, token: str) -> VerifiedClaims:
        """Return what a token says, if it is good.

        Raises:
            TokenError: It is not; the message holds none of it.
        """
        if not isinstance(token, str) or len(token) > _LIMIT_CHARS:
            raise TokenError("it is no text of reasonable length", f"at most {_LIMIT_CHARS} characters")
        header = ed25519.header_of(token)
        if header.get("alg") != ed25519.ALGORITHM or "crit" in header:
            raise TokenError("its header asks for something else", "alg EdDSA and no critical extension")
        issuer = unverified_claims(token).get("iss")
        source = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if source is None:
            raise TokenError("its issuer is not known here", f"one of {sorted(self._issuers)}")
        kid = header.get("kid")
        known = source.keys(kid if isinstance(kid, str) else None)
        # A name that we do not know may be an older spelling: then each key of the issuer gets its chance.
        candidates = [known[kid]] if isinstance(kid, str) and kid in known else list(known.values())
        claims = ed25519.verify_signature(token, candidates, sorted(self._audiences), str(issuer))
        self._judge_times(claims)
        return self._view(claims)

    def _judge_times(self, claims: dict[str, Any]) -> None:
        now_s = self._clock.time()
        for name in ("exp", "iat", "nbf"):
            value = claims.get(name)
            if name in claims and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise TokenError(f"its {name} is no number", "seconds since 1970")
        if now_s >= claims["exp"] + self._leeway_s:
            raise TokenError("it has run out", "exp in the future")
        if claims["iat"] > now_s + self._leeway_s or claims.get("nbf", 0) > now_s + self._leeway_s:
            raise TokenError("it is not good yet", "iat and nbf in the past", "Check the clocks of both machines.")

    def _view(self, claims: dict[str, Any]) -> VerifiedClaims:
        named = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        ours = next(name for name in named if name in self._audiences)
        texts = {}
        for name in ("sub", "scope"):
            value = claims.get(name)
            if value is not None and not isinstance(value, str):
                raise TokenError(f"its {name} is no text", "a text")
            texts[name] = value
        return VerifiedClaims(texts["sub"], claims["iss"], ours, texts["scope"], claims)


def unverified_claims(token: str) -> dict[str, Any]:
    """Return what a token says without asking whether it is true; for its holder, and for choosing keys.

    Raises:
        TokenError: It is no token.

    Example:
        >>> unverified_claims("e30.eyJpc3MiOiJtZSJ9.x")
        {'iss': 'me'}
    """
    try:
        _, body, _ = token.split(".")
        claims = json.loads(ed25519.unb64(body))
        if not isinstance(claims, dict):
            raise ValueError("claims are no object")
    except (ValueError, RecursionError) as error:
        raise TokenError("it is no signed token", "three base64url parts", "Check what is sent.") from error
    return claims
