"""One contract for every back-end, run with the real client: what was logged can be read back from what it stored."""

import glob
import importlib.util
import json
import logging
import os
import pathlib
import sqlite3
import struct
import time

import jax.numpy as jnp
import pytest
from levanter.errors import TrackerError
from levanter.tracker.json_file import JsonFileConfig
from levanter.tracker.json_logger import JsonLoggerConfig
from levanter.tracker.noop import NoopConfig
from levanter.tracker.tensorboard import TensorboardConfig
from levanter.tracker.tracker import CompositeTracker
from levanter.tracker.trackio import TrackioConfig
from levanter.tracker.wandb import WandbConfig


class Backend:
    """How to open a back-end in a folder, and how to read what it stored without its client's help."""

    needs: str | None = None

    def config(self, folder: pathlib.Path):
        raise NotImplementedError

    def read(self, folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
        """``{metric: [(step, value), ...]}``."""
        raise NotImplementedError


class JsonFile(Backend):
    def config(self, folder):
        return JsonFileConfig(str(folder))

    def read(self, folder):
        return _series(json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())


class JsonLogger(Backend):
    def config(self, folder):
        logger = logging.getLogger("contract")
        logger.setLevel("INFO")
        logger.propagate = False
        logger.handlers = [logging.FileHandler(folder / "log")]
        return JsonLoggerConfig("contract")

    def read(self, folder):
        logging.getLogger("contract").handlers.pop().close()
        events = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
        return _series({"step": e["step"], **e["metrics"]} for e in events if e["event"] == "log")


class Noop(Backend):
    def config(self, folder):
        return NoopConfig()

    def read(self, folder):
        return {}


class Wandb(Backend):
    needs = "wandb"

    def config(self, folder):
        return WandbConfig(project="contract", mode="offline")

    def read(self, folder):
        from wandb.proto import wandb_internal_pb2

        [path] = glob.glob(str(folder / "wandb/offline-run-*/run-*.wandb"))
        rows = []
        for data in self._whole(pathlib.Path(path)):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                values = {key: json.loads(text) for key, text in items.items()}
                rows.append({"step": int(values["_step"]), **{k: v for k, v in values.items() if k[0] != "_"}})
        return _series(rows)

    @staticmethod
    def _whole(path):
        """The records once the client's service has written them out, which it does after ``finish`` returns."""
        deadline = time.monotonic() + 60
        while path.stat().st_size < 100 and time.monotonic() < deadline:
            time.sleep(0.05)
        size = -1
        while size != path.stat().st_size:
            size = path.stat().st_size
            time.sleep(0.2)
        return _leveldb_records(path.read_bytes())


def _leveldb_records(data: bytes):
    """Records of a log in LevelDB's framing: blocks of 32 KiB, chunks with a checksum, a length and a kind."""
    at, whole = 7, b""  # the file's own header
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a record in one chunk, or its last chunk
            yield whole
            whole = b""


class Tensorboard(Backend):
    needs = "tensorboardX"

    def config(self, folder):
        return TensorboardConfig(logdir=str(folder))

    def read(self, folder):
        from tensorboardX.proto.event_pb2 import Event

        [path] = glob.glob(str(folder / "run/events.out.*"))
        data, rows, at = pathlib.Path(path).read_bytes(), [], 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            rows += [
                {"step": event.step, v.tag: v.simple_value} for v in event.summary.value if not v.HasField("tensor")
            ]
            at += 16 + length
        return _series(rows)


class Trackio(Backend):
    needs = "trackio"

    def config(self, folder):
        return TrackioConfig(project=folder.name)

    def read(self, folder):
        path = pathlib.Path(os.environ["TRACKIO_DIR"]) / f"{folder.name}.db"
        with sqlite3.connect(path) as connection:
            rows = connection.execute("select step, metrics from metrics order by step").fetchall()
        return _series({"step": step, **json.loads(metrics)} for step, metrics in rows)


def _series(rows) -> dict[str, list[tuple[int, float]]]:
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step":
                series.setdefault(key, []).append((row["step"], value))
    return series


BACKENDS = [JsonFile(), JsonLogger(), Noop(), Wandb(), Tensorboard(), Trackio()]


@pytest.fixture(params=BACKENDS, ids=lambda b: type(b).__name__)
def backend(request, tmp_path, monkeypatch):
    if request.param.needs is not None and importlib.util.find_spec(request.param.needs) is None:
        pytest.skip(f"the extra that brings {request.param.needs} is not installed")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return request.param


@pytest.fixture(scope="module", autouse=True)
def client_settings(tmp_path_factory):
    """Clients read these when they are imported, so they are set once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio_home")))
        patch.setenv("WANDB_SILENT", "true")
        yield


@pytest.mark.slow
def test_what_is_logged_can_be_read_back(backend, tmp_path):
    """Every verb works, in the order a run uses them; numbers of every kind arrive as numbers, with their steps."""
    artifact = tmp_path / "note.txt"
    artifact.write_text("kept")
    tracker = backend.config(tmp_path).init("run", str(tmp_path))
    tracker.log_hyperparameters({"trainer": {"seed": 1}, "name": "x"})
    tracker.resume_at(0)
    for step in range(3):
        tracker.log({"train/loss": jnp.float32(2.5 - step), "optim/learning_rate": 0.5}, step=step)
    tracker.log({"eval/loss": 1.0}, step=2)
    tracker.log_artifact(str(artifact), type="text")
    tracker.log_summary({"parameter_count": 7, "throughput/device_kind": "cpu"})
    tracker.flush()
    tracker.finish()
    if isinstance(backend, Noop):
        return
    series = backend.read(tmp_path)
    assert series["train/loss"] == [(0, 2.5), (1, 1.5), (2, 0.5)]
    assert series["optim/learning_rate"] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert series["eval/loss"] == [(2, 1.0)]


@pytest.mark.slow
def test_all_of_them_at_once_see_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    present = [b for b in BACKENDS if b.needs is None or importlib.util.find_spec(b.needs) is not None]
    folders = {type(b).__name__: tmp_path / type(b).__name__ for b in present}
    for folder in folders.values():
        folder.mkdir()
    members = [b.config(folders[type(b).__name__]).init("run", str(folders[type(b).__name__])) for b in present]
    tracker = CompositeTracker(members)
    for step in range(2):
        tracker.log({"train/loss": 1.0 / (step + 1)}, step=step)
    tracker.finish()
    for member in present:
        if not isinstance(member, Noop):
            assert member.read(folders[type(member).__name__])["train/loss"] == [(0, 1.0), (1, 0.5)], member


@pytest.mark.slow
def test_a_wandb_server_that_does_not_answer_means_offline_or_an_error_that_says_so(tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(TrackerError, match="wandb sync"):
        WandbConfig(mode="online", init_timeout=1.0).init("run", str(tmp_path))
    tracker = WandbConfig(init_timeout=1.0).init("run", str(tmp_path))
    tracker.log({"train/loss": 1.0}, step=0)
    tracker.finish()
    assert "recorded offline" in caplog.text
    assert glob.glob(str(tmp_path / "wandb/offline-run-*/run-*.wandb"))
