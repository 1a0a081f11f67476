"""Writing files: bytes that depend on the items alone, schemas, and nothing left when it fails."""

import gzip
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zephyr import Dataset, ZephyrContext, writers
from zephyr.errors import DuplicateOutputError, OutputError, PlanError, RecordTypeError, SchemaConflictError

ROWS = [{"id": i, "text": f"t{i}" * (i % 50), "tag": "ab"[i % 2]} for i in range(5000)]


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_a_round_trip_keeps_the_records(ctx: ZephyrContext, tmp_path: Path, suffix: str) -> None:
    ds = Dataset.from_list(ROWS, shards=3)
    pattern = str(tmp_path / ("x-{shard:03d}-of-{total:03d}" + suffix))
    out = ctx.execute(ds.write_parquet(pattern) if suffix == ".parquet" else ds.write_jsonl(pattern))
    assert out.results == [str(tmp_path / f"x-{i:03d}-of-003{suffix}") for i in range(3)]
    assert out.counters["zephyr/records_out"] == len(ROWS)
    assert ctx.execute(Dataset.from_files(str(tmp_path / f"*{suffix}")).load_file()).results == ROWS


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_bytes_do_not_depend_on_how_items_were_cut(ctx: ZephyrContext, tmp_path: Path, suffix: str) -> None:
    found = set()
    for at, ds in enumerate(
        (
            Dataset.from_list(ROWS, shards=1),
            Dataset.from_list(ROWS, shards=1).map_batches(lambda b: (b.slice(i, 7) for i in range(0, b.num_rows, 7))),
            Dataset.from_list([ROWS[:17], ROWS[17:]], shards=1).flat_map(lambda rows: rows),
        )
    ):
        path = tmp_path / f"{at}{suffix}"
        ctx.execute(ds.write_parquet(str(path)) if suffix == ".parquet" else ds.write_jsonl(str(path)))
        found.add(path.read_bytes())
    assert len(found) == 1


def test_schemas_widen_late_without_losing_what_was_written(
    ctx: ZephyrContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "ROW_GROUP_BYTES", 1 << 12)
    rows: list[dict[str, Any]] = [{"a": None, "m": {"x": 1}} for _ in range(9000)]
    rows += [{"a": 7, "m": {"x": 2}} for _ in range(9000)]
    rows += [{"a": 0.5, "m": {"x": 3, "y": "new"}, "late": [1]}]
    ctx.execute(Dataset.from_list(rows, shards=1).write_parquet(str(tmp_path / "x.parquet")))
    table = pq.read_table(tmp_path / "x.parquet")
    assert str(table.schema.field("a").type) == "double"
    assert table.column("a").to_pylist() == [r["a"] for r in rows]
    assert table.column("m").to_pylist()[-1] == {"x": 3, "y": "new"}
    assert table.column("late").to_pylist()[-2:] == [None, [1]]
    assert visible(tmp_path) == ["x.parquet"]


def test_an_integer_column_meeting_a_string_names_both(ctx: ZephyrContext, tmp_path: Path) -> None:
    with pytest.raises(SchemaConflictError) as caught:
        ctx.execute(Dataset.from_list([{"a": 1}, {"a": "x"}], shards=1).write_parquet(str(tmp_path / "x.parquet")))
    assert (caught.value.field, caught.value.left, caught.value.right) == ("a", "int64", "string")
    assert "x.parquet" in str(caught.value)
    assert visible(tmp_path) == []


def test_numbers_that_float64_cannot_hold_are_not_bent(ctx: ZephyrContext, tmp_path: Path) -> None:
    with pytest.raises(SchemaConflictError):
        ctx.execute(
            Dataset.from_list([{"a": 2**60 + 1}, {"a": 0.5}], shards=1).write_parquet(str(tmp_path / "x.parquet"))
        )


