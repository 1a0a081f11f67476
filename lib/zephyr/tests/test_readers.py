"""Reading files: formats, pushdown, and every way an input can be bad."""

import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zephyr import BadRecordError, Dataset, ZephyrContext, col
from zephyr import _jsonl as jsonl
from zephyr._blocks import rows_of
from zephyr._ops import Load
from zephyr.errors import (
    CorruptInputError,
    DatasetError,
    MissingInputError,
    NoInputFilesError,
    RecordTooLargeError,
    SchemaConflictError,
)
from zephyr.readers import format_of, read_file

ENCODER = msgspec.json.Encoder()


def lines(rows: list[Any]) -> bytes:
    return ENCODER.encode_lines(rows)


def read_rows(path: Path, **load: Any) -> list[Any]:
    blocks = read_file(str(path), Load(load.pop("format", "auto"), **load))
    return [row for block in blocks for row in rows_of(block)]


def big(n: int = 20_000) -> list[dict[str, Any]]:
    rng = random.Random(0)
    return [{"id": i, "text": "é" * rng.randrange(400), "score": rng.random(), "ok": i % 2 == 0} for i in range(n)]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("as_rows", [True, False])
def test_json_lines_of_many_blocks_come_back_as_they_were(tmp_path: Path, suffix: str, as_rows: bool) -> None:
    rows = big()
    data = lines(rows)
    assert len(data) > 2 * jsonl.BLOCK_BYTES
    pack = {"": bytes, ".gz": lambda d: gzip.compress(d, 1), ".zst": zstandard.ZstdCompressor().compress}[suffix]
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(pack(data))
    assert read_rows(path, as_rows=as_rows) == rows


def test_several_gzip_members_and_zstd_frames_are_one_file(tmp_path: Path) -> None:
    parts = [lines([{"a": 1}]), lines([{"a": 2}]), b"", lines([{"a": 3}])]
    (tmp_path / "x.jsonl.gz").write_bytes(b"".join(map(gzip.compress, parts)) + b"\0" * 100)
    frame = zstandard.ZstdCompressor().compress
    (tmp_path / "x.jsonl.zst").write_bytes(b"".join(map(frame, parts)))
    for name in ("x.jsonl.gz", "x.jsonl.zst"):
        assert [row["a"] for row in read_rows(tmp_path / name)] == [1, 2, 3]


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.text(),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=4)), st.booleans())
def test_rows_are_the_json_objects_exactly(tmp_path: Path, rows: list[dict[str, Any]], final_newline: bool) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(lines(rows) if final_newline else lines(rows).removesuffix(b"\n"))
    assert read_rows(path, as_rows=True) == rows


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries(
            {"i": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))},
            optional={
                "s": st.one_of(st.none(), st.text()),
                "m": st.lists(st.integers(0, 9), max_size=2),
                "z": st.none(),
            },
        ),
        min_size=1,
    ),
    st.sampled_from([64, 400]),
)
def test_typed_parsing_gives_what_untyped_parsing_gives(tmp_path: Path, rows: list[dict[str, Any]], head: int) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(lines(rows))
    before = jsonl._HEAD_BYTES, jsonl.BLOCK_BYTES
    jsonl._HEAD_BYTES, jsonl.BLOCK_BYTES = head, 2 * head
    try:
        typed = read_rows(path)
    finally:
        jsonl._HEAD_BYTES, jsonl.BLOCK_BYTES = before
    names = ("i", "s", "m", "z")
    assert [[row.get(n) for n in names] for row in typed] == [[row.get(n) for n in names] for row in rows]


