"""Interceptors in front of real Connect servers on loopback, synchronous and asynchronous, called by real clients."""

import asyncio
import contextlib
import socket
import threading
import time
import wsgiref.simple_server

import pytest
from rigging.auth import BearerTokenInjector, StaticTokenProvider
from rigging.errors import ConfigError, MissingExtraError
from rigging.rpc import ConcurrencyLimitInterceptor, PolicyAuthInterceptor
from rigging.server_auth import AnonymousAuthenticator, RequestAuthPolicy, VerifiedIdentity, get_verified_user

from .conftest import have

needs_rpc = pytest.mark.skipif(not have("connectrpc", "uvicorn", "jwt"), reason="the group interop is not installed")
OUTSIDE = {"x-forwarded-for": "203.0.113.9"}  # loopback does not count behind a proxy


def methods():
    from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
    from protobuf.wkt import StringValue

    def made(name, kind):
        return MethodInfo(
            name=name,
            service_name="test.v1.Test",
            input=StringValue,
            output=StringValue,
            idempotency_level=IdempotencyLevel.UNKNOWN,
            stream_type=kind,
        )

    return made("Who", StreamType.UNARY), made("Open", StreamType.UNARY), made("Count", StreamType.SERVER_STREAM)


class Sync:
    """A WSGI server, one thread a request."""

    def __init__(self, interceptors, gate=None):
        from socketserver import ThreadingMixIn

        from connectrpc.server import ConnectWSGIApplication, EndpointSync
        from protobuf.wkt import StringValue

        def who(request, ctx):
            if gate is not None:
                gate.enter()
            return StringValue(value=get_verified_user() or "nobody")

        def count(request, ctx):
            for _ in range(3):
                yield StringValue(value=get_verified_user() or "nobody")

        who_method, open_method, count_method = methods()
        endpoints = {
            "/test.v1.Test/Who": EndpointSync.unary(method=who_method, function=who),
            "/test.v1.Test/Open": EndpointSync.unary(method=open_method, function=who),
            "/test.v1.Test/Count": EndpointSync.server_stream(method=count_method, function=count),
        }

        class Application(ConnectWSGIApplication):
            path = "/test.v1.Test"

        class Server(ThreadingMixIn, wsgiref.simple_server.WSGIServer):
            daemon_threads = True

        class Quiet(wsgiref.simple_server.WSGIRequestHandler):
            def get_environ(self):
                return super().get_environ() | {"REMOTE_PORT": str(self.client_address[1])}

            def log_message(self, *arguments):
                pass

        application = Application(endpoints=endpoints, interceptors=interceptors)
        self.server = wsgiref.simple_server.make_server("127.0.0.1", 0, application, Server, Quiet)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Async:
    """An ASGI server under uvicorn."""

    def __init__(self, interceptors, gate=None):
        import uvicorn
        from connectrpc.server import ConnectASGIApplication, Endpoint
        from protobuf.wkt import StringValue

        async def who(request, ctx):
            if gate is not None:
                await asyncio.to_thread(gate.enter)
            return StringValue(value=get_verified_user() or "nobody")

        async def count(request, ctx):
            for _ in range(3):
                yield StringValue(value=get_verified_user() or "nobody")

        who_method, open_method, count_method = methods()
        endpoints = {
            "/test.v1.Test/Who": Endpoint.unary(method=who_method, function=who),
            "/test.v1.Test/Open": Endpoint.unary(method=open_method, function=who),
            "/test.v1.Test/Count": Endpoint.server_stream(method=count_method, function=count),
        }

        class Application(ConnectASGIApplication):
            path = "/test.v1.Test"

        self.socket = socket.create_server(("127.0.0.1", 0))
        application = Application(service=object(), endpoints=lambda service: endpoints, interceptors=interceptors)
        self.server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off", ws="none"))
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def serve(request):
    with contextlib.ExitStack() as stack:

        def start(interceptors, gate=None):
            server = request.param(interceptors, gate)
            stack.callback(server.close)
            return server.url

        yield start


def call(url, name, *, token=None, headers=None, timeout_ms=30_000):
    """The answer, or the code of the refusal."""
    from connectrpc.client import ConnectClientSync
    from connectrpc.errors import ConnectError
    from protobuf.wkt import StringValue

    method = next(one for one in methods() if one.name == name)
    interceptors = [] if token is None else [BearerTokenInjector(StaticTokenProvider(token))]
    client = ConnectClientSync(url, interceptors=interceptors, timeout_ms=timeout_ms)
    given = {"request": StringValue(value="x"), "method": method, "headers": OUTSIDE if headers is None else headers}
    try:
        if name == "Count":
            return [answer.value for answer in client.execute_server_stream(**given)]
        return client.execute_unary(**given).value
    except ConnectError as error:
        return error.code.value
    finally:
        client.close()


