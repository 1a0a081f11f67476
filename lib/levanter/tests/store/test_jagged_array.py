import asyncio
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.store._arrays import MERGE_GAP_ELEMENTS, plan_reads
from levanter.store.errors import RowIndexError, SchemaError, StoragePathError
from levanter.store.jagged_array import JaggedArrayStore, PreparedBatch

ROWS = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9]]


def new_store(path, **kwargs):
    return JaggedArrayStore.open(str(path), mode="w", item_rank=kwargs.pop("item_rank", 1), dtype="int32", **kwargs)


def test_rows_come_back_in_the_order_asked_for(tmp_path):
    store = new_store(tmp_path / "f")
    store.extend(ROWS[:2])
    store.append(ROWS[2])
    asyncio.run(store.extend_async(ROWS[3:]))
    assert [row.tolist() for row in store.get_batch_sync([3, 0, 0, 2, 1])] == [ROWS[3], ROWS[0], ROWS[0], [4], []]
    assert store.get_batch_sync([]) == []
    assert [row.tolist() for row in store[::2]] == [ROWS[0], ROWS[2]]
    assert store[-1].tolist() == ROWS[3]
    assert (len(store), store.data_size) == (4, 9)


def test_async_reads_equal_sync_reads(tmp_path):
    store = new_store(tmp_path / "f")
    store.extend(ROWS)
    read = asyncio.run(store.get_batch([2, 3, 1]))
    assert [row.tolist() for row in read] == [[4], ROWS[3], []]
    assert asyncio.run(store.num_rows_async()) == 4
    assert asyncio.run(store.data_size_async()) == 9


def test_layout_on_disk_is_the_documented_one(tmp_path):
    store = new_store(tmp_path / "f")
    store.extend(ROWS)
    data = json.loads((tmp_path / "f/data/zarr.json").read_text())
    assert data["zarr_format"] == 3
    assert data["shape"] == [2**54]
    assert data["data_type"] == "int32"
    assert data["chunk_grid"]["configuration"]["chunk_shape"] == [512 * 256 * 1024]
    [sharding] = data["codecs"]
    assert sharding["name"] == "sharding_indexed"
    assert sharding["configuration"]["chunk_shape"] == [256 * 1024]
    blosc = sharding["configuration"]["codecs"][1]
    assert (blosc["name"], blosc["configuration"]["clevel"]) == ("blosc", 5)
    assert json.loads((tmp_path / "f/offsets/zarr.json").read_text())["data_type"] == "int64"
    assert not (tmp_path / "f/shapes").exists()
    assert np.asarray(store._offsets[:5].read().result()).tolist() == [4, 3, 3, 4, 9]
    assert np.asarray(store._data[:9].read().result()).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_rows_of_higher_rank_keep_their_shapes(tmp_path):
    store = new_store(tmp_path / "f", item_rank=3)
    rows = [np.arange(24).reshape(2, 3, 4), np.zeros((0, 3, 4)), np.arange(6).reshape(1, 2, 3)]
    store.extend(rows)
    shapes = json.loads((tmp_path / "f/shapes/zarr.json").read_text())
    assert shapes["shape"] == [2**54, 2]
    for got, row in zip(JaggedArrayStore.open(str(tmp_path / "f"))[:], rows, strict=True):
        if row.size:
            np.testing.assert_array_equal(got, row)
    store.trim_to_size(1)
    assert [row.shape for row in store[:]] == [(2, 3, 4)]


def test_an_append_without_its_commit_is_invisible_and_overwritten(tmp_path):
    store = new_store(tmp_path / "f")
    store.extend(ROWS[:1])
    for write in store._start_body_writes(PreparedBatch.from_batch([[70, 71], [72]], dtype=np.int32)):
        write.result()
    torn = JaggedArrayStore.open(str(tmp_path / "f"), mode="a")
    assert (torn.num_rows, torn.data_size) == (1, 3)
    torn.extend([[80]])
    assert [row.tolist() for row in torn.reload()[:]] == [ROWS[0], [80]]


def test_trim_drops_the_tail_and_zeroes_it(tmp_path):
    store = new_store(tmp_path / "f")
    store.extend(ROWS)
    store.trim_to_size(9)
    assert len(store) == 4
    store.trim_to_size(1)
    assert [row.tolist() for row in store.reload()[:]] == [ROWS[0]]
    assert np.asarray(store._data[:9].read().result()).tolist() == [1, 2, 3, 0, 0, 0, 0, 0, 0]
    store.trim_to_size(0)
    assert (len(store), store.data_size) == (0, 0)
    store.extend([[6]])
    assert store[0].tolist() == [6]