def test_columns_and_filters_are_applied_while_reading(tmp_path: Path, ctx: ZephyrContext) -> None:
    rows = big(500)
    (tmp_path / "x.jsonl").write_bytes(lines(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=50)
    expected = [{"id": row["id"]} for row in rows if row["score"] > 0.5]
    for name in ("x.jsonl", "x.parquet"):
        ds = Dataset.from_files(str(tmp_path / name)).load_file().filter(col("score") > 0.5).select("id")
        assert "pushed down" in ctx.explain(ds)
        assert ctx.execute(ds).results == expected
        assert ctx.execute(ds.map(lambda r: r)).results == expected


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path, ctx: ZephyrContext) -> None:
    pq.write_table(pa.table({"n": list(range(100))}), tmp_path / "x.parquet", row_group_size=10)
    out = ctx.execute(Dataset.from_files(str(tmp_path / "*.parquet")).load_parquet().filter(col("n") >= 95))
    assert [row["n"] for row in out.results] == [95, 96, 97, 98, 99]
    assert out.counters["zephyr/row_groups_pruned"] == 9


def test_types_widen_along_a_file_and_a_late_column_appears(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a": i, "pad": "x" * 100} for i in range(60_000)]
    rows += [{"a": 1.5, "b": "late", "pad": ""}]
    (tmp_path / "x.jsonl").write_bytes(lines(rows))
    out = read_rows(tmp_path / "x.jsonl")
    assert len(out) == len(rows)
    assert out[-1]["b"] == "late" and out[-1]["a"] == 1.5
    late = read_rows(tmp_path / "x.jsonl", columns=("b",))
    assert [row for row in late if row.get("b") is not None] == [{"b": "late"}]


def test_text_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo\xc3\xa9")
    assert read_rows(tmp_path / "x.txt") == [{"text": "one"}, {"text": ""}, {"text": "twoé"}]


def test_empty_files_give_nothing(tmp_path: Path, ctx: ZephyrContext) -> None:
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "f.jsonl").write_bytes(b"\n\n  \n")
    (tmp_path / "h.jsonl").write_bytes(b"\xef\xbb\xbf")
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "g.parquet")
    ds = Dataset.from_files([str(tmp_path / "*.jsonl*"), str(tmp_path / "*.txt"), str(tmp_path / "*.parquet")])
    assert ctx.execute(ds.load_file()).results == []


BAD_LINES = {
    "broken": (b'{"a": 1', "not JSON"),
    "two objects": (b'{"a":1}{"a":2}', "not JSON"),
    "a list": (b"[1]", "not an object but list"),
    "a number": (b"5", "not an object but int"),
    "not UTF-8": (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
    "trailing text": (b'{"a":1} x', "not JSON"),
    "nan": (b'{"a": NaN}', "not JSON"),
}


@pytest.mark.parametrize("name", sorted(BAD_LINES))
@pytest.mark.parametrize("as_rows", [True, False])
@pytest.mark.parametrize("before", [3, 90_000])
def test_a_bad_line_is_named_or_counted(
    tmp_path: Path, ctx: ZephyrContext, name: str, as_rows: bool, before: int
) -> None:
    line, reason = BAD_LINES[name]
    good = b'{"a": 0, "text": "0123456789012345678901234567890123456789"}\n'
    path = tmp_path / "x.jsonl"
    path.write_bytes(good * before + b"\n" + line + b"\n" + good)

    def last(ds: Dataset) -> Dataset:
        return ds.map(lambda r: r["a"]) if as_rows else ds.select("a")

    with pytest.raises(BadRecordError) as caught:
        ctx.execute(last(Dataset.from_files(str(path)).load_jsonl()))
    error = caught.value
    assert (error.path, error.line_number) == (str(path), before + 2)
    assert reason in error.reason
    assert error.excerpt == line.decode("utf-8", "backslashreplace")
    out = ctx.execute(last(Dataset.from_files(str(path)).load_jsonl(on_bad_line="skip")).count())
    assert out.results == [before + 1]
    assert out.counters["zephyr/bad_records"] == 1


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_truncated_file_is_corrupt_whatever_the_policy(
    tmp_path: Path, ctx: ZephyrContext, suffix: str, policy: Any
) -> None:
    data = lines(big(3000))
    packed = gzip.compress(data) if suffix == ".gz" else zstandard.ZstdCompressor().compress(data)
    path = tmp_path / f"x.jsonl{suffix}"
    for cut in (len(packed) // 2, len(packed) - 1, 5):
        path.write_bytes(packed[:cut])
        with pytest.raises(CorruptInputError, match="truncated") as caught:
            ctx.execute(Dataset.from_files(str(path)).load_jsonl(on_bad_line=policy).count())
        assert caught.value.path == str(path)


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_a_file_that_is_not_what_its_suffix_says_is_corrupt(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"this is plain text, nothing else, and long enough")
    with pytest.raises(CorruptInputError) as caught:
        read_rows(path)
    assert caught.value.path == str(path)


def test_a_damaged_parquet_page_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"s": [str(i) * 50 for i in range(2000)]}), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[200:400] = b"\xff" * 200
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptInputError, match="row group 0"):
        read_rows(path)