@pytest.fixture
def issuer():
    from rigging.token_authority import JwksVerifier, JwtSigner, generate_ed25519_keypair

    signer = JwtSigner(generate_ed25519_keypair().signing_key, issuer="test")
    verifier = JwksVerifier(
        issuers={"test": [signer.key.public_pem]}, expected_audiences=frozenset({"service", "other"})
    )

    def mint(user="ada", audience="service"):
        return signer.mint({"sub": user}, audience=audience, ttl_seconds=3600)

    return verifier, mint


@needs_rpc
def test_a_policy_admits_and_refuses_calls_of_every_shape(serve, issuer):
    verifier, mint = issuer
    policy = RequestAuthPolicy.enforcing(verifier=verifier, primary_audience="service")
    url = serve(
        [
            PolicyAuthInterceptor(
                policy,
                cookie_name="session",
                unauthenticated_methods=["test.v1.Test/Open"],
                authorize=lambda identity, method: identity.user_id != "eve",
            )
        ]
    )
    assert call(url, "Who", token=mint()) == "ada"
    assert call(url, "Count", token=mint()) == ["ada"] * 3
    assert call(url, "Who", headers=OUTSIDE | {"cookie": f"a=b; session={mint('bob')}"}) == "bob"
    assert call(url, "Who") == call(url, "Count") == "unauthenticated"
    assert call(url, "Who", token="forged") == "unauthenticated"
    assert call(url, "Who", token="forged", headers={}) == "unauthenticated"  # loopback does not make up for it
    assert call(url, "Who", headers={}) == "local"
    assert call(url, "Who", token=mint(audience="other")) == "permission_denied"
    assert call(url, "Who", token=mint("eve")) == "permission_denied"
    # Whoever came before on the same thread or connection leaves nothing behind.
    assert call(url, "Open") == "nobody"
    assert call(url, "Open", token="forged") == "nobody"
    assert call(url, "Open", token=mint()) == "ada"


class Gate:
    """Counts who is inside a method, and keeps them there until it is opened."""

    def __init__(self):
        self.lock, self.opened = threading.Lock(), threading.Event()
        self.inside = self.most = self.entered = 0

    def enter(self):
        with self.lock:
            self.inside += 1
            self.entered += 1
            self.most = max(self.most, self.inside)
        assert self.opened.wait(60)
        with self.lock:
            self.inside -= 1


@needs_rpc
def test_a_limit_lets_so_many_in_and_drops_those_whose_time_ran_out(serve):
    gate = Gate()
    url = serve(
        [
            PolicyAuthInterceptor(RequestAuthPolicy([AnonymousAuthenticator()])),
            ConcurrencyLimitInterceptor({"test.v1.Test/Who": 2}),
        ],
        gate,
    )
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(call(url, "Who"))) for _ in range(4)]
    for caller in callers:
        caller.start()
    end = time.monotonic() + 60
    while gate.entered < 2 and time.monotonic() < end:
        time.sleep(0.005)
    assert gate.entered == 2
    assert call(url, "Who", timeout_ms=150) == "deadline_exceeded"  # full, and two are waiting already
    assert gate.entered == 2
    gate.opened.set()
    for caller in callers:
        caller.join()
    assert answers == ["anonymous"] * 4
    assert gate.most == 2 and gate.entered == 4
    assert [call(url, "Who") for _ in range(3)] == ["anonymous"] * 3  # every permit came back


@pytest.mark.parametrize("limits", [{"Who": 1}, {"a.B/C": 0}, {"a.B/C": True}, {"a.B/C/D": 1}, {"/C": 1}])
def test_limits_that_say_nothing_are_refused(limits):
    with pytest.raises(ConfigError):
        ConcurrencyLimitInterceptor(limits)


def test_one_text_is_no_collection_of_methods():
    with pytest.raises(ConfigError, match="one text"):
        PolicyAuthInterceptor(RequestAuthPolicy([]), unauthenticated_methods="a.B/C")


@pytest.mark.skipif(have("connectrpc"), reason="the extra rpc is installed")
def test_a_refusal_without_the_extra_names_it():
    from rigging._adapters.connect_rpc import refusal

    with pytest.raises(MissingExtraError, match="rpc"):
        refusal("unauthenticated", "x")


def test_authorize_sees_who_calls_what():
    class Context:
        class method:
            service_name, name = "a.B", "C"

        class request_headers:
            @staticmethod
            def allitems():
                return [("Cookie", "x=1"), ("cookie", "session=abc")]

        client_address = "[::1]:5000"

    seen = []

    class Says:
        def resolve(self, token, *, client_address, headers):
            seen.append((token, client_address, headers))
            return VerifiedIdentity("ada")

    PolicyAuthInterceptor(Says(), cookie_name="session", authorize=lambda *all: seen.append(all) or True).on_start_sync(
        Context
    )
    assert seen == [("abc", ("::1", 5000), {"cookie": "x=1; session=abc"}), (VerifiedIdentity("ada"), "a.B/C")]
    assert get_verified_user() == "ada"
    PolicyAuthInterceptor(Says()).on_end_sync(None, Context, None)
    assert get_verified_user() is None
