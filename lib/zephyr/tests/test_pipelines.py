"""Whole pipelines: what a fused, sharded plan gives is what plain lists give."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zephyr import Dataset, ShardInfo, ZephyrContext, col, counters
from zephyr._keys import encode_key
from zephyr._shuffle.write import hash_targets
from zephyr.errors import DatasetError, RecordTypeError, SchemaConflictError, TaskFailedError

RECORDS = st.lists(
    st.fixed_dictionaries({"k": st.integers(0, 4), "s": st.sampled_from(["a", "bb", ""]), "v": st.integers(-9, 9)}),
    max_size=30,
)
type Shards = list[list[Any]]
type Step = tuple[Callable[[Dataset], Dataset], Callable[[Shards], Shards]]


def each(fn: Callable[[list[Any]], list[Any]]) -> Callable[[Shards], Shards]:
    return lambda shards: [fn(shard) for shard in shards]


def shuffled(shards: Shards, num: int) -> Shards:
    out: Shards = [[] for _ in range(num)]
    for item in itertools.chain(*shards):
        target = int(hash_targets(pa.array([encode_key(item["k"])], pa.binary()), num)[0])
        out[target].append(item)
    return [sorted(shard, key=lambda item: item["k"]) for shard in out]


def first_of_each(shard: list[Any]) -> list[Any]:
    return [next(group) for _, group in itertools.groupby(shard, key=lambda item: item["k"])]


def summed(shard: list[Any]) -> list[Any]:
    groups = itertools.groupby(shard, key=lambda item: item["k"])
    return [{"k": key, "s": "g", "v": sum(item["v"] for item in group)} for key, group in groups]


def range_sorted(shards: Shards) -> Shards:
    return [sorted(itertools.chain(*shards), key=lambda item: (item["s"], item["v"]))]


STEPS: list[Step] = [
    (lambda d: d.map(lambda r: {**r, "v": r["v"] + 1}), each(lambda s: [{**r, "v": r["v"] + 1} for r in s])),
    (lambda d: d.filter(col("v") > 0), each(lambda s: [r for r in s if r["v"] > 0])),
    (lambda d: d.filter(lambda r: r["k"] != 2), each(lambda s: [r for r in s if r["k"] != 2])),
    (lambda d: d.flat_map(lambda r: [r] * (r["k"] % 3)), each(lambda s: [r for r in s for _ in range(r["k"] % 3)])),
    (lambda d: d.select("v", "k", "s"), each(lambda s: s)),
    (lambda d: d.map_batches(lambda b: b.slice(1)), each(lambda s: s[1:])),
    (lambda d: d.map_shard(lambda it, info: reversed(list(it))), each(lambda s: s[::-1])),
    (lambda d: d.window(2).flat_map(lambda w: w[:1]), each(lambda s: s[::2])),
    (lambda d: d.take_per_shard(3), each(lambda s: s[:3])),
    (lambda d: d.deduplicate("k", 2), lambda x: [first_of_each(s) for s in shuffled(x, 2)]),
    (lambda d: d.deduplicate(lambda r: r["k"], 3), lambda x: [first_of_each(s) for s in shuffled(x, 3)]),
    (
        lambda d: d.group_by(
            "k", reducer=lambda k, it: {"k": k, "s": "g", "v": sum(r["v"] for r in it)}, num_output_shards=2
        ),
        lambda x: [summed(s) for s in shuffled(x, 2)],
    ),
    (
        lambda d: d.group_by(
            col("k"),
            reducer=lambda k, it: {"k": k, "s": "g", "v": sum(r["v"] for r in it)},
            combiner=lambda k, it: [{"k": k, "s": "c", "v": sum(r["v"] for r in it)}],
            num_output_shards=3,
        ),
        lambda x: [summed(s) for s in shuffled(x, 3)],
    ),
    (lambda d: d.sort_by(lambda r: (r["s"], r["v"]), num_output_shards=1), range_sorted),
    (lambda d: d.reshard(3), lambda x: [[*itertools.chain(*x)]]),
    (lambda d: d.reshard(2, "rows"), lambda x: [[*itertools.chain(*x)]]),
]
SHARD_FREE = {0, 1, 2, 3, 4}


@st.composite
def chains(draw: st.DrawFn) -> list[int]:
    """Steps in any order; after a reshard, whose dealing is its own, only steps that do not look at shards."""
    picked = draw(st.lists(st.integers(0, len(STEPS) - 1), max_size=6))
    dealt = next((at for at, step in enumerate(picked) if step >= len(STEPS) - 2), len(picked))
    return picked[: dealt + 1] + [step for step in picked[dealt + 1 :] if step in SHARD_FREE]


def canonical(item: dict[str, Any]) -> str:
    return repr(sorted(item.items()))


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, st.integers(1, 4), chains(), st.booleans(), st.sampled_from([1 << 12, 64 << 20]))
def test_a_fused_pipeline_gives_what_lists_give(
    tmp_path: Path, records: list[Any], num: int, chain: list[int], from_files: bool, memory: int
) -> None:
    num = min(num, len(records))
    bounds = [len(records) * i // num for i in range(num + 1)] if num else [0]
    shards = [records[a:b] for a, b in itertools.pairwise(bounds)]
    if from_files and num:
        paths = [str(tmp_path / f"{i}.jsonl") for i in range(num)]
        for path, shard in zip(paths, shards, strict=True):
            Path(path).write_bytes(msgspec.json.Encoder().encode_lines(shard))
        ds = Dataset.from_list(paths).load_jsonl()
    else:
        ds = Dataset.from_list(records, shards=max(num, 1))
    for step in chain:
        apply, model = STEPS[step]
        ds, shards = apply(ds), model(shards)
    ctx = ZephyrContext(inline=True, chunk_storage_prefix=str(tmp_path / "scratch"), task_memory=memory)
    ours = [canonical(item) for item in ctx.execute(ds).results]
    expected = [canonical(item) for item in itertools.chain(*shards)]
    if any(step >= len(STEPS) - 2 for step in chain):
        ours, expected = sorted(ours), sorted(expected)
    assert ours == expected, ctx.explain(ds)


def test_items_of_any_type_pass(ctx: ZephyrContext) -> None:
    items = [1, "x", None, (1, 2), {"a": {1, 2}}, frozenset({3}), [1]]
    assert ctx.execute(Dataset.from_list(items).map(lambda x: x)).results == items
    assert ctx.execute(Dataset.from_list(items).map(lambda x: x).reshard(2, "rows").count()).results == [7]


def test_a_none_from_a_reducer_is_an_item_and_an_iterator_is_flattened(ctx: ZephyrContext) -> None:
    ds = Dataset.from_list([1, 2, 3], shards=1)
    assert ctx.execute(ds.group_by(lambda x: 0, reducer=lambda k, it: None)).results == [None]
    assert ctx.execute(ds.group_by(lambda x: 0, reducer=lambda k, it: iter(list(it)))).results == [1, 2, 3]
    assert ctx.execute(ds.group_by(lambda x: 0, reducer=lambda k, it: list(it))).results == [[1, 2, 3]]


def test_groups_are_sorted_when_asked(ctx: ZephyrContext) -> None:
    ds = Dataset.from_list([(k, v) for v in (3, 1, 2) for k in "ab"])
    out = ctx.execute(
        ds.group_by(lambda t: t[0], sort_by=lambda t: t[1], reducer=lambda k, it: (k, [t[1] for t in it]))
    )
    assert sorted(out.results) == [("a", [1, 2, 3]), ("b", [1, 2, 3])]


def test_one_and_true_are_different_groups(ctx: ZephyrContext) -> None:
    ds = Dataset.from_list([1, True, 1.0, 1]).group_by(lambda x: x, reducer=lambda k, it: (repr(k), len(list(it))))
    assert sorted(ctx.execute(ds).results) == [("1", 2), ("1.0", 1), ("True", 1)]


@pytest.mark.parametrize("num", [1, 2, 5, 40])
def test_a_global_sort_is_sorted_across_shards(ctx: ZephyrContext, num: int) -> None:
    items = [{"n": (i * 7919) % 1000 - 300, "i": i} for i in range(2000)]
    up = ctx.execute(Dataset.from_list(items, shards=7).sort_by("n", num_output_shards=num)).results
    assert up == sorted(items, key=lambda r: r["n"])
    down = ctx.execute(Dataset.from_list(items, shards=7).sort_by("n", reverse=True, num_output_shards=num)).results
    assert down == sorted(items, key=lambda r: -r["n"])


def test_sort_ranges_are_balanced(ctx: ZephyrContext) -> None:
    ds = Dataset.from_list(list(range(10_000)), shards=5).sort_by(lambda x: -x, num_output_shards=4)
    sizes = ctx.execute(ds.map_shard(lambda it, info: [sum(1 for _ in it)])).results
    assert sum(sizes) == 10_000
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_joins_give_what_nested_loops_give(ctx: ZephyrContext, how: str) -> None:
    left = [{"k": k, "a": i} for i, k in enumerate([1, 1, 2, None, 4])]
    right = [{"k": k, "b": i} for i, k in enumerate([1, 2, 2, 3, None])]

    def pairs() -> list[tuple[Any, Any]]:
        out = [(a, b) for a in left for b in right if a["k"] == b["k"] and a["k"] is not None]
        if how in ("left", "outer"):
            out += [(a, None) for a in left if not any(a is x for x, _ in out)]
        if how in ("right", "outer"):
            out += [(None, b) for b in right if not any(b is y for _, y in out)]
        return out

    ds = Dataset.from_list(left).join(Dataset.from_list(right), "k", combiner=lambda a, b: (a, b), how=how)
    assert sorted(map(repr, ctx.execute(ds).results)) == sorted(map(repr, pairs()))


def test_union_take_count_reduce(ctx: ZephyrContext) -> None:
    a, b = Dataset.from_list([3, 1]), Dataset.from_list([2]).map(lambda x: x * 10)
    both = Dataset.union(a, b)
    assert ctx.execute(both).results == [3, 1, 20]
    assert ctx.execute(both.take(2)).results == [3, 1]
    assert ctx.execute(both.count()).results == [3]
    assert ctx.execute(both.reduce(max)).results == [20]
    assert ctx.execute(Dataset.from_list([]).reduce(max)).results == []
    assert ctx.execute(both.filter(lambda x: x > 99).count()).results == [0]
    assert ctx.execute(Dataset.from_list([]).count()).results == [0]


def test_empty_shards_are_skipped_by_reduce(ctx: ZephyrContext) -> None:
    ds = Dataset.from_list([5, 1, 7], shards=3).filter(lambda x: x > 4).reduce(max)
    assert ctx.execute(ds).results == [7]


def test_a_sample_depends_on_the_seed_alone(ctx: ZephyrContext) -> None:
    ds = Dataset.from_list(list(range(4000)), shards=4)
    once, again = ctx.execute(ds.sample(0.25, seed=3)).results, ctx.execute(ds.sample(0.25, seed=3)).results
    assert once == again
    assert 850 < len(once) < 1150
    assert once != ctx.execute(ds.sample(0.25, seed=4)).results


def test_windows_close_where_the_folder_says(ctx: ZephyrContext) -> None:
    def fit(size: int, item: int) -> tuple[bool, int]:
        return size + item <= 5, size + item

    ds = Dataset.from_list([2, 3, 9, 1, 1], shards=1).window_by(fit, 0)
    assert ctx.execute(ds).results == [[2, 3], [9], [1, 1]]


def test_map_shard_knows_its_shard(ctx: ZephyrContext) -> None:
    def show(items: Any, info: ShardInfo) -> list[Any]:
        return [(info.shard_idx, info.total_shards, list(items))]

    assert ctx.execute(Dataset.from_list("abc", shards=2).map_shard(show)).results == [
        (0, 2, ["a"]),
        (1, 2, ["b", "c"]),
    ]


def test_counters_of_user_functions_are_summed(ctx: ZephyrContext) -> None:
    def count(x: int) -> int:
        counters.increment("seen")
        counters.record_max("largest", x)
        counters.record_min("smallest", x)
        return x

    out = ctx.execute(Dataset.from_list([4, 9, 2]).map(count))
    assert out.counters == {"largest": 9, "seen": 3, "smallest": 2}


def test_a_failing_function_is_named_with_its_trace(ctx: ZephyrContext) -> None:
    def broken(x: int) -> float:
        return 1 / (x - 2)

    with pytest.raises(TaskFailedError, match="ZeroDivisionError") as caught:
        ctx.execute(Dataset.from_list([1, 2]).map(broken))
    assert caught.value.shard == 1
    assert caught.value.failures == 3
    assert "in broken" in caught.value.trace
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_that_cannot_be_pickled_is_reported_by_its_text(ctx: ZephyrContext) -> None:
    class Odd(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("no")

    def broken(x: int) -> int:
        raise Odd("strange")

    with pytest.raises(TaskFailedError, match="Odd: strange"):
        ctx.execute(Dataset.from_list([1]).map(broken))


def test_columnar_steps_refuse_items_that_are_no_records(ctx: ZephyrContext, tmp_path: Path) -> None:
    for ds in (
        Dataset.from_list([1]).select("a"),
        Dataset.from_list([1]).filter(col("a") > 1),
        Dataset.from_list([1]).map_batches(lambda b: b),
        Dataset.from_list([1]).write_parquet(str(tmp_path / "{shard}.parquet")),
    ):
        with pytest.raises(RecordTypeError, match="type=int, value=1"):
            ctx.execute(ds)
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


@pytest.mark.parametrize(
    "call",
    [
        lambda: Dataset.from_list([1], shards=0),
        lambda: Dataset.from_files([]),
        lambda: Dataset.from_list([1]).window(0),
        lambda: Dataset.from_list([1]).reshard(0),
        lambda: Dataset.from_list([1]).reshard(2, "chunks"),  # type: ignore[arg-type]
        lambda: Dataset.from_list([1]).sample(1.5),
        lambda: Dataset.from_list([1]).take(-1),
        lambda: Dataset.from_list([1]).deduplicate("k", 0),
        lambda: Dataset.from_list([1]).load_jsonl(on_bad_line="ignore"),  # type: ignore[arg-type]
        lambda: Dataset.from_list([1]).join(Dataset.from_list([1]), "k", how="cross"),  # type: ignore[arg-type]
        lambda: Dataset.from_list([1]).join(Dataset.from_list([1]), "k", how="left"),
        lambda: Dataset.union(),
        lambda: ZephyrContext(max_workers=-1),
        lambda: ZephyrContext(chunk_storage_prefix="s3://bucket/x"),
    ],
)
def test_calls_that_cannot_work_are_refused_at_once(call: Callable[[], object]) -> None:
    with pytest.raises(DatasetError, match="expected"):
        call()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries(
            {"k": st.sampled_from([None, "a", "b", "c\0d"]), "j": st.integers(0, 1)},
            optional={"n": st.none() | st.integers(-9, 9), "x": st.floats(-4, 4).map(lambda v: round(v, 1))},
        ),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from(["k", ("k", "j")]),
)
def test_aggregates_are_those_of_the_groups(ctx: ZephyrContext, rows: list[dict[str, Any]], key: Any) -> None:
    ds = Dataset.from_list(rows, shards=3).aggregate(
        key,
        rows=(None, "count"),
        present=("n", "count"),
        total=("n", "sum"),
        low=("n", "min"),
        high=("x", "max"),
        mean=("x", "mean"),
        num_output_shards=2,
    )
    found = ctx.execute(ds).results
    names = (key,) if isinstance(key, str) else key
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    assert len(found) == len(groups)
    for out in found:
        group = groups[tuple(out[name] for name in names)]
        ns = [row["n"] for row in group if row.get("n") is not None]
        xs = [row["x"] for row in group if row.get("x") is not None]
        assert (out["rows"], out["present"]) == (len(group), len(ns))
        assert out["total"] == (sum(ns) if ns else None)
        assert out["low"] == (min(ns) if ns else None)
        assert out["high"] == (max(xs) if xs else None)
        assert out["mean"] == (pytest.approx(sum(xs) / len(xs)) if xs else None)


def test_aggregates_stay_right_when_partials_outgrow_memory(tmp_path: Path) -> None:
    small = ZephyrContext(inline=True, task_memory="256k", chunk_storage_prefix=str(tmp_path / "s"))
    rows = [{"k": f"key {n % 3000} {'x' * 50}", "n": n} for n in range(12_000)]
    ds = Dataset.from_list(rows, shards=2).aggregate("k", n=("n", "sum"), c=(None, "count"), num_output_shards=2)
    out = small.execute(ds).results
    assert len(out) == 3000
    assert all(row["c"] == 4 for row in out)
    assert sum(row["n"] for row in out) == sum(range(12_000))


def test_aggregates_of_what_cannot_be_added_are_refused(ctx: ZephyrContext) -> None:
    ds = Dataset.from_list([{"k": 1, "t": "x"}])
    with pytest.raises(SchemaConflictError, match="aggregate sum"):
        ctx.execute(ds.aggregate("k", t=("t", "sum")))
    for bad in ({"k": ("t", "max")}, {}, {"a": ("t", "median")}, {"a": (None, "sum")}):
        with pytest.raises(DatasetError, match="cannot aggregate"):
            ds.aggregate("k", **bad)
