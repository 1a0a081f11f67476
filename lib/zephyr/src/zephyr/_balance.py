"""Cutting a shuffle target that is much larger than its siblings, so that it is not one worker's long tail. Pure.

The index of a shuffle says how many bytes each target holds, and samples where in the order of keys they lie. A target
beyond the policy's limits becomes *pieces*: ranges of key codes that several workers reduce side by side into blocks.
The last attempt of the shard reads these blocks in order, and runs the rest of the chain over them, so everything that
depends on the whole shard, such as its output file, is made once and as if the target had never been cut.

A border is a prefix of some key's code. No code is a prefix of another, so the rows of one key are always on one side
of it, whatever their secondary order: a single key is never cut, and a target that is one key stays whole.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from zephyr._events import Policy
from zephyr._inputs import TaskInputs
from zephyr._shuffle.format import Part, Run, RunSlice
from zephyr._task import TaskReport
from zephyr.physical import HashScatter, Plan, RangeScatter, ShuffleInput, Stage


@dataclass(frozen=True)
class Division:
    """A target that is beyond the limits.

    Args:
        size_bytes: Bytes of the target.
        median_bytes: Bytes of the median target.
        largest_bytes: Bytes of its largest piece, from samples; of the target, if it stays whole.
        pieces: What each piece reads; empty if the target is one key, or nearly.
    """

    size_bytes: int
    median_bytes: int
    largest_bytes: int
    pieces: tuple[TaskInputs, ...]


def cut_points(weighted: Sequence[tuple[bytes, float]], num: int) -> list[bytes]:
    """Codes that cut the weights into at most `num` ranges of about equal weight.

    Args:
        weighted: Codes with what each stands for, in any order.
        num: Most ranges.
    Returns:
        Ascending, distinct, fewer than `num`; none is the lowest code, so no range is empty.
    Example:
        >>> cut_points([(b"a", 1), (b"b", 1), (b"c", 1), (b"d", 1)], 2)
        [b'c']
        >>> cut_points([(b"a", 9), (b"a", 9)], 2)
        []
    """
    total = sum(weight for _, weight in weighted)
    points: list[bytes] = []
    passed, bucket = 0.0, 0
    for code, group in itertools.groupby(sorted(weighted), key=lambda pair: pair[0]):
        now = int(passed * num / total + 1e-9)
        if now > bucket:
            points.append(code)
            bucket = now
        passed += sum(weight for _, weight in group)
    return points[: num - 1]


def divide_targets(
    plan: Plan, stage: Stage, inputs: Sequence[TaskInputs], reports: Sequence[Sequence[TaskReport]], policy: Policy
) -> dict[int, Division]:
    """The targets of a stage that are beyond the limits of the policy, by shard.

    Args:
        plan: The plan.
        stage: The stage about to start.
        inputs: What its tasks read.
        reports: Accepted reports of earlier stages.
        policy: `skew_factor`, `skew_min_bytes`, `skew_pieces`.
    """
    out: dict[int, Division] = {}
    first = 0
    for branch in stage.branches:
        num = branch.input.num_shards
        if isinstance(branch.input, ShuffleInput) and num > 1 and policy.skew_pieces > 1:
            output = plan.stages[branch.input.stage].output
            if isinstance(output, HashScatter | RangeScatter):
                runs = {run.path: run for report in reports[branch.input.stage] for run in report.runs}
                for at, division in _divide(runs, inputs[first : first + num], policy).items():
                    out[first + at] = division
        first += num
    return out


def _divide(runs: dict[str, Run], inputs: Sequence[TaskInputs], policy: Policy) -> dict[int, Division]:
    slices = [[piece for piece in pieces if isinstance(piece, RunSlice)] for pieces in inputs]
    sizes = [sum(piece.size_bytes for piece in pieces) for pieces in slices]
    # Of two targets the smaller is what the larger must be compared with.
    median = statistics.median_low(sizes)
    limit = max(policy.skew_factor * median, policy.skew_min_bytes)
    return {at: _division(runs, slices[at], size, median, policy) for at, size in enumerate(sizes) if size > limit}


def _division(runs: dict[str, Run], slices: Sequence[RunSlice], size: int, median: int, policy: Policy) -> Division:
    low, high = slices[0].low, slices[0].high
    parts = {piece.path: _parts(runs[piece.path], piece) for piece in slices}
    weighted = [
        (code, part.size_bytes / len(part.sample))
        for listed in parts.values()
        for part in listed
        for code in part.sample
        if (low is None or code >= low) and (high is None or code < high)
    ]
    share = max(median, policy.skew_min_bytes // policy.skew_pieces, 1)
    points = cut_points(weighted, min(policy.skew_pieces, -(-size // share))) if weighted else []
    borders = [low, *points, high]
    largest = _largest(weighted, points, size)
    # The work of a cut is not worth a tail that stays as long as it was.
    if not points or largest > _TOO_LARGE * size:
        return Division(size, median, size, ())
    pieces = tuple(
        tuple(_narrowed(piece, parts[piece.path], start, end) for piece in slices)
        for start, end in itertools.pairwise(borders)
    )
    return Division(size, median, largest, pieces)


_TOO_LARGE = 0.9


def _largest(weighted: Sequence[tuple[bytes, float]], points: Sequence[bytes], size: int) -> int:
    total = sum(weight for _, weight in weighted)
    held = [0.0] * (len(points) + 1)
    at = 0
    for code, weight in sorted(weighted):
        while at < len(points) and code >= points[at]:
            at += 1
        held[at] += weight
    return int(max(held) / total * size) if total else size


def _parts(run: Run, piece: RunSlice) -> list[Part]:
    wanted = set(piece.batches)
    return [part for part in run.parts if part.batch in wanted]


def _narrowed(piece: RunSlice, parts: Sequence[Part], low: bytes | None, high: bytes | None) -> RunSlice:
    """The batches that reach into [low, high). A run without any stays: its schema is part of what the target is."""
    # Ends are cut to as many bytes as borders, or longer; parts too small to be worth them have none.
    kept = [
        part
        for part in parts
        if (low is None or not part.last or part.last >= low) and (high is None or part.first < high)
    ]
    return RunSlice(piece.path, tuple(part.batch for part in kept), sum(part.size_bytes for part in kept), low, high)
