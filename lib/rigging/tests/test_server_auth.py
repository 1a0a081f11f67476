"""Policies in their order, and the middleware in front of real Starlette routes."""

import asyncio
import json
import logging

import pytest
from rigging.errors import ConfigError, MissingExtraError, NotAuthenticatedError
from rigging.server_auth import (
    AnonymousAuthenticator,
    AuthOutcome,
    AuthRequest,
    AuthResult,
    CidrAuthenticator,
    LoopbackAuthenticator,
    RequestAuthPolicy,
    VerifiedIdentity,
    extract_bearer_token,
    get_verified_identity,
    get_verified_user,
    identity_scope,
    require_identity,
    resolve_auth,
)

from .conftest import have

needs_auth = pytest.mark.skipif(not have("jwt", "cryptography"), reason="the extra auth is not installed")
needs_server = pytest.mark.skipif(not have("jwt", "starlette"), reason="the extras auth and server are not installed")
INSIDE, OUTSIDE = ("10.1.2.3", 5000), ("203.0.113.9", 5000)


class Says:
    def __init__(self, outcome, user="x"):
        self.result = AuthResult(outcome, VerifiedIdentity(user) if outcome is AuthOutcome.AUTHENTICATED else None)
        self.asked = 0

    def authenticate(self, request):
        self.asked += 1
        return self.result


def test_the_first_answer_decides_and_nobody_is_asked_after_it():
    absent, yes, no = (
        Says(outcome) for outcome in (AuthOutcome.ABSENT, AuthOutcome.AUTHENTICATED, AuthOutcome.REJECTED)
    )
    assert resolve_auth([absent, yes, no], AuthRequest()).outcome is AuthOutcome.AUTHENTICATED
    assert (absent.asked, yes.asked, no.asked) == (1, 1, 0)
    assert resolve_auth([absent, no, yes], AuthRequest()).outcome is AuthOutcome.REJECTED and yes.asked == 1
    assert resolve_auth([absent], AuthRequest()).outcome is AuthOutcome.ABSENT


@pytest.mark.parametrize(
    ("address", "headers", "admitted"),
    [
        (INSIDE, {}, True),
        (("::ffff:10.1.2.3", 5000), {}, True),
        (OUTSIDE, {}, False),
        (INSIDE, {"x-forwarded-for": "10.1.2.3"}, False),
        (INSIDE, {"x-forwarded-for": ""}, False),
        (("10.1.2.3", 0), {}, False),
        (("not an address", 5000), {}, False),
        (("/run/sock", 5000), {}, False),
        (None, {}, False),
        (None, {"x-real-ip": "10.1.2.3"}, False),
    ],
)
def test_the_network_is_trusted_for_the_sockets_peer_only(address, headers, admitted):
    answer = CidrAuthenticator(["10.0.0.0/8"]).authenticate(AuthRequest(None, headers, address))
    assert (answer.outcome is AuthOutcome.AUTHENTICATED) == admitted


def test_loopback_is_this_machine_in_both_spellings():
    for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert LoopbackAuthenticator().authenticate(AuthRequest(client_address=(host, 9))).identity is not None
    assert LoopbackAuthenticator().authenticate(AuthRequest(client_address=("::2", 9))).outcome is AuthOutcome.ABSENT
    with pytest.raises(ConfigError, match="10.0.0.1/8"):
        CidrAuthenticator(["10.0.0.1/8"])


def test_without_configuration_only_this_machine_is_admitted():
    policy = RequestAuthPolicy.enforcing()
    assert policy.resolve(None, client_address=("127.0.0.1", 9)).user_id == "local" and not policy.allows_anonymous
    with pytest.raises(NotAuthenticatedError):
        policy.resolve(None, client_address=OUTSIDE)
    open_policy = RequestAuthPolicy.enforcing(optional=True)
    assert open_policy.allows_anonymous and open_policy.resolve(None, client_address=OUTSIDE).user_id == "anonymous"
    assert RequestAuthPolicy.permissive().allows_anonymous
    assert isinstance(RequestAuthPolicy.permissive().authenticators[-1], AnonymousAuthenticator)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer   abc "}, "abc"),
        ({"authorization": "Basic abc"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": ""}, None),
        ({"cookie": "a=1; session=abc"}, "abc"),
        ({"cookie": "session="}, None),
        ({"cookie": "\x00broken"}, None),
        ({"authorization": "Bearer one", "cookie": "session=two"}, "one"),
        ({}, None),
    ],
)
def test_the_token_of_a_request(headers, token):
    assert extract_bearer_token(headers, "session") == token
    assert extract_bearer_token({"cookie": "session=abc"}) is None


def test_the_identity_is_that_of_the_scope():
    assert get_verified_identity() is None
    with pytest.raises(NotAuthenticatedError):
        require_identity()
    with identity_scope(VerifiedIdentity("ada")):
        assert require_identity().user_id == get_verified_user() == "ada"
        with identity_scope(VerifiedIdentity("web", audience="web")), pytest.raises(NotAuthenticatedError, match="web"):
            require_identity()
    assert get_verified_user() is None


@pytest.fixture
def signer():
    from rigging.token_authority import JwtSigner, generate_ed25519_keypair

    return JwtSigner(generate_ed25519_keypair().signing_key, issuer="me")


