"""Trackers: files that resumed runs leave as undisturbed ones do, queues that never stall training."""

import json
import logging
import threading

import jax.numpy as jnp
import pytest
from levanter.errors import MissingExtraError, TrackerError
from levanter.tracker import tracker_fns
from levanter.tracker.background import BackgroundTracker
from levanter.tracker.json_file import JsonFileConfig, JsonFileTracker
from levanter.tracker.json_logger import JsonLoggerConfig
from levanter.tracker.noop import NoopTracker
from levanter.tracker.tensorboard import TensorboardConfig
from levanter.tracker.tracker import CompositeTracker, TrackerConfig
from levanter.tracker.trackio import TrackioConfig
from levanter.tracker.wandb import WandbConfig
from rigging.timing import ManualClock


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_and_wall_clock_go_to_their_own_files(tmp_path):
    tracker = JsonFileTracker(str(tmp_path))
    tracker.log({"train/loss": jnp.float32(1.5), "throughput/mfu": 3.0}, step=0)
    tracker.log({"eval/loss": 2.0, "eval/timing/loss_time": 1.0}, step=0)
    tracker.log_summary({"parameter_count": 7})
    tracker.log_hyperparameters({"seed": 0})
    (tmp_path / "config.yaml").write_text("seed: 0")
    tracker.log_artifact(str(tmp_path / "config.yaml"), name="c.yaml")
    tracker.finish()
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "train/loss": 1.5}, {"step": 0, "eval/loss": 2.0}]
    assert [set(r) - {"step"} for r in lines(tmp_path / "logs/timing.jsonl")] == [
        {"throughput/mfu"},
        {"eval/timing/loss_time"},
    ]
    assert json.loads((tmp_path / "logs/summary.json").read_text()) == {"parameter_count": 7}
    assert json.loads((tmp_path / "logs/hparams.json").read_text()) == {"seed": 0}
    assert (tmp_path / "artifacts/c.yaml").read_text() == "seed: 0"


def test_resuming_drops_later_lines_and_a_torn_one(tmp_path):
    tracker = JsonFileTracker(str(tmp_path))
    for step in range(5):
        tracker.log({"train/loss": float(step)}, step=step)
    tracker.finish()
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 5, "train/lo')
    again = JsonFileTracker(str(tmp_path))
    with pytest.raises(TrackerError, match="backwards"):
        again.log({"train/loss": 0.0}, step=2)
    again.resume_at(3)
    again.log({"train/loss": 9.0}, step=3)
    again.finish()
    assert [r["train/loss"] for r in lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 9]


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\nnonsense\n{"step": 1}\n')
    with pytest.raises(TrackerError, match="line=2"):
        JsonFileTracker(str(tmp_path))


def test_the_default_type_is_local_files_and_all_types_are_found():
    assert TrackerConfig.default_choice_name() == "json_file"
    known = {"json_file", "json_logger", "noop", "tensorboard", "trackio", "wandb"}
    assert known <= set(TrackerConfig.get_known_choices())
    assert isinstance(JsonFileConfig(output_path=None).init("r", "/tmp/levanter-test"), JsonFileTracker)


def test_the_logger_tracker_writes_json(caplog):
    tracker = JsonLoggerConfig().init("run", "logs")
    with caplog.at_level(logging.INFO, "levanter.metrics"):
        tracker.log({"a": 1}, step=2)
        tracker.log_summary({"b": 1})
        tracker.finish()
    events = [json.loads(r.message) for r in caplog.records]
    assert events[0] == {"event": "log", "step": 2, "metrics": {"a": 1}} and events[-1] == {"event": "finish"}


class Recorder(NoopTracker):
    def __init__(self, fail: bool = False):
        self.calls: list = []
        self.gate = threading.Event()
        self.fail = fail

    def log(self, metrics, *, step, commit=True):
        self.gate.wait(10)
        if self.fail:
            raise OSError("down")
        self.calls.append((step, dict(metrics)))

    def finish(self):
        self.calls.append("finish")


def test_a_slow_tracker_drops_and_counts_instead_of_stalling():
    inner = Recorder()
    tracker = BackgroundTracker(inner, max_queue_size=2, clock=ManualClock())
    for step in range(10):
        tracker.log({"loss": step}, step=step)
    inner.gate.set()
    tracker.finish()
    assert tracker.dropped >= 7 and inner.calls[-1] == "finish"
    assert len(inner.calls) - 1 + tracker.dropped == 10


def test_a_tracker_that_is_down_is_counted_and_training_goes_on():
    inner = Recorder(fail=True)
    inner.gate.set()
    tracker = BackgroundTracker(inner, clock=ManualClock())
    for step in range(3):
        tracker.log({"loss": step}, step=step)
    tracker.finish()
    assert tracker.failed == 3


def test_a_composite_finishes_every_member_before_it_fails():
    class Broken(NoopTracker):
        def finish(self):
            raise OSError("boom")

    last = Recorder()
    with pytest.raises(TrackerError, match="boom"):
        CompositeTracker([Broken(), last]).finish()
    assert last.calls == ["finish"]


@pytest.mark.parametrize(
    "config", [WandbConfig(), TensorboardConfig(), TrackioConfig()], ids=lambda c: type(c).__name__
)
def test_an_extra_that_is_absent_is_named(config, monkeypatch):
    extra = type(config).__name__.removesuffix("Config").lower()
    client = {"tensorboard": "tensorboardX"}.get(extra, extra)
    monkeypatch.setitem(__import__("sys").modules, client, None)
    monkeypatch.delitem(__import__("sys").modules, f"levanter._adapters.{extra}_tracker", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        config.init("run", "logs")
    assert caught.value.extra == extra


def test_module_functions_reach_the_current_tracker():
    with pytest.raises(TrackerError, match="no tracker"):
        tracker_fns.log({}, step=0)
    recorder = Recorder()
    recorder.gate.set()
    with tracker_fns.current_tracker(recorder):
        tracker_fns.log({"a": 1}, step=4)
    assert recorder.calls == [(4, {"a": 1})]
