"""Checkpoints: exact, invisible until whole, pruned as promised, loud when damaged."""

import json
import logging
import os
import time
import tracemalloc
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter._checkpoint.diagnostics import before_copy, watched_save
from levanter._checkpoint.policy import KeepEvery, Retention, SaveSituation, decide, is_permanent_step, validate_keep
from levanter.checkpoint import (
    CheckpointDebugConfig,
    CheckpointerConfig,
    CheckpointWriteConfig,
    discover_checkpoint_candidates,
    discover_latest_checkpoint,
    is_checkpoint_path,
    latest_checkpoint_path,
    load_checkpoint,
    read_manifest,
    save_checkpoint,
    verify_checkpoint,
)
from levanter.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
)
from levanter.tensorstore_serialization import chunk_shape
from levanter.tree_paths import tree_digest
from rigging.timing import ManualClock


def tree(seed: int = 0):
    rng = np.random.default_rng(seed)
    return {
        "w": hax.named(jnp.asarray(rng.normal(size=(4, 6)), jnp.float32), (Axis("a", 4), Axis("b", 6))),
        "half": jnp.asarray(rng.normal(size=(3,)), jnp.bfloat16),
        "count": jnp.int32(7),
        "nested": [jnp.zeros((0, 2)), {"key": jax.random.PRNGKey(seed)}],
        "none": None,
    }


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path):
    path = str(tmp_path / "step-3")
    save_checkpoint(tree(), 3, path, extra={"note": "x"})
    restored = load_checkpoint(jax.tree.map(jnp.zeros_like, tree()), path)
    assert tree_digest(restored) == tree_digest(tree())
    assert restored["w"].axes == tree()["w"].axes
    assert json.loads((tmp_path / "step-3/metadata.json").read_text())["note"] == "x"
    assert verify_checkpoint(path) == 5


def test_typed_prng_keys_survive(tmp_path):
    state = {"key": jax.random.key(5)}
    save_checkpoint(state, 1, str(tmp_path / "c"))
    restored = load_checkpoint({"key": jax.random.key(0)}, str(tmp_path / "c"))
    assert jax.random.uniform(restored["key"]) == jax.random.uniform(state["key"])


def test_a_folder_without_metadata_is_invisible_and_named_in_the_error(tmp_path):
    save_checkpoint(tree(), 1, str(tmp_path / "step-1"))
    save_checkpoint(tree(), 2, str(tmp_path / "step-2"))
    os.remove(tmp_path / "step-2/metadata.json")
    assert discover_latest_checkpoint(str(tmp_path)) == str(tmp_path / "step-1")
    assert not is_checkpoint_path(str(tmp_path / "step-2"))
    with pytest.raises(CheckpointNotFoundError):
        load_checkpoint(tree(), str(tmp_path / "step-2"))
    os.remove(tmp_path / "step-1/metadata.json")
    with pytest.raises(CheckpointNotFoundError) as caught:
        latest_checkpoint_path(str(tmp_path))
    assert len(caught.value.incomplete) == 2


def test_an_incomplete_folder_is_replaced_by_the_next_save(tmp_path):
    path = str(tmp_path / "step-1")
    save_checkpoint(tree(0), 1, path)
    os.remove(tmp_path / "step-1/metadata.json")
    save_checkpoint(tree(1), 1, path)
    assert tree_digest(load_checkpoint(tree(0), path)) == tree_digest(tree(1))


def test_a_missing_leaf_and_a_wrong_shape_are_named(tmp_path):
    path = str(tmp_path / "c")
    save_checkpoint({"w": jnp.ones(3)}, 1, path)
    with pytest.raises(CheckpointMismatchError) as caught:
        load_checkpoint({"w": jnp.ones(3), "extra": jnp.ones(2)}, path)
    assert caught.value.leaf == "extra"
    with pytest.raises(CheckpointMismatchError) as caught:
        load_checkpoint({"w": jnp.ones(4)}, path)
    assert caught.value.leaf == "w"
    partial = load_checkpoint({"w": jnp.zeros(3), "extra": jnp.full(2, 9.0)}, path, allow_partial=True)
    assert partial["w"].tolist() == [1, 1, 1] and partial["extra"].tolist() == [9, 9]


def test_a_subpath_reads_only_the_model(tmp_path):
    path = str(tmp_path / "c")
    save_checkpoint({"model": {"w": jnp.arange(3.0)}, "opt": jnp.ones(2)}, 1, path)
    assert load_checkpoint({"w": jnp.zeros(3)}, path, subpath="model")["w"].tolist() == [0, 1, 2]


