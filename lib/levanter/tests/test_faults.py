"""Faults and their defined outcomes: full disk, damaged and foreign checkpoints, bad data, trackers that are down."""

import contextlib
import json
import resource
import threading
import time

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import Axis
from levanter._checkpoint.policy import KeepEvery
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import (
    CheckpointerConfig,
    discover_latest_checkpoint,
    load_checkpoint,
    load_newest,
    save_checkpoint,
)
from levanter.data.dataset import ListAsyncDataset
from levanter.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    DataFailedError,
    DivergedError,
)
from levanter.tracker.background import BackgroundTracker
from levanter.tracker.json_file import JsonFileTracker
from levanter.tracker.noop import NoopTracker
from levanter.tracker.tracker import CompositeTracker, TrackerConfig
from levanter.trainer import Trainer
from levanter.trainer_config import TrainerConfig
from levanter.tree_paths import tree_digest
from rigging.timing import ManualClock


@contextlib.contextmanager
def full_disk(limit_bytes: int = 200_000):
    """Files cannot grow past the limit: what a full disk does to whoever writes (Python ignores the signal)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def big(value: float):
    return {"w": jnp.full(500_000, value)}


def saver_in(folder, **changes):
    config = CheckpointerConfig(base_path=str(folder), keep=[KeepEvery(1)], append_run_id_to_base_path=False, **changes)
    return config.create("run", clock=ManualClock())


def test_a_save_on_a_full_disk_fails_and_leaves_only_whole_checkpoints(tmp_path):
    saver = saver_in(tmp_path)
    saver.on_step(big(1.0), 1)
    saver.wait_until_finished()
    with full_disk():
        saver.on_step(big(2.0), 2)
        with pytest.raises(CheckpointError, match="could not be saved"):
            saver.wait_until_finished()
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"], "the torn folder gave its space back"
    saver.on_step(big(2.0), 2)
    saver.wait_until_finished()
    assert load_checkpoint(big(0.0), str(tmp_path / "step-2"))["w"][0] == 2.0


def test_a_few_failed_saves_in_a_row_are_put_up_with_and_counted(tmp_path):
    saver = saver_in(tmp_path, max_failed_saves=1)
    with full_disk():
        saver.on_step(big(1.0), 1)
        saver.on_step(big(2.0), 2)
        with pytest.raises(CheckpointError, match="2 checkpoints in a row"):
            saver.on_step(big(3.0), 3)
    assert saver.failed_saves == 2
    saver.on_step(big(4.0), 4)
    saver.wait_until_finished()
    assert discover_latest_checkpoint(str(tmp_path)) == str(tmp_path / "step-4")


def damage(path) -> None:
    largest = max((path / "d").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    largest.write_bytes(bytes(data))


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(tmp_path, caplog):
    for step in (1, 2):
        save_checkpoint(big(step), step, str(tmp_path / f"step-{step}"))
    paths = [str(tmp_path / "step-2"), str(tmp_path / "step-1")]
    damage(tmp_path / "step-2")
    tree, path = load_newest(big(0.0), paths)
    assert path.endswith("step-1") and tree["w"][0] == 1.0 and "passing over" in caplog.text
    damage(tmp_path / "step-1")
    with pytest.raises(CheckpointCorruptError, match="step-2"):
        load_newest(big(0.0), paths)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("manifest.json", "{}", CheckpointCorruptError),
        ("manifest.json", "not json", CheckpointCorruptError),
        ("manifest.json", json.dumps({"format_version": 99, "arrays": []}), CheckpointCorruptError),
        ("manifest.json", json.dumps({"format_version": 1, "arrays": []}), CheckpointMismatchError),
        ("manifest.ocdbt", "garbage", CheckpointCorruptError),
    ],
)
def test_foreign_and_torn_files_are_errors_that_name_the_place(tmp_path, name, content, error):
    save_checkpoint({"w": jnp.ones(3)}, 1, str(tmp_path / "c"))
    (tmp_path / "c" / name).write_text(content)
    with pytest.raises(error) as caught:
        load_checkpoint({"w": jnp.ones(3)}, str(tmp_path / "c"))
    assert str(tmp_path / "c") in str(caught.value)


# ---- whole runs, on a model of one matrix ----

Feature = Axis("feature", 4)


def examples(count: int):
    rng = np.random.default_rng(0)
    return [hax.named(rng.normal(size=4).astype(np.float32), Feature) for _ in range(count)]


class Failing(ListAsyncDataset):
    """Fails at items from ``bad`` on."""

    def __init__(self, items, bad):
        super().__init__(items)
        self.bad = bad

    async def get_batch(self, indices):
        if any(i >= self.bad for i in indices):
            raise OSError("the disk went away")
        return await super().get_batch(indices)


def loss_fn(model, batch, *, key=None):
    return jnp.mean(jnp.square(batch.array @ model.array - 1.0))


def run(folder, dataset, *, steps=8, rate=0.1, tracker=None, timeout_s=None, **changes):
    changes = {
        "checkpointer": CheckpointerConfig(base_path=str(folder / "ckpt"), keep=None, save_interval=None),
        **changes,
    }
    config = TrainerConfig(
        train_batch_size=2, num_train_steps=steps, log_dir=str(folder), watch=WatchConfig(interval=0), **changes
    )
    with Trainer(config, optax.sgd(rate), loss_fn, progress=False) as trainer:
        if tracker is not None:
            trainer.tracker = CompositeTracker([trainer.tracker, tracker])
        state = trainer.initial_state(jax.random.PRNGKey(0), model_init=lambda: hax.ones(Feature))
        return trainer.train(state, trainer.data_loader(dataset))


def rows(folder):
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def summary(folder):
    return json.loads((folder / "run/logs/summary.json").read_text())


def test_a_data_error_saves_first_says_which_step_and_resumes_to_the_same_end(tmp_path):
    items = examples(16)
    with pytest.raises(DataFailedError, match="disk went away") as caught:
        run(tmp_path / "a", Failing(items, bad=10))
    step = caught.value.step
    assert step is not None and 0 < step <= 5, "several steps may be read in one request"
    assert discover_latest_checkpoint(str(tmp_path / "a/ckpt/run")).endswith(f"step-{step}")
    assert [r["step"] for r in rows(tmp_path / "a")] == list(range(step)), "the last step's numbers are not lost"
    assert summary(tmp_path / "a")["failure_category"] == "data"
    assert "disk went away" in summary(tmp_path / "a")["failure_reason"]
    repaired = run(tmp_path / "a", ListAsyncDataset(items))
    whole = run(tmp_path / "b", ListAsyncDataset(items))
    assert tree_digest(repaired.state) == tree_digest(whole.state)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert "failure_category" not in summary(tmp_path / "b")


def test_data_that_ends_early_is_no_mystery(tmp_path):
    with pytest.raises(DataFailedError, match="the data ended") as caught:
        run(tmp_path, ListAsyncDataset(examples(6)))
    assert caught.value.step == 3


def test_a_loss_that_is_no_number_ends_the_run_and_is_on_record(tmp_path):
    with pytest.raises(DivergedError):
        run(tmp_path, ListAsyncDataset(examples(16)), rate=1e30)
    assert summary(tmp_path)["failure_category"] == "diverged"
    assert discover_latest_checkpoint(str(tmp_path / "ckpt/run")) is None, "a broken state is never saved"


def test_a_run_whose_last_save_fails_is_a_failed_run_with_its_reason(tmp_path):
    (tmp_path / "ckpt").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="could not be saved"):
        run(tmp_path, ListAsyncDataset(examples(16)))
    assert len(rows(tmp_path)) == 8 and summary(tmp_path)["failure_category"] == "checkpoint"


def test_a_damaged_newest_checkpoint_costs_steps_not_the_run(tmp_path):
    items = ListAsyncDataset(examples(16))
    saver = CheckpointerConfig(base_path=str(tmp_path / "ckpt"), keep=[KeepEvery(3)], save_interval=None)
    first = run(tmp_path, items, checkpointer=saver)
    whole = rows(tmp_path)
    damage(tmp_path / "ckpt/run/step-8")
    again = run(tmp_path, items, checkpointer=saver)
    assert tree_digest(again.state) == tree_digest(first.state) and rows(tmp_path) == whole


class Down(NoopTracker):
    """Every call fails, as a client does whose server is gone."""

    def log(self, metrics, *, step, commit=True):
        raise ConnectionError("no route to host")

    finish = log_summary = log_hyperparameters = lambda self, *a, **k: (_ for _ in ()).throw(ConnectionError("down"))


class Stuck(NoopTracker):
    """Every call waits for a server that never answers."""

    def __init__(self):
        self.gate = threading.Event()

    def log(self, metrics, *, step, commit=True):
        self.gate.wait()


def test_a_tracker_that_is_down_loses_its_own_calls_only(tmp_path):
    tracker = BackgroundTracker(Down(), clock=ManualClock())
    run(tmp_path, ListAsyncDataset(examples(16)), tracker=tracker)
    assert len(rows(tmp_path)) == 8 and tracker.failed >= 9


def test_a_tracker_that_hangs_never_stalls_a_step_nor_the_end(tmp_path):
    inner = Stuck()
    tracker = BackgroundTracker(inner, max_queue_size=2, finish_timeout_s=0.3)
    start = time.monotonic()
    run(tmp_path, ListAsyncDataset(examples(16)), tracker=tracker)
    assert time.monotonic() - start < 60
    assert len(rows(tmp_path)) == 8 and tracker.dropped >= 6
    inner.gate.set()


def test_a_tracker_that_cannot_open_fails_before_the_first_step(tmp_path):
    class Refused(TrackerConfig):
        def init(self, run_id, log_dir):
            raise PermissionError("bad key")

    with pytest.raises(PermissionError, match="bad key"):
        Trainer(TrainerConfig(tracker=Refused(), checkpointer=None), optax.sgd(0.1), loss_fn)


def test_the_record_of_a_failure_is_written_even_if_the_error_is_foreign(tmp_path):
    tracker = JsonFileTracker(str(tmp_path / "other"))
    with pytest.raises(ZeroDivisionError):
        config = TrainerConfig(train_batch_size=2, num_train_steps=2, log_dir=str(tmp_path), checkpointer=None)
        with Trainer(config, optax.sgd(0.1), loss_fn, progress=False) as trainer:
            trainer.tracker = tracker
            _ = 1 // 0
    written = json.loads((tmp_path / "other/logs/summary.json").read_text())
    assert written["failure_category"] == "failed" and "zero" in written["failure_reason"]
