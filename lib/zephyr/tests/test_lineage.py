"""skip_existing skips what is proven, and nothing else."""

import functools
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from zephyr import Dataset, ZephyrContext, counters
from zephyr._leftovers import execution_id, sweep
from zephyr._lineage import fingerprint, note_path

FACTOR = 2


def scale(row: dict[str, Any]) -> dict[str, Any]:
    counters.increment("ran")
    return {"a": row["a"] * FACTOR}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for at in range(3):
        (tmp_path / "in" / f"{at}.jsonl").write_text(f'{{"a": {at}}}\n')
    return tmp_path


def pipeline(folder: Path, fn: Any = scale) -> Dataset:
    ds = Dataset.from_files(str(folder / "in" / "*.jsonl")).load_jsonl().map(fn)
    return ds.write_jsonl(str(folder / "out" / "{basename}.jsonl"), skip_existing=True)


def ran(ctx: ZephyrContext, ds: Dataset) -> float:
    return ctx.execute(ds).counters.get("ran", 0)


def test_a_second_run_does_nothing_and_gives_the_same_paths(ctx: ZephyrContext, folder: Path) -> None:
    first, second = ctx.execute(pipeline(folder)), ctx.execute(pipeline(folder))
    assert first.counters["ran"] == 3
    assert second.counters == {}
    assert first.results == second.results


def test_only_what_changed_runs_again(ctx: ZephyrContext, folder: Path) -> None:
    assert ran(ctx, pipeline(folder)) == 3
    (folder / "in" / "1.jsonl").write_text('{"a": 7}\n')
    assert ran(ctx, pipeline(folder)) == 1
    assert (folder / "out" / "1.jsonl").read_text() == '{"a":14}\n'


def test_touching_an_input_changes_nothing(ctx: ZephyrContext, folder: Path) -> None:
    assert ran(ctx, pipeline(folder)) == 3
    os.utime(folder / "in" / "1.jsonl", (1, 1))
    assert ran(ctx, pipeline(folder)) == 0


@pytest.mark.parametrize("damage", ["cut", "remove", "note", "bad note", "foreign"])
def test_an_output_that_is_not_proven_is_written_again(ctx: ZephyrContext, folder: Path, damage: str) -> None:
    ctx.execute(pipeline(folder))
    path = folder / "out" / "2.jsonl"
    good = path.read_bytes()
    note = Path(note_path(str(path)))
    match damage:
        case "cut":
            path.write_bytes(good[:-3])
        case "remove":
            path.unlink()
        case "note":
            note.unlink()
        case "bad note":
            note.write_text("{")
        case _:
            path.write_text('{"a":"made by someone else"}\n')
    assert ran(ctx, pipeline(folder)) == 1
    assert path.read_bytes() == good


def test_changed_code_runs_again(ctx: ZephyrContext, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx.execute(pipeline(folder))
    monkeypatch.setitem(globals(), "FACTOR", 3)
    monkeypatch.setitem(scale.__globals__, "FACTOR", 3)
    assert ran(ctx, pipeline(folder)) == 3
    assert ran(ctx, pipeline(folder, lambda r: scale(r) | {"b": 1})) == 3


def test_outputs_behind_a_shuffle_are_skipped_with_all_before(ctx: ZephyrContext, folder: Path) -> None:
    ds = Dataset.from_files(str(folder / "in" / "*.jsonl")).load_jsonl().map(scale).deduplicate("a", 2)
    ds = ds.write_parquet(str(folder / "out" / "{shard}.parquet"), skip_existing=True)
    assert ran(ctx, ds) == 3
    assert ctx.execute(ds).counters == {}
    (folder / "out" / "1.parquet").unlink()
    again = ctx.execute(ds)
    assert again.counters["ran"] == 3
    assert again.results == [str(folder / "out" / f"{i}.parquet") for i in range(2)]


def test_work_after_the_write_still_runs(ctx: ZephyrContext, folder: Path) -> None:
    ds = pipeline(folder).map(lambda path: path.rsplit("/", 1)[1])
    first, second = ctx.execute(ds), ctx.execute(ds)
    assert first.results == second.results == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert "ran" not in second.counters


def test_notes_hold_no_time_and_no_place(ctx: ZephyrContext, folder: Path) -> None:
    ctx.execute(pipeline(folder))
    note = Path(note_path(str(folder / "out" / "0.jsonl"))).read_text()
    assert sorted(json.loads(note)) == ["digest", "lineage", "version"]
    assert str(folder) not in note


def test_without_skip_existing_everything_is_written_again(ctx: ZephyrContext, folder: Path) -> None:
    ds = Dataset.from_list([{"a": 1}]).map(scale).write_jsonl(str(folder / "x.jsonl"))
    assert [ran(ctx, ds), ran(ctx, ds)] == [1, 1]
    assert not list(folder.glob(".*"))


def test_fingerprints_see_code_constants_defaults_and_captured_values() -> None:
    def make(n: int) -> Any:
        return lambda x: x + n

    assert fingerprint(make(1)) == fingerprint(make(1))
    assert fingerprint(make(1)) != fingerprint(make(2))
    assert fingerprint(functools.partial(max, 1)) != fingerprint(functools.partial(max, 2))
    assert fingerprint(functools.partial(max, 1)) != fingerprint(functools.partial(min, 1))
    assert fingerprint({1, 2}) == fingerprint({2, 1})
    assert fingerprint(1) != fingerprint(True)


KILLED = """
    import os, sys
    from zephyr import Dataset, ZephyrContext
    folder = sys.argv[1]

    def die(row):
        if row == 60_000:
            print(flush=True)
            os.kill(os.getpid(), 9)
        return {"a": row}

    ds = Dataset.from_list(list(range(70_000)), shards=1).reshard(2, "rows").map(die)
    ctx = ZephyrContext(inline=True, chunk_storage_prefix=folder + "/scratch")
    ctx.execute(ds.write_jsonl(folder + "/{shard}.jsonl"))
"""


def test_what_a_killed_driver_left_is_removed_by_the_next(tmp_path: Path, scratch: Path, ctx: ZephyrContext) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], check=False)
    assert done.returncode == -9
    staged = [path.name for path in tmp_path.glob(".*.tmp")]
    assert len(staged) == 1 and re.match(r"\.1\.jsonl\.zephyr-", staged[0])
    ctx.execute(Dataset.from_list([{"a": 1}]).write_jsonl(str(tmp_path / "other-{shard}.jsonl")))
    assert not list(tmp_path.glob(".*.tmp"))
    assert not scratch.exists() or not any(scratch.iterdir())


def test_the_living_and_other_hosts_are_left_alone(tmp_path: Path) -> None:
    mine = execution_id()
    host, pid, start, nonce = mine.split("-")
    dead = f"{host}-{pid}-{int(start) + 1}-{nonce}"
    foreign = f"{'0' * 8}-{pid}-{int(start) + 1}-{nonce}"
    for name in (mine, dead, foreign, "unrelated"):
        (tmp_path / name).mkdir()
        (tmp_path / f".x.zephyr-{name}.0-0-1.tmp").write_text("x")
    assert sweep(str(tmp_path), [str(tmp_path / "x")]) == 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == sorted([mine, foreign, "unrelated"])
    assert len(list(tmp_path.glob(".x*"))) == 3
