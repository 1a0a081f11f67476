import copy
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import uuid

import pytest
from marin.execution._objects import local_workspace
from marin.execution.layout import StepLayout
from marin.execution.manifest import build_manifest, content_digest
from marin.execution.records import read_record
from marin.ledger import Ledger
from rigging.filesystem.storage_path import StoragePath

DRIVERS = os.path.join(os.path.dirname(__file__), "drivers")
STEPS = ("top", "left", "right", "deep/bottom")

# Handed to every driver, so that none of them has to ask git.
PROVENANCE = json.dumps({"tree_hash": "t", "base_commit": "c", "dirty": False, "branch": "main", "built_by": "test"})


class Zygote:
    """Starts drivers by forking a process that has imported everything already, further modules too."""

    def __init__(self, *modules):
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(DRIVERS, "zygote.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=10)


class Driver:
    """One driver process."""

    def __init__(self, zygote, prefix, folder, env):
        self._zygote = zygote
        self._out, self._err = (os.path.join(folder, f"{uuid.uuid4().hex}.{kind}") for kind in ("out", "err"))
        self.returncode = None
        self.pid = zygote.ask(op="start", prefix=prefix, env=env, out=self._out, err=self._err)

    @property
    def err_path(self):
        """What it wrote on stderr."""
        return self._err

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)

    def wait(self, timeout_s=60.0):
        """Exit code, or None when it still runs after ``timeout_s``."""
        if self.returncode is None:
            self.returncode = self._zygote.ask(op="wait", pid=self.pid, timeout_s=timeout_s)
        return self.returncode

    def finish(self):
        """Wait for its end and return what became of the steps."""
        code = self.wait()
        with open(self._err) as file:
            assert code in (0, 1, -signal.SIGKILL), f"driver ended with {code}:\n{file.read()}"
        with open(self._out) as file:
            text = file.read()
        return json.loads(text) if text.strip() else {}


class DiamondStore:
    """A store that driver processes work on, and what a test may ask about it."""

    def __init__(self, root, zygote):
        self._root = root
        self._zygote = zygote
        self.prefix = os.path.join(root, "store")
        self.bodies_file = os.path.join(root, "bodies.txt")
        open(self.bodies_file, "w").close()

    def start(self, **env):
        settings = {
            "MARIN_PROVENANCE": PROVENANCE,
            "KILL_AT": "",
            "BODY_SECONDS": "0",
            "LEASE_TIMEOUT": "90",
            "HEARTBEAT": "30",
            **env,
        }
        return Driver(self._zygote, self.prefix, self._root, {**settings, "BODIES": self.bodies_file})

    def drive(self, **env):
        """Run one driver to its end; returns its exit code and what became of the steps."""
        driver = self.start(**env)
        outcomes = driver.finish()
        return driver.returncode, outcomes

    def bodies(self):
        with open(self.bodies_file) as file:
            return [line.split()[0] for line in file]

    def digests(self, names=STEPS):
        """Recorded content digests, checked against the bytes on disk."""
        found = {}
        for name in names:
            path = os.path.join(self.prefix, name, "2026.12.01")
            record = read_record(path)
            assert record is not None, f"{name} has no record"
            assert content_digest(build_manifest(path, volatile=("logs/**",))) == record.content_digest
            found[name] = record.content_digest
        return found

    def litter(self, name):
        """Leave what drivers leave that die inside a write, a deletion, or right after an exchange."""
        output = StepLayout(os.path.join(self.prefix, name, "2026.12.01"))
        os.makedirs(os.path.join(output.control, "trash-0123456789ab"))
        open(os.path.join(output.control, "..executor_status.4538.b4057984.tmp"), "w").close()
        os.makedirs(output.staging(0))

    def leftovers(self):
        """Staging folders, trash and temporary files anywhere in the store."""
        found = []
        for folder, folders, files in os.walk(self.prefix):
            found += [
                os.path.join(folder, name) for name in folders if ".staging-" in name or name.startswith("trash-")
            ]
            found += [os.path.join(folder, name) for name in files if name.endswith(".tmp")]
        return found

    def untold(self):
        """Closed attempts whose end no event tells, and events of attempts that have none."""
        ledger = self.ledger()
        told = {event.attempt for event in ledger.events() if event.kind in ("finished", "failed")}
        return told ^ {attempt.attempt for attempt in ledger.attempts() if attempt.closed}

    def ledger(self):
        return Ledger(self.prefix)


