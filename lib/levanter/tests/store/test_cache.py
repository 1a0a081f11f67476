import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.store.cache import SerialCacheWriter, TreeCache, consolidate_shard_cache_ledgers, verify_cache
from levanter.store.errors import (
    CacheExistsError,
    CacheMetadataError,
    CacheNotFinishedError,
    CorruptCacheError,
    LedgerFormatError,
    RowIndexError,
    SchemaError,
)
from levanter.store.ledger import LEDGER_NAME, CacheLedger, FieldSpec, read_ledger
from levanter.store.tree_store import TreeStore, schema_from_exemplar, schema_on_disk

SCHEMA = {"input_ids": FieldSpec("int32")}


def write(path, rows, metadata=None, **kwargs):
    with SerialCacheWriter(str(path), SCHEMA, metadata, **kwargs) as writer:
        for row in rows:
            writer.write_batch([{"input_ids": row}])
    return writer.result()


def make_sharded(root, shards, metadata=None):
    names = []
    for number, rows in enumerate(shards):
        name = f"part-{number:05d}-of-{len(shards):05d}"
        write(root / name, rows)
        names.append(name)
    return consolidate_shard_cache_ledgers(str(root), names, metadata)


def test_rows_written_are_rows_read(tmp_path):
    cache = write(tmp_path / "c", [[1, 2], [], [3]])
    assert [row["input_ids"].tolist() for row in cache.get_batch_sync([2, 0, 1])] == [[3], [1, 2], []]
    assert len(cache) == asyncio.run(cache.async_len()) == 3
    assert cache.flat_field_length("input_ids") == 3
    assert asyncio.run(cache.get_batch([0]))[0]["input_ids"].tolist() == [1, 2]


def test_the_ledger_file_has_the_documented_fields(tmp_path):
    write(tmp_path / "c", [[1, 2], [3]], {"tokenizer": "t"}, shard_name="s")
    ledger = json.loads((tmp_path / "c" / LEDGER_NAME).read_text())
    assert ledger == {
        "total_num_rows": 2,
        "shard_rows": {"s": 2},
        "is_finished": True,
        "finished_shards": ["s"],
        "field_counts": {"input_ids": 3},
        "field_counts_by_shard": {"s": {"input_ids": 3}},
        "layout": "consolidated",
        "metadata": {"preprocessor_metadata": {"tokenizer": "t"}},
        "schema": {"input_ids": {"dtype": "int32", "rank": 1}},
    }


def test_ledger_only_consolidation_writes_no_arrays_at_the_root(tmp_path):
    ledger = make_sharded(tmp_path / "c", [[[1]], [[2, 3], [4]]], {"k": 1})
    assert sorted(os.listdir(tmp_path / "c")) == ["part-00000-of-00002", "part-00001-of-00002", LEDGER_NAME]
    assert ledger.layout == "sharded"
    assert ledger.shard_rows == {"part-00000-of-00002": 1, "part-00001-of-00002": 2}
    assert read_ledger(str(tmp_path / "c")) == ledger
    cache = TreeCache.load(str(tmp_path / "c"))
    assert [row["input_ids"].tolist() for row in cache.get_batch_sync([2, 0, 1])] == [[4], [1], [2, 3]]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=4), min_size=1, max_size=4), st.data())
def test_windows_over_shards_equal_windows_over_the_concatenation(tmp_path_factory, shards, data):
    root = tmp_path_factory.mktemp("sharded")
    make_sharded(root, shards)
    flat = [token for shard in shards for row in shard for token in row]
    rows = [row for shard in shards for row in shard]
    cache = TreeCache.load(str(root))
    assert cache.flat_field_length("input_ids") == len(flat)
    assert cache.row_lengths("input_ids").tolist() == [len(row) for row in rows]
    assert [row["input_ids"].tolist() for row in cache.get_batch_sync(range(len(rows)))] == rows
    if flat:
        length = data.draw(st.integers(1, len(flat)))
        starts = data.draw(st.lists(st.integers(0, len(flat) - length), max_size=8))
        expected = [flat[start : start + length] for start in starts]
        assert cache.get_flat_field_batch_sync("input_ids", starts, length).tolist() == expected
        assert asyncio.run(cache.get_flat_field_batch("input_ids", starts, length)).tolist() == expected


