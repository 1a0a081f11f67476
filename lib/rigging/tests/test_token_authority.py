"""Tokens: the shared vectors, what a signer refuses, and keys that change while a service runs."""

import json
import logging
import os
import pickle
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from .conftest import have

if not have("jwt", "cryptography"):
    pytest.skip("the extra auth is not installed", allow_module_level=True)

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from rigging._adapters.ed25519 import private_pem_from_seed, unb64
from rigging.errors import KeyFormatError, TokenError
from rigging.redaction import redact_string
from rigging.timing import ManualClock
from rigging.token_authority import (
    JwksSource,
    JwksVerifier,
    JwtSigner,
    fetch_jwks,
    generate_ed25519_keypair,
    jwk_thumbprint,
    public_jwk_from_pem,
    signing_key_from_private_pem,
)

from . import make_auth_vectors

with open(make_auth_vectors.PATH, encoding="utf-8") as stream:
    VECTORS = json.load(stream)


def clock_at(now_s: float) -> ManualClock:
    clock = ManualClock()
    clock.advance(now_s - clock.time())
    return clock


@pytest.fixture
def verifier():
    return JwksVerifier(
        issuers=VECTORS["issuers"],
        expected_audiences=frozenset(VECTORS["audiences"]),
        leeway_seconds=VECTORS["leeway_s"],
        clock=clock_at(VECTORS["now_s"]),
    )


def test_the_vector_file_is_what_its_maker_makes():
    assert json.loads(json.dumps(make_auth_vectors.make())) == VECTORS


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda vector: vector["name"])
def test_good_tokens_are_taken(verifier, vector):
    claims = verifier.verify(vector["token"])
    assert (claims.sub, claims.iss, claims.aud, claims.scope) == ("ada", "cluster-a", "finelog", "read")


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["name"])
def test_bad_tokens_are_refused_without_being_shown(verifier, vector):
    with pytest.raises(ValueError) as caught:
        verifier.verify(vector["token"])
    assert isinstance(caught.value, TokenError)
    parts = [part for part in vector["token"].split(".") if len(part) > 8]
    assert not any(part in str(caught.value) or part in repr(caught.value) for part in parts)


def test_the_key_of_rfc_8037_has_its_thumbprint_and_signature():
    rfc = VECTORS["rfc8037"]
    pem = private_pem_from_seed(unb64(rfc["d"]))
    jwk = public_jwk_from_pem(pem)
    assert (jwk["x"], jwk["kid"]) == (rfc["x"], rfc["thumbprint"]) and jwk_thumbprint(jwk) == rfc["thumbprint"]
    head, body, signature = rfc["jws"].split(".")
    key = serialization.load_pem_private_key(pem.encode(), None)
    assert unb64(body).decode() == rfc["payload"] and key.sign(f"{head}.{body}".encode()) == unb64(signature)


def test_a_minted_token_says_what_the_vector_says():
    made = VECTORS["minted"]
    key = signing_key_from_private_pem(private_pem_from_seed(unb64(made["seed"])))
    signer = JwtSigner(key, issuer="cluster-a", clock=clock_at(made["iat"]))
    token = signer.mint(made["claims"], audience="finelog", ttl_seconds=made["ttl_s"] + 10)
    header, body, _ = token.split(".")
    good_header, good_body, _ = VECTORS["accepted"][0]["token"].split(".")
    assert json.loads(unb64(header)) == json.loads(unb64(good_header))
    assert json.loads(unb64(body)) == json.loads(unb64(good_body))


def test_a_signer_refuses_what_would_make_no_sense():
    signer = JwtSigner(generate_ed25519_keypair().signing_key, issuer="me")
    for claim in ("iss", "aud", "iat", "exp"):
        with pytest.raises(TokenError, match=claim):
            signer.mint({claim: 1}, audience="x", ttl_seconds=1)
    for audience, ttl in (("", 1), ("x", 0), ("x", -5)):
        with pytest.raises(TokenError):
            signer.mint({}, audience=audience, ttl_seconds=ttl)
    with pytest.raises(TokenError):
        JwtSigner(signer.key, issuer="")


def test_a_verifier_refuses_to_be_set_up_without_keys_or_audience():
    pem = generate_ed25519_keypair().public_pem
    for issuers, audiences in (
        ({"a": [pem]}, frozenset()),
        ({"a": [pem]}, "finelog"),
        ({"a": [pem]}, frozenset({""})),
        ({"a": []}, frozenset({"x"})),
        ({"a": pem}, frozenset({"x"})),
        ({}, frozenset({"x"})),
        ({"a": ["no pem"]}, frozenset({"x"})),
    ):
        with pytest.raises(ValueError):
            JwksVerifier(issuers=issuers, expected_audiences=audiences)