def test_flipped_bytes_are_an_error_that_names_the_array(tmp_path):
    path = tmp_path / "c"
    save_checkpoint({"w": jnp.arange(10_000.0)}, 1, str(path))
    largest = max((path / "d").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    largest.write_bytes(bytes(data))
    with pytest.raises(CheckpointCorruptError) as caught:
        load_checkpoint({"w": jnp.zeros(10_000)}, str(path))
    assert caught.value.leaf == "w"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": 1}'])
def test_damaged_metadata_is_left_out_of_discovery(tmp_path, content):
    save_checkpoint(tree(), 1, str(tmp_path / "step-1"))
    save_checkpoint(tree(), 2, str(tmp_path / "step-2"))
    (tmp_path / "step-2/metadata.json").write_text(content)
    assert [c.step for c in discover_checkpoint_candidates(str(tmp_path))] == [1]
    with pytest.raises(CheckpointCorruptError):
        load_checkpoint(tree(), str(tmp_path / "step-2"))


def test_an_unwritable_place_is_an_error_and_leaves_no_checkpoint(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(OSError):
        save_checkpoint(tree(), 1, str(blocker / "step-1"))
    assert discover_latest_checkpoint(str(tmp_path)) is None


def test_leaves_that_are_no_arrays_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="leaf=f"):
        save_checkpoint({"f": "text"}, 1, str(tmp_path / "c"))


def test_the_published_keep_example_gives_the_published_steps():
    keep = [KeepEvery(2, 10), KeepEvery(5, 20), KeepEvery(10)]
    assert [s for s in range(1, 41) if is_permanent_step(keep, s)] == [2, 4, 6, 8, 10, 15, 20, 30, 40]


@pytest.mark.parametrize("keep", [[KeepEvery(0)], [KeepEvery(2), KeepEvery(3)], [KeepEvery(1, 9), KeepEvery(1, 5)]])
def test_impossible_schedules_are_refused(keep):
    with pytest.raises(ConfigError):
        validate_keep(keep)


@given(
    step=st.integers(0, 50),
    last=st.integers(-1, 50),
    elapsed=st.floats(0, 100),
    requested=st.sampled_from([None, *Retention]),
    force=st.booleans(),
)
def test_decisions_follow_the_rules(step, last, elapsed, requested, force):
    keep = [KeepEvery(7)]
    at = SaveSituation(step, last, elapsed, requested, force)
    decision = decide(keep, 10.0, at)
    if force:
        assert decision == Retention.PERMANENT
    elif step in (0, last):
        assert decision is None
    elif step % 7 == 0 or requested == Retention.PERMANENT:
        assert decision == Retention.PERMANENT
    elif requested == Retention.TEMPORARY or elapsed >= 10.0:
        assert decision == Retention.TEMPORARY
    else:
        assert decision is None


def checkpointer(tmp_path, clock, **changes):
    fields: dict[str, Any] = {"base_path": str(tmp_path), "keep": [KeepEvery(10)], "append_run_id_to_base_path": False}
    return CheckpointerConfig(**(fields | changes)).create("run", clock=clock)


def steps_on_disk(tmp_path):
    return [c.step for c in discover_checkpoint_candidates(str(tmp_path))]


def test_temporaries_are_pruned_once_something_newer_is_safe(tmp_path):
    clock = ManualClock()
    saver = checkpointer(tmp_path, clock)
    seen = []
    for step in range(1, 12):
        clock.advance(301)
        saver.on_step({"w": jnp.full(2, float(step))}, step)
        saver.wait_until_finished()
        seen.append(steps_on_disk(tmp_path))
    assert seen[2] == [3] and seen[5] == [6]
    assert seen[8] == [9] and seen[9] == [10] and seen[10] == [10]


def test_a_request_saves_at_the_next_step_and_permanent_wins(tmp_path):
    saver = checkpointer(tmp_path, ManualClock(), save_interval=None)
    saver.request_checkpoint(Retention.PERMANENT)
    saver.request_checkpoint(Retention.TEMPORARY)
    saver.on_step({"w": jnp.ones(1)}, 3)
    saver.wait_until_finished()
    [candidate] = saver.candidates()
    assert candidate.step == 3 and not candidate.metadata.is_temporary
    assert saver.decide(4) is None


def test_a_temporary_promoted_by_hand_is_not_deleted(tmp_path):
    clock = ManualClock()
    saver = checkpointer(tmp_path, clock)
    clock.advance(1000)
    saver.on_step({"w": jnp.ones(1)}, 3)
    saver.wait_until_finished()
    file = tmp_path / "step-3/metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "is_temporary": False}))
    saver.on_step({"w": jnp.ones(1)}, 10)
    saver.wait_until_finished()
    assert steps_on_disk(tmp_path) == [3, 10]


def test_old_temporaries_found_at_start_are_adopted(tmp_path):
    save_checkpoint({"w": jnp.ones(1)}, 5, str(tmp_path / "step-5"), is_temporary=True)
    saver = checkpointer(tmp_path, ManualClock())
    saver.on_step({"w": jnp.ones(1)}, 10)
    saver.wait_until_finished()
    assert steps_on_disk(tmp_path) == [10]


def test_a_failed_background_save_is_raised_by_the_next_wait(tmp_path):
    saver = checkpointer(tmp_path / "gone", ManualClock())
    (tmp_path / "gone").write_text("a file where the folder should be")
    saver.on_step({"w": jnp.ones(1)}, 10)
    with pytest.raises(CheckpointError, match="could not be saved"):
        saver.wait_until_finished()


def test_the_copy_is_taken_before_the_buffers_are_donated(tmp_path):
    saver = checkpointer(tmp_path, ManualClock())
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.arange(200_000.0)
    path = saver.on_step({"x": x}, 10)
    for _ in range(5):
        x = step(x)
    saver.wait_until_finished()
    assert path is not None
    assert np.array_equal(load_checkpoint({"x": jnp.zeros(200_000)}, path)["x"], np.arange(200_000.0))


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), max_size=4), st.sampled_from([1, 2, 4, 8]), st.integers(1, 4096))
def test_chunks_fit_the_limit_and_cover_the_shape(shape, itemsize, limit):
    chunk = chunk_shape(shape, itemsize, limit)
    assert all(1 <= c <= max(1, n) for c, n in zip(chunk, shape, strict=True))
    assert itemsize * int(np.prod(chunk)) <= limit or all(c == 1 for c in chunk)


