"""Google's tokens by its own client library against a loopback issuer, and a proxy's assertions."""

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .conftest import have

if not have("google.auth", "requests", "jwt", "cryptography"):
    pytest.skip("the extras iap and auth are not installed", allow_module_level=True)

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from rigging.errors import NotAuthenticatedError, TokenError
from rigging.google_tokens import (
    IAP_HEADER,
    IAP_ISSUER,
    GcpAccessTokenProvider,
    IapAssertionAuthenticator,
    IapAssertionVerifier,
    IapServiceAccountTokenProvider,
)
from rigging.secrets import reset_secret_cache
from rigging.server_auth import RequestAuthPolicy, VerifiedIdentity
from rigging.timing import ManualClock

AUDIENCE = "/projects/1/global/backendServices/2"


@pytest.fixture
def issuer(tmp_path, monkeypatch):
    """Google's token endpoint: an access token, or an identity token for the audience that is asked for."""
    state = {"asked": [], "status": 200, "life_s": 3600}
    key = rsa.generate_private_key(65537, 2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = key.private_bytes(*form).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            wanted = jwt.decode(body.split("assertion=")[1].split("&")[0], options={"verify_signature": False})
            state["asked"].append(wanted.get("target_audience"))
            if wanted.get("target_audience"):
                claims = {
                    "aud": wanted["target_audience"],
                    "exp": wanted["iat"] + state["life_s"],
                    "iat": wanted["iat"],
                }
                answer = {"id_token": jwt.encode(claims, pem, "RS256")}
            else:
                answer = {"access_token": "ya29.example", "expires_in": 3600, "token_type": "Bearer"}
            body = json.dumps(answer if state["status"] == 200 else {"error": "denied"}).encode()
            self.send_response(state["status"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    account = {
        "type": "service_account",
        "private_key_id": "1",
        "private_key": pem,
        "client_email": "robot@example.iam.gserviceaccount.com",
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    reset_secret_cache()
    yield state
    reset_secret_cache()
    server.shutdown()
    server.server_close()


def test_an_access_token_is_fetched_once_while_it_is_good(issuer):
    provider = GcpAccessTokenProvider()
    assert provider.get_token() == provider.get_token() == "ya29.example" and issuer["asked"] == [None]


def test_an_identity_token_is_for_its_audience_and_renewed_before_its_end(issuer):
    clock = ManualClock()
    clock.advance(time.time() - clock.time())
    provider = IapServiceAccountTokenProvider("client-id", clock=clock)
    first = provider.get_token()
    assert provider.get_token() == first and issuer["asked"] == ["client-id"]
    clock.advance(3301)
    provider.get_token()
    assert issuer["asked"] == ["client-id"] * 2
    issuer["status"] = 400
    clock.advance(86_400)
    with pytest.raises(OSError, match="request to Google failed"):
        provider.get_token()
    with pytest.raises(TokenError):
        IapServiceAccountTokenProvider("")


@pytest.fixture
def proxy():
    return {"key": ec.generate_private_key(ec.SECP256R1()), "kid": "k1", "reads": 0, "away": False}


def keys_of(proxy):
    def fetch(url):
        proxy["reads"] += 1
        if proxy["away"]:
            raise OSError("away")
        jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(proxy["key"].public_key()))
        return {"keys": [{**jwk, "kid": proxy["kid"], "alg": "ES256", "use": "sig"}]}

    return fetch


def assertion(proxy, clock, *, key=None, kid=None, algorithm="ES256", **changes):
    now_s = int(clock.time())
    claims = {
        "iss": IAP_ISSUER,
        "aud": AUDIENCE,
        "iat": now_s,
        "exp": now_s + 600,
        "email": "ada@example.com",
        **changes,
    }
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key or proxy["key"], algorithm, headers={"kid": kid or proxy["kid"]})


def test_who_came_through_the_proxy_is_known(proxy, caplog):
    clock = ManualClock()
    verifier = IapAssertionVerifier(AUDIENCE, fetch=keys_of(proxy), clock=clock)
    policy = RequestAuthPolicy.enforcing(edge=IapAssertionAuthenticator(verifier))
    good = assertion(proxy, clock)
    far = ("203.0.113.9", 5000)
    assert policy.resolve(None, client_address=far, headers={IAP_HEADER: good}) == VerifiedIdentity("ada@example.com")
    verifier.verify(good)
    assert proxy["reads"] == 1
    with pytest.raises(NotAuthenticatedError):
        policy.resolve(None, client_address=far)
    with pytest.raises(NotAuthenticatedError) as caught:
        policy.resolve(None, client_address=("127.0.0.1", 9), headers={IAP_HEADER: good[:-6] + "AAAAAA"})
    assert good.split(".")[1] not in str(caught.value)
    clock.advance(3600)
    proxy["away"] = True
    with caplog.at_level(logging.WARNING):
        verifier.verify(assertion(proxy, clock))
    assert "the old ones stay" in caplog.text


def test_a_bad_assertion_is_refused(proxy):
    clock = ManualClock()
    verifier = IapAssertionVerifier(AUDIENCE, fetch=keys_of(proxy), clock=clock)
    now_s = int(clock.time())
    stranger = ec.generate_private_key(ec.SECP256R1())
    bad = [
        "",
        "nonsense",
        assertion(proxy, clock, aud="/projects/1/global/backendServices/3"),
        assertion(proxy, clock, iss="https://example.com"),
        assertion(proxy, clock, exp=now_s - 61),
        assertion(proxy, clock, iat=now_s + 61),
        assertion(proxy, clock, exp=None),
        assertion(proxy, clock, email=None),
        assertion(proxy, clock, key=stranger),
        assertion(proxy, clock, kid="k2"),
        assertion(proxy, clock, key="a shared secret of thirty-two bytes or more", algorithm="HS256"),
    ]
    for text in bad:
        with pytest.raises(TokenError):
            verifier.verify(text)
    picky = IapAssertionVerifier(AUDIENCE, lambda email: None, fetch=keys_of(proxy), clock=clock)
    with pytest.raises(TokenError, match="role"):
        picky.verify(assertion(proxy, clock))
    proxy["away"] = True
    with pytest.raises(TokenError, match="cannot be read"):
        IapAssertionVerifier(AUDIENCE, fetch=keys_of(proxy), clock=clock).verify(assertion(proxy, clock))
    with pytest.raises(TokenError):
        IapAssertionVerifier("")