def test_mixed_types_in_a_column_name_both(tmp_path: Path, ctx: ZephyrContext) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines([{"m": {"a": 1}}, {"m": {"a": "x"}}]))
    with pytest.raises(SchemaConflictError) as caught:
        ctx.execute(Dataset.from_files(str(tmp_path / "x.jsonl")).load_jsonl().select("m"))
    error = caught.value
    assert (error.field, error.left, error.right) == ("m.a", "int64", "string")
    assert str(tmp_path / "x.jsonl") in str(error)


def test_missing_files_are_named(tmp_path: Path, ctx: ZephyrContext) -> None:
    with pytest.raises(NoInputFilesError) as caught:
        ctx.execute(Dataset.from_files(str(tmp_path / "*.jsonl")).load_jsonl())
    assert caught.value.pattern == str(tmp_path / "*.jsonl")
    assert ctx.execute(Dataset.from_files(str(tmp_path / "*.jsonl"), empty_glob_ok=True).load_jsonl()).results == []
    for name in ("gone.jsonl", "gone.parquet", "gone.txt.gz"):
        with pytest.raises(MissingInputError) as lost:
            ctx.execute(Dataset.from_list([str(tmp_path / name)]).load_file())
        assert lost.value.path == str(tmp_path / name)


def test_a_record_beyond_the_memory_of_a_task_is_refused(tmp_path: Path, scratch: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines([{"a": 1}, {"a": "x" * (6 << 20)}]))
    ds = Dataset.from_files(str(path)).load_jsonl().map(lambda r: len(str(r)))
    small = ZephyrContext(inline=True, chunk_storage_prefix=str(scratch), task_memory="4m")
    with pytest.raises(RecordTooLargeError) as caught:
        small.execute(ds)
    assert caught.value.limit_bytes == 2 << 20
    assert (
        len(ZephyrContext(inline=True, chunk_storage_prefix=str(scratch), task_memory="64m").execute(ds).results) == 2
    )


def test_formats_go_by_suffix() -> None:
    assert [format_of(f"x{s}") for s in (".json", ".ndjson.gz", ".txt.zst", ".parquet")] == [
        "jsonl",
        "jsonl",
        "text",
        "parquet",
    ]
    with pytest.raises(DatasetError, match="no known suffix"):
        format_of("x.docx")
    with pytest.raises(DatasetError, match="no known suffix"):
        format_of("x.parquet.gz")


