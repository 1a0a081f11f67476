"""Shuffle targets that are far larger than the rest: cut between keys, reduced side by side, joined in order."""

import itertools
import logging
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zephyr import Dataset, ZephyrContext, col, compute_plan, counters
from zephyr._balance import cut_points
from zephyr._keys import encode_key
from zephyr._shuffle.format import Part, Run
from zephyr._shuffle.write import hash_targets
from zephyr._task import BlockRef, TaskReport, TaskSpec
from zephyr.coordinator import (
    Accept,
    Assign,
    Coordinator,
    Discard,
    Finished,
    Policy,
    Skewed,
    StageStarted,
    TaskSucceeded,
    WorkerJoined,
    WorkerLost,
)
from zephyr.errors import DatasetError

WHOLE = Policy(skew_pieces=1)
CUT = Policy(skew_factor=1.0, skew_min_bytes=1, skew_pieces=5)
TARGETS = 3
_TARGET = hash_targets(pa.array([encode_key(k) for k in range(3000)], pa.binary()), TARGETS)
HEAVY = [k for k in range(3000) if _TARGET[k] == 1][:400]
"""Keys of one target."""


def rows_of(seed: int, count: int, hot: float = 0.0) -> list[dict[str, Any]]:
    """Most rows have keys of one target; a share `hot` has one key. Late rows have a column more, and fewer nulls."""
    rng = random.Random(seed)
    rows = []
    for at in range(count):
        k = HEAVY[7] if rng.random() < hot else rng.choice(HEAVY) if rng.random() < 0.9 else rng.randrange(3000)
        row = {"k": k, "n": rng.randrange(50), "v": None if at < count // 2 else at, "pad": "x" * rng.randrange(30)}
        rows.append(row | ({"late": at} if at > 3 * count // 4 else {}))
    return rows


STEPS: dict[str, Callable[[Dataset], Dataset]] = {
    "reduce": lambda d: d.group_by(
        "k", sort_by="n", reducer=lambda k, it: {"k": k, "n": [r["n"] for r in it]}, num_output_shards=TARGETS
    ),
    "many out": lambda d: (
        d.group_by("k", reducer=lambda k, it: it, num_output_shards=TARGETS)
        .map(lambda r: r | {"k2": -r["k"]})
        .filter(col("n") > 3)
        .window(7)
        .map(lambda w: {"w": [r["k"] for r in w], "n": len(w)})
    ),
    "dedupe": lambda d: d.deduplicate("k", TARGETS),
    "dedupe columns": lambda d: d.map_batches(lambda b: b).deduplicate("k", TARGETS).sample(0.8, seed=3),
    "aggregate": lambda d: d.aggregate(
        "k", num_output_shards=TARGETS, count=(None, "count"), mean=("n", "mean"), top=("v", "max")
    ),
    "sort": lambda d: d.sort_by(lambda r: (r["k"], r["n"]), num_output_shards=TARGETS),
    "sort down": lambda d: d.map_batches(lambda b: b).sort_by("k", reverse=True, num_output_shards=TARGETS),
    "join": lambda d: d.join(
        Dataset.from_list([{"k": k, "name": f"k{k}"} for k in range(0, 3000, 2)], shards=2),
        "k",
        how="outer",
        combiner=lambda a, b: {"a": a and a["n"], "b": b and b["name"]},
        num_output_shards=TARGETS,
    ),
    "two shuffles": lambda d: (
        d.group_by("k", reducer=lambda k, it: it, num_output_shards=TARGETS)
        .reshard(4, "rows")
        .deduplicate("n", TARGETS)
    ),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def run(out: Path, ds: Dataset, kind: str, policy: Policy, scratch: Path, memory: int) -> list[dict[str, Any]]:
    path = str(out / ("{shard}." + kind))
    ds = ds.write_parquet(path) if kind == "parquet" else ds.write_jsonl(path)
    with ZephyrContext(
        inline=True, chunk_storage_prefix=str(scratch), task_memory=memory, policy=policy, name="s"
    ) as ctx:
        stages: list[Any] = ctx.execute(ds).stages
    assert not list(scratch.glob("*/*"))
    return stages


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(STEPS)),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from(["jsonl", "parquet"]),
    st.sampled_from([256 << 20, 1 << 16]),
)
def test_the_bytes_are_those_of_targets_left_whole(
    tmp_path: Path, step: str, seed: int, hot: float, kind: str, memory: int
) -> None:
    folder = tmp_path / str(random.random())
    ds = STEPS[step](Dataset.from_list(rows_of(seed, 900, hot), shards=3))
    with pytest.MonkeyPatch.context() as patch:
        # A single batch of a run says little about where its rows lie: small ones cut more.
        patch.setattr("zephyr._shuffle.write.BATCH_BYTES", 2048)
        patch.setattr("zephyr._shuffle.write._BYTES_PER_SAMPLE", 256)
        run(folder / "whole", ds, kind, WHOLE, tmp_path / "scratch", memory)
        run(folder / "cut", ds, kind, CUT, tmp_path / "scratch", memory)
    assert contents(folder / "cut") == contents(folder / "whole")


@pytest.mark.parametrize("step", sorted(STEPS))
def test_every_operation_that_has_keys_is_cut(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(1, 1500)
    # Batches of a size that so few rows make several of.
    monkeypatch.setattr("zephyr._shuffle.write.BATCH_BYTES", 4096)
    if step.startswith("sort"):
        # Key ranges hold equally many rows; what makes one larger are its bytes.
        rows = [row | {"pad": "x" * (400 if row["k"] in HEAVY[:100] else 1)} for row in rows]
    ds = STEPS[step](Dataset.from_list(rows, shards=3))
    stages = run(tmp_path / "cut", ds, "jsonl", CUT, tmp_path / "scratch", 256 << 20)
    run(tmp_path / "whole", ds, "jsonl", WHOLE, tmp_path / "scratch", 256 << 20)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    cut = [stage["targets_cut"] for stage in stages if stage["targets_cut"]]
    assert cut and max(pieces for found in cut for pieces in found.values()) > 1


def test_aggregates_come_in_key_order(tmp_path: Path, scratch: Path) -> None:
    rows = [{"k": k} for k in random.Random(0).sample(range(20_000), 3000)]
    with ZephyrContext(inline=True, chunk_storage_prefix=str(scratch)) as ctx:
        out = ctx.execute(Dataset.from_list(rows, shards=3).aggregate("k", num_output_shards=1, n=(None, "count")))
    assert [row["k"] for row in out.results] == sorted(row["k"] for row in rows)


def test_counters_of_pieces_count_once_and_the_page_shows_them(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephyr._shuffle.write._BYTES_PER_SAMPLE", 256)

    def seen(row: Any) -> Any:
        counters.increment("seen")
        return row

    ds = Dataset.from_list(rows_of(2, 2000), shards=3)
    ds = ds.group_by("k", reducer=lambda k, it: {"k": k, "n": sum(1 for _ in it)}, num_output_shards=TARGETS).map(seen)
    page = tmp_path / "run.html"
    with ZephyrContext(inline=True, chunk_storage_prefix=str(scratch), policy=CUT) as ctx:
        assert "one far above the median is cut between keys" in ctx.explain(ds)
        out = ctx.execute(ds, run_page=str(page))
    assert out.counters["seen"] == len(out.results) == len({row["k"] for row in rows_of(2, 2000)})
    assert sum(row["n"] for row in out.results) == 2000
    last: Any = out.stages[-1]
    assert last["items_out"] == len(out.results)
    assert last["tasks"] == TARGETS
    assert last["attempts"] == TARGETS + sum(last["targets_cut"].values())
    assert last["targets_cut"]["1"] > 1
    assert f"shard 1: {last['targets_cut']['1']} pieces" in page.read_text()


def test_a_target_of_one_key_stays_whole_and_is_said(
    scratch: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"k": HEAVY[0], "pad": "x" * 50} for _ in range(3000)] + [{"k": k, "pad": "y"} for k in range(300)]
    ds = Dataset.from_list(rows, shards=3)
    ds = ds.group_by("k", reducer=lambda k, it: (k, sum(1 for _ in it)), num_output_shards=TARGETS)
    page = tmp_path / "run.html"
    policy = Policy(skew_factor=4.0, skew_min_bytes=1 << 16)
    with ZephyrContext(inline=True, chunk_storage_prefix=str(scratch), policy=policy) as ctx:
        with caplog.at_level(logging.WARNING):
            out = ctx.execute(ds, run_page=str(page))
    last: Any = out.stages[-1]
    assert (last["targets_cut"], last["targets_of_one_key"]) == ({}, [1])
    assert last["largest_target"] > 4
    assert "shard 1 is skewed" in caplog.text and "one key" in caplog.text
    assert "shard 1: one key" in page.read_text()


@pytest.mark.parametrize("step", ["aggregate", "distinct", "deduplicate", "combiner", "count"])
def test_a_hot_key_is_combined_before_it_is_sent(scratch: Path, step: str) -> None:
    rows = [{"k": HEAVY[0], "n": 1} for _ in range(20_000)]
    base = Dataset.from_list(rows, shards=4).map_batches(lambda b: b)
    combined = {
        "aggregate": lambda: base.aggregate("k", num_output_shards=TARGETS, n=("n", "sum")),
        "distinct": lambda: base.distinct(num_output_shards=TARGETS),
        "deduplicate": lambda: base.deduplicate("k", TARGETS),
        "combiner": lambda: base.group_by(
            "k",
            reducer=lambda k, it: {"k": k, "n": sum(r["n"] for r in it)},
            combiner=lambda k, it: [{"k": k, "n": sum(r["n"] for r in it)}],
            num_output_shards=TARGETS,
        ),
        "count": lambda: base.count(),
    }[step]()
    policy = Policy(skew_min_bytes=1 << 14)
    with ZephyrContext(inline=True, chunk_storage_prefix=str(scratch), policy=policy) as ctx:
        out = ctx.execute(combined)
    expected = {"count": [20_000], "distinct": rows[:1], "deduplicate": rows[:1]}
    assert out.results == expected.get(step, [{"k": HEAVY[0], "n": 20_000}])
    assert out.stages[0]["shuffle_bytes"] < 4096, "four mappers send one row each"
    assert all(not stage["targets_cut"] and not stage["targets_of_one_key"] for stage in out.stages)


@pytest.mark.slow
def test_killed_workers_of_pieces_and_of_the_join_change_nothing(tmp_path: Path, scratch: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def die_once(at: int, name: str) -> None:
        if at % 97 == 5 and not (marks / name).exists():
            (marks / name).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def reducer(k: int, items: Any) -> Any:
        die_once(k, f"piece-{k // 97 % 3}")
        return {"k": k, "n": [row["n"] for row in items]}

    def joined(window: Any) -> Any:
        die_once(window[0]["k"], "join")
        return {"first": window[0]["k"], "n": sum(sum(row["n"]) for row in window)}

    def build(out: str, calm: bool) -> Dataset:
        ds = Dataset.from_list(rows_of(5, 3000), shards=3)
        quiet = lambda k, it: {"k": k, "n": [row["n"] for row in it]}  # noqa: E731
        last = lambda w: {"first": w[0]["k"], "n": sum(sum(row["n"]) for row in w)}  # noqa: E731
        ds = ds.group_by("k", reducer=quiet if calm else reducer, num_output_shards=TARGETS).window(1)
        return ds.map(last if calm else joined).write_jsonl(str(tmp_path / out / "{shard}.jsonl"))

    with ZephyrContext(inline=True, chunk_storage_prefix=str(scratch), policy=WHOLE) as ctx:
        ctx.execute(build("calm", True))
    with ZephyrContext(max_workers=2, chunk_storage_prefix=str(scratch), policy=CUT) as ctx:
        stages: list[Any] = ctx.execute(build("killed", False)).stages
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    assert stages[-1]["targets_cut"]
    assert stages[-1]["dropped"] >= len(list(marks.iterdir())) >= 3
    assert (marks / "join").exists()
    assert not list(scratch.glob("*/*"))


# The coordinator alone


def report_of(spec: TaskSpec) -> TaskReport:
    """A mapper whose second target holds nearly everything; names the attempt in what it made."""
    parts = [Part(at, at, 1, 8) for at in (0, 2)]
    parts += [Part(9 + at, 1, 9, 9000, b"%c" % low, b"%c~" % low, (b"%c" % low,)) for at, low in enumerate(b"abcdef")]
    return TaskReport(blocks=(BlockRef(1, 8, data=spec.label.encode()),), runs=(Run(spec.label, tuple(parts)),))


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_pieces_are_accepted_once_and_joined_in_order_under_any_losses(seed: int, workers: int) -> None:
    rng = random.Random(seed)
    ds = Dataset.from_list([1, 2, 3], shards=3).group_by(
        lambda x: x, reducer=lambda k, it: k, num_output_shards=TARGETS
    )
    policy = Policy(skew_min_bytes=1000, skew_pieces=4, max_worker_losses=10**6)
    machine = Coordinator(compute_plan(ds.pipeline), "x", policy)
    names = map(str, itertools.count())
    running: dict[str, TaskSpec] = {}
    accepted: dict[tuple[int, int, int], TaskSpec] = {}
    labels: set[str] = set()
    skewed: list[Skewed] = []
    over: list[Finished] = []

    def apply(steps: list[Any]) -> None:
        for step in steps:
            match step:
                case Assign(worker, spec):
                    assert worker not in running and spec.label not in labels
                    assert (spec.stage, spec.shard, spec.piece) not in accepted
                    labels.add(spec.label)
                    running[worker] = spec
                    if spec.joins:
                        winners = [accepted[1, 1, piece].label.encode() for piece in range(1, skewed[0].pieces + 1)]
                        assert [ref.data for ref in spec.inputs if isinstance(ref, BlockRef)] == winners
                case Accept(spec, _):
                    key = (spec.stage, spec.shard, spec.piece)
                    assert key not in accepted
                    accepted[key] = spec
                case Discard(spec):
                    assert accepted.get((spec.stage, spec.shard, spec.piece)) != spec
                case StageStarted(stage, done):
                    assert (stage, done) in ((0, 0), (1, 0))
                case Skewed():
                    skewed.append(step)
                case Finished():
                    over.append(step)

    apply(machine.start(0.0))
    for _ in range(workers):
        apply(machine.handle(WorkerJoined(next(names)), 0.0))
    now = 0.0
    while not over:
        now += rng.random() * 20
        worker = rng.choice(sorted(running))
        spec = running.pop(worker)
        if rng.random() < 0.4:
            apply(machine.handle(WorkerLost(worker, "gone"), now))
            apply(machine.handle(WorkerJoined(next(names)), now))
        else:
            apply(machine.handle(TaskSucceeded(worker, spec, report_of(spec)), now))
    assert [(found.stage, found.shard) for found in skewed] == [(1, 1)]
    assert 1 < skewed[0].pieces <= 4
    assert len(over[0].reports) == TARGETS
    assert {key for key in accepted if key[0] == 1 and key[2] == 0} == {(1, at, 0) for at in range(TARGETS)}


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.integers(1, 100)), min_size=1), st.integers(1, 9))
def test_cut_points_are_few_distinct_and_leave_no_range_empty(weighted: list[Any], num: int) -> None:
    points = cut_points(weighted, num)
    assert points == sorted(set(points))
    assert len(points) < num
    borders = [b"", *points, b"\xff" * 3]
    assert all(any(low <= code < high for code, _ in weighted) for low, high in itertools.pairwise(borders))


@pytest.mark.parametrize("limits", [{"skew_factor": 0.5}, {"skew_min_bytes": 0}, {"skew_pieces": 0}])
def test_limits_out_of_range_are_refused(limits: dict[str, Any]) -> None:
    [(name, value)] = limits.items()
    with pytest.raises(DatasetError, match=f"{name}={value}; expected"):
        Policy(**limits)
