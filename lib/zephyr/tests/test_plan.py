"""Planning: stages, fusion, pushdown, and what explain says."""

from typing import Any

import pytest
from zephyr import Dataset, ZephyrContext, col, compute_plan
from zephyr._ops import Load
from zephyr._paths import FileEntry, expand_braces, resolve_glob
from zephyr.errors import DatasetError, NoInputFilesError
from zephyr.physical import BlocksInput, Collect, HashScatter, RangeScatter, RowScatter, SourceInput
from zephyr.plan import cut_files


def load_of(ds: Dataset) -> Load:
    op = compute_plan(ds.pipeline).stages[0].branches[0].ops[0]
    assert isinstance(op, Load)
    return op


FILES = Dataset.from_list(["a.jsonl", "b.jsonl"]).load_jsonl()


def test_row_operations_fuse_into_one_stage() -> None:
    ds = FILES.map(abs).filter(bool).flat_map(abs).select("a").window(2).take_per_shard(1).sample(0.5)
    [stage] = compute_plan(ds.pipeline).stages
    assert stage.name == "load_jsonl → map → filter → flat_map → select → window → take → sample"
    assert stage.num_tasks == 2
    assert isinstance(stage.output, Collect)


@pytest.mark.parametrize(
    "apply,kinds",
    [
        (lambda d: d.group_by("k", reducer=max), [HashScatter, Collect]),
        (lambda d: d.deduplicate("k"), [HashScatter, Collect]),
        (lambda d: d.sort_by("k"), [RangeScatter, Collect]),
        (lambda d: d.reshard(5, "rows"), [RowScatter, Collect]),
        (lambda d: d.reshard(5), [Collect, Collect]),
        (lambda d: d.count(), [Collect, Collect]),
        (lambda d: d.join(FILES, "k"), [HashScatter, Collect]),
    ],
)
def test_exchanges_end_a_stage(apply: Any, kinds: list[type]) -> None:
    plan = compute_plan(apply(FILES).pipeline)
    assert [type(stage.output) for stage in plan.stages] == kinds


def test_output_shards_are_the_input_shards_unless_given() -> None:
    assert compute_plan(FILES.deduplicate("k").pipeline).stages[1].num_tasks == 2
    assert compute_plan(FILES.deduplicate("k", 7).pipeline).stages[1].num_tasks == 7
    assert compute_plan(FILES.deduplicate("k", 1).pipeline).stages[1].num_tasks == 1


def test_filters_and_projections_move_into_the_reader_until_a_callable() -> None:
    load = load_of(FILES.filter(col("a") > 1).select("a", "b").filter(col("b") < 2).select("b"))
    assert repr(load.predicate) == "((col('a') > lit(1)) & (col('b') < lit(2)))"
    assert load.columns == ("b",)
    load = load_of(FILES.filter(lambda r: True).select("a"))
    assert (load.columns, load.predicate) == (None, None)
    load = load_of(FILES.map(dict).filter(col("a") > 1))
    assert load.predicate is None


def test_a_filter_on_a_column_that_was_dropped_stays_where_it_is() -> None:
    load = load_of(FILES.select("b").filter(col("a") > 1))
    assert (load.columns, load.predicate) == (("b",), None)


@pytest.mark.parametrize("follow,rows", [("map", True), ("flat_map", True), ("map_batches", False)])
def test_json_lines_become_rows_only_when_rows_come_next(follow: str, rows: bool) -> None:
    assert load_of(getattr(FILES.filter(col("a") > 1), follow)(abs)).as_rows is rows


def test_one_shard_needs_no_gathering() -> None:
    ds = Dataset.from_list([1, 2], shards=1)
    assert len(compute_plan(ds.count().pipeline).stages) == 1
    assert len(compute_plan(ds.take(1).pipeline).stages) == 1


def test_resharding_a_source_moves_items_not_data() -> None:
    [stage] = compute_plan(Dataset.from_list([1, 2, 3, 4, 5]).reshard(2).pipeline).stages
    assert isinstance(stage.branches[0].input, SourceInput)
    assert stage.branches[0].input.shards == ((1, 2), (3, 4, 5))
    [_, second] = compute_plan(Dataset.from_list([1, 2]).map(abs).reshard(9).pipeline).stages
    assert second.branches[0].input == BlocksInput(0, 9)


def test_a_union_runs_in_one_stage_with_a_branch_each() -> None:
    both = Dataset.union(Dataset.from_list([1]).map(abs), Dataset.from_list([2, 3])).map(str)
    [stage] = compute_plan(both.pipeline).stages
    assert stage.name == "map → map | map"
    assert [stage.locate(at)[1] for at in range(3)] == [0, 0, 1]
    with pytest.raises(IndexError):
        stage.locate(3)


def test_lists_are_cut_into_few_shards() -> None:
    assert compute_plan(Dataset.from_list(list(range(10**6))).pipeline).stages[0].num_tasks == 64
    assert compute_plan(Dataset.from_iterable(iter("abc")).pipeline).stages[0].num_tasks == 3


def test_small_files_are_grouped_by_bytes() -> None:
    entries = [FileEntry(name, size) for name, size in (("a", 3), ("b", 4), ("c", 9), ("d", 1))]
    assert list(cut_files(entries, 8)) == [("a", "b"), ("c",), ("d",)]
    assert list(cut_files(entries, None)) == [("a",), ("b",), ("c",), ("d",)]
    assert list(cut_files([], 8)) == []


def test_patterns_expand_sort_and_count_once(tmp_path: Any) -> None:
    for name in ("a1.txt", "a2.txt", "b1.txt", "c.bin"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub.txt").mkdir()
    found = resolve_glob([f"{tmp_path}//{{b,a}}1.txt", f"{tmp_path}/*.txt"])
    assert [(e.path.rsplit("/", 1)[1], e.size_bytes) for e in found] == [("a1.txt", 6), ("a2.txt", 6), ("b1.txt", 6)]
    assert Dataset.from_files(str(tmp_path), "*.bin").pipeline.source.patterns == (f"{tmp_path}/*.bin",)  # type: ignore[union-attr]
    with pytest.raises(NoInputFilesError):
        resolve_glob([f"{tmp_path}/a1.txt", f"{tmp_path}/none.txt"])
    with pytest.raises(DatasetError, match="unclosed"):
        expand_braces("{a")


def test_explain_tells_what_was_pushed_and_where_it_goes() -> None:
    ds = (
        FILES.filter(col("a") > 1)
        .group_by("k", reducer=max, sort_by=col("t"), combiner=min)
        .write_parquet("o/{shard}.parquet")
    )
    text = ZephyrContext(inline=True).explain(ds)
    for part in (
        "stage 0: load_jsonl → shuffle [2 tasks]",
        "filter (col('a') > lit(1)) pushed down, as Arrow batches",
        "key='k', sort_by=col('t')",
        "2 targets by key hash, combined early",
        "stage 1: reduce → write_parquet [2 tasks]",
        "2 files, first o/0.parquet",
    ):
        assert part in text


def test_a_dry_run_plans_and_does_nothing() -> None:
    ctx = ZephyrContext(inline=True)
    assert ctx.execute(Dataset.from_list([1]).map(lambda x: 1 / 0), dry_run=True).results == []
