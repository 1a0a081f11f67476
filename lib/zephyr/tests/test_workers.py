"""Worker processes: equal bytes at any number of them, and at any of their deaths."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fray
import msgspec
import pytest
from zephyr import BadRecordError, Dataset, ZephyrContext, col, counters
from zephyr.coordinator import Policy
from zephyr.errors import ContextClosedError, OutputError, TaskFailedError, WorkersLostError

ENCODER = msgspec.json.Encoder()


def write_inputs(folder: Path, *, files: int = 6, rows: int = 400) -> str:
    folder.mkdir(parents=True)
    rng = random.Random(7)
    for at in range(files):
        items = [{"k": rng.randrange(300), "n": rng.randrange(1000), "t": rng.choice("abc")} for _ in range(rows)]
        (folder / f"{at}.jsonl").write_bytes(ENCODER.encode_lines(items))
    return str(folder / "*.jsonl")


def tag(row: dict[str, Any]) -> dict[str, Any]:
    """A module-level function: workers cannot import this test module, so it must travel by value."""
    counters.increment("tagged")
    return {**row, "tag": f"{row['t']}{row['k']}"}


def pipeline(pattern: str, out: Path) -> Dataset:
    ds = Dataset.from_files(pattern).load_jsonl().filter(col("n") > 100).map(tag).deduplicate("tag", 4)
    ds = ds.group_by("k", sort_by="n", reducer=lambda k, it: {"k": k, "n": [r["n"] for r in it]}, num_output_shards=3)
    return ds.sort_by("k", num_output_shards=2).write_jsonl(str(out / "{shard:03d}-of-{total:03d}.jsonl.gz"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One pool for the tests that do not harm it."""
    os.environ["MARIN_PROGRESS"] = "0"
    with ZephyrContext(max_workers=2, chunk_storage_prefix=str(tmp_path_factory.mktemp("scratch"))) as context:
        yield context


def random_pipeline(seed: int, pattern: str) -> Dataset:
    """A chain of row operations and shuffles, chosen by the seed."""
    rng = random.Random(seed)
    steps: list[Callable[[Dataset], Dataset]] = [
        lambda d: d.map(tag),
        lambda d: d.filter(col("n") > 200),
        lambda d: d.filter(lambda r: r["t"] != "b"),
        lambda d: d.deduplicate("k", 3),
        lambda d: d.sort_by(lambda r: (r["t"], r["n"]), num_output_shards=2),
        lambda d: d.reshard(3, "rows"),
        lambda d: d.reshard(2),
        lambda d: d.sample(0.7, seed=seed),
        lambda d: d.map_batches(lambda b: b.slice(1)),
        lambda d: d.group_by("t", reducer=lambda k, it: iter(sorted(it, key=lambda r: r["n"])), num_output_shards=2),
    ]
    ds = Dataset.from_files(pattern).load_jsonl()
    for step in rng.sample(steps, rng.randrange(2, 7)):
        ds = step(ds)
    return ds


@pytest.mark.slow
def test_bytes_are_equal_with_none_one_two_and_three_workers(tmp_path: Path) -> None:
    pattern = write_inputs(tmp_path / "in")
    found: dict[int, list[Any]] = {}
    for num in (0, 1, 2, 3):
        with ZephyrContext(max_workers=num, chunk_storage_prefix=str(tmp_path / "scratch")) as ctx:
            for seed in range(8):
                out = tmp_path / f"{num}-{seed}"
                ds = random_pipeline(seed, pattern)
                name = str(out / "{shard:03d}-of-{total:03d}")
                ds = ds.write_parquet(name + ".parquet") if seed % 2 else ds.write_jsonl(name + ".jsonl.gz")
                counted = ctx.execute(ds).counters
                found.setdefault(seed, []).append((contents(out), counted))
    for seed, outputs in found.items():
        assert outputs[0][1]["zephyr/records_out"] > 0, seed
        assert all(other == outputs[0] for other in outputs[1:]), seed
    assert list((tmp_path / "scratch").iterdir()) == []


