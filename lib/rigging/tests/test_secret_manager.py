"""``gcp-secret://`` by Google's own client library against a server on loopback that speaks the REST protocol."""

import base64
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rigging.errors import SecretResolutionError
from rigging.hashing import crc32c
from rigging.secrets import reset_secret_cache, resolve_config_secrets, resolve_secret_spec

from .conftest import have

HAVE = have("google.auth", "requests", "cryptography")
needs_client = pytest.mark.skipif(not HAVE, reason="the extra secrets is not installed")
REFERENCE = "gcp-secret://projects/example/secrets/api-key/versions/3"
VALUE = "s3cret-value-0123456789"


class SecretManager:
    """The token endpoint and ``versions.access`` of Secret Manager."""

    def __init__(self):
        self.answers: dict[str, tuple[int, object]] = {}
        self.asked: list[str] = []
        self.tokens = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def reply(self, status, document):
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.tokens += 1
                self.reply(200, {"access_token": "ya29.example", "expires_in": 3600, "token_type": "Bearer"})

            def do_GET(self):
                outer.asked.append(self.path)
                if self.headers.get("Authorization") != "Bearer ya29.example":
                    self.reply(401, {})
                    return
                self.reply(*outer.answers.get(self.path, (404, {"error": {"status": "NOT_FOUND"}})))

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def put(self, text, status=200, **payload):
        data = text if isinstance(text, bytes) else text.encode()
        body = {"data": base64.b64encode(data).decode(), "dataCrc32c": str(crc32c(data)), **payload}
        self.answers["/v1/projects/example/secrets/api-key/versions/3:access"] = (status, {"payload": body})


@pytest.fixture
def manager(tmp_path, monkeypatch):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    served = SecretManager()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account",
        "project_id": "example",
        "private_key_id": "1",
        "private_key": rsa.generate_private_key(65537, 2048).private_bytes(*form).decode(),
        "client_email": "robot@example.iam.gserviceaccount.com",
        "token_uri": f"{served.url}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", served.url)
    reset_secret_cache()
    yield served
    reset_secret_cache()
    served.server.shutdown()
    served.server.server_close()


@needs_client
def test_present_is_the_stripped_text_and_is_kept_for_a_while(manager, caplog):
    caplog.set_level(logging.DEBUG)
    manager.put(VALUE + "\n")
    found = resolve_secret_spec(["env:NO_SUCH_VARIABLE_HERE", REFERENCE])
    assert (found.value, found.source) == (VALUE, REFERENCE)
    assert resolve_secret_spec(REFERENCE).value == VALUE and len(manager.asked) == 1
    manager.put("rotated")
    assert resolve_secret_spec(REFERENCE).value == VALUE
    reset_secret_cache()
    assert resolve_secret_spec(REFERENCE).value == "rotated" and manager.tokens == 2
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("rigging"))
    assert VALUE not in caplog.text and "rotated" not in caplog.text and "api-key" not in ours
    assert resolve_config_secrets({"key": REFERENCE}) == ({"key": "rotated"}, {"key": "[REDACTED]"})


@needs_client
def test_absent_goes_on_to_the_next_reference(manager, tmp_path):
    (tmp_path / "fallback").write_text("from the file")
    assert resolve_secret_spec([REFERENCE, f"file:{tmp_path}/fallback"]).value == "from the file"
    with pytest.raises(SecretResolutionError, match="no source had it"):
        resolve_secret_spec(REFERENCE)


@needs_client
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((403, {"error": {"status": "PERMISSION_DENIED"}}), "403"),
        ((500, {}), "500"),
        ((302, {}), "302"),
        ((200, {}), "KeyError"),
        ((200, {"payload": {"data": "%%%"}}), "Error"),
        ((200, {"payload": {"data": base64.b64encode(b"\xff\xfe").decode()}}), "UnicodeDecodeError"),
        ((200, {"payload": {"data": base64.b64encode(b"x").decode(), "dataCrc32c": "1"}}), "damaged"),
        ((200, {"payload": {"data": ""}}), "empty"),
        ((200, {"payload": {"data": base64.b64encode(b" \n").decode()}}), "empty"),
    ],
)
def test_failed_stops_and_never_falls_through_to_a_weaker_source(manager, tmp_path, answer, words):
    (tmp_path / "fallback").write_text("weaker")
    manager.answers["/v1/projects/example/secrets/api-key/versions/3:access"] = answer
    with pytest.raises(SecretResolutionError, match=words) as caught:
        resolve_secret_spec([REFERENCE, f"file:{tmp_path}/fallback"])
    assert "api-key" not in str(caught.value)


@needs_client
def test_a_server_that_is_away_and_missing_credentials_are_failures(manager, tmp_path, monkeypatch):
    (tmp_path / "fallback").write_text("weaker")
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "http://127.0.0.1:1")
    with pytest.raises(SecretResolutionError, match="no answer"):
        resolve_secret_spec([REFERENCE, f"file:{tmp_path}/fallback"])
    reset_secret_cache()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "fallback"))
    with pytest.raises(SecretResolutionError, match="no answer"):
        resolve_secret_spec([REFERENCE, f"file:{tmp_path}/fallback"])


@pytest.mark.parametrize(
    "body",
    [
        "",
        "projects/p/secrets/n",
        "projects/p/secrets/n/versions/",
        "projects/p/secrets/n/versions/1/x",
        "projects/p/secrets/../versions/1",
        "projects/p?x/secrets/n/versions/1",
    ],
)
def test_a_reference_without_all_its_parts_is_refused(body):
    with pytest.raises(SecretResolutionError, match="without project, secret and version"):
        resolve_secret_spec(f"gcp-secret://{body}")


@pytest.mark.skipif(HAVE, reason="the extra secrets is installed")
def test_without_the_extra_the_error_names_it(tmp_path):
    (tmp_path / "fallback").write_text("weaker")
    with pytest.raises(SecretResolutionError, match=r"marin-rigging\[secrets\]"):
        resolve_secret_spec([REFERENCE, f"file:{tmp_path}/fallback"])


def test_a_projected_file_is_read_through_its_links(tmp_path):
    """Kubernetes projects a secret as a link to a link, and swaps the folder when it changes."""
    for generation in ("..1", "..2"):
        (tmp_path / generation).mkdir()
        (tmp_path / generation / "key").write_text(generation)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "key").symlink_to("..data/key")
    assert resolve_secret_spec(f"file:{tmp_path}/key").value == "..1"
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert resolve_secret_spec(f"file:{tmp_path}/key").value == "..2"
    (tmp_path / "..2" / "key").write_text(" \n")
    with pytest.raises(SecretResolutionError, match="empty"):
        resolve_secret_spec([f"file:{tmp_path}/key", "env:PATH"])
