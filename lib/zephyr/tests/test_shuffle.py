"""Shuffles: the merge under any budget is the stable sort, and files are read only where they must be."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zephyr import Dataset, ZephyrContext, col
from zephyr._inputs import range_slices, split_points, target_slices
from zephyr._shuffle.format import Part, Run, items_of
from zephyr._shuffle.read import merge_slices
from zephyr._shuffle.write import ShuffleWriter
from zephyr._trace import Trace
from zephyr.errors import KeyTypeError
from zephyr.physical import HashScatter, KeySpec, RangeScatter

ITEMS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=60)


def scatter(folder: Path, shards: list[list[Any]], output: Any, key: KeySpec, flush: int) -> list[Run]:
    runs: list[Run] = []
    for at, items in enumerate(shards):
        writer = ShuffleWriter(
            str(folder / f"s{at}"), output, shard=at, flush_bytes=flush, limit_bytes=1 << 30, trace=Trace()
        )
        runs.extend(writer.write([items[i : i + 7] for i in range(0, len(items), 7)], key))
    return runs


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(ITEMS, min_size=1, max_size=4),
    st.sampled_from([1, 400, 1 << 20]),
    st.sampled_from([1, 2000, 1 << 20]),
    st.booleans(),
)
def test_a_merge_is_the_stable_sort_whatever_the_budget(
    tmp_path: Path, shards: list[Any], flush: int, budget: int, sorting: bool
) -> None:
    folder = tmp_path / str(random.random())
    key = KeySpec(lambda t: t[0], (lambda t: t[1]) if sorting else None)
    pieces: Any = target_slices(scatter(folder, shards, HashScatter(2), key, flush), 2)
    out: list[Any] = []
    for target in range(2):
        merged = merge_slices(pieces[target], budget_bytes=budget, folder=str(folder / "m"))
        out.extend([item for piece in merged for item in items_of(piece)])
        assert not list(folder.glob("m/*")), "runs merged on the way are gone"
    flat = [item for shard in shards for item in shard]
    expected = sorted(flat, key=(lambda t: t) if sorting else (lambda t: t[0]))
    assert sorted(out, key=lambda t: t[0]) == expected


def test_more_runs_than_fit_are_merged_in_passes(tmp_path: Path) -> None:
    items = [{"k": f"{random.Random(i).randrange(500):03d}", "pad": "x" * 50, "i": i} for i in range(4000)]
    key = KeySpec(col("k"))
    blocks = [pa.RecordBatch.from_pylist(items[at : at + 40]) for at in range(0, 4000, 40)]
    writer = ShuffleWriter(
        str(tmp_path / "w"), HashScatter(1), shard=0, flush_bytes=1, limit_bytes=1 << 30, trace=Trace()
    )
    runs = writer.write(blocks, key)
    assert len(runs) == 100
    [pieces] = target_slices(runs, 1)
    merged: Any = merge_slices(pieces, budget_bytes=4 << 20, folder=str(tmp_path / "m"))
    small: Any = merge_slices(pieces, budget_bytes=1, folder=str(tmp_path / "m"))
    for stream in (merged, small):
        assert [row for batch in stream for row in items_of(batch)] == sorted(items, key=lambda r: r["k"])
    assert not list(tmp_path.glob("m/*"))


def test_abandoning_a_merge_removes_its_files(tmp_path: Path) -> None:
    runs = scatter(tmp_path, [[(i % 9, i) for i in range(300)]], HashScatter(1), KeySpec(lambda t: t[0]), 1)
    [pieces] = target_slices(runs, 1)
    stream: Any = merge_slices(pieces, budget_bytes=1, folder=str(tmp_path / "m"))
    next(stream)
    stream.close()
    assert not list(tmp_path.glob("m/*"))


def test_columns_stay_columns_through_a_shuffle(ctx: ZephyrContext) -> None:
    kinds: list[str] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        kinds.append(str(batch.schema.field("n").type))
        return batch

    ds = Dataset.from_list([{"k": i % 3, "n": i} for i in range(9)])
    ds = (
        ds.map_batches(lambda b: b.set_column(1, "n", b.column("n").cast(pa.int16())))
        .deduplicate("k")
        .map_batches(look)
    )
    assert sorted(row["n"] for row in ctx.execute(ds).results) == [0, 1, 2]
    assert set(kinds) == {"int16"}


def test_columns_and_items_meet_in_one_group(ctx: ZephyrContext) -> None:
    a = Dataset.from_list([{"k": 1, "v": "columns"}]).map_batches(lambda b: b)
    b = Dataset.from_list([{"k": 1, "v": "items"}]).map(dict)
    ds = Dataset.union(a, b).group_by("k", reducer=lambda k, it: (k, [r["v"] for r in it]), num_output_shards=1)
    assert ctx.execute(ds).results == [(1, ["columns", "items"])]


def test_schemas_of_shards_are_unified_in_the_reducer(ctx: ZephyrContext) -> None:
    parts = [[{"k": 1, "a": None}], [{"k": 1, "a": 2}], [{"k": 1, "a": 2.5, "b": "x"}]]
    ds = Dataset.from_list(parts).flat_map(lambda p: p).map_batches(lambda b: b)
    out = ctx.execute(ds.sort_by("a", num_output_shards=1).select("a")).results
    assert out == [{"a": None}, {"a": 2.0}, {"a": 2.5}]


def test_dedupe_keeps_the_first_by_shard_and_position(ctx: ZephyrContext) -> None:
    items = [{"k": i % 10, "i": i} for i in range(1000)]
    out = ctx.execute(Dataset.from_list(items, shards=7).map_batches(lambda b: b).deduplicate("k")).results
    assert sorted(row["i"] for row in out) == list(range(10))


@pytest.mark.parametrize("memory", [1 << 14, 64 << 20])
def test_word_count_with_a_combiner_is_exact(scratch: Path, memory: int) -> None:
    rng = random.Random(0)
    texts = [" ".join(rng.choices("abcdefghij", k=50)) for _ in range(200)]
    ctx = ZephyrContext(inline=True, chunk_storage_prefix=str(scratch), task_memory=memory)
    ds = Dataset.from_list(texts, shards=5).flat_map(str.split).map(lambda w: (w, 1))
    ds = ds.group_by(
        lambda t: t[0],
        reducer=lambda k, it: (k, sum(n for _, n in it)),
        combiner=lambda k, it: [(k, sum(n for _, n in it))],
    )
    words = " ".join(texts).split()
    assert sorted(ctx.execute(ds).results) == [(w, words.count(w)) for w in sorted(set(words))]


def test_a_key_without_an_order_is_refused_with_its_type(ctx: ZephyrContext) -> None:
    with pytest.raises(KeyTypeError, match="type=dict"):
        ctx.execute(Dataset.from_list([1]).group_by(lambda x: {"x": x}, reducer=lambda k, it: k))


def test_range_borders_cut_batches_on_both_sides(tmp_path: Path) -> None:
    items = list(range(5000))
    random.Random(1).shuffle(items)
    runs = scatter(tmp_path, [items[:2000], items[2000:]], RangeScatter(4), KeySpec(lambda x: x), 1 << 12)
    out: list[Any] = []
    for pieces in range_slices(runs, 4):
        merged: Any = merge_slices(pieces, budget_bytes=1 << 20, folder=str(tmp_path / "m"))
        out.append([item for batch in merged for item in items_of(batch)])
    assert [item for part in out for item in part] == sorted(items)
    assert min(map(len, out)) > 800


def test_split_points_are_distinct_and_ascending_under_skew() -> None:
    runs = [Run("a", (Part(0, 0, 100, 1, b"a", b"z"),), (b"a",) * 90 + (b"m", b"z"))]
    points = split_points(runs, 8)
    assert points == sorted(set(points))
    slices = range_slices(runs, 8)
    assert len(slices) == 8