def test_bytes_depend_on_the_rows_alone(tmp_path, tree_digest):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4096, size=int(n)).astype(np.int32) for n in rng.integers(0, 5000, size=300)]
    write(tmp_path / "a", rows, flush_bytes=1)
    with SerialCacheWriter(str(tmp_path / "b"), SCHEMA) as writer:
        writer.write_batch([{"input_ids": row} for row in rows])
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b")


def test_an_exception_in_the_block_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), SerialCacheWriter(str(tmp_path / "c"), SCHEMA) as writer:
        writer.write_batch([{"input_ids": [1]}])
        raise KeyError("tokenizer failed")
    assert os.listdir(tmp_path) == []


def test_replacing_a_finished_cache_is_explicit(tmp_path):
    write(tmp_path / "c", [[1]])
    with pytest.raises(CacheExistsError):
        write(tmp_path / "c", [[2]], mode="x")
    assert write(tmp_path / "c", [[2], [3]]).get_batch_sync([0])[0]["input_ids"].tolist() == [2]
    assert os.listdir(tmp_path) == ["c"]


def test_missing_and_unfinished_ledgers_are_no_cache(tmp_path):
    with pytest.raises(CacheNotFinishedError, match="no ledger") as caught:
        TreeCache.load(str(tmp_path))
    assert isinstance(caught.value, FileNotFoundError)
    text = CacheLedger(1, {"a": 1}, is_finished=False).to_json()
    (tmp_path / LEDGER_NAME).write_text(text)
    with pytest.raises(CacheNotFinishedError, match="is_finished=false"):
        TreeCache.load(str(tmp_path))


def test_other_settings_are_an_error_with_a_diff(tmp_path, caplog):
    write(tmp_path / "c", [[1]], {"tokenizer": "old", "bos": True})
    with pytest.raises(CacheMetadataError, match="tokenizer: cache has 'old', expected 'new'") as caught:
        TreeCache.load(str(tmp_path / "c"), expected_metadata={"tokenizer": "new", "bos": True})
    assert caught.value.differences == {"tokenizer": ("old", "new")}
    TreeCache.load(str(tmp_path / "c"), expected_metadata={"tokenizer": "new"}, on_mismatch="warn")
    assert "cache has 'old'" in caplog.text
    TreeCache.load(str(tmp_path / "c"), expected_metadata={"bos": True})


def sharded_json(**changes):
    ledger = {
        "total_num_rows": 3,
        "shard_rows": {"a": 1, "b": 2},
        "is_finished": True,
        "finished_shards": ["a", "b"],
        "field_counts": {"x": 5},
        "field_counts_by_shard": {"a": {"x": 2}, "b": {"x": 3}},
        "layout": "sharded",
        "metadata": {"preprocessor_metadata": None},
    }
    return json.dumps({**ledger, **changes})


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"finished_shards": ["a", "a"]}, "twice"),
        ({"finished_shards": ["a", "../b"]}, "outside"),
        ({"finished_shards": ["a", "/b"]}, "outside"),
        ({"finished_shards": ["a", "gs://x/b"]}, "outside"),
        ({"finished_shards": ["a", "."]}, "outside"),
        ({"finished_shards": ["a"]}, "no finished shard"),
        ({"shard_rows": {"a": 3}}, "no row count"),
        ({"shard_rows": {"a": -1, "b": 4}}, "negative"),
        ({"total_num_rows": 4}, "sum to 3"),
        ({"field_counts": {"x": 6}}, "sum to 5"),
        ({"field_counts_by_shard": {"a": {"x": 2}, "c": {"x": 3}}}, "no finished shard"),
        ({"field_counts_by_shard": {"a": {"x": -2}, "b": {"x": 7}}}, "negative"),
        ({"layout": "columnar-v9"}, "neither"),
        ({"total_num_rows": "many"}, "cannot be parsed"),
    ],
)
def test_ledgers_that_cannot_be_true_are_refused(changes, reason):
    assert CacheLedger.from_json(sharded_json()).total_num_rows == 3
    with pytest.raises(LedgerFormatError, match=reason):
        CacheLedger.from_json(sharded_json(**changes))


