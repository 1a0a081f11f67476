"""From a lazy pipeline to stages of independent tasks. Pure: the plan is data, and planning reads no file contents.

A *stage* is a set of tasks, one per shard, that need nothing from each other. A stage has *branches* (a union or a
join has several), each with its own input and its own fused chain of row operations; its output is either collected
blocks or a shuffle by key, range or position. Exchange operations end a stage; row operations never do.

Two rewrites happen on the chain behind a reader. *Pushdown*: column expressions and projections that follow it
directly move into the reader, until a Python callable, which may look at anything, stops them. *Row reading*: when
the next operation is a Python callable anyway, JSON lines become dicts at once, without a detour through Arrow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from zephyr._explain import describe, explain, stage_name
from zephyr._ops import (
    Aggregate,
    Count,
    CustomSource,
    Deduplicate,
    ExchangeOp,
    FileSource,
    Filter,
    FlatMap,
    GroupBy,
    Join,
    ListSource,
    Load,
    LogicalOp,
    Map,
    MapShard,
    MergeJoin,
    Pipeline,
    PipelineSource,
    ReadSource,
    Reduce,
    Reshard,
    Select,
    SortBy,
    Take,
    TakePerShard,
    UnionSource,
    Window,
    WindowBy,
    Write,
)
from zephyr._paths import FileEntry, FileSpan, format_shard_path, is_remote, path_of, resolve_glob
from zephyr.errors import DuplicateOutputError, PlanError
from zephyr.expr import Expr
from zephyr.physical import (
    BlocksInput,
    Branch,
    Collect,
    CountShard,
    DropKeys,
    FoldShard,
    HashScatter,
    JoinGroups,
    KeepFirst,
    KeySpec,
    MergeAggregates,
    MergeSides,
    Output,
    PairInput,
    PartialAggregate,
    PhysicalOp,
    Plan,
    RangeScatter,
    ReduceGroups,
    RowScatter,
    ShuffleInput,
    SourceInput,
    Stage,
    SumShard,
    WriteShard,
)

if TYPE_CHECKING:
    pass


# Planning

Lister = Callable[[Sequence[str], bool], list[FileEntry]]


def _list_files(patterns: Sequence[str], empty_glob_ok: bool) -> list[FileEntry]:
    return resolve_glob(patterns, empty_glob_ok=empty_glob_ok)


def compute_plan(pipeline: Pipeline, *, list_files: Lister = _list_files) -> Plan:
    """Plan a pipeline.

    Args:
        pipeline: What a `Dataset` holds.
        list_files: Lists the files of patterns; the only contact with the outside.
    Raises:
        PlanError: output paths cannot be formed.
        DuplicateOutputError: two shards would write one path.
        NoInputFilesError: a pattern matched nothing.
    Example:
        >>> from zephyr import Dataset
        >>> plan = compute_plan(Dataset.from_list([3, 1]).map(abs).filter(bool).count().pipeline)
        >>> [stage.name for stage in plan.stages]
        ['map → filter → count', 'sum']
    """
    planner = _Planner(list_files)
    branches = planner.branches(pipeline)
    planner.end_stage(branches, Collect())
    return Plan(tuple(planner.stages))


class _Planner:
    def __init__(self, list_files: Lister) -> None:
        self.list_files = list_files
        self.stages: list[Stage] = []

    def branches(self, pipeline: Pipeline) -> list[Branch]:
        """Open branches at the end of a pipeline, after the stages before them."""
        loads = bool(pipeline.ops) and isinstance(pipeline.ops[0], Load)
        branches = self._source(pipeline.source, pipeline.ops[0] if loads else None)
        for op in pipeline.ops:
            branches = self._apply(branches, op)
        return branches

    def end_stage(self, branches: Sequence[Branch], output: Output) -> int:
        """Close the branches into a stage; returns its number."""
        index = len(self.stages)
        done = tuple(replace(branch, ops=optimize(branch.ops)) for branch in branches)
        name = stage_name(done, output)
        self.stages.append(Stage(index, name, done, output))
        return index

    def _source(self, source: PipelineSource, first: LogicalOp | None) -> list[Branch]:
        match source:
            case ListSource(items, num_shards):
                bounds = [len(items) * i // num_shards for i in range(num_shards + 1)] if num_shards else [0]
                shards = tuple(items[a:b] for a, b in pairwise(bounds))
                return [Branch(SourceInput(shards))]
            case FileSource(patterns, empty_glob_ok, shard_bytes):
                entries = self.list_files(patterns, empty_glob_ok)
                load = first if isinstance(first, Load) else None
                return [Branch(SourceInput(tuple(cut_files(entries, shard_bytes, load))))]
            case CustomSource(custom):
                return [Branch(SourceInput(tuple((shard,) for shard in custom.shards())), (ReadSource(custom),))]
            case UnionSource(parts):
                return [branch for part in parts for branch in self.branches(part)]
        raise PlanError(
            f"cannot plan a source: source={source!r}; expected a list, files or a union. Use Dataset's methods."
        )

    def _apply(self, branches: list[Branch], op: LogicalOp) -> list[Branch]:
        match op:
            case Write():
                return self._write(branches, op)
            case (
                Reshard()
                | GroupBy()
                | Deduplicate()
                | Aggregate()
                | Reduce()
                | Count()
                | Take()
                | SortBy()
                | Join()
                | MergeJoin()
            ):
                return self._exchange(branches, op)
        return _append(branches, op)

    def _write(self, branches: list[Branch], op: Write) -> list[Branch]:
        sources: list[tuple[Any, ...]] = []
        for branch in branches:
            known = branch.input.shards if isinstance(branch.input, SourceInput) else ((),) * branch.input.num_shards
            sources.extend(known)
        total = len(sources)
        paths = tuple(format_shard_path(op.pattern, i, total, source_items=items) for i, items in enumerate(sources))
        owners: dict[str, int] = {}
        for shard, path in enumerate(paths):
            if path in owners:
                raise DuplicateOutputError(path, (owners[path], shard))
            owners[path] = shard
        for items in sources:
            for item in items:
                if path_of(item) in owners:
                    raise PlanError(
                        f"cannot plan the write: path={path_of(item)!r} is also an input of this pipeline; expected "
                        "outputs apart from inputs, or a retry would read its own output. Write to another folder."
                    )
        return _append(branches, WriteShard(op.format, paths, op.schema, op.skip_existing))

    def _exchange(self, branches: list[Branch], op: ExchangeOp) -> list[Branch]:
        num = sum(branch.input.num_shards for branch in branches)
        match op:
            case Reshard(num_shards, mode):
                return self._reshard(branches, num_shards, mode)
            case GroupBy(key, reducer, sort_by, targets, combiner):
                scatter = HashScatter(targets or max(num, 1), combiner)
                return self._shuffle(branches, KeySpec(key, sort_by), scatter, ReduceGroups(reducer))
            case Deduplicate(key, targets):
                scatter = HashScatter(targets or max(num, 1), keep_first=True)
                return self._shuffle(branches, KeySpec(key), scatter, KeepFirst())
            case SortBy(key, reverse, targets):
                scatter = RangeScatter(targets or max(num, 1), reverse)
                return self._shuffle(branches, KeySpec(key), scatter, DropKeys())
            case Aggregate(keys, outputs, targets):
                key = keys[0] if len(keys) == 1 else keys
                partial = _append(branches, PartialAggregate(keys, outputs))
                return self._shuffle(
                    partial, KeySpec(key), HashScatter(targets or max(num, 1)), MergeAggregates(keys, outputs)
                )
            case Reduce(local, global_):
                return _append(self._gather(_append(branches, FoldShard(local)), num), FoldShard(global_))
            case Count():
                return _append(self._gather(_append(branches, CountShard()), num), SumShard())
            case Take(limit):
                return _append(self._gather(_append(branches, TakePerShard(limit)), num), TakePerShard(limit))
            case Join():
                return self._join(branches, op, num)
            case MergeJoin():
                return self._merge_join(branches, op, num)
        raise PlanError(f"cannot plan an operation: op={op!r}; expected one of Dataset's methods. Use those.")

    def _gather(self, branches: list[Branch], num: int) -> list[Branch]:
        return branches if num == 1 else [Branch(BlocksInput(self.end_stage(branches, Collect()), 1))]

    def _reshard(self, branches: list[Branch], num_shards: int, mode: str) -> list[Branch]:
        inputs = [branch.input for branch in branches]
        if not any(branch.ops for branch in branches) and all(isinstance(i, SourceInput) for i in inputs):
            items = tuple(x for i in inputs if isinstance(i, SourceInput) for shard in i.shards for x in shard)
            bounds = [len(items) * i // num_shards for i in range(num_shards + 1)]
            return [Branch(SourceInput(tuple(items[a:b] for a, b in pairwise(bounds))))]
        if mode == "blocks":
            return [Branch(BlocksInput(self.end_stage(branches, Collect()), num_shards))]
        stage = self.end_stage(branches, RowScatter(num_shards))
        return [Branch(ShuffleInput(stage, num_shards), (DropKeys(),))]

    def _shuffle(
        self, branches: list[Branch], key: KeySpec, output: HashScatter | RangeScatter, reader: PhysicalOp
    ) -> list[Branch]:
        stage = self.end_stage([replace(branch, key=key) for branch in branches], output)
        return [Branch(ShuffleInput(stage, output.num_targets), (reader,))]

    def _join(self, branches: list[Branch], op: Join, num: int) -> list[Branch]:
        right = self.branches(op.right)
        targets = op.num_output_shards or max(num, sum(b.input.num_shards for b in right), 1)
        sides = [replace(b, key=KeySpec(op.left_key, side=0)) for b in branches]
        sides += [replace(b, key=KeySpec(op.right_key, side=1)) for b in right]
        stage = self.end_stage(sides, HashScatter(targets))
        return [Branch(ShuffleInput(stage, targets), (JoinGroups(op.combiner, op.how),))]

    def _merge_join(self, branches: list[Branch], op: MergeJoin, num: int) -> list[Branch]:
        right = self.branches(op.right)
        other = sum(branch.input.num_shards for branch in right)
        if num != other:
            raise PlanError(
                f"cannot merge shard by shard: left shards={num}, right shards={other}; expected equal numbers of "
                "shards that hold the same keys. Use join(), or give both sides the same num_output_shards."
            )
        stage = self.end_stage([*branches, *right], Collect())
        return [Branch(PairInput(stage, num), (MergeSides(op.left_key, op.right_key, op.combiner, op.how),))]


def _append(branches: Sequence[Branch], op: PhysicalOp) -> list[Branch]:
    return [replace(branch, ops=(*branch.ops, op)) for branch in branches]


_SPLITTABLE = {"jsonl": (".jsonl", ".json", ".ndjson"), "text": (".txt", ".text"), "parquet": (".parquet",)}


def cut_files(
    entries: Sequence[FileEntry], shard_bytes: int | None, load: Load | None = None
) -> Iterator[tuple[str | FileSpan, ...]]:
    """Shards of files: one each, or about `shard_bytes` each.

    Args:
        entries: Files with their sizes.
        shard_bytes: Consecutive files go together while their sizes stay within it; a larger file is cut into equal
            parts where its reader can start in the middle (Parquet, and lines that are not compressed).
        load: The reader that follows; without it files are not cut.
    Example:
        >>> entries = [FileEntry("a.jsonl", 30), FileEntry("b.jsonl", 4), FileEntry("c.jsonl", 5)]
        >>> list(cut_files(entries, 10, None))
        [('a.jsonl',), ('b.jsonl', 'c.jsonl')]
        >>> [(s.path, s.start, s.end) for [s] in list(cut_files(entries, 15, Load("jsonl")))[:2]]
        [('a.jsonl', 0, 15), ('a.jsonl', 15, 30)]
    """
    group: list[str | FileSpan] = []
    size = 0
    for entry in entries:
        if group and (shard_bytes is None or size + entry.size_bytes > shard_bytes):
            yield tuple(group)
            group, size = [], 0
        if shard_bytes is not None and entry.size_bytes > shard_bytes and load is not None and _can_cut(entry, load):
            parts = -(-entry.size_bytes // shard_bytes)
            yield from ((FileSpan(entry.path, part, parts, entry.size_bytes),) for part in range(parts))
            continue
        group.append(entry.path)
        size += entry.size_bytes
    if group:
        yield tuple(group)


def _can_cut(entry: FileEntry, load: Load) -> bool:
    suffixes = [s for kind, known in _SPLITTABLE.items() if load.format in ("auto", kind) for s in known]
    packed = entry.path.endswith((".gz", ".zst", ".zstd")) or is_remote(entry.path)
    return not packed and (load.format in _SPLITTABLE or entry.path.endswith(tuple(suffixes)))


# Rewrites on one chain


def optimize(ops: tuple[PhysicalOp, ...]) -> tuple[PhysicalOp, ...]:
    """Move expressions and projections into a leading reader, and let it make rows if rows are what comes next."""
    if not ops or not isinstance(ops[0], Load):
        return ops
    load, rest = ops[0], list(ops[1:])
    while rest and (moved := _absorb(load, rest[0])) is not None:
        load = moved
        rest.pop(0)
    if rest and _needs_rows(rest[0]):
        load = replace(load, as_rows=True)
    return (load, *rest)


def _absorb(load: Load, op: PhysicalOp) -> Load | None:
    if isinstance(op, Filter) and isinstance(op.predicate, Expr):
        if load.path_column in op.predicate.columns():
            return None
        if load.columns is not None and not op.predicate.columns() <= set(load.columns):
            return None
        return replace(load, predicate=op.predicate if load.predicate is None else load.predicate & op.predicate)
    if isinstance(op, Select):
        wanted, path = op.columns, load.path_column
        if path in wanted[:-1]:
            return None  # the reader puts the path last
        path, wanted = (path, wanted[:-1]) if path in wanted else (None, wanted)
        kept = wanted if load.columns is None else tuple(c for c in wanted if c in load.columns)
        return replace(load, columns=kept, path_column=path)
    return None


def _needs_rows(op: PhysicalOp) -> bool:
    if isinstance(op, Filter):
        return not isinstance(op.predicate, Expr)
    return isinstance(op, Map | FlatMap | MapShard | Window | WindowBy | FoldShard)


__all__ = ["compute_plan", "cut_files", "describe", "explain", "optimize"]