def test_a_reader_sees_new_rows_after_reload_only(tmp_path):
    writer = new_store(tmp_path / "f")
    writer.extend(ROWS[:1])
    reader = JaggedArrayStore.open(str(tmp_path / "f"))
    writer.extend(ROWS[1:])
    assert len(reader) == 1
    with pytest.raises(RowIndexError):
        reader[1]
    assert len(reader.reload()) == 4


@pytest.mark.parametrize("index", [4, -5, 10**9])
def test_rows_outside_are_index_errors_that_name_the_limit(tmp_path, index):
    store = new_store(tmp_path / "f")
    store.extend(ROWS)
    with pytest.raises(RowIndexError, match="limit=4") as caught:
        store[index]
    assert isinstance(caught.value, IndexError)


def test_wrong_rank_dtype_and_place_are_refused(tmp_path):
    store = new_store(tmp_path / "f")
    with pytest.raises(SchemaError, match="rank 2"):
        store.extend([np.zeros((2, 2))])
    with pytest.raises(SchemaError, match="float32"):
        JaggedArrayStore.open(str(tmp_path / "f"), dtype="float32")
    with pytest.raises(SchemaError, match="rank on disk is 1"):
        JaggedArrayStore.open(str(tmp_path / "f"), item_rank=2)
    with pytest.raises(FileNotFoundError):
        JaggedArrayStore.open(str(tmp_path / "nothing"))
    with pytest.raises(StoragePathError, match="ftp"):
        JaggedArrayStore.open("ftp://host/f")


def test_windows_cross_rows_and_are_checked(tmp_path):
    store = new_store(tmp_path / "f")
    store.extend(ROWS)
    assert store.read_flat_sync(np.array([5, 0, 2]), 4).tolist() == [[6, 7, 8, 9], [1, 2, 3, 4], [3, 4, 5, 6]]
    with pytest.raises(RowIndexError):
        store.read_flat_sync(np.array([6]), 4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10 * MERGE_GAP_ELEMENTS), st.integers(0, 3 * MERGE_GAP_ELEMENTS)), max_size=20)
)
def test_planned_reads_cover_every_range_and_never_overlap(ranges):
    starts = np.array([start for start, _ in ranges], dtype=np.int64)
    stops = starts + np.array([size for _, size in ranges], dtype=np.int64)
    plan = plan_reads(starts, stops)
    for number, (begin, end) in enumerate(zip(starts, stops, strict=True)):
        first, last = plan.reads[plan.read_of[number]]
        assert first <= begin and end <= last
        assert first + plan.begin_in_read[number] == begin
    for (_, before), (after, _) in zip(plan.reads, plan.reads[1:], strict=False):
        assert after >= before - 3 * MERGE_GAP_ELEMENTS


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30), max_size=20), st.data())
def test_any_rows_survive_any_batching(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("jagged") / "f"
    store = new_store(path)
    cut = data.draw(st.integers(0, len(rows)))
    store.extend(rows[:cut])
    store.extend(PreparedBatch.from_batch(rows[cut:], dtype=np.int64).astype(np.int32))
    assert [row.tolist() for row in JaggedArrayStore.open(str(path))[:]] == rows


def test_prepared_batches_concatenate_like_their_rows():
    one = PreparedBatch.from_batch(ROWS[:2], dtype=np.int32)
    two = PreparedBatch.from_batch(ROWS[2:], dtype=np.int32)
    both = PreparedBatch.concat([one, two])
    assert both.ends.tolist() == PreparedBatch.from_batch(ROWS, dtype=np.int32).ends.tolist()
    assert (both.num_rows, both.rank) == (4, 1)


def test_the_read_cache_limit_comes_from_the_environment(monkeypatch):
    from levanter._env import ts_cache_limit_bytes

    monkeypatch.delenv("LEVANTER_TS_CACHE_LIMIT", raising=False)
    assert ts_cache_limit_bytes() == 10**9
    monkeypatch.setenv("LEVANTER_TS_CACHE_LIMIT", "4096")
    assert ts_cache_limit_bytes() == 4096
    monkeypatch.setenv("LEVANTER_TS_CACHE_LIMIT", "1GB")
    with pytest.raises(ValueError, match="whole number of bytes"):
        ts_cache_limit_bytes()
