"""Workers that hang, outgrow their memory or die on one record; drivers that are killed; records that fail."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rigging.resources import ResourceConfig
from zephyr import Dataset, Quarantine, ZephyrContext, col
from zephyr.coordinator import Policy
from zephyr.errors import DatasetError, MemoryBudgetError, QuarantineFullError, TaskFailedError


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Two files of 40 records; every seventh, and blank lines between them, which count as lines."""
    for at in range(2):
        text = "".join(json.dumps({"n": n, "file": at}) + ("\n\n" if n % 10 == 3 else "\n") for n in range(40))
        (tmp_path / f"in-{at}.jsonl").write_text(text)
    return str(tmp_path / "in-*.jsonl")


def odd_one_out(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 17 and row["file"] == 1:
        raise ValueError("seventeen")
    return row


# A hung worker


@pytest.mark.slow
def test_a_stopped_worker_is_overtaken_killed_and_replaced(tmp_path: Path, scratch: Path) -> None:
    marker = str(tmp_path / "stopped")

    def stop_once(n: int) -> int:
        if n == 5 and not os.path.exists(marker):
            Path(marker).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        return n

    policy = Policy(heartbeat_timeout_s=6.0, suspect_after_s=2.0)
    with ZephyrContext(max_workers=2, chunk_storage_prefix=str(scratch), policy=policy) as ctx:
        ctx.execute(Dataset.from_list([1, 2]).map(lambda n: n))
        ds = (
            Dataset.from_list(list(range(12)), shards=6)
            .map(stop_once)
            .write_jsonl(str(tmp_path / "out" / "{shard}.jsonl"))
        )
        out = ctx.execute(ds)
        assert len(out.results) == 6
        # The copy won; the run did not wait for the stopped process, and did not leave it behind.
        assert out.stages[0]["attempts"] >= 7
        assert not alive(int(Path(marker).read_text()))
        assert ctx.execute(Dataset.from_list([1, 2]).map(lambda n: n)).results == [1, 2]
    written = [int(n) for at in range(6) for n in (tmp_path / "out" / f"{at}.jsonl").read_text().split()]
    assert written == list(range(12))
    assert sorted(os.listdir(tmp_path / "out")) == [f"{at}.jsonl" for at in range(6)]


@pytest.mark.slow
def test_a_stopped_worker_without_a_spare_one_is_killed_after_the_timeout(tmp_path: Path, scratch: Path) -> None:
    marker = str(tmp_path / "stopped")

    def stop_once(n: int) -> int:
        if not os.path.exists(marker):
            Path(marker).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        return n

    policy = Policy(heartbeat_timeout_s=2.0)
    ctx = ZephyrContext(max_workers=1, chunk_storage_prefix=str(scratch), policy=policy)
    assert ctx.execute(Dataset.from_list([1]).map(stop_once)).results == [1]
    assert not alive(int(Path(marker).read_text()))


@pytest.mark.slow
def test_an_attempt_that_runs_for_too_long_counts_as_an_error_of_the_task(scratch: Path) -> None:
    policy = Policy(task_timeout_s=1.0, max_task_errors=1)
    ctx = ZephyrContext(max_workers=1, chunk_storage_prefix=str(scratch), policy=policy)
    with pytest.raises(TaskFailedError, match="task_timeout_s=1.0") as caught:
        ctx.execute(Dataset.from_list([1]).map(lambda n: time.sleep(600)))
    assert caught.value.failures == 1


# Memory


@pytest.mark.slow
def test_a_task_beyond_its_memory_fails_with_the_measured_peak(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')

    def hoard(row: dict[str, Any]) -> int:
        held = []
        for _ in range(200):
            held.append(bytearray(os.urandom(1 << 20)) * 8)
            time.sleep(0.02)
        return len(held)

    ctx = ZephyrContext(
        max_workers=1,
        resources=ResourceConfig(cpu=1, ram="300m"),
        chunk_storage_prefix=str(scratch),
        policy=Policy(max_task_errors=2),
    )
    with pytest.raises(MemoryBudgetError) as caught:
        ctx.execute(Dataset.from_files(str(tmp_path / "x.jsonl")).load_jsonl().map(hoard))
    assert 300 << 20 < caught.value.peak_bytes < 1 << 30
    assert caught.value.limit_bytes == 300 << 20


def test_memory_is_enforced_when_resources_are_given() -> None:
    assert not ZephyrContext(max_workers=1).enforce_memory
    assert ZephyrContext(max_workers=1, resources=ResourceConfig(ram="2g")).enforce_memory
    assert not ZephyrContext(max_workers=1, resources=ResourceConfig(ram="2g"), enforce_memory=False).enforce_memory


# Quarantine


@pytest.mark.parametrize("step", ["map", "flat_map", "filter"])
def test_a_failing_record_is_put_aside_with_file_and_line(
    ctx: ZephyrContext, lines: str, tmp_path: Path, step: str
) -> None:
    fn: Any = odd_one_out
    if step == "flat_map":
        # Raises while it is read, not when it is called.
        def fn(row: dict[str, Any]) -> Iterator[Any]:
            yield odd_one_out(row)

    ds = getattr(Dataset.from_files(lines).load_jsonl(), step)(fn)
    out = ctx.execute(ds, quarantine=Quarantine(str(tmp_path / "bad")))
    assert len(out.results) == 79
    assert out.stages[0]["quarantined"] == 1
    [record] = records(tmp_path / "bad")
    assert record["file"].endswith("in-1.jsonl")
    # Record 17 of a file in which lines 5 and 16 are blank.
    assert (record["unit"], record["position"]) == ("line", 20)
    assert json.loads((tmp_path / "in-1.jsonl").read_text().splitlines()[record["position"] - 1])["n"] == 17
    assert record["error"] == "ValueError: seventeen"
    assert "in odd_one_out" in record["raised_at"]
    assert record["operation"] == step
    assert os.listdir(tmp_path / "bad") == ["stage-00-shard-00001.jsonl"]


def test_positions_stay_right_behind_filters_and_columns(ctx: ZephyrContext, lines: str, tmp_path: Path) -> None:
    ds = Dataset.from_files(lines).load_jsonl().filter(col("n") > 4).filter(lambda r: r["n"] % 2).map(odd_one_out)
    ctx.execute(ds, quarantine=Quarantine(str(tmp_path / "bad")))
    [record] = records(tmp_path / "bad")
    assert record["position"] == 20


def test_positions_in_parquet_are_rows(ctx: ZephyrContext, tmp_path: Path) -> None:
    rows = [{"n": n, "file": 1} for n in range(40)]
    ctx.execute(Dataset.from_list(rows, shards=1).write_parquet(str(tmp_path / "x.parquet")))
    ds = Dataset.from_files(str(tmp_path / "x.parquet")).load_parquet().filter(col("n") != 3).map(odd_one_out)
    ctx.execute(ds, quarantine=Quarantine(str(tmp_path / "bad")))
    [record] = records(tmp_path / "bad")
    assert (record["unit"], record["position"]) == ("row", 18)


def test_a_record_that_fails_once_only_is_not_poison(ctx: ZephyrContext, tmp_path: Path) -> None:
    seen: set[int] = set()

    def flaky(n: int) -> int:
        if n == 3 and n not in seen:
            seen.add(n)
            raise OSError("try again")
        return n

    out = ctx.execute(
        Dataset.from_list(list(range(6)), shards=2).map(flaky), quarantine=Quarantine(str(tmp_path / "bad"))
    )
    assert out.results == list(range(6))
    assert not (tmp_path / "bad").exists()


def test_the_quarantine_has_a_limit_in_a_task_and_over_all(ctx: ZephyrContext, lines: str, tmp_path: Path) -> None:
    def broken(row: dict[str, Any]) -> None:
        raise ValueError(row["n"])

    ds = Dataset.from_files(lines).load_jsonl()
    with pytest.raises(QuarantineFullError, match=r"in-0\.jsonl, line 1[0-9], error=ValueError"):
        ctx.execute(ds.map(broken), quarantine=Quarantine(str(tmp_path / "a"), max_records=10))
    assert not (tmp_path / "a").exists() or os.listdir(tmp_path / "a") == []
    with pytest.raises(QuarantineFullError, match="shard 1 of stage"):
        ctx.execute(ds.map(broken), quarantine=Quarantine(str(tmp_path / "b"), max_records=60))
    with pytest.raises(DatasetError, match="max_records=-1"):
        Quarantine("x", max_records=-1)


def test_a_clean_run_removes_what_an_earlier_one_put_aside(ctx: ZephyrContext, lines: str, tmp_path: Path) -> None:
    ds = Dataset.from_files(lines).load_jsonl()
    ctx.execute(ds.map(odd_one_out), quarantine=Quarantine(str(tmp_path / "bad")))
    assert len(records(tmp_path / "bad")) == 1
    ctx.execute(ds.map(dict), quarantine=Quarantine(str(tmp_path / "bad")))
    assert os.listdir(tmp_path / "bad") == []


@pytest.mark.slow
def test_a_record_that_kills_its_worker_is_found_and_put_aside(lines: str, tmp_path: Path, scratch: Path) -> None:
    def deadly(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 17 and row["file"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    with ZephyrContext(max_workers=1, chunk_storage_prefix=str(scratch), policy=Policy(poison_after_losses=1)) as ctx:
        ds = Dataset.from_files(lines).load_jsonl().map(deadly)
        out = ctx.execute(ds, quarantine=Quarantine(str(tmp_path / "bad")))
    assert len(out.results) == 79
    [record] = records(tmp_path / "bad")
    assert (record["position"], record["error"]) == (20, "the worker died in this call")


def test_an_error_of_user_code_names_the_file_and_the_lines(ctx: ZephyrContext, lines: str) -> None:
    with pytest.raises(TaskFailedError, match=r"reading=.*in-1\.jsonl, lines 1 to 44") as caught:
        ctx.execute(Dataset.from_files(lines).load_jsonl().map(odd_one_out))
    assert isinstance(caught.value.__cause__, ValueError)


# A killed driver


DRIVER = """
import os, sys, time
from pathlib import Path
from zephyr import Dataset, ZephyrContext
out, scratch, slow = sys.argv[1:]
def work(row):
    if slow == "1" and row["n"] % 100 == 0:
        Path(out, f"pid-{os.getpid()}").touch()
        time.sleep(0.3)
    return {"k": row["n"] % 7, "n": row["n"]}
def total(k, rows):
    return {"k": k, "n": sum(r["n"] for r in rows)}
if __name__ == "__main__":
    ds = Dataset.from_list([{"n": n} for n in range(2000)], shards=10).map(work)
    ds = ds.write_jsonl(out + "/part/{shard:02d}.jsonl", skip_existing=True)
    with ZephyrContext(max_workers=2, chunk_storage_prefix=scratch) as ctx:
        ctx.execute(ds)
        again = Dataset.from_files(out + "/part/*.jsonl").load_jsonl().group_by("k", reducer=total, num_output_shards=2)
        print(ctx.execute(again.write_jsonl(out + "/sum-{shard}.jsonl")).counters)
"""


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_and_the_next_run_ends_it_right(tmp_path: Path, scratch: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    environ = {**os.environ, "MARIN_PROGRESS": "0"}
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    call = [sys.executable, str(script)]
    subprocess.run([*call, str(tmp_path / "calm"), str(scratch), "0"], env=environ, check=True)
    driver = subprocess.Popen([*call, str(tmp_path / "killed"), str(scratch), "1"], env=environ)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "killed").glob("part/[0-9]*.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    pids = [int(path.name.removeprefix("pid-")) for path in (tmp_path / "killed").glob("pid-*")]
    assert pids
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
    subprocess.run([*call, str(tmp_path / "killed"), str(scratch), "1"], env=environ, check=True)
    for name in ("part/00.jsonl", "part/09.jsonl", "sum-0.jsonl", "sum-1.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()
    left = [path.name for path in (tmp_path / "killed").rglob("*.tmp")]
    assert left == []
    assert list(scratch.iterdir()) == []
