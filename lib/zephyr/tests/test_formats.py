"""CSV, tar and Vortex files, parts of files, sources and sinks of one's own, and joins of sorted sides."""

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zephyr import BadRecordError, Dataset, Quarantine, ZephyrContext, col
from zephyr._files import read_span
from zephyr.connectors import Block, batches_of, iterate
from zephyr.errors import (
    CorruptInputError,
    DatasetError,
    KeyOrderError,
    OutputError,
    PlanError,
    RecordTooLargeError,
    RecordTypeError,
    SchemaConflictError,
)


def run(ctx: ZephyrContext, ds: Dataset) -> list[Any]:
    return ctx.execute(ds).results


# CSV


def test_csv_records_have_types_nulls_and_quoted_line_ends(ctx: ZephyrContext, tmp_path: Path) -> None:
    text = 'id,name,score\n1,"a, b",0.5\n2,"two\nlines",\n3,,1\n'
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    ds = Dataset.from_files(str(tmp_path / "x.csv.gz"))
    expected = [
        {"id": 1, "name": "a, b", "score": 0.5},
        {"id": 2, "name": "two\nlines", "score": None},
        {"id": 3, "name": None, "score": 1.0},
    ]
    assert run(ctx, ds.load_csv()) == run(ctx, ds.load_file()) == expected
    assert run(ctx, ds.load_csv().filter(col("id") > 1).select("name")) == [{"name": "two\nlines"}, {"name": None}]
    assert run(ctx, ds.load_csv(types={"id": pa.string()}, columns=["id"])) == [{"id": "1"}, {"id": "2"}, {"id": "3"}]