def test_the_manifest_lists_every_array_with_its_layout(tmp_path):
    save_checkpoint(tree(), 1, str(tmp_path / "c"))
    manifest = read_manifest(str(tmp_path / "c"))
    assert manifest["w"].shape == (4, 6) and manifest["half"].dtype == "bfloat16"
    assert "nested/1/key" in manifest


def saver(tmp_path, **changes):
    config = CheckpointerConfig(base_path=str(tmp_path), keep=None, append_run_id_to_base_path=False, **changes)
    return config.create("run")


def test_chunks_are_no_larger_than_asked(tmp_path):
    state = {"w": jnp.arange(64.0).reshape(8, 8)}
    checkpoints = saver(tmp_path, write=CheckpointWriteConfig(max_chunk_bytes=128, data_copy_concurrency=1))
    path = checkpoints.on_step(state, 1, force=True)
    checkpoints.wait_until_finished()
    assert read_manifest(path)["w"].chunk_shape == (4, 8)
    assert tree_digest(load_checkpoint(state, path)) == tree_digest(state)


def test_a_state_that_may_not_be_staged_is_refused_before_the_first_step(tmp_path):
    state = {"w": jnp.zeros(100), "n": 3}
    saver(tmp_path, write=CheckpointWriteConfig(max_staged_host_bytes=400)).reserve(state)
    with pytest.raises(ConfigError, match="max_staged_host_bytes=399; expected >= 400"):
        saver(tmp_path, write=CheckpointWriteConfig(max_staged_host_bytes=399)).reserve(state)


def test_a_slow_save_says_how_long_it_takes_and_where_memory_went(tmp_path, caplog, capfd):
    clock = ManualClock()
    caplog.set_level(logging.INFO, logger="levanter._checkpoint.diagnostics")
    config = CheckpointDebugConfig(enabled=True, log_interval=30, dump_stacks_after=45, tracemalloc_frames=1)
    try:
        before_copy(config)
        with watched_save(config, "the/path", clock):
            for lines in (2, 4, 5):  # the second advance reaches the moment of the stacks as well
                clock.advance(31)
                deadline = time.monotonic() + 60
                while len(caplog.records) < lines and time.monotonic() < deadline:
                    time.sleep(0.01)
    finally:
        tracemalloc.stop()
    said = [record.getMessage() for record in caplog.records]
    assert "saving the/path: resident" in said[0]
    assert any("has run for 31.0 s: resident" in line for line in said)
    assert sum("stacks of all threads follow" in line for line in said) == 1
    assert any("ended after 93.0 s" in line for line in said) and said[-1].startswith("allocated:")


def test_without_debug_nothing_is_said(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="levanter._checkpoint.diagnostics")
    before_copy(CheckpointDebugConfig())
    with watched_save(CheckpointDebugConfig(), "the/path", ManualClock()):
        pass
    assert not caplog.records and not tracemalloc.is_tracing()
