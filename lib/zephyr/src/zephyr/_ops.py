"""The vocabulary of a pipeline: what a Dataset records and a plan carries. Plain frozen data, no behaviour.

A `Pipeline` is a source and the operations after it. Row operations keep the shards as they are and are fused into
one pass over each shard. Exchange operations move items between shards and end a stage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zephyr.expr import Expr

if TYPE_CHECKING:
    import pyarrow as pa

    from zephyr.connectors import Sink, Source

type Key = Callable[[Any], Any] | Expr | str | tuple[str, ...]
"""How to get a key from an item: a callable, a column expression, a column name, or several column names."""

type AggregateFunction = Literal["count", "sum", "min", "max", "mean"]

type Aggregation = tuple[str, str | None, AggregateFunction]
"""Output column, input column (None counts records), and function."""

type PathPattern = str | Callable[[int, int], str]
"""Output path per shard: a pattern with {shard}, {total}, {basename}, or callable(shard, total)."""

BadLinePolicy = Literal["fail", "skip"]


# Sources


@dataclass(frozen=True)
class ListSource:
    """Items held in memory, cut into contiguous shards."""

    items: tuple[Any, ...]
    num_shards: int


@dataclass(frozen=True)
class FileSource:
    """Files found by patterns when the plan is made; each item is a path."""

    patterns: tuple[str, ...]
    empty_glob_ok: bool = False
    shard_bytes: int | None = None


@dataclass(frozen=True)
class CustomSource:
    """Shards that a user's source names when the plan is made."""

    source: "Source"


@dataclass(frozen=True)
class UnionSource:
    """The shards of several pipelines, one after another."""

    parts: tuple["Pipeline", ...]


type PipelineSource = ListSource | FileSource | CustomSource | UnionSource


# Row operations


@dataclass(frozen=True)
class Load:
    """Read the files whose paths are the items; `predicate` and `columns` are what pushdown moved into the reader.

    `path_column` is the column, behind all others, that says which file a record is from; no predicate looks at it.
    """

    format: Literal["auto", "jsonl", "parquet", "text", "csv", "webdataset", "vortex"]
    columns: tuple[str, ...] | None = None
    predicate: Expr | None = None
    on_bad_line: BadLinePolicy = "fail"
    as_rows: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    path_column: str | None = None


@dataclass(frozen=True)
class ReadSource:
    """Read the shards of a user's source, which are the items."""

    source: "Source"


@dataclass(frozen=True)
class Map:
    """item -> fn(item)."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True)
class FlatMap:
    """item -> every element of fn(item)."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True)
class Filter:
    """Keep items for which the callable or expression is true."""

    predicate: Callable[[Any], Any] | Expr


@dataclass(frozen=True)
class Select:
    """Keep these columns, in this order; missing ones are left out."""

    columns: tuple[str, ...]


@dataclass(frozen=True)
class MapShard:
    """(iterator of items, ShardInfo) -> iterator of items."""

    fn: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class MapBatches:
    """Arrow record batch -> record batch, or an iterable of them."""

    fn: "Callable[[pa.RecordBatch], Any]"


@dataclass(frozen=True)
class Window:
    """items -> lists of `size` items; the last of a shard may be shorter."""

    size: int


@dataclass(frozen=True)
class WindowBy:
    """items -> lists that `folder(state, item) -> (keep, state)` closes."""

    folder: Callable[[Any, Any], tuple[bool, Any]]
    initial_state: Any


@dataclass(frozen=True)
class TakePerShard:
    """The first `limit` items of each shard."""

    limit: int


@dataclass(frozen=True)
class Sample:
    """Keep each item with a probability, decided by a seeded hash of (shard, position)."""

    fraction: float
    seed: int


@dataclass(frozen=True)
class Write:
    """Write the items of a shard to one file; the item afterwards is its path."""

    format: "Literal['jsonl', 'parquet', 'vortex', 'binary'] | Sink"
    pattern: PathPattern
    schema: "pa.Schema | None" = None
    skip_existing: bool = False


type RowOp = (
    Load
    | ReadSource
    | Map
    | FlatMap
    | Filter
    | Select
    | MapShard
    | MapBatches
    | Window
    | WindowBy
    | TakePerShard
    | Sample
    | Write
)


# Exchange operations


@dataclass(frozen=True)
class Reshard:
    """Spread the items over `num_shards` shards, block-wise or row by row."""

    num_shards: int
    mode: Literal["blocks", "rows"]


@dataclass(frozen=True)
class GroupBy:
    """Bring items of one key together and reduce each group."""

    key: Key
    reducer: Callable[[Any, Any], Any]
    sort_by: Key | None = None
    num_output_shards: int | None = None
    combiner: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class Deduplicate:
    """Keep the first item of each key, by shard and then position."""

    key: Key
    num_output_shards: int | None = None


@dataclass(frozen=True)
class Aggregate:
    """One record per key with aggregates of columns."""

    keys: tuple[str, ...]
    outputs: tuple[Aggregation, ...]
    num_output_shards: int | None = None


@dataclass(frozen=True)
class Reduce:
    """Fold every shard, then fold the results."""

    local: Callable[[Any], Any]
    global_: Callable[[Any], Any]


@dataclass(frozen=True)
class Count:
    """Number of items."""


@dataclass(frozen=True)
class Take:
    """The first `limit` items of the whole data set, in shard order."""

    limit: int


@dataclass(frozen=True)
class SortBy:
    """Global stable sort into key ranges, one range per output shard."""

    key: Key
    reverse: bool = False
    num_output_shards: int | None = None


@dataclass(frozen=True)
class Join:
    """Bring equal keys of two pipelines together; combiner sees each pair, None for a missing side."""

    right: "Pipeline"
    left_key: Key
    right_key: Key
    combiner: Callable[[Any, Any], Any] | None
    how: Literal["inner", "left", "right", "outer"]
    num_output_shards: int | None = None


@dataclass(frozen=True)
class MergeJoin:
    """Pair equal keys of two pipelines whose shards correspond and are sorted; nothing is shuffled."""

    right: "Pipeline"
    left_key: Key
    right_key: Key
    combiner: Callable[[Any, Any], Any] | None
    how: Literal["inner", "left", "right", "outer"]


type ExchangeOp = Reshard | GroupBy | Deduplicate | Aggregate | Reduce | Count | Take | SortBy | Join | MergeJoin
type LogicalOp = RowOp | ExchangeOp


@dataclass(frozen=True)
class Pipeline:
    """A source and the operations after it."""

    source: PipelineSource
    ops: tuple[LogicalOp, ...] = ()
