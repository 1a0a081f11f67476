"""The vocabulary of plans: stages, branches, inputs, outputs, and the operations that only a plan has. Plain data."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zephyr._ops import Aggregation, Key, RowOp

if TYPE_CHECKING:
    import pyarrow as pa

    from zephyr.connectors import Sink


@dataclass(frozen=True)
class SourceInput:
    """Shards of source items that the plan itself carries."""

    shards: tuple[tuple[Any, ...], ...]

    @property
    def num_shards(self) -> int:
        """Number of tasks that read this input."""
        return len(self.shards)


@dataclass(frozen=True)
class BlocksInput:
    """Blocks that an earlier stage collected, gathered in order or dealt in turn."""

    stage: int
    num_shards: int


@dataclass(frozen=True)
class ShuffleInput:
    """Sorted runs that an earlier stage scattered; task i reads target i."""

    stage: int
    num_shards: int


@dataclass(frozen=True)
class PairInput:
    """Task i reads what task i of the first half of an earlier stage collected, then task i of the second half."""

    stage: int
    num_shards: int


type Input = SourceInput | BlocksInput | PairInput | ShuffleInput


@dataclass(frozen=True)
class FoldShard:
    """All items of a shard -> fn(iterator); an empty shard gives nothing."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True)
class CountShard:
    """All items of a shard -> their number."""


@dataclass(frozen=True)
class SumShard:
    """All numbers of a shard -> their sum; 0 for an empty one."""


@dataclass(frozen=True)
class WriteShard:
    """Write shard i to paths[i]; the item afterwards is the path."""

    format: "Literal['jsonl', 'parquet', 'vortex', 'binary'] | Sink"
    paths: tuple[str, ...]
    schema: "pa.Schema | None"
    skip_existing: bool


@dataclass(frozen=True)
class ReduceGroups:
    """Groups of equal keys -> reducer(key, items)."""

    reducer: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class KeepFirst:
    """Groups of equal keys -> their first item, columns staying columns."""


@dataclass(frozen=True)
class PartialAggregate:
    """Records -> partial aggregates by key."""

    keys: tuple[str, ...]
    outputs: tuple[Aggregation, ...]


@dataclass(frozen=True)
class MergeAggregates:
    """Sorted partial aggregates -> one record per key."""

    keys: tuple[str, ...]
    outputs: tuple[Aggregation, ...]


@dataclass(frozen=True)
class JoinGroups:
    """Groups of equal keys, left side before right -> pairs."""

    combiner: Callable[[Any, Any], Any] | None
    how: str


@dataclass(frozen=True)
class MergeSides:
    """Blocks of two collected sides, each sorted by its key -> pairs of equal keys."""

    left_key: Key
    right_key: Key
    combiner: Callable[[Any, Any], Any] | None
    how: str


@dataclass(frozen=True)
class DropKeys:
    """Shuffled items without their keys, in shuffle order."""


type PhysicalOp = (
    RowOp
    | FoldShard
    | CountShard
    | SumShard
    | WriteShard
    | ReduceGroups
    | KeepFirst
    | PartialAggregate
    | MergeAggregates
    | JoinGroups
    | MergeSides
    | DropKeys
)


@dataclass(frozen=True)
class KeySpec:
    """How a branch keys its items; `side` orders the branches of a join within a key."""

    key: Key
    sort_by: Key | None = None
    side: int | None = None


@dataclass(frozen=True)
class Branch:
    """Part of a stage: an input, a fused chain, and the key of a scatter."""

    input: Input
    ops: tuple[PhysicalOp, ...] = ()
    key: KeySpec | None = None


@dataclass(frozen=True)
class Collect:
    """Keep the items of each task as blocks."""


@dataclass(frozen=True)
class HashScatter:
    """Send each item to the target that its key hashes to."""

    num_targets: int
    combiner: Callable[[Any, Any], Any] | None = None
    keep_first: bool = False


@dataclass(frozen=True)
class RangeScatter:
    """Sort, and let targets be ranges of keys that are chosen from a sample after the stage."""

    num_targets: int
    reverse: bool = False


@dataclass(frozen=True)
class RowScatter:
    """Deal single items to the targets in turn."""

    num_targets: int


type Output = Collect | HashScatter | RangeScatter | RowScatter


@dataclass(frozen=True)
class Stage:
    """Tasks that can run side by side."""

    index: int
    name: str
    branches: tuple[Branch, ...]
    output: Output

    @property
    def label(self) -> str:
        """`stage<number>-<operations>` in characters that a file name may have."""
        return re.sub(r"[^A-Za-z0-9_.]+", "-", f"stage{self.index}-{self.name}").strip("-")

    @property
    def num_tasks(self) -> int:
        """One task per shard of every branch."""
        return sum(branch.input.num_shards for branch in self.branches)

    def locate(self, shard: int) -> tuple[Branch, int]:
        """Branch of a task and the task's number within it."""
        for branch in self.branches:
            if shard < branch.input.num_shards:
                return branch, shard
            shard -= branch.input.num_shards
        raise IndexError(shard)


@dataclass(frozen=True)
class Plan:
    """Stages in the order in which they run; the last one holds the results."""

    stages: tuple[Stage, ...]
