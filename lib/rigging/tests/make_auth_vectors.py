"""Write ``auth_vectors.json``: tokens that every verifier of ours must take or refuse, in whatever language it is.

The keys are fixed and Ed25519 is deterministic, so the file is the same each time; a test compares it with what this
makes. Run ``python make_auth_vectors.py`` to write it anew.
"""

import base64
import hashlib
import hmac
import json
import os
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rigging._adapters.ed25519 import private_pem_from_seed, public_pem
from rigging.token_authority import public_jwk_from_pem

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "auth_vectors.json")
NOW_S = 1_800_000_000
ISSUER, AUDIENCE = "cluster-a", "finelog"
# The order of the base point's group: a signature with S + L is the same point, and must be refused (RFC 8032, 5.1.7).
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
# RFC 8037, appendix A.1 to A.4.
RFC8037 = {
    "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    "thumbprint": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
    "payload": "Example of Ed25519 signing",
    "jws": "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc."
    "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def token(seed: bytes, claims: Any, header: dict[str, Any]) -> str:
    """Sign by hand, so that tokens can be wrong in ways that a library would refuse to make."""
    head = b64(json.dumps(header, separators=(",", ":")).encode())
    body = b64(json.dumps(claims, separators=(",", ":")).encode())
    signed = f"{head}.{body}".encode()
    return f"{head}.{body}.{b64(Ed25519PrivateKey.from_private_bytes(seed).sign(signed))}"


def with_malleable_signature(good: str) -> str:
    head, body, signature = good.split(".")
    raw = unb64(signature)
    other = (int.from_bytes(raw[32:], "little") + GROUP_ORDER).to_bytes(32, "little")
    return f"{head}.{body}.{b64(raw[:32] + other)}"


def make() -> dict[str, Any]:
    seed, other, foreign = unb64(RFC8037["d"]), bytes(range(32)), bytes(range(32, 64))
    raw, second, third = (
        Ed25519PrivateKey.from_private_bytes(item).public_key().public_bytes_raw() for item in (seed, other, foreign)
    )
    kid = public_jwk_from_pem(private_pem_from_seed(seed))["kid"]
    other_kid = public_jwk_from_pem(private_pem_from_seed(other))["kid"]
    foreign_kid = public_jwk_from_pem(private_pem_from_seed(foreign))["kid"]
    header = {"alg": "EdDSA", "typ": "JWT", "kid": kid}
    claims = {"sub": "ada", "scope": "read", "iss": ISSUER, "aud": AUDIENCE, "iat": NOW_S - 10, "exp": NOW_S + 600}
    good = token(seed, claims, header)
    head, body, signature = good.split(".")
    flipped = bytes([unb64(signature)[0] ^ 1]) + unb64(signature)[1:]
    hs_head = b64(b'{"alg":"HS256","typ":"JWT"}')
    hs_mac = hmac.new(public_pem(raw).encode(), f"{hs_head}.{body}".encode(), hashlib.sha256).digest()

    def without(name: str) -> dict[str, Any]:
        return {key: value for key, value in claims.items() if key != name}

    accepted = {
        "plain": good,
        "no kid: each key of the issuer is tried": token(seed, claims, {"alg": "EdDSA", "typ": "JWT"}),
        "unknown kid: each key of the issuer is tried": token(seed, claims, {**header, "kid": "other"}),
        "signed by the issuer's second key": token(other, claims, {**header, "kid": other_kid}),
        "run out, within the leeway": token(seed, {**claims, "exp": NOW_S - 59}, header),
        "issued in the future, within the leeway": token(seed, {**claims, "iat": NOW_S + 59}, header),
        "several audiences, one of them ours": token(seed, {**claims, "aud": ["x", AUDIENCE]}, header),
    }
    refused = {
        "empty": "",
        "no token": "abc",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.x",
        "signature cut off": f"{head}.{body}.",
        "signature of another content": f"{head}.{b64(json.dumps({**claims, 'sub': 'eve'}).encode())}.{signature}",
        "one bit of the signature flipped": f"{head}.{body}.{b64(flipped)}",
        "signature with S + L": with_malleable_signature(good),
        "alg none": f"{b64(b'{"alg":"none"}')}.{body}.",
        "alg HS256 with the public key as secret": f"{hs_head}.{body}.{b64(hs_mac)}",
        "alg in another case": token(seed, claims, {**header, "alg": "eddsa"}),
        "critical extension": token(seed, claims, {**header, "crit": ["x"], "x": 1}),
        "signed by a key that nobody knows": token(foreign, claims, {**header, "kid": foreign_kid}),
        "signed by a stranger under the issuer's kid": token(foreign, claims, header),
        "key of another issuer": token(seed, {**claims, "iss": "cluster-b"}, header),
        "unknown issuer": token(seed, {**claims, "iss": "cluster-z"}, header),
        "another audience": token(seed, {**claims, "aud": "iris"}, header),
        "run out": token(seed, {**claims, "exp": NOW_S - 60}, header),
        "issued in the future": token(seed, {**claims, "iat": NOW_S + 61}, header),
        "not good yet": token(seed, {**claims, "nbf": NOW_S + 61}, header),
        "exp is a text": token(seed, {**claims, "exp": str(NOW_S + 600)}, header),
        "exp is true": token(seed, {**claims, "exp": True}, header),
        "sub is a number": token(seed, {**claims, "sub": 7}, header),
        "claims are a list": token(seed, [1], header),
        **{f"no {name}": token(seed, without(name), header) for name in ("exp", "iat", "iss", "aud")},
    }
    return {
        "now_s": NOW_S,
        "leeway_s": 60,
        "audiences": [AUDIENCE],
        "issuers": {
            ISSUER: [public_pem(raw), public_pem(second)],
            "cluster-b": [public_pem(third)],
        },
        "kid": kid,
        "minted": {"seed": RFC8037["d"], "claims": {"sub": "ada", "scope": "read"}, "ttl_s": 600, "iat": NOW_S - 10},
        "rfc8037": RFC8037,
        "accepted": [{"name": name, "token": text} for name, text in accepted.items()],
        "refused": [{"name": name, "token": text} for name, text in refused.items()],
    }


if __name__ == "__main__":
    with open(PATH, "w", encoding="utf-8") as stream:
        json.dump(make(), stream, indent=2)
        stream.write("\n")