def test_other_kinds_of_keys_are_refused():
    pkcs8 = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(*pkcs8, serialization.NoEncryption()).decode()
    locked = ed25519.Ed25519PrivateKey.generate()
    locked = locked.private_bytes(*pkcs8, serialization.BestAvailableEncryption(b"x")).decode()
    for pem in (curve, locked, "", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"):
        with pytest.raises(KeyFormatError):
            signing_key_from_private_pem(pem)


def test_no_private_key_is_shown_anywhere():
    pair = generate_ed25519_keypair()
    secret = pair.private_pem.splitlines()[1]
    for thing in (pair, pair.signing_key, {"key": pair}):
        assert secret not in repr(thing) and secret not in str(thing)
    assert secret not in redact_string(f"the key is {pair.private_pem}")
    token = JwtSigner(pair.signing_key, issuer="me").mint({}, audience="x", ttl_seconds=9)
    assert token.split(".")[2] not in redact_string(f"sent Authorization: Bearer {token} to x")
    assert pickle.loads(pickle.dumps(pair)) == pair


class KeySet:
    """A real server of a key set that can be changed, broken and counted."""

    def __init__(self):
        self.document: object = {"keys": []}
        self.status = 200
        self.hits = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.hits += 1
                body = json.dumps(outer.document).encode()
                self.send_response(outer.status)
                if outer.status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks.json"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def key_set():
    served = KeySet()
    yield served
    served.server.shutdown()
    served.server.server_close()


def test_keys_rotate_while_the_verifier_runs(key_set):
    clock = clock_at(1_800_000_000)
    old, new = (JwtSigner(generate_ed25519_keypair().signing_key, issuer="me", clock=clock) for _ in range(2))
    key_set.document = old.public_jwks()
    source = JwksSource(key_set.url, clock=clock, ttl_s=300, min_refetch_s=10)
    verifier = JwksVerifier(issuers={"me": source}, expected_audiences=frozenset({"x"}), clock=clock)

    def good(signer):
        token = signer.mint({"sub": "ada"}, audience="x", ttl_seconds=100_000)
        try:
            return verifier.verify(token).sub == "ada"
        except TokenError:
            return False

    assert good(old) and good(old) and key_set.hits == 1, "keys are kept"
    key_set.document = new.public_jwks(also=[old.key.public_pem])
    assert not good(new) and key_set.hits == 1, "nobody can make us ask again at once"
    clock.advance(10)
    assert good(new) and good(old) and key_set.hits == 2, "an unknown kid asks for the new set"
    key_set.document = new.public_jwks()
    assert good(old), "until the set is read again the old key is good"
    clock.advance(300)
    assert not good(old) and good(new) and key_set.hits == 3


def test_an_issuer_that_does_not_answer_keeps_its_keys_for_a_day(key_set, caplog):
    clock = clock_at(1_800_000_000)
    signer = JwtSigner(generate_ed25519_keypair().signing_key, issuer="me", clock=clock)
    key_set.document = signer.public_jwks()
    source = JwksSource(key_set.url, clock=clock)
    verifier = JwksVerifier(issuers={"me": source}, expected_audiences=frozenset({"x"}), clock=clock)
    token = signer.mint({}, audience="x", ttl_seconds=1_000_000)
    verifier.verify(token)
    for status, document in ((500, {}), (200, {"keys": "none"}), (302, {}), (200, [1])):
        key_set.status, key_set.document = status, document
        clock.advance(301)
        with caplog.at_level(logging.WARNING):
            verifier.verify(token)
    assert "the old ones stay" in caplog.text and token not in caplog.text
    clock.advance(86_400)
    with pytest.raises(TokenError):
        verifier.verify(token)


def test_a_key_that_names_itself_wrongly_poisons_nothing(key_set):
    pair = generate_ed25519_keypair()
    key_set.document = {"keys": [{**pair.public_jwk, "kid": "somebody-else"}]}
    assert JwksSource(key_set.url).keys(None) == {}
    key_set.document = {"keys": [{"kty": "RSA", "n": "x", "e": "AQAB"}, pair.public_jwk]}
    assert list(JwksSource(key_set.url).keys(None)) == [pair.kid]


def test_a_key_set_is_read_over_https_only():
    for url in ("http://example.com/jwks", "file:///etc/passwd", "ftp://x/y"):
        with pytest.raises(KeyFormatError, match="https"):
            fetch_jwks(url)


def test_the_vectors_lie_beside_the_tests():
    assert os.path.getsize(make_auth_vectors.PATH) < 100_000
