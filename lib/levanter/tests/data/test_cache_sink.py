"""Caches written from zephyr pipelines."""

import importlib.util
import os

import numpy as np
import pyarrow as pa
import pytest
from levanter.data.cache_sink import LevanterCacheSink
from levanter.store.cache import TreeCache, consolidate_shard_cache_ledgers
from levanter.store.errors import CorruptCacheError, SchemaError

if importlib.util.find_spec("zephyr") is None:
    pytest.skip("needs the extra 'cache' (zephyr)", allow_module_level=True)

from zephyr import Dataset, ZephyrContext


def rows(cache):
    return [row["input_ids"].tolist() for row in cache.get_batch_sync(range(len(cache)))]


def tree_bytes(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.relative_to(folder)), path.read_bytes()) for path in files]


@pytest.fixture
def context(tmp_path):
    return ZephyrContext(inline=True, chunk_storage_prefix=str(tmp_path / "scratch"))


def test_a_pipeline_ends_in_a_cache_that_reads_back(tmp_path, context):
    records = [{"input_ids": list(range(n % 5))} for n in range(40)]
    ds = Dataset.from_list(records, shards=3).write_levanter_cache(
        str(tmp_path / "c" / "part-{shard:05d}"), {"tokenizer": "demo"}, batch_size=4
    )
    paths = context.execute(ds).results
    assert [os.path.basename(path) for path in paths] == [f"part-{n:05d}" for n in range(3)]
    assert sorted(os.listdir(tmp_path / "c")) == [f"part-{n:05d}" for n in range(3)]
    assert TreeCache.load(paths[0]).ledger.metadata == {"tokenizer": "demo"}
    names = [os.path.basename(path) for path in paths]
    consolidate_shard_cache_ledgers(str(tmp_path / "c"), names, {"tokenizer": "demo"})
    assert rows(TreeCache.load(str(tmp_path / "c"))) == [record["input_ids"] for record in records]


def test_batches_and_rows_of_any_cut_give_equal_bytes(tmp_path):
    records = [{"input_ids": [n, n + 1][: n % 3]} for n in range(30)]
    batch = pa.RecordBatch.from_pylist(records)
    # A batch that begins in the middle of its buffers, as slices do.
    batches = [batch.slice(0, 7), batch.slice(7, 20), batch.slice(27)]
    LevanterCacheSink({"a": 1}).write(iter([records]), str(tmp_path / "rows"))
    LevanterCacheSink({"a": 1}, batch_size=3).write(iter(batches), str(tmp_path / "batches"))
    assert tree_bytes(tmp_path / "rows") == tree_bytes(tmp_path / "batches")


def test_an_empty_shard_is_an_empty_cache(tmp_path):
    sink = LevanterCacheSink()
    assert sink.write(iter([]), str(tmp_path / "c")) == 0
    sink.check(str(tmp_path / "c"), 0)
    with pytest.raises(CorruptCacheError, match="0 rows, 3 were written"):
        sink.check(str(tmp_path / "c"), 3)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ([{"ids": [1]}], "a record is"),
        ([7], "a record is"),
        ([{"input_ids": None}], "holds null"),
        ([{"input_ids": [[1]]}], "has rank 2"),
        ([{"input_ids": ["x"]}], "elements are"),
        ([{"input_ids": [2**31]}], "values from 2147483648"),
        ([{"input_ids": [0.5]}], "values from 0.5"),
        (pa.RecordBatch.from_pylist([{"input_ids": [1], "x": 1}]), "have the fields"),
        (pa.RecordBatch.from_pylist([{"input_ids": 1}]), "the column is int64"),
        (pa.RecordBatch.from_pylist([{"input_ids": [1, None]}]), "holds null"),
        (pa.RecordBatch.from_pylist([{"input_ids": [2**40]}]), "values from"),
    ],
)
def test_records_that_do_not_fit_leave_no_cache(tmp_path, block, text):
    with pytest.raises(SchemaError, match=text):
        LevanterCacheSink().write(iter([block]), str(tmp_path / "c"))
    assert os.listdir(tmp_path) == []


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(ValueError, match="batch_size=0"):
        LevanterCacheSink(batch_size=0)


def test_other_element_types_are_kept(tmp_path):
    sink = LevanterCacheSink(dtypes={"weights": "float32"})
    sink.write(iter([[{"weights": [0.5, 1]}]]), str(tmp_path / "c"))
    [row] = TreeCache.load(str(tmp_path / "c")).get_batch_sync([0])
    assert row["weights"].dtype == np.float32