def test_truncated_ledgers_are_refused():
    text = sharded_json()
    with pytest.raises(LedgerFormatError, match="cannot be parsed"):
        CacheLedger.from_json(text[: len(text) // 2])


def test_old_ledgers_without_the_newer_keys_are_consolidated_caches(tmp_path):
    write(tmp_path / "c", [[1, 2], [3]])
    old = {"total_num_rows": 2, "shard_rows": {"s": 2}, "is_finished": True}
    (tmp_path / "c" / LEDGER_NAME).write_text(json.dumps(old))
    cache = TreeCache.load(str(tmp_path / "c"))
    assert cache.schema == SCHEMA
    assert cache.get_flat_field_batch_sync("input_ids", [1], 2).tolist() == [[2, 3]]
    assert verify_cache(str(tmp_path / "c")).field_counts == {"input_ids": 3}


def test_verification_finds_missing_and_damaged_files(tmp_path):
    make_sharded(tmp_path / "c", [[[1, 2]], [[3] * 1000]])
    assert verify_cache(str(tmp_path / "c"), read_all=True).total_num_rows == 2
    part = tmp_path / "c/part-00001-of-00002/input_ids"
    meta = (part / "data/zarr.json").read_bytes()
    (part / "data/zarr.json").unlink()
    with pytest.raises(CorruptCacheError, match="part-00001"):
        verify_cache(str(tmp_path / "c"))
    with pytest.raises(CorruptCacheError):
        TreeCache.load(str(tmp_path / "c")).get_batch_sync([1])
    (part / "data/zarr.json").write_bytes(meta)
    chunk = part / "data/c/0"
    chunk.write_bytes(chunk.read_bytes()[:-30])
    with pytest.raises(CorruptCacheError):
        verify_cache(str(tmp_path / "c"))


def test_a_shard_that_lost_data_is_not_consolidated(tmp_path):
    write(tmp_path / "c/a", [[1]])
    (tmp_path / "c/a/input_ids/data/c/0").unlink()
    (tmp_path / "c/a/input_ids/offsets/c/0").unlink()
    with pytest.raises(CorruptCacheError, match="0 rows"):
        consolidate_shard_cache_ledgers(str(tmp_path / "c"), ["a"])
    assert not (tmp_path / "c" / LEDGER_NAME).exists()


def test_shards_with_other_fields_are_not_consolidated(tmp_path):
    write(tmp_path / "c/a", [[1]])
    with SerialCacheWriter(str(tmp_path / "c/b"), {"other": FieldSpec("float32")}) as writer:
        writer.write_batch([{"other": [0.5]}])
    with pytest.raises(SchemaError):
        consolidate_shard_cache_ledgers(str(tmp_path / "c"), ["a", "b"])


def test_a_cache_of_no_shards_is_empty_and_finished(tmp_path):
    consolidate_shard_cache_ledgers(str(tmp_path / "c"), [])
    cache = TreeCache.load(str(tmp_path / "c"))
    assert (len(cache), cache.flat_field_length("input_ids")) == (0, 0)
    with pytest.raises(RowIndexError):
        cache.get_batch_sync([0])


def test_an_empty_shard_between_full_ones_is_skipped_over(tmp_path):
    make_sharded(tmp_path, [[], [[1]], [], [[2]]])
    cache = TreeCache.load(str(tmp_path))
    assert cache.get_flat_field_batch_sync("input_ids", [0], 2).tolist() == [[1, 2]]
    assert [row["input_ids"].tolist() for row in cache.get_batch_sync([1, 0])] == [[2], [1]]


def test_rows_must_fit_the_schema(tmp_path):
    with pytest.raises(SchemaError, match="exactly"), SerialCacheWriter(str(tmp_path / "c"), SCHEMA) as writer:
        writer.write_batch([{"input_ids": [1], "extra": [2]}])
    with pytest.raises(SchemaError, match="at least one field"):
        SerialCacheWriter(str(tmp_path / "c"), {})
    cache = write(tmp_path / "d", [[1]])
    with pytest.raises(SchemaError, match="input_ids"):
        cache.flat_field_length("labels")


def test_a_changed_ledger_keeps_the_previous_one(tmp_path):
    make_sharded(tmp_path, [[[1]]], {"v": 1})
    before = (tmp_path / LEDGER_NAME).read_text()
    consolidate_shard_cache_ledgers(str(tmp_path), ["part-00000-of-00001"], {"v": 1})
    assert not (tmp_path / f"{LEDGER_NAME}.bak").exists()
    consolidate_shard_cache_ledgers(str(tmp_path), ["part-00000-of-00001"], {"v": 2})
    assert (tmp_path / f"{LEDGER_NAME}.bak").read_text() == before


def test_nested_rows_and_lists_of_scalars(tmp_path):
    exemplar = {"a": {"b": np.zeros((2, 2), np.float32)}, "ids": [1, 2]}
    schema = schema_from_exemplar(exemplar)
    assert schema == {"a/b": FieldSpec("float32", 2), "ids": FieldSpec("int64", 1)}
    tree = TreeStore.open(str(tmp_path / "t"), schema, mode="w")
    tree.extend([exemplar, {"a": {"b": np.ones((1, 3), np.float32)}, "ids": []}])
    assert schema_on_disk(str(tmp_path / "t")) == schema
    again = TreeStore.open(str(tmp_path / "t"), schema)
    np.testing.assert_array_equal(again[1]["a"]["b"], np.ones((1, 3)))
    assert again[0]["ids"].tolist() == [1, 2]
    tree.trim_to_size(1)
    assert len(tree.reload()) == 1


def test_replacing_a_cache_is_seen_by_new_readers_in_the_same_process(tmp_path):
    first = write(tmp_path / "c", [[1, 2, 3]])
    assert first.get_flat_field_batch_sync("input_ids", [0], 3).tolist() == [[1, 2, 3]]
    second = write(tmp_path / "c", [[7, 8, 9]])
    assert second.get_flat_field_batch_sync("input_ids", [0], 3).tolist() == [[7, 8, 9]]


KILLED_WRITER = """
import sys
import numpy as np
from levanter.store.cache import SerialCacheWriter
from levanter.store.ledger import FieldSpec
with SerialCacheWriter(sys.argv[1], {"input_ids": FieldSpec("int32")}, {"v": 1}, flush_bytes=4096) as writer:
    print("open", flush=True)
    for number in range(60):
        writer.write_batch([{"input_ids": np.arange(number * 37 % 911)} for _ in range(4)])
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_anywhere_leaves_no_cache_and_the_rebuild_is_byte_equal(tmp_path, tree_digest):
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", KILLED_WRITER, str(tmp_path / "whole")], check=True, capture_output=True)
    duration = time.perf_counter() - started
    expected = tree_digest(tmp_path / "whole")
    rng = random.Random(7)
    outcomes = set()
    for number in range(5):
        target = tmp_path / f"killed-{number}"
        process = subprocess.Popen([sys.executable, "-c", KILLED_WRITER, str(target)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        with process.stdout:
            try:
                process.wait(rng.uniform(0, duration * 0.6))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            process.wait()
        outcomes.add(process.returncode)
        if target.exists():
            assert tree_digest(target) == expected
        else:
            with pytest.raises(CacheNotFinishedError):
                TreeCache.load(str(target))
            subprocess.run([sys.executable, "-c", KILLED_WRITER, str(target)], check=True, capture_output=True)
            assert tree_digest(target) == expected
    assert -signal.SIGKILL in outcomes