def test_a_given_schema_is_a_contract(ctx: ZephyrContext, tmp_path: Path) -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    path = str(tmp_path / "x.parquet")
    ctx.execute(Dataset.from_list([{"a": 1}], shards=1).write_parquet(path, schema=schema))
    assert pq.read_schema(path).equals(schema)
    for bad in ({"a": "x"}, {"a": 1, "c": 2}, {"a": "5"}, {"b": 5}, {"a": True}, {"a": 1.0}, {"b": b"x"}):
        with pytest.raises(SchemaConflictError):
            ctx.execute(Dataset.from_list([bad], shards=1).write_parquet(str(tmp_path / "y.parquet"), schema=schema))
    ctx.execute(Dataset.from_list([{"a": 1}]).filter(lambda r: False).write_parquet(path, schema=schema))
    assert pq.read_table(path).schema.equals(schema)


def test_records_without_any_column_fit_json_lines_but_not_parquet(ctx: ZephyrContext, tmp_path: Path) -> None:
    ds = Dataset.from_list([{}, {}], shards=1).map_batches(lambda b: b)
    assert ctx.execute(ds).results == [{}, {}]
    assert ctx.execute(ds.deduplicate("x")).results == [{}]
    ctx.execute(ds.write_jsonl(str(tmp_path / "x.jsonl")))
    assert (tmp_path / "x.jsonl").read_bytes() == b"{}\n{}\n"
    with pytest.raises(RecordTypeError, match="no record has a column"):
        ctx.execute(ds.write_parquet(str(tmp_path / "x.parquet")))
    assert visible(tmp_path) == ["x.jsonl"]


def test_nested_nulls_keep_their_shape(ctx: ZephyrContext, tmp_path: Path) -> None:
    values: list[Any] = [None, {"a": None}, {"a": [None]}, {"a": [{"b": 1}]}, {"a": []}]
    rows = [{"m": value} for value in values]
    ctx.execute(Dataset.from_list(rows, shards=1).write_parquet(str(tmp_path / "x.parquet")))
    assert ctx.execute(Dataset.from_files(str(tmp_path / "x.parquet")).load_parquet()).results == rows


@pytest.mark.slow
def test_a_record_of_a_hundred_megabytes_passes(ctx: ZephyrContext, tmp_path: Path) -> None:
    big = Dataset.from_list([1], shards=1).map(lambda n: {"a": "x" * 100_000_000, "n": n})
    ctx.execute(big.write_jsonl(str(tmp_path / "x.jsonl.gz")))
    back = Dataset.from_files(str(tmp_path / "x.jsonl.gz")).load_jsonl().deduplicate("a")
    ctx.execute(back.write_parquet(str(tmp_path / "x.parquet")))
    assert pq.read_table(tmp_path / "x.parquet", columns=["n"]).to_pylist() == [{"n": 1}]


def test_empty_shards_give_valid_empty_files(ctx: ZephyrContext, tmp_path: Path) -> None:
    ds = Dataset.from_list([{"a": 1}, {"a": 2}]).filter(lambda r: r["a"] > 1)
    ctx.execute(ds.write_parquet(str(tmp_path / "{shard}.parquet")))
    assert [pq.read_metadata(tmp_path / f"{i}.parquet").num_rows for i in range(2)] == [0, 1]
    ctx.execute(ds.write_jsonl(str(tmp_path / "{shard}.jsonl.gz")))
    assert ctx.execute(Dataset.from_files(str(tmp_path / "*.gz")).load_jsonl()).results == [{"a": 2}]


def test_items_that_json_cannot_hold_are_named(ctx: ZephyrContext, tmp_path: Path) -> None:
    with pytest.raises(RecordTypeError, match="complex"):
        ctx.execute(Dataset.from_list([{"a": 1}, {"a": 1j}], shards=1).write_jsonl(str(tmp_path / "x.jsonl")))
    assert visible(tmp_path) == []


def test_two_shards_with_one_path_are_refused(ctx: ZephyrContext, tmp_path: Path) -> None:
    with pytest.raises(DuplicateOutputError) as caught:
        ctx.execute(Dataset.from_list([1, 2]).write_jsonl(str(tmp_path / "x.jsonl")))
    assert caught.value.shards == (0, 1)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text("x")
    with pytest.raises(DuplicateOutputError):
        ctx.execute(
            Dataset.from_files(str(tmp_path / "*/same.txt")).load_text().write_jsonl(str(tmp_path / "{basename}.jsonl"))
        )


