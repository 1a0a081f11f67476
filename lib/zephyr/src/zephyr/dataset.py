"""A lazy, sharded data set: a description of work that `ZephyrContext.execute` carries out.

A Dataset is immutable; each method returns a new one with one operation more. Items are Python values; items that are
dicts with string keys are *records* and travel as Arrow record batches. Every shard is processed independently until
an exchange (`group_by`, `deduplicate`, `sort_by`, `join`, `reshard`, `reduce`, `count`, `take`) moves items.

Shapes below read "input shards -> output shards". N is the number of shards before the operation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from zephyr._dataset_files import FileOperations
from zephyr._ops import (
    Aggregate,
    AggregateFunction,
    Count,
    CustomSource,
    Deduplicate,
    FileSource,
    Filter,
    FlatMap,
    GroupBy,
    Join,
    Key,
    ListSource,
    LogicalOp,
    Map,
    MapBatches,
    MapShard,
    MergeJoin,
    Pipeline,
    Reduce,
    Reshard,
    Sample,
    Select,
    SortBy,
    Take,
    TakePerShard,
    UnionSource,
    Window,
    WindowBy,
)
from zephyr.errors import DatasetError
from zephyr.expr import Expr

if TYPE_CHECKING:
    import pyarrow as pa

    from zephyr.connectors import Source

DEFAULT_LIST_SHARDS = 64
"""Most shards that `from_list` makes unless told otherwise."""


@dataclass(frozen=True)
class ShardInfo:
    """Which shard a `map_shard` function is running on."""

    shard_idx: int
    total_shards: int


@dataclass(frozen=True)
class Dataset(FileOperations):
    """Lazy, immutable description of a sharded computation.

    Example:
        >>> from zephyr import Dataset, ZephyrContext
        >>> ds = Dataset.from_list([1, 2, 3]).map(lambda x: x * 10).filter(lambda x: x > 10)
        >>> ZephyrContext(inline=True).execute(ds).results
        [20, 30]
    """

    pipeline: Pipeline

    def _then(self, op: LogicalOp) -> "Dataset":
        return Dataset(Pipeline(self.pipeline.source, (*self.pipeline.ops, op)))

    def _sized(self, shard_bytes: int) -> "Dataset":
        source = self.pipeline.source
        if self.pipeline.ops or not isinstance(source, FileSource):
            raise DatasetError(
                f"cannot size shards: approx_shard_bytes={shard_bytes} behind something else; expected from_files "
                "right before. from_files takes a list of paths too."
            )
        if source.shard_bytes not in (None, shard_bytes):
            raise DatasetError(
                f"cannot size shards: approx_shard_bytes={shard_bytes} and shard_bytes={source.shard_bytes}; expected "
                "one of them, or equal ones. Leave one out."
            )
        return Dataset(Pipeline(replace(source, shard_bytes=_target_bytes(shard_bytes))))

    # Sources

    @staticmethod
    def from_list(items: Sequence[Any], *, shards: int | None = None) -> "Dataset":
        """Items held in memory, cut into contiguous shards of nearly equal length.

        Args:
            items: Any picklable values.
            shards: Number of shards; default one per item, at most `DEFAULT_LIST_SHARDS`.
        Raises:
            DatasetError: `shards` is below one.
        Example:
            >>> Dataset.from_list(range(5)).pipeline.source.num_shards
            5
        """
        held = tuple(items)
        if shards is not None and shards < 1:
            raise DatasetError(
                f"cannot make a data set: shards={shards}; expected at least 1. Leave it out for a default."
            )
        return Dataset(Pipeline(ListSource(held, min(len(held), shards or DEFAULT_LIST_SHARDS))))

    @staticmethod
    def from_iterable(items: Iterable[Any], *, shards: int | None = None) -> "Dataset":
        """Like `from_list` for any iterable, which is read at once."""
        return Dataset.from_list(tuple(items), shards=shards)

    @staticmethod
    def from_files(
        pattern: str | Sequence[str],
        glob_pattern: str | None = None,
        *,
        empty_glob_ok: bool = False,
        shard_bytes: int | None = None,
    ) -> "Dataset":
        """Paths of files; one shard per file, sorted by path. Files are listed when the plan is made.

        Args:
            pattern: Path, fsspec URL or list of them, with `*`, `**`, `?`, `[...]` and `{a,b}`.
            glob_pattern: Joined to `pattern` as a folder, when given.
            empty_glob_ok: Allow a pattern that matches nothing.
            shard_bytes: Aim for shards of this many bytes of files: consecutive small files go together, and a large
                one is cut into parts where the reader that follows can start in the middle (Parquet between row
                groups; JSON lines and text that are not compressed).
        Raises:
            DatasetError: no pattern at all, or `shard_bytes` below one.
        """
        patterns = (pattern,) if isinstance(pattern, str) else tuple(pattern)
        if not patterns:
            raise DatasetError(
                "cannot make a data set: pattern=[]; expected at least one pattern. Name the input files."
            )
        if glob_pattern is not None:
            patterns = tuple(f"{p.rstrip('/')}/{glob_pattern}" for p in patterns)
        return Dataset(Pipeline(FileSource(patterns, empty_glob_ok, _target_bytes(shard_bytes))))

    @staticmethod
    def from_source(source: "Source") -> "Dataset":
        """Items of a source of your own, one shard for each that it names; see `zephyr.connectors.Source`."""
        return Dataset(Pipeline(CustomSource(source)))

    @staticmethod
    def union(*parts: "Dataset") -> "Dataset":
        """The shards of all parts, in order: N1 + N2 + ... shards."""
        if not parts:
            raise DatasetError("cannot make a union: parts=(); expected at least one data set. Pass some.")
        return Dataset(Pipeline(UnionSource(tuple(part.pipeline for part in parts))))

    # Row operations: N -> N shards, fused into one pass

    def map(self, fn: Callable[[Any], Any]) -> "Dataset":
        """item -> fn(item)."""
        return self._then(Map(fn))

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> "Dataset":
        """item -> every element of fn(item)."""
        return self._then(FlatMap(fn))

    def filter(self, predicate: Callable[[Any], Any] | Expr) -> "Dataset":
        """Keep items for which a callable, or a column expression, is true."""
        return self._then(Filter(predicate))

    def select(self, *columns: str) -> "Dataset":
        """Keep these columns of records, in this order; missing ones are left out."""
        return self._then(Select(columns))

    def map_shard(self, fn: Callable[[Iterator[Any], ShardInfo], Iterable[Any]]) -> "Dataset":
        """fn(iterator over the shard's items, ShardInfo) -> items of the output shard."""
        return self._then(MapShard(fn))

    def map_batches(self, fn: "Callable[[pa.RecordBatch], pa.RecordBatch | Iterable[pa.RecordBatch]]") -> "Dataset":
        """Arrow record batch -> record batch (or several); rows never become Python objects."""
        return self._then(MapBatches(fn))

    def window(self, size: int) -> "Dataset":
        """items -> lists of `size` items, never across shards; the last list of a shard may be shorter."""
        if size < 1:
            raise DatasetError(f"cannot make windows: size={size}; expected at least 1. Pass the items per window.")
        return self._then(Window(size))

    def batch(self, size: int) -> "Dataset":
        """The same as `window`."""
        return self.window(size)

    def window_by(self, folder: Callable[[Any, Any], tuple[bool, Any]], initial_state: Any = None) -> "Dataset":
        """items -> lists; `folder(state, item) -> (keep, state)` closes the window when keep is false.

        The item that closed a window is folded again from `initial_state` and starts the next one, whatever the answer.
        """
        return self._then(WindowBy(folder, initial_state))

    def take_per_shard(self, limit: int) -> "Dataset":
        """The first `limit` items of every shard; reading stops there."""
        return self._then(TakePerShard(_limit(limit)))

    def sample(self, fraction: float, *, seed: int = 0) -> "Dataset":
        """Keep about `fraction` of the items, the same ones on every run with equal input and seed."""
        if not 0.0 <= fraction <= 1.0:
            raise DatasetError(f"cannot sample: fraction={fraction}; expected 0 to 1. Pass a share, not a count.")
        return self._then(Sample(fraction, seed))

    # Exchanges

    def reshard(self, num_shards: int | None, mode: Literal["blocks", "rows"] = "blocks") -> "Dataset":
        """N -> num_shards shards.

        Args:
            num_shards: Number of output shards; None changes nothing.
            mode: "blocks" deals whole blocks (cheap; one small shard stays whole), "rows" deals single items (even).
        """
        if num_shards is None:
            return self
        if num_shards < 1:
            raise DatasetError(f"cannot reshard: num_shards={num_shards}; expected at least 1. Pass a positive number.")
        if mode not in ("blocks", "rows"):
            raise DatasetError(f"cannot reshard: mode={mode!r}; expected 'blocks' or 'rows'. Pick one.")
        return self._then(Reshard(num_shards, mode))

    def group_by(
        self,
        key: Key,
        *,
        reducer: Callable[[Any, Iterator[Any]], Any],
        sort_by: Key | None = None,
        num_output_shards: int | None = None,
        combiner: Callable[[Any, Iterator[Any]], Iterable[Any]] | None = None,
    ) -> "Dataset":
        """Reduce all items of one key together: N -> num_output_shards shards, each in key order.

        Args:
            key: Callable, expression or column name; see `KeyTypeError` for the types a key may have.
            reducer: `reducer(key, items)` returns one item (None counts), or an iterator whose elements are items.
            sort_by: Order of the items within a group; ties, and groups without it, keep (shard, position) order.
            num_output_shards: Exact number of output shards; default N.
            combiner: `combiner(key, items)` -> fewer items of the same kind, run before the shuffle; associative.
        """
        return self._then(GroupBy(key, reducer, sort_by, _shards(num_output_shards), combiner))

    def deduplicate(self, key: Key, num_output_shards: int | None = None) -> "Dataset":
        """Keep the first item of each key by (shard, position), always the same one: N -> num_output_shards shards."""
        return self._then(Deduplicate(key, _shards(num_output_shards)))

    def aggregate(
        self,
        key: str | Sequence[str],
        *,
        num_output_shards: int | None = None,
        **outputs: tuple[str | None, AggregateFunction],
    ) -> "Dataset":
        """One record per key with aggregates of columns, computed in columns: N -> num_output_shards shards, key order.

        Schema in: records with the key and input columns (a missing one is null). Schema out: the key columns, then
        one column for each of `outputs`. Nulls do not count, add, or compare, as in SQL; null is a key of its own.

        Args:
            key: Column name or names.
            num_output_shards: Exact number of output shards; default N.
            outputs: `name=(column, function)`; functions are count, sum, min, max and mean. `(None, "count")` counts
                records.
        Raises:
            DatasetError: no key, no output, an unknown function, or a name that is a key too.
            SchemaConflictError: (at run time) a sum or mean over what is no number.
        Example:
            >>> from zephyr import Dataset, ZephyrContext
            >>> rows = [{"k": "a", "n": 1}, {"k": "b", "n": 5}, {"k": "a", "n": 2}]
            >>> ds = Dataset.from_list(rows, shards=1).aggregate("k", rows=(None, "count"), most=("n", "max"))
            >>> ZephyrContext(inline=True).execute(ds).results
            [{'k': 'a', 'rows': 2, 'most': 2}, {'k': 'b', 'rows': 1, 'most': 5}]
        """
        keys = (key,) if isinstance(key, str) else tuple(key)
        wanted = tuple((name, column, function) for name, (column, function) in outputs.items())
        for name, column, function in wanted:
            if function not in ("count", "sum", "min", "max", "mean") or (column is None and function != "count"):
                raise DatasetError(
                    f"cannot aggregate: {name}=({column!r}, {function!r}); expected a column and one of count, sum, "
                    "min, max, mean. Only a count may have None for a column."
                )
        if not keys or not wanted or set(keys) & set(outputs):
            raise DatasetError(
                f"cannot aggregate: key={keys}, outputs={list(outputs)}; expected at least one of each and no name in "
                "both. Rename the output."
            )
        return self._then(Aggregate(keys, wanted, _shards(num_output_shards)))

    def distinct(self, num_output_shards: int | None = None) -> "Dataset":
        """Each item once, the first by (shard, position); records are equal when all their fields are.

        Items must be keys themselves (see `KeyTypeError`), or records of such.

        Example:
            >>> from zephyr import Dataset, ZephyrContext
            >>> ZephyrContext(inline=True).execute(Dataset.from_list([3, 1, 3], shards=1).distinct()).results
            [1, 3]
        """
        return self._then(Deduplicate(_whole_item, _shards(num_output_shards)))

    def sort_by(self, key: Key, *, reverse: bool = False, num_output_shards: int | None = None) -> "Dataset":
        """Stable global sort: the output shards one after another are in key order."""
        return self._then(SortBy(key, reverse, _shards(num_output_shards)))

    def sort(self, key: Key, *, reverse: bool = False, num_output_shards: int | None = None) -> "Dataset":
        """The same as `sort_by`."""
        return self.sort_by(key, reverse=reverse, num_output_shards=num_output_shards)

    def reduce(
        self, local: Callable[[Iterator[Any]], Any], global_: Callable[[Iterator[Any]], Any] | None = None
    ) -> "Dataset":
        """Fold each non-empty shard with `local`, then the results with `global_` (default `local`): N -> 1 shard.

        No items at all give no result.
        """
        return self._then(Reduce(local, global_ or local))

    def count(self) -> "Dataset":
        """The number of items, as the one item of one shard."""
        return self._then(Count())

    def take(self, limit: int) -> "Dataset":
        """The first `limit` items in shard order: N -> 1 shard."""
        return self._then(Take(_limit(limit)))

    def join(
        self,
        right: "Dataset",
        left_key: Key,
        right_key: Key | None = None,
        *,
        combiner: Callable[[Any, Any], Any] | None = None,
        how: Literal["inner", "left", "right", "outer"] = "inner",
        num_output_shards: int | None = None,
    ) -> "Dataset":
        """Pair the items of equal keys of two data sets (cross product within a key): N, M -> num_output_shards shards.

        Args:
            combiner: `combiner(left, right)` -> item, None for a missing side; default merges two dicts.
            how: Which unmatched items stay.
        Raises:
            DatasetError: unknown `how`, or an outer join without a combiner.
        """
        _join_kind(how, combiner)
        keys = (left_key, left_key if right_key is None else right_key)
        return self._then(Join(right.pipeline, *keys, combiner, how, _shards(num_output_shards)))

    def sorted_merge_join(
        self,
        right: "Dataset",
        left_key: Key,
        right_key: Key | None = None,
        *,
        combiner: Callable[[Any, Any], Any] | None = None,
        how: Literal["inner", "left", "right", "outer"] = "inner",
    ) -> "Dataset":
        """Pair the items of equal keys of two data sets that are sorted and partitioned alike: N, N -> N shards.

        Shard i of one side meets shard i of the other; nothing is shuffled. Outputs of `group_by`, `deduplicate` and
        `join` with equal keys and equal `num_output_shards` are such sides.

        Args:
            combiner: `combiner(left, right)` -> item, None for a missing side; default merges two dicts.
            how: Which unmatched items stay.
        Raises:
            DatasetError: unknown `how`, or an outer join without a combiner.
            PlanError: (at planning) the numbers of shards differ.
            KeyOrderError: (at run time) a side is not sorted.
        Example:
            >>> from zephyr import Dataset, ZephyrContext
            >>> names = Dataset.from_list([{"k": 1, "n": "a"}, {"k": 3, "n": "c"}], shards=1)
            >>> sizes = Dataset.from_list([{"k": 1, "s": 10}, {"k": 2, "s": 20}], shards=1)
            >>> ZephyrContext(inline=True).execute(names.sorted_merge_join(sizes, "k")).results
            [{'k': 1, 'n': 'a', 's': 10}]
        """
        _join_kind(how, combiner)
        keys = (left_key, left_key if right_key is None else right_key)
        return self._then(MergeJoin(right.pipeline, *keys, combiner, how))


def _whole_item(item: Any) -> Any:
    """A record as a key: its fields by name, nested ones too; null and absent fields are the same."""
    if isinstance(item, dict):
        return tuple((name, _whole_item(item[name])) for name in sorted(item) if item[name] is not None)
    return tuple(map(_whole_item, item)) if isinstance(item, list | tuple) else item


def _join_kind(how: str, combiner: object) -> None:
    if how not in ("inner", "left", "right", "outer"):
        raise DatasetError(f"cannot join: how={how!r}; expected inner, left, right or outer. Pick one.")
    if how != "inner" and combiner is None:
        raise DatasetError(
            f"cannot join: how={how!r} meets missing sides and combiner=None; expected a combiner that takes None. "
            "Pass combiner=lambda left, right: ..."
        )


def _target_bytes(num: int | None) -> int | None:
    if num is not None and num < 1:
        raise DatasetError(f"cannot size shards: bytes={num}; expected at least 1. Pass the bytes of a shard.")
    return num


def _limit(limit: int) -> int:
    if limit < 0:
        raise DatasetError(f"cannot take items: limit={limit}; expected 0 or more. Pass a count.")
    return limit


def _shards(num: int | None) -> int | None:
    if num is not None and num < 1:
        raise DatasetError(f"cannot shuffle: num_output_shards={num}; expected at least 1. Leave it out for a default.")
    return num