def test_one_pool_serves_many_executions(shared: ZephyrContext, tmp_path: Path) -> None:
    first = shared.execute(Dataset.from_list([1, 2]).map(lambda x: os.getpid())).results
    for at in range(5):
        ds = Dataset.from_list(list(range(8))).map(lambda x, at=at: x + at)
        assert shared.execute(ds).results == list(range(at, 8 + at))
    again = shared.execute(Dataset.from_list([1, 2]).map(lambda x: os.getpid())).results
    assert set(again) <= set(first) | set(shared._pool.pids() if shared._pool else [])
    assert os.getpid() not in again


def test_a_warm_pool_adds_little_to_a_small_job(shared: ZephyrContext) -> None:
    ds = Dataset.from_list(list(range(8))).map(lambda x: x)
    shared.execute(ds)
    best = min(_timed(lambda: shared.execute(ds)) for _ in range(5))
    assert best < 0.3


def _timed(fn: Callable[[], object]) -> float:
    began = time.perf_counter()
    fn()
    return time.perf_counter() - began


def test_large_results_come_back_through_files(shared: ZephyrContext) -> None:
    ds = Dataset.from_list(list(range(4))).map(lambda x: bytes([x]) * (1 << 20))
    assert shared.execute(ds).results == [bytes([x]) * (1 << 20) for x in range(4)]