def test_an_input_is_never_an_output(ctx: ZephyrContext, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n')
    with pytest.raises(PlanError, match="also an input"):
        ctx.execute(Dataset.from_files(str(path)).load_jsonl().write_jsonl(str(tmp_path / "{basename}.jsonl")))
    assert path.read_bytes() == b'{"a":1}\n'


@pytest.mark.parametrize("pattern", ["{nope}.jsonl", "{shard.jsonl", "{basename}.jsonl", "{shard:q}.jsonl"])
def test_patterns_that_cannot_be_filled_are_refused(ctx: ZephyrContext, pattern: str) -> None:
    with pytest.raises(PlanError, match="expected"):
        ctx.execute(Dataset.from_list([{}], shards=1).write_jsonl(pattern))


def test_names_come_from_a_function_or_the_input(ctx: ZephyrContext, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl.gz").write_bytes(b"")
    ds = Dataset.from_files(str(tmp_path / "in.jsonl.gz")).load_jsonl()
    out = ctx.execute(ds.write_parquet(f"{tmp_path}//out/{{basename}}.parquet"))
    assert out.results == [f"{tmp_path}/out/in.parquet"]
    out = ctx.execute(
        ds.write_jsonl(lambda shard, total: f"{tmp_path}/f-{shard}-{total}.jsonl").map(lambda p: p.upper())
    )
    assert out.results == [f"{tmp_path}/f-0-1.jsonl".upper()]


FULL_DISK = """
    import resource, sys
    from zephyr import Dataset, ZephyrContext
    from zephyr.errors import OutputError
    folder, kind = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    import random
    rng = random.Random(0)
    ds = Dataset.from_list(list(range(6)), shards=6).flat_map(
        lambda i: [{"i": i, "t": rng.randbytes(200).hex()} for _ in range(i * 400)]
    )
    if kind == "shuffle":
        ds = ds.deduplicate("t", 2).count()
    elif kind == "blocks":
        ds = ds.map(lambda r: r).reshard(2).count()
    else:
        pattern = folder + "/{shard}." + kind
        ds = ds.write_parquet(pattern) if kind == "parquet" else ds.write_jsonl(pattern)
    try:
        ZephyrContext(inline=True, chunk_storage_prefix=folder + "/scratch").execute(ds)
    except OutputError as error:
        print(error.reason)
"""


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "shuffle", "blocks"])
def test_a_full_disk_is_a_clear_error_and_leaves_no_half_file(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(FULL_DISK), str(tmp_path), kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "the file size limit is reached\n", done.stderr
    assert done.stderr == ""
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(left) < 6
    for path in left:
        assert path.parent == tmp_path and not path.name.startswith(".")
        rows = pq.read_metadata(path).num_rows if path.suffix == ".parquet" else path.read_bytes().count(b"\n")
        assert rows == int(path.stem) * 400


def test_an_unwritable_place_is_a_clear_error(ctx: ZephyrContext, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError) as caught:
        ctx.execute(Dataset.from_list([{}], shards=1).write_jsonl(str(tmp_path / "file" / "x.jsonl")))
    assert caught.value.path == str(tmp_path / "file" / "x.jsonl")


def test_a_gzip_file_has_a_member_for_each_mib(ctx: ZephyrContext, tmp_path: Path) -> None:
    rows = [{"id": i, "text": f"{i:08d} " * 20} for i in range(20_000)]
    [path] = ctx.execute(Dataset.from_list(rows, shards=1).write_jsonl(str(tmp_path / "a.jsonl.gz"))).results
    data = Path(path).read_bytes()
    plain = gzip.decompress(data)
    assert data.count(b"\x1f\x8b\x08\0\0\0\0\0") == -(-len(plain) // (1 << 20)) == 4
    assert plain.count(b"\n") == len(rows)
    assert ctx.execute(Dataset.from_files(path).load_jsonl().count()).results == [len(rows)]
    [empty] = ctx.execute(Dataset.from_list([], shards=1).write_jsonl(str(tmp_path / "b.jsonl.gz"))).results or [None]
    assert empty is None or gzip.decompress(Path(empty).read_bytes()) == b""


BIG = [{"id": 2**64 - 1 - i, "xs": [2**63 + i, 1], "r": {"h": 2**63}} for i in range(3)] + [
    {"id": 3, "xs": [], "r": {"h": 1}},
    {"id": None, "xs": None, "r": None},
]
BIG_SCHEMA = pa.schema([("id", pa.uint64()), ("xs", pa.list_(pa.uint64())), ("r", pa.struct([("h", pa.uint64())]))])


@pytest.mark.parametrize("schema", [None, BIG_SCHEMA])
def test_whole_numbers_beyond_int64_are_unsigned(ctx: ZephyrContext, tmp_path: Path, schema: pa.Schema | None) -> None:
    ds = Dataset.from_list(BIG, shards=1)
    [path] = ctx.execute(ds.write_parquet(str(tmp_path / "a.parquet"), schema=schema)).results
    assert pq.read_table(path).to_pylist() == BIG
    assert pq.read_schema(path).field("id").type == pa.uint64()
    # Read as lines, some blocks of which have small numbers only, and through a shuffle.
    ctx.execute(Dataset.from_list(BIG[:4], shards=4).write_jsonl(str(tmp_path / "{shard}.jsonl")))
    lines = Dataset.from_files(str(tmp_path / "*.jsonl")).load_jsonl()
    [path] = ctx.execute(lines.reshard(1).write_parquet(str(tmp_path / "b.parquet"), schema=schema)).results
    assert pq.read_table(path).to_pylist() == BIG[:4]
    assert [row["id"] for row in ctx.execute(lines.sort("id")).results] == sorted(row["id"] for row in BIG[:4])


@pytest.mark.parametrize("other", [-1, 0.5, 2**64, "x"])
def test_what_is_no_unsigned_number_conflicts_with_one(ctx: ZephyrContext, tmp_path: Path, other: object) -> None:
    rows = [{"id": other}, {"id": 2**63 + 1}]
    with pytest.raises(SchemaConflictError, match="'id'"):
        ctx.execute(Dataset.from_list(rows, shards=1).write_parquet(str(tmp_path / "a.parquet")))
    assert visible(tmp_path) == []


def test_binary_files_hold_the_bytes_of_the_items_and_nothing_else(
    ctx: ZephyrContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_BINARY_BYTES", 64)
    items = [bytes([i]) * i for i in range(60)]
    pattern = str(tmp_path / "x-{shard}.bin.gz")  # a suffix compresses nothing here
    ds = Dataset.from_list(items, shards=2).filter(lambda item: len(item) < 30)
    out = ctx.execute(ds.map(lambda item: bytearray(item) if len(item) % 2 else item).write_binary(pattern))
    assert [Path(path).read_bytes() for path in out.results] == [b"".join(items[:30]), b""]
    assert out.counters["zephyr/records_out"] == 30
    assert out.counters["zephyr/bytes_out"] == sum(range(30))
    assert visible(tmp_path) == ["x-0.bin.gz", "x-1.bin.gz"]


@pytest.mark.parametrize("bad", ["text", {"a": b"x"}, None, 7])
def test_what_is_not_bytes_leaves_no_binary_file(ctx: ZephyrContext, tmp_path: Path, bad: object) -> None:
    ds = Dataset.from_list([b"x", bad], shards=1).write_binary(str(tmp_path / "out" / "{shard}.bin"))
    with pytest.raises(RecordTypeError, match=f"write_binary: got .* type={type(bad).__name__}.*expected bytes"):
        ctx.execute(ds)
    assert not list((tmp_path / "out").iterdir())


def test_a_binary_file_is_made_again_only_when_its_items_change(ctx: ZephyrContext, tmp_path: Path) -> None:
    pattern = str(tmp_path / "{shard}.bin")

    def run(items: list[bytes]) -> tuple[bytes, float]:
        out = ctx.execute(Dataset.from_list(items, shards=1).write_binary(pattern, skip_existing=True))
        return (tmp_path / "0.bin").read_bytes(), out.counters.get("zephyr/records_out", 0)

    assert [run([b"a"]), run([b"a"]), run([b"b", b"c"])] == [(b"a", 1), (b"a", 0), (b"bc", 2)]