def test_bad_csv_rows_are_named_or_counted(ctx: ZephyrContext, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a;b\n1;2\n3\n4;5\n")
    ds = Dataset.from_files(str(path))
    with pytest.raises(BadRecordError, match="1 fields, header has 2") as caught:
        run(ctx, ds.load_csv(delimiter=";"))
    assert (caught.value.path, caught.value.line_number) == (str(path), 3)
    out = ctx.execute(ds.load_csv(delimiter=";", on_bad_line="skip"))
    assert out.results == [{"a": 1, "b": 2}, {"a": 4, "b": 5}]
    assert out.counters["zephyr/bad_records"] == 1
    with pytest.raises(DatasetError, match="delimiter=';;'"):
        ds.load_csv(delimiter=";;")


def test_csv_without_rows_or_without_anything_gives_nothing(ctx: ZephyrContext, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "b.csv").write_text("x,y\n")
    assert run(ctx, Dataset.from_files(str(tmp_path / "*.csv")).load_csv()) == []


def test_a_csv_value_that_does_not_fit_its_type_is_an_error(ctx: ZephyrContext, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\nseven\n")
    with pytest.raises(BadRecordError, match="pass types=") as caught:
        run(ctx, Dataset.from_files(str(tmp_path / "a.csv")).load_csv(types={"x": pa.int64()}))
    assert (caught.value.path, caught.value.line_number) == (str(tmp_path / "a.csv"), 3)


# Tar


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def test_tar_members_of_one_name_are_one_record(ctx: ZephyrContext, tmp_path: Path) -> None:
    members = [
        ("d/1.txt", b"one"),
        ("d/1.seg.png", b"\x00png"),
        ("d/1.json", b'{"a": [1]}'),
        ("d/2.txt", b"two"),
        ("d/2.cls", b"7"),
        ("README", b"no extension"),
    ]
    write_tar(tmp_path / "x.tar.gz", members, "w:gz")
    ds = Dataset.from_files(str(tmp_path / "x.tar.gz"))
    records = run(ctx, ds.load_webdataset().map(lambda r: r))
    assert records == [
        {"__key__": "d/1", "txt": "one", "seg.png": b"\x00png", "json": {"a": [1]}},
        {"__key__": "d/2", "txt": "two", "cls": 7},
    ]
    assert run(ctx, ds.load_webdataset(columns=["txt"], decode=False)) == [{"txt": b"one"}, {"txt": b"two"}]
    assert run(ctx, ds.load_file().filter(col("cls") == 7).select("__key__")) == [{"__key__": "d/2"}]


def test_bad_tar_files_are_named_with_the_place(ctx: ZephyrContext, tmp_path: Path) -> None:
    good = tmp_path / "good.tar"
    write_tar(good, [("1.txt", b"x" * 5000), ("2.txt", b"y" * 5000)])
    (tmp_path / "cut.tar").write_bytes(good.read_bytes()[:7000])
    (tmp_path / "noise.tar").write_bytes(b"no tar at all, but long enough for a header" * 40)
    for name in ("cut", "noise"):
        with pytest.raises(CorruptInputError) as caught:
            run(ctx, Dataset.from_files(str(tmp_path / f"{name}.tar")).load_webdataset())
        assert caught.value.path == str(tmp_path / f"{name}.tar")
    write_tar(tmp_path / "twice.tar", [("1.txt", b"a"), ("2.txt", b"b"), ("2.txt", b"c")])
    with pytest.raises(BadRecordError, match="two members with extension 'txt'") as bad:
        run(ctx, Dataset.from_files(str(tmp_path / "twice.tar")).load_webdataset())
    assert bad.value.line_number == 2
    write_tar(tmp_path / "json.tar", [("1.json", b"{")])
    with pytest.raises(BadRecordError, match=r"member 1\.json is no json"):
        run(ctx, Dataset.from_files(str(tmp_path / "json.tar")).load_webdataset())
    (tmp_path / "empty.tar").write_bytes(b"")
    assert run(ctx, Dataset.from_files(str(tmp_path / "empty.tar")).load_webdataset()) == []
    small = ZephyrContext(inline=True, task_memory="1m", chunk_storage_prefix=str(tmp_path / "s"))
    write_tar(tmp_path / "big.tar", [("1.bin", bytes(2 << 20))])
    with pytest.raises(RecordTooLargeError):
        run(small, Dataset.from_files(str(tmp_path / "big.tar")).load_webdataset())


# Vortex


def test_vortex_there_and_back(ctx: ZephyrContext, tmp_path: Path) -> None:
    pytest.importorskip("vortex", reason="extra vortex is not installed")
    rows = [{"a": n, "t": f"text {n % 5}", "l": [n, None], "s": {"x": n / 2}} for n in range(500)]
    ds = Dataset.from_list(rows, shards=2).write_vortex(str(tmp_path / "{shard}.vortex"))
    assert run(ctx, ds) == [str(tmp_path / f"{at}.vortex") for at in range(2)]
    first = [(tmp_path / f"{at}.vortex").read_bytes() for at in range(2)]
    back = Dataset.from_files(str(tmp_path / "*.vortex")).load_vortex()
    assert run(ctx, back) == rows
    assert run(ctx, back.filter(col("a") >= 498).select("t")) == [{"t": "text 3"}, {"t": "text 4"}]
    assert run(ctx, Dataset.from_files(str(tmp_path / "*.vortex")).load_file().count()) == [500]
    run(ctx, ds)
    assert [(tmp_path / f"{at}.vortex").read_bytes() for at in range(2)] == first, "equal items, equal bytes"
    assert sorted(os.listdir(tmp_path)) == ["0.vortex", "1.vortex"]


def test_vortex_widens_late_and_refuses_what_breaks_a_contract(ctx: ZephyrContext, tmp_path: Path) -> None:
    pytest.importorskip("vortex", reason="extra vortex is not installed")
    batches = [{"a": 1}, {"a": None, "b": "x"}, {"a": 2.5}]
    ds = Dataset.from_list(batches, shards=1).map_batches(lambda b: (b.slice(at, 1) for at in range(b.num_rows)))
    run(ctx, ds.write_vortex(str(tmp_path / "{shard}.vortex")))
    back = run(ctx, Dataset.from_files(str(tmp_path / "0.vortex")).load_vortex())
    assert back == [{"a": 1.0, "b": None}, {"a": None, "b": "x"}, {"a": 2.5, "b": None}]
    with pytest.raises(SchemaConflictError):
        run(
            ctx,
            Dataset.from_list([{"a": "x"}]).write_vortex(str(tmp_path / "n.vortex"), pa.schema([("a", pa.int64())])),
        )
    assert not list(tmp_path.glob("*n.vortex*"))
    (tmp_path / "bad.vortex").write_bytes(b"not vortex")
    with pytest.raises(CorruptInputError, match=r"bad\.vortex"):
        run(ctx, Dataset.from_files(str(tmp_path / "bad.vortex")).load_vortex())


# Parts of files


@settings(max_examples=60)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=12), max_size=30),
    st.booleans(),
    st.integers(1, 9),
)
def test_the_parts_of_a_file_hold_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends: bool, parts: int
) -> None:
    data = "\n".join(lines).encode() + (b"\n" if ends else b"")
    path = tmp_path_factory.mktemp("parts") / "x.txt"
    path.write_bytes(data)
    cuts = [len(data) * at // parts for at in range(parts + 1)]
    found = [b"".join(read_span(str(path), a, b, len(data))) for a, b in pairwise(cuts)]
    assert b"".join(found) == data
    assert all(part.endswith(b"\n") for part in found[:-1] if part and any(found[found.index(part) + 1 :]))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_large_files_are_cut_and_small_ones_grouped(ctx: ZephyrContext, tmp_path: Path, kind: str) -> None:
    rows = [{"text": f"row {n}"} for n in range(2000)]
    for name, some in (("a", rows[:1990]), ("b", rows[1990:1995]), ("c", rows[1995:])):
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(some), path, row_group_size=100)
        else:
            encode = json.dumps if kind == "jsonl" else (lambda r: r["text"])
            path.write_text("".join(f"{encode(row)}\n" for row in some))
    size = (tmp_path / f"a.{kind}").stat().st_size
    ds = Dataset.from_files(str(tmp_path / f"*.{kind}"), shard_bytes=size // 4).load_file()
    plan = ctx.plan(ds)
    assert plan.stages[0].num_tasks >= 5
    assert [len(shard) for shard in plan.stages[0].branches[0].input.shards][-1] == 2
    assert run(ctx, ds) == rows
    out = run(ctx, ds.write_jsonl(str(tmp_path / "out" / "{shard:02d}.jsonl"), skip_existing=True))
    assert len(out) == plan.stages[0].num_tasks


def test_errors_in_a_part_count_lines_from_the_start_of_the_file(ctx: ZephyrContext, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [json.dumps({"n": n}) for n in range(400)]
    lines[333] = "{broken"
    path.write_text("\n".join(lines))
    ds = Dataset.from_files(str(path), shard_bytes=path.stat().st_size // 6).load_jsonl()
    with pytest.raises(BadRecordError, match="line=334,") as caught:
        run(ctx, ds)
    assert caught.value.line_number == 334
    lines[333] = "{}"
    path.write_text("\n".join(lines))
    ds = Dataset.from_files(str(path), shard_bytes=path.stat().st_size // 6).load_jsonl().map(lambda r: r["n"])
    ctx.execute(ds, quarantine=Quarantine(str(tmp_path / "bad")))
    [record] = [json.loads(f.read_text()) for f in (tmp_path / "bad").iterdir()]
    assert (record["position"], record["error"]) == (334, "KeyError: 'n'")


def test_a_file_that_changed_since_planning_is_not_cut_wrongly(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\nb\n")
    with pytest.raises(CorruptInputError, match="its size was 99 bytes"):
        list(read_span(str(path), 0, 50, 99))


# Sources and sinks of one's own


class Letters:
    """Two shards; the second mixes batches and lists."""

    def shards(self) -> list[str]:
        return ["ab", "xyz"]

    def read(self, shard: str) -> Iterator[Block]:
        yield pa.RecordBatch.from_pylist([{"c": c} for c in shard[:2]])
        yield [{"c": c} for c in shard[2:]]


class FolderSink:
    """A folder with one file per item."""

    def write(self, blocks: Iterator[Block], path: str) -> int:
        os.mkdir(path)
        count = 0
        for count, item in enumerate(iterate(blocks), 1):
            Path(path, f"{count}").write_text(item["c"])
        return count

    def check(self, path: str, count: int) -> None:
        if len(os.listdir(path)) != count:
            raise OutputError(path, "files are missing")


class BatchSink(FolderSink):
    """Counts batches, and loses one file."""

    def write(self, blocks: Iterator[Block], path: str) -> int:
        return super().write(iter(batches_of(blocks, operation="sink")), path) + 1


def test_a_source_and_a_folder_sink_of_ones_own(ctx: ZephyrContext, tmp_path: Path) -> None:
    ds = Dataset.from_source(Letters()).filter(col("c") != "y").write_to(FolderSink(), str(tmp_path / "o" / "{shard}"))
    assert run(ctx, ds) == [str(tmp_path / "o" / "0"), str(tmp_path / "o" / "1")]
    assert [(tmp_path / "o" / "1" / name).read_text() for name in ("1", "2")] == ["x", "z"]
    # Again over folders that are there: replaced whole, never mixed.
    (tmp_path / "o" / "0" / "stale").write_text("")
    assert "write_to(FolderSink)" in ctx.explain(ds)
    run(ctx, ds)
    assert sorted(os.listdir(tmp_path / "o" / "0")) == ["1", "2"]
    assert sorted(os.listdir(tmp_path / "o")) == ["0", "1"]


def test_a_folder_is_skipped_when_it_is_proven_and_only_then(ctx: ZephyrContext, tmp_path: Path) -> None:
    ds = Dataset.from_source(Letters()).write_to(FolderSink(), str(tmp_path / "{shard}"), skip_existing=True)
    run(ctx, ds)
    before = (tmp_path / "0").stat().st_ino
    run(ctx, ds)
    assert (tmp_path / "0").stat().st_ino == before
    (tmp_path / "0" / "1").write_text("changed")
    run(ctx, ds)
    assert (tmp_path / "0").stat().st_ino != before
    assert (tmp_path / "0" / "1").read_text() == "a"


def test_a_sink_that_finds_its_output_wrong_leaves_nothing(ctx: ZephyrContext, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="files are missing"):
        run(ctx, Dataset.from_source(Letters()).write_to(BatchSink(), str(tmp_path / "o" / "{shard}")))
    assert os.listdir(tmp_path / "o") == []


def test_a_source_that_gives_something_else_is_told(ctx: ZephyrContext) -> None:
    class Odd(Letters):
        def read(self, shard: str) -> Iterator[Any]:
            yield shard

    with pytest.raises(RecordTypeError, match="a list or a record batch is needed"):
        run(ctx, Dataset.from_source(Odd()))


def test_a_sink_of_another_package_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **kwargs: ())
    with pytest.raises(DatasetError, match="marin-levanter for levanter_cache"):
        Dataset.from_list([1]).write_levanter_cache("x/{shard}")


# Joins of sorted sides


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([None, 0, 1, 2, 3]), max_size=8),
    st.lists(st.sampled_from([None, 0, 2, 4]), max_size=8),
    st.sampled_from(["inner", "left", "right", "outer"]),
)
def test_a_merge_gives_what_a_join_gives(
    ctx: ZephyrContext, left: list[int | None], right: list[int | None], how: Any
) -> None:
    def order(key: int | None) -> tuple[bool, int]:
        return (key is not None, key or 0)

    lefts = [{"k": key, "l": at} for at, key in enumerate(sorted(left, key=order))]
    rights = [{"k": key, "r": at} for at, key in enumerate(sorted(right, key=order))]
    a, b = Dataset.from_list(lefts, shards=1), Dataset.from_list(rights, shards=1)
    if not lefts or not rights:
        return
    pair = lambda one, two: (one and one["l"], two and two["r"])  # noqa: E731
    merged = run(ctx, a.sorted_merge_join(b, "k", combiner=pair, how=how))
    joined = run(ctx, a.join(b, "k", combiner=pair, how=how, num_output_shards=1))
    assert sorted(merged, key=repr) == sorted(joined, key=repr)


def test_outputs_of_shuffles_merge_shard_by_shard(ctx: ZephyrContext) -> None:
    rows = [{"k": f"key {n % 40}", "n": n} for n in range(200)]
    counts = Dataset.from_list(rows, shards=4).group_by(
        "k", reducer=lambda k, it: {"k": k, "count": len(list(it))}, num_output_shards=3
    )
    firsts = Dataset.from_list(rows, shards=5).deduplicate("k", num_output_shards=3)
    out = run(ctx, firsts.sorted_merge_join(counts, "k"))
    assert len(out) == 40
    assert all(row["count"] == 5 and row["n"] < 40 for row in out)


def test_sides_that_do_not_fit_are_refused(ctx: ZephyrContext) -> None:
    a = Dataset.from_list([{"k": 2}, {"k": 1}], shards=1)
    with pytest.raises(KeyOrderError, match="(left|right) side is not sorted, item 2 has key=1 after key=2"):
        run(ctx, a.sorted_merge_join(a, "k"))
    with pytest.raises(PlanError, match="left shards=1, right shards=2"):
        ctx.plan(a.sorted_merge_join(Dataset.from_list([1, 2]), "k"))
    with pytest.raises(DatasetError, match="how='left'"):
        a.sorted_merge_join(a, "k", how="left")


def test_distinct_keeps_the_first_of_equal_items_and_records(ctx: ZephyrContext) -> None:
    rows = [{"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}, {"a": 1, "b": [1, 2], "c": None}, {"a": 2, "b": []}]
    assert run(ctx, Dataset.from_list(rows, shards=1).distinct(1)) == [{"a": 1, "b": [1, 2]}, {"a": 2, "b": []}]
    assert sorted(run(ctx, Dataset.from_list(["x", "y", "x"]).distinct())) == ["x", "y"]


def test_groups_larger_than_memory_are_joined_from_disk(tmp_path: Path) -> None:
    small = ZephyrContext(inline=True, task_memory="64k", chunk_storage_prefix=str(tmp_path / "s"))
    left = [{"k": 1, "l": n, "pad": "x" * 500} for n in range(60)]
    right = [{"k": 1, "r": n, "pad": "y" * 500} for n in range(60)]
    a, b = Dataset.from_list(left, shards=1), Dataset.from_list(right, shards=1)
    pair = lambda one, two: (one["l"], two["r"])  # noqa: E731
    expected = [(one, two) for one in range(60) for two in range(60)]
    assert run(small, a.join(b, "k", combiner=pair, num_output_shards=1)) == expected
    assert run(small, a.sorted_merge_join(b, "k", combiner=pair)) == expected


def test_approx_shard_bytes_is_the_shard_bytes_of_from_files(ctx: ZephyrContext, tmp_path: Path) -> None:
    rows = [{"n": n} for n in range(2000)]
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    size = -(-(tmp_path / "x.parquet").stat().st_size // 4)
    ds = Dataset.from_files(path).load_parquet(None, size)
    assert ds == Dataset.from_files(path, shard_bytes=size).load_parquet(approx_shard_bytes=size)
    assert ctx.plan(ds).stages[0].num_tasks == 4
    assert run(ctx, ds) == rows
    assert ctx.plan(Dataset.from_files(path).load_parquet(approx_shard_bytes=1 << 30)).stages[0].num_tasks == 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Dataset.from_list(["x.parquet"]).load_parquet(approx_shard_bytes=9), "expected from_files right"),
        (lambda: Dataset.from_files("x").map(str).load_parquet(approx_shard_bytes=9), "expected from_files right"),
        (lambda: Dataset.from_files("x", shard_bytes=8).load_parquet(approx_shard_bytes=9), "=9 and shard_bytes=8"),
        (lambda: Dataset.from_files("x").load_parquet(approx_shard_bytes=0), "bytes=0; expected at least 1"),
        (lambda: Dataset.from_files("x", shard_bytes=-1), "bytes=-1; expected at least 1"),
    ],
)
def test_shard_sizes_that_cannot_be_are_refused_at_once(make: Callable[[], Dataset], reason: str) -> None:
    with pytest.raises(DatasetError, match=reason):
        make()