def test_dictionary_columns_become_plain(tmp_path: Path) -> None:
    table = pa.table({"s": pa.array(["a", "b", "a"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "x.parquet")
    assert read_rows(tmp_path / "x.parquet", predicate=col("s") == "a") == [{"s": "a"}, {"s": "a"}]


def test_remote_urls_work_through_fsspec(ctx: ZephyrContext) -> None:
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe("/in/a.jsonl", lines([{"a": 1}]))
    fs.pipe("/in/b.jsonl", lines([{"a": 2}]))
    out = ctx.execute(
        Dataset.from_files("memory://in/{a,b}.jsonl").load_jsonl().write_parquet("memory://out/{shard}.parquet")
    )
    assert out.results == ["memory://out/0.parquet", "memory://out/1.parquet"]
    back = ctx.execute(Dataset.from_files("memory://out/*.parquet").load_parquet())
    assert back.results == [{"a": 1}, {"a": 2}]
    assert fs.ls("/out", detail=False) == ["/out/0.parquet", "/out/1.parquet"]


FORMATS = ["jsonl", "jsonl.gz", "parquet", "txt", "csv"]


@pytest.fixture
def two_files(ctx: ZephyrContext, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """Two files of three records with a column `text`, and their format."""
    suffix = request.param
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{suffix}"
        rows = [{"text": f"{name}{n}", "n": n} for n in range(3)]
        if suffix == "txt":
            path.write_text("".join(row["text"] + "\n" for row in rows))
        elif suffix == "csv":
            path.write_text("text,n\n" + "".join(f"{row['text']},{row['n']}\n" for row in rows))
        else:
            ds = Dataset.from_list(rows, shards=1)
            ctx.execute(ds.write_parquet(str(path)) if suffix == "parquet" else ds.write_jsonl(str(path)))
    return tmp_path, suffix


@pytest.mark.parametrize("two_files", FORMATS, indirect=True)
def test_records_say_which_file_they_are_from(ctx: ZephyrContext, two_files: tuple[Path, str]) -> None:
    folder, suffix = two_files
    paths = [str(folder / f"{name}.{suffix}") for name in ("a", "b")]
    expected = [(f"{name}{n}", path) for name, path in zip("ab", paths, strict=True) for n in range(3)]
    files = Dataset.from_files(str(folder / f"*.{suffix}"))
    ds = files.load_file(include_file_paths=True)
    # Columns and rows, with and without what is pushed into the reader.
    for variant in (
        ds.select("text", "__file_path"),
        ds.map(lambda row: {"text": row["text"], "__file_path": row["__file_path"]}),
        ds.select("__file_path", "text").select("text", "__file_path"),
        files.load_file(columns=["text", "f"], include_file_paths=True, file_path_column="f").map(
            lambda row: {"text": row["text"], "__file_path": row["f"]}
        ),
    ):
        found = ctx.execute(variant).results
        assert [(row["text"], row["__file_path"]) for row in found] == expected
        assert all(list(row) == ["text", "__file_path"] for row in found)
    some = ds.filter(col("text") != "a1").filter(col("__file_path") == paths[0])
    assert [row["text"] for row in ctx.execute(some).results] == ["a0", "a2"]
    assert ctx.execute(ds.select("text")).results == [{"text": text} for text, _ in expected]
    only = ctx.execute(ds.select("__file_path")).results
    assert only == [{"__file_path": path} for _, path in expected]
    assert "__file_path" in ctx.explain(ds)


def test_a_path_column_that_is_there_already_or_left_out_is_refused(ctx: ZephyrContext, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "n": 1}\n')
    ds = Dataset.from_files(str(tmp_path / "a.jsonl"))
    with pytest.raises(DatasetError, match=r"a\.jsonl.*file_path_column='n'"):
        ctx.execute(ds.load_jsonl(include_file_paths=True, file_path_column="n"))
    with pytest.raises(DatasetError, match=r"a\.jsonl.*file_path_column='n'"):
        ctx.execute(ds.load_jsonl(include_file_paths=True, file_path_column="n").map(lambda row: row))
    with pytest.raises(DatasetError, match="columns"):
        ds.load_jsonl(columns=["text"], include_file_paths=True)


def test_parts_of_a_file_say_its_path(ctx: ZephyrContext, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(1000)))
    ds = Dataset.from_files(str(path), shard_bytes=2000).load_jsonl(include_file_paths=True)
    found = ctx.execute(ds).results
    assert [row["n"] for row in found] == list(range(1000))
    assert {row["__file_path"] for row in found} == {str(path)}