@pytest.fixture(scope="session")
def zygote():
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def diamond_store(tmp_path, zygote):
    return DiamondStore(str(tmp_path), zygote)


@pytest.fixture
def diamond_store_factory(zygote):
    def make(root):
        root.mkdir(parents=True, exist_ok=True)
        return DiamondStore(str(root), zygote)

    return make


@pytest.fixture(scope="session")
def clean_digests(tmp_path_factory, zygote):
    store = DiamondStore(str(tmp_path_factory.mktemp("clean")), zygote)
    code, _ = store.drive()
    assert code == 0
    return store.digests()


class ObjectDiamondStore(DiamondStore):
    """The same in a bucket; every driver builds in a folder of its own machine, which is ``work``."""

    def __init__(self, root, zygote, bucket, env):
        super().__init__(root, zygote)
        self.prefix = f"s3://{bucket}/store"
        self.work = os.path.join(root, "tmp")
        os.makedirs(self.work)
        self._env = {**env, "TMPDIR": self.work}

    def start(self, **env):
        return super().start(**{**self._env, **env})

    def elsewhere(self):
        """The same store, driven from another machine: nothing of what this one's drivers leave on its disk."""
        other = copy.copy(self)
        other.work = os.path.join(self._root, f"tmp-{uuid.uuid4().hex}")
        os.makedirs(other.work)
        other._env = {**self._env, "TMPDIR": other.work}
        return other

    def litter(self, name):
        workspace = os.path.basename(local_workspace(f"{self.prefix}/{name}/2026.12.01"))
        folder = os.path.join(self.work, f"marin-work-{os.getuid()}", workspace)
        os.makedirs(os.path.join(folder, "trash-0123456789ab"), exist_ok=True)
        os.makedirs(os.path.join(folder, "output.staging-0"), exist_ok=True)

    def digests(self, names=STEPS):
        found = {}
        for name in names:
            path = f"{self.prefix}/{name}/2026.12.01"
            record = read_record(path)
            assert record is not None, f"{name} has no record"
            local = os.path.join(tempfile.mkdtemp(dir=self._root), "output")
            StoragePath(path).download_to(local, recursive=True)
            assert content_digest(build_manifest(local, volatile=("logs/**",))) == record.content_digest
            found[name] = record.content_digest
        return found

    def leftovers(self):
        return [
            os.path.join(folder, name)
            for folder, folders, _ in os.walk(self.work)
            for name in folders
            if ".staging-" in name or name.startswith("trash-") or name == "scratch"
        ]


@pytest.fixture(scope="module")
def s3_endpoint():
    """A real S3 server on loopback, in threads of this process."""
    server_module = pytest.importorskip("moto.server", reason="the extra s3 of rigging and moto are not installed")
    pytest.importorskip("s3fs", reason="the extra s3 of rigging is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_env(s3_endpoint, monkeypatch):
    import fsspec
    from rigging.filesystem._adapters.s3 import s3_client

    env = {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    # Clients live as long as their process; another test of it may have spoken to another server.
    s3_client.cache_clear()
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield env
    s3_client.cache_clear()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture(scope="module")
def s3_zygote(s3_endpoint):
    zygote = Zygote("rigging.filesystem._adapters.s3", "s3fs")
    yield zygote
    zygote.close()


@pytest.fixture
def object_store(tmp_path, s3_zygote, s3_env):
    from rigging.filesystem._adapters.s3 import s3_client

    bucket = f"example-{uuid.uuid4().hex[:8]}"
    s3_client().create_bucket(Bucket=bucket)
    return ObjectDiamondStore(str(tmp_path), s3_zygote, bucket, s3_env)
