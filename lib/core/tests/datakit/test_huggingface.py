"""The hub client against a server on this machine that speaks the hub's protocol."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest
from marin.datakit.download.huggingface import collect_hub
from marin.datakit.errors import SourceAccessError, SourceNotFoundError
from marin.datakit.recipe import CollectConfig
from marin.datakit.sources import parse_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """One public data set ``lab/tales`` with a branch ``main``, and one gated one."""

    files: dict[str, bytes] = {}
    asked: list[str] = []

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def respond(self):
        path = unquote(self.path)
        self.asked.append(path)
        if path.startswith("/api/datasets/lab/gated"):
            return self.answer(403, b"{}", [("X-Error-Code", "GatedRepo"), ("X-Error-Message", "gated")])
        if path.startswith(("/api/datasets/lab/tales/revision/main", f"/api/datasets/lab/tales/revision/{COMMIT}")):
            info = {"id": "lab/tales", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
            return self.answer(200, json.dumps(info).encode(), [("Content-Type", "application/json")])
        prefix = f"/datasets/lab/tales/resolve/{COMMIT}/"
        if path.startswith(prefix) and path.removeprefix(prefix) in self.files:
            body = self.files[path.removeprefix(prefix)]
            etag = hashlib.sha1(body).hexdigest()
            return self.answer(200, body, [("ETag", f'"{etag}"'), ("X-Repo-Commit", COMMIT)])
        return self.answer(404, b"{}", [("X-Error-Code", "RepoNotFound")])

    do_GET = do_HEAD = respond

    def log_message(self, format, *args):
        """Keep the test output quiet."""


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("ZEPHYR_MAX_WORKERS", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    Hub.files = {
        "README.md": b"about",
        "data/a.jsonl": b'{"text": "once upon a time"}\n',
        "data/b.jsonl": b'{"text": "the end"}\n{"text": broken\n',
    }
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield Hub
    server.shutdown()
    thread.join()
    server.server_close()


def config(tmp_path, argument, **options):
    return CollectConfig(str(tmp_path / "out"), str(tmp_path / "scratch"), parse_source(argument), **options)


def test_a_data_set_is_read_at_the_commit_that_its_revision_stands_for(hub, tmp_path):
    artifact = collect_hub(config(tmp_path, "hf:lab/tales", on_bad_line="skip"))
    assert artifact.source == f"hf:lab/tales@{COMMIT}"
    assert (artifact.num_documents, artifact.num_bad_lines) == (2, 1)
    assert not any("README" in path for path in hub.asked)


def test_only_the_first_files_are_downloaded_when_asked_so(hub, tmp_path):
    artifact = collect_hub(config(tmp_path, "hf:lab/tales", max_files=1))
    assert artifact.num_documents == 1
    assert not any("b.jsonl" in path for path in hub.asked)


def test_a_missing_data_set_and_one_without_records_are_refused(hub, tmp_path):
    with pytest.raises(SourceNotFoundError, match="hf:lab/none@main"):
        collect_hub(config(tmp_path, "hf:lab/none"))
    hub.files = {"README.md": b"about"}
    with pytest.raises(SourceNotFoundError, match="files ending in"):
        collect_hub(config(tmp_path, "hf:lab/tales"))


def test_a_gated_data_set_says_how_to_get_in(hub, tmp_path):
    with pytest.raises(SourceAccessError, match="HF_TOKEN"):
        collect_hub(config(tmp_path, "hf:lab/gated"))
