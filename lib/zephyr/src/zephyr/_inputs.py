"""What each task of a stage reads, from what the tasks of earlier stages reported. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from zephyr._shuffle.format import Run, RunSlice
from zephyr._task import SIDES_BORDER, BlockRef, TaskReport
from zephyr.physical import BlocksInput, PairInput, Plan, RangeScatter, ShuffleInput, SourceInput, Stage

type TaskInputs = tuple[BlockRef | RunSlice, ...]


def stage_inputs(plan: Plan, stage: Stage, reports: Sequence[Sequence[TaskReport]]) -> list[TaskInputs]:
    """Inputs of every task of `stage`.

    Args:
        plan: The plan.
        stage: The stage about to start.
        reports: Accepted reports of earlier stages, by stage and shard.
    """
    out: list[TaskInputs] = []
    for branch in stage.branches:
        match branch.input:
            case SourceInput(shards):
                out.extend(() for _ in shards)
            case BlocksInput(source, num_shards):
                refs = [ref for report in reports[source] for ref in report.blocks]
                out.extend(tuple(refs[at::num_shards]) for at in range(num_shards))
            case PairInput(source, num_shards):
                left, right = reports[source][:num_shards], reports[source][num_shards:]
                out.extend((*a.blocks, SIDES_BORDER, *b.blocks) for a, b in zip(left, right, strict=True))
            case ShuffleInput(source, num_shards):
                runs = [run for report in reports[source] for run in report.runs]
                if isinstance(plan.stages[source].output, RangeScatter):
                    out.extend(range_slices(runs, num_shards))
                else:
                    out.extend(target_slices(runs, num_shards))
    return out


def target_slices(runs: Sequence[Run], num_targets: int) -> list[TaskInputs]:
    """Batches of each run by target; runs without rows for a target are left out."""
    out: list[list[RunSlice]] = [[] for _ in range(num_targets)]
    for run in runs:
        batches: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for part in run.parts:
            batches.setdefault(part.target, []).append(part.batch)
            sizes[part.target] = sizes.get(part.target, 0) + part.size_bytes
        for target, indices in batches.items():
            out[target].append(RunSlice(run.path, tuple(indices), sizes[target]))
    return [tuple(pieces) for pieces in out]


def split_points(runs: Sequence[Run], num_ranges: int) -> list[bytes]:
    """Order codes that cut all rows into ranges of about equal size, from the runs' samples.

    Returns:
        At most `num_ranges - 1` codes, ascending and distinct.
    """
    weighted = []
    for run in runs:
        rows = sum(part.num_rows for part in run.parts)
        weighted.extend((code, rows / len(run.sample)) for code in run.sample)
    weighted.sort()
    total = sum(weight for _, weight in weighted)
    points: list[bytes] = []
    passed = 0.0
    for code, weight in weighted:
        wanted = total * (len(points) + 1) / num_ranges
        if len(points) < num_ranges - 1 and passed >= wanted and (not points or code > points[-1]):
            points.append(code)
        passed += weight
    return points


def range_slices(runs: Sequence[Run], num_ranges: int) -> list[TaskInputs]:
    """Batches of each run by key range; a batch across a border is read by both and cut by both."""
    points = split_points(runs, num_ranges)
    lows: list[bytes | None] = [None, *points]
    highs: list[bytes | None] = [*points, None]
    out: list[TaskInputs] = []
    for low, high in zip(lows, highs, strict=True):
        pieces = []
        for run in runs:
            parts = [p for p in run.parts if (low is None or p.last >= low) and (high is None or p.first < high)]
            if parts:
                piece = RunSlice(run.path, tuple(p.batch for p in parts), sum(p.size_bytes for p in parts))
                pieces.append(replace(piece, low=low, high=high))
        out.append(tuple(pieces))
    out.extend(() for _ in range(num_ranges - len(out)))
    return out