@pytest.fixture
def policy(signer):
    from rigging.token_authority import JwksVerifier

    verifier = JwksVerifier(issuers={"me": [signer.key.public_pem]}, expected_audiences=frozenset({"api", "web"}))
    return RequestAuthPolicy.enforcing(verifier=verifier, trusted_cidrs=["10.0.0.0/8"], primary_audience="api")


@needs_auth
def test_a_bad_token_is_refused_even_from_a_trusted_network(policy, signer):
    token = signer.mint({"sub": "ada", "role": "admin"}, audience="api", ttl_seconds=60)
    assert policy.resolve(token, client_address=OUTSIDE) == VerifiedIdentity("ada", "admin")
    assert policy.resolve(None, client_address=INSIDE).user_id == "local"
    for bad in (token[:-4] + "AAAA", "nonsense", ""):
        with pytest.raises(NotAuthenticatedError) as caught:
            policy.resolve(bad, client_address=INSIDE)
        assert token[-20:] not in str(caught.value)
    nameless = signer.mint({}, audience="api", ttl_seconds=60)
    with pytest.raises(NotAuthenticatedError, match="subject"):
        policy.resolve(nameless, client_address=INSIDE)


@needs_auth
def test_a_permissive_policy_knows_whom_it_can_and_serves_everybody(signer):
    from rigging.token_authority import JwksVerifier

    verifier = JwksVerifier(issuers={"me": [signer.key.public_pem]}, expected_audiences=frozenset({"api"}))
    policy = RequestAuthPolicy.permissive(verifier=verifier)
    assert policy.resolve(signer.mint({"sub": "ada"}, audience="api", ttl_seconds=9)).user_id == "ada"
    assert policy.resolve("nonsense").user_id == "anonymous"


def ask(app, path, headers=(), client=OUTSIDE, kind="http", method="GET"):
    """Send one request to an ASGI application; return status and what the endpoint said."""
    sent = []

    async def receive():
        return {"type": f"{kind}.request" if kind == "http" else "websocket.connect", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": client,
        "server": ("test", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    asyncio.run(app(scope, receive, send))
    if kind == "websocket":
        return sent
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def app(policy):
    from rigging.route_auth import RouteAuthMiddleware, public, requires_auth
    from starlette.applications import Starlette
    from starlette.endpoints import HTTPEndpoint
    from starlette.responses import JSONResponse
    from starlette.routing import Mount, Route, WebSocketRoute

    @public
    async def health(request):
        return JSONResponse({"user": get_verified_user()})

    @requires_auth
    async def whoami(request):
        return JSONResponse({"user": require_identity().user_id})

    async def forgotten(request):
        return JSONResponse({"leak": True})

    @requires_auth
    class Thing(HTTPEndpoint):
        async def get(self, request):
            return JSONResponse({"user": get_verified_user()})

    @requires_auth
    async def socket(socket):
        await socket.accept()
        await socket.close()

    routes = [
        Route("/health", health),
        Route("/whoami", whoami, methods=["GET"]),
        Route("/forgotten", forgotten),
        Route("/thing/{name}", Thing),
        WebSocketRoute("/socket", socket),
        Mount("/mounted", routes=[Route("/free", forgotten)]),
    ]
    return RouteAuthMiddleware(Starlette(routes=routes), policy, cookie_name="session")


@needs_server
def test_each_route_serves_whom_it_says(app, signer, caplog):
    token = signer.mint({"sub": "ada"}, audience="api", ttl_seconds=60)
    scoped = signer.mint({"sub": "ada"}, audience="web", ttl_seconds=60)
    bearer, cookie = [("Authorization", f"Bearer {token}")], [("cookie", f"session={token}")]
    with caplog.at_level(logging.DEBUG):
        assert ask(app, "/health") == (200, {"user": None})
        assert ask(app, "/health", bearer) == (200, {"user": "ada"})
        assert ask(app, "/whoami") == (401, {"error": "not authenticated"})
        assert ask(app, "/whoami", bearer) == (200, {"user": "ada"})
        assert ask(app, "/whoami", cookie) == (200, {"user": "ada"})
        assert ask(app, "/whoami", client=INSIDE) == (200, {"user": "local"})
        assert ask(app, "/whoami", [("authorization", f"Bearer {token}x")], client=INSIDE)[0] == 401
        assert ask(app, "/whoami", [("authorization", f"Bearer {scoped}")])[0] == 403
        assert ask(app, "/forgotten", bearer)[0] == 401, "a route without a mark serves nobody"
        assert ask(app, "/thing/7") == (401, {"error": "not authenticated"})
        assert ask(app, "/thing/7", bearer) == (200, {"user": "ada"})
        assert ask(app, "/mounted/free") == (200, {"leak": True}), "a mounted application looks after itself"
    assert token not in caplog.text and "refused /whoami" in caplog.text
    assert get_verified_user() is None


@needs_server
def test_a_wrong_method_or_path_tells_a_stranger_nothing_more(app):
    assert ask(app, "/whoami", method="POST")[0] == 401
    refused = ask(app, "/socket", kind="websocket")
    assert refused == [{"type": "websocket.close", "code": 1008, "reason": "not authenticated"}]


@pytest.mark.skipif(have("starlette"), reason="the extra server is installed")
def test_without_the_extra_the_error_names_it():
    from rigging.route_auth import RouteAuthMiddleware

    app = RouteAuthMiddleware(object(), RequestAuthPolicy.enforcing())
    with pytest.raises(MissingExtraError, match=r"marin-rigging\[server\]"):
        ask(app, "/")
