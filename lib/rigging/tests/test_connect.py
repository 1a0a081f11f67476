"""Transports, and tunnels dug by real processes."""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rigging.auth import StaticTokenProvider
from rigging.connect import (
    ChainedAuth,
    Endpoint,
    IapAuth,
    JwtAuth,
    closing_connection,
    connect,
    disconnect,
    explain,
)
from rigging.errors import TransportError
from rigging.transports import (
    GcpSshForwardTarget,
    HttpTransport,
    IapTransport,
    K8sPortForwardTarget,
    parse_transport,
)
from rigging.tunnel import open_tunnel

FORWARD = """
import socket, sys, threading
listen, target = int(sys.argv[1]), int(sys.argv[2])
print("forwarding with token=abcdefghijklmnopqrstuvwxyz0123456789ABCD", flush=True)
server = socket.create_server(("127.0.0.1", listen))
def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
while True:
    one, _ = server.accept()
    two = socket.create_connection(("127.0.0.1", target))
    for pair in ((one, two), (two, one)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


class Forward:
    """A forward by a Python program in place of kubectl."""

    def __init__(self, port, code=FORWARD):
        self.port, self.code = port, code
        self.started = []

    def command(self, local_port):
        return [sys.executable, "-c", self.code, str(local_port), str(self.port)]

    def spawn(self, words):
        self.started.append(
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        )
        return self.started[-1]


@pytest.fixture
def service():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = (self.headers.get("authorization") or "nobody").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def get(url, headers=None):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=30) as answer:
        return answer.read().decode()


def is_open(url):
    host, _, port = url.removeprefix("http://").partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("http://127.0.0.1:80", HttpTransport("http://127.0.0.1:80")),
        ("https://example.com/a/b", HttpTransport("https://example.com/a/b")),
        ("iap+https://example.com/a?audience=x", IapTransport("https://example.com/a", "x")),
        ("k8s://web:80?namespace=prod&context=c", K8sPortForwardTarget("web", 80, "prod", "c")),
        (
            "ssh+gcp://vm:80?project=p&zone=z&sa=s@x&iap=true",
            GcpSshForwardTarget("vm", 80, "p", "z", "s@x", True),
        ),
    ],
)
def test_transports_are_read(text, parsed):
    assert parse_transport(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "ftp://example.com",
        "http://",
        "http://user:hunter2@example.com",
        "http://example.com:port",
        "http://example.com#x",
        "http://exam ple.com",
        "http://example.com?x=1",
        "iap+https://example.com",
        "iap+https://example.com?audience=",
        "k8s://web?namespace=prod",
        "k8s://web:80",
        "k8s://web:80/path?namespace=prod",
        "k8s://web:80?namespace=--kubeconfig=/evil",
        "ssh+gcp://vm:80?project=p",
        "ssh+gcp://vm:80?project=p&zone=z&iap=maybe",
        "ssh+gcp://vm:80?project=p&zone=z&nonsense=1",
    ],
)
def test_a_bad_transport_is_refused_without_showing_passwords(text):
    with pytest.raises(TransportError) as caught:
        parse_transport(text)
    assert "hunter2" not in str(caught.value)


def test_a_tunnel_leads_to_the_service_and_is_gone_afterwards(service, caplog):
    caplog.set_level("INFO")
    forward = Forward(service)
    with open_tunnel(forward, spawn=forward.spawn) as url:
        assert get(url) == "nobody" and is_open(url)
    assert not is_open(url) and forward.started[0].poll() is not None
    assert "forwarding with" in caplog.text and "abcdefghij" not in caplog.text


def test_a_tunnel_whose_program_is_killed_is_dug_again(service):
    forward = Forward(service)
    with open_tunnel(forward, spawn=forward.spawn) as url:
        os.kill(forward.started[0].pid, signal.SIGKILL)
        forward.started[0].wait(60)
        deadline = time.monotonic() + 60
        while len(forward.started) < 2 or not is_open(url):
            assert time.monotonic() < deadline, "the tunnel was not dug again"
            time.sleep(0.05)
        assert get(url) == "nobody"
    assert not is_open(url) and all(process.poll() is not None for process in forward.started)


def test_a_tunnel_that_does_not_open_is_an_error_and_leaves_nothing():
    slow = Forward(1, "import time; time.sleep(600)")
    with pytest.raises(TimeoutError, match="did not open"), open_tunnel(slow, timeout=0.3, spawn=slow.spawn):
        pass
    assert slow.started[0].poll() is not None
    broken = Forward(1, "raise SystemExit(3)")
    with pytest.raises(TimeoutError, match="exit code=3"), open_tunnel(broken, spawn=broken.spawn):
        pass

    class Missing:
        def command(self, local_port):
            return ["no-such-program-anywhere"]

    with pytest.raises(TransportError, match="PATH"), open_tunnel(Missing()):
        pass


def test_a_client_gets_its_endpoint_with_credentials(service):
    auth = JwtAuth(StaticTokenProvider("abc"))
    with closing_connection(f"http://127.0.0.1:{service}", lambda endpoint: endpoint, path="/x", auth=auth) as endpoint:
        assert get(endpoint.url, endpoint.headers()) == "Bearer abc"
        assert endpoint.url.endswith("/x")
    iap = IapAuth(lambda audience: StaticTokenProvider(f"for-{audience}"))
    both = ChainedAuth((iap, auth))
    with closing_connection("iap+https://example.com?audience=a", lambda endpoint: endpoint, auth=both) as endpoint:
        assert endpoint.headers() == {"proxy-authorization": "Bearer for-a", "authorization": "Bearer abc"}
    text = explain("iap+https://example.com?audience=a", both)
    assert "proxy-authorization and authorization" in text and "abc" not in text
    for bad in (ChainedAuth((auth, auth)), iap):
        with pytest.raises(TransportError), closing_connection("http://x:1", lambda endpoint: endpoint, auth=bad):
            pass


def test_paths_agree_or_are_refused():
    class Client:
        def __init__(self, endpoint):
            self.url = endpoint.url

    assert connect("http://h:1/a", Client).url == connect("http://h:1/a", Client, path="/a").url == "http://h:1/a"
    for transport, path in (("http://h:1/a", "/b"), ("http://h:1", "a"), ("http://h:1", "//a"), ("http://h:1", "/")):
        with pytest.raises(TransportError):
            connect(transport, Client, path=path)
    with pytest.raises(TypeError, match="closing_connection"):
        connect("http://h:1", lambda endpoint: 7)
    with pytest.raises(TransportError):
        Endpoint("http://h:1/a").socket_address()


def test_a_tunnel_lives_as_long_as_its_client(service, monkeypatch, tmp_path):
    program = tmp_path / "kubectl"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"local, _ = sys.argv[-1].split(':')\nsys.argv = ['x', local, '{service}']\n{FORWARD}"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    class Client:
        def __init__(self, endpoint):
            self.url = endpoint.url

    client = connect("k8s://web:80?namespace=prod", Client)
    url = client.url
    assert get(url) == "nobody"
    disconnect(client)
    disconnect(client)
    assert not is_open(url)
    client = connect("k8s://web:80?namespace=prod", Client)
    url = client.url
    assert is_open(url)
    del client
    gc.collect()
    assert not is_open(url)