def test_errors_of_the_data_arrive_as_they_were_raised(shared: ZephyrContext, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n{"a": \n')
    with pytest.raises(BadRecordError) as caught:
        shared.execute(Dataset.from_files(str(tmp_path / "x.jsonl")).load_jsonl().map(dict))
    assert (caught.value.path, caught.value.line_number) == (str(tmp_path / "x.jsonl"), 2)
    assert "shard 0" in caught.value.__notes__[0]


def test_errors_of_user_code_keep_type_and_trace_and_leave_the_pool_usable(shared: ZephyrContext) -> None:
    def broken(x: int) -> int:
        if x == 3:
            raise KeyError("lost")
        return x

    with pytest.raises(TaskFailedError) as caught:
        shared.execute(Dataset.from_list(list(range(6))).map(broken))
    assert caught.value.failures == 3
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in broken" in caught.value.trace
    assert shared.execute(Dataset.from_list([1]).map(lambda x: x)).results == [1]


def test_a_retried_task_is_counted_once(shared: ZephyrContext, tmp_path: Path) -> None:
    marker = str(tmp_path / "failed-once")

    def flaky(x: int) -> int:
        counters.increment("calls")
        if x == 5 and not os.path.exists(marker):
            open(marker, "w").close()
            raise OSError("try again")
        return x

    out = shared.execute(Dataset.from_list(list(range(12)), shards=3).map(flaky))
    assert out.results == list(range(12))
    assert out.counters == {"calls": 12}


def test_what_an_abandoned_attempt_counted_does_not_count(shared: ZephyrContext, tmp_path: Path) -> None:
    def flaky(n: int) -> int:
        counters.pipeline.set_aggregation("mean", "AVERAGE")
        counters.pipeline.set_aggregation("least", "MIN")
        counters.pipeline.update_counter("mean", n)
        counters.pipeline.update_counter("least", n)
        counters.current_stage().update_counter("calls")
        counters.pipeline.set_counter("last", n)
        marker = tmp_path / f"met-{n}"
        if n in (4, 7) and not marker.exists():
            marker.touch()
            counters.pipeline.update_counter("least", -1000)
            if n == 7:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("try again")
        return n

    out = shared.execute(Dataset.from_list(list(range(9)), shards=3).map(flaky))
    assert (tmp_path / "met-4").exists()
    assert (tmp_path / "met-7").exists()
    assert out.counters == {"last": 2 + 5 + 8, "least": 0, "mean": 4.0, "stage0-map/calls": 9}


def test_a_worker_killed_in_the_middle_is_replaced(shared: ZephyrContext, tmp_path: Path) -> None:
    marker = str(tmp_path / "killed-once")

    def deadly(x: int) -> int:
        counters.increment("calls")
        if x == 5 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    out = shared.execute(Dataset.from_list(list(range(12)), shards=4).map(deadly))
    assert out.results == list(range(12))
    assert out.counters == {"calls": 12}
    assert len(shared.execute(Dataset.from_list([1, 2]).map(lambda x: x)).results) == 2


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_a_task_that_kills_every_worker_is_given_up(tmp_path: Path, code: int) -> None:
    policy = Policy(max_worker_losses=2)
    ctx = ZephyrContext(max_workers=1, chunk_storage_prefix=str(tmp_path / "scratch"), policy=policy)
    ds = Dataset.from_list([{"a": 1}] * 3, shards=1).map(lambda r: os._exit(code) or r)
    with pytest.raises(WorkersLostError) as caught:
        ctx.execute(ds.write_jsonl(str(tmp_path / "x.jsonl")))
    assert caught.value.losses == 2
    assert not list(tmp_path.glob("*x.jsonl*"))
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    pattern = write_inputs(tmp_path / "in", files=6, rows=800)
    inline = ZephyrContext(inline=True, chunk_storage_prefix=str(tmp_path / "scratch"))
    expected_counters = inline.execute(pipeline(pattern, tmp_path / "calm")).counters
    expected = contents(tmp_path / "calm")
    rng = random.Random(3)
    kills = 0
    with ZephyrContext(max_workers=2, chunk_storage_prefix=str(tmp_path / "scratch")) as ctx:
        ctx.execute(Dataset.from_list([1, 2]).map(lambda x: x))
        assert ctx._pool is not None
        for trial in range(4):
            out = tmp_path / f"trial-{trial}"
            done = threading.Event()
            victim = rng.choice(ctx._pool.pids())
            killer = threading.Timer(rng.random() * 0.25, _kill, (victim, done))
            killer.start()
            result = ctx.execute(pipeline(pattern, out))
            done.set()
            killer.join()
            kills += 1
            assert contents(out) == expected
            assert result.counters == expected_counters
    assert kills == 4
    assert list((tmp_path / "scratch").iterdir()) == []


def _kill(pid: int, done: threading.Event) -> None:
    if not done.is_set():
        os.kill(pid, signal.SIGKILL)


def test_relative_paths_are_the_drivers_wherever_it_stands(
    shared: ZephyrContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.execute(Dataset.from_list([1]))
    monkeypatch.chdir(tmp_path)
    out = shared.execute(Dataset.from_list([{"a": 1}, {"a": 2}]).write_jsonl("out/{shard}.jsonl"))
    assert out.results == ["out/0.jsonl", "out/1.jsonl"]
    assert sorted(contents(tmp_path / "out")) == ["0.jsonl", "1.jsonl"]


def test_threads_of_one_process_serve_as_workers_too(scratch: Path, tmp_path: Path) -> None:
    pattern = write_inputs(tmp_path / "in", files=3, rows=50)
    with fray.LocalClient(mode="thread") as client:
        ctx = ZephyrContext(max_workers=2, client=client, chunk_storage_prefix=str(scratch))
        result = ctx.execute(pipeline(pattern, tmp_path / "threads"))
    inline = ZephyrContext(inline=True, chunk_storage_prefix=str(scratch)).execute(
        pipeline(pattern, tmp_path / "inline")
    )
    assert contents(tmp_path / "threads") == contents(tmp_path / "inline")
    assert result.counters == inline.counters


def test_two_contexts_run_side_by_side(shared: ZephyrContext, scratch: Path) -> None:
    with ZephyrContext(max_workers=1, chunk_storage_prefix=str(scratch)) as other:
        ds = Dataset.from_list([3, 4]).map(lambda x: x * x)
        assert other.execute(ds).results == shared.execute(ds).results == [9, 16]


def test_a_scratch_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ctx = ZephyrContext(max_workers=1, chunk_storage_prefix=str(tmp_path / "file" / "scratch"))
    with pytest.raises(OutputError, match="Not a directory"):
        ctx.execute(Dataset.from_list([1]))


def test_a_closed_context_says_so(tmp_path: Path) -> None:
    with ZephyrContext(inline=True, name="demo") as ctx:
        pass
    with pytest.raises(ContextClosedError, match="demo"):
        ctx.execute(Dataset.from_list([1]))
    with pytest.raises(ContextClosedError):
        ctx.__enter__()
    ctx.shutdown()


def test_the_environment_sets_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEPHYR_MAX_WORKERS", "0")
    assert ZephyrContext().max_workers == 0
    assert ZephyrContext(max_workers=3).max_workers == 3
    monkeypatch.setenv("ZEPHYR_MAX_WORKERS", "many")
    with pytest.raises(ValueError, match="ZEPHYR_MAX_WORKERS='many'"):
        ZephyrContext()
