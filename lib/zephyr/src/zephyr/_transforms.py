"""What each row operation does to a stream of blocks; a fused chain is these generators, one inside the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephyr._blocks import Block, batches_of, chunked, iterate, num_rows, rows_of
from zephyr._chain import ChainContext
from zephyr._eval import batch_mask
from zephyr._files import staged_path
from zephyr._jsonl import row_mask
from zephyr._ops import (
    Filter,
    FlatMap,
    Load,
    Map,
    MapBatches,
    MapShard,
    ReadSource,
    Sample,
    Select,
    TakePerShard,
    Window,
    WindowBy,
)
from zephyr._quarantine import SKIPPED
from zephyr._shuffle.aggregate import partial_blocks
from zephyr.dataset import ShardInfo
from zephyr.errors import RecordTypeError
from zephyr.expr import Expr
from zephyr.physical import CountShard, FoldShard, PartialAggregate, PhysicalOp, SumShard, WriteShard
from zephyr.readers import read_file
from zephyr.writers import ROW_GROUP_BYTES, write_file


def run_chain(ops: Iterable[PhysicalOp], blocks: Iterable[Block], context: ChainContext) -> Iterable[Block]:
    """Wrap a stream of blocks in the operations of a chain; nothing runs until the result is consumed."""
    for op in ops:
        blocks = _TRANSFORMS[type(op)](op, blocks, context)
    return blocks


def head_length(ops: Sequence[PhysicalOp], *, quarantined: bool) -> int:
    """How many operations of a chain pieces run: the reducer, and what looks at one item at a time behind it.

    Args:
        ops: A chain behind a shuffle.
        quarantined: Whether failing records are put aside; then calls are counted per shard and stay together.
    Example:
        >>> from zephyr.physical import KeepFirst
        >>> head_length([KeepFirst(), Map(abs), Select(("a",))], quarantined=False)
        3
    """
    length = 1
    while not quarantined and length < len(ops) and isinstance(ops[length], Map | FlatMap | Filter | Select):
        length += 1
    return length


type Transform = Callable[[Any, Iterable[Block], ChainContext], Iterable[Block]]


def _load(op: Load, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    for path in iterate(blocks):
        yield from read_file(path, op, limit_bytes=context.record_limit_bytes, trace=context.trace)


def _read_source(op: ReadSource, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    for shard in iterate(blocks):
        for block in op.source.read(shard):
            if not isinstance(block, list | pa.RecordBatch):
                text = f"{repr(block)[:80]} (a list or a record batch is needed)"
                raise RecordTypeError("a source's read", type(block).__name__, text)
            if num_rows(block):
                yield block


def _map(op: Map, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    fn = op.fn
    if context.guard is None:
        for block in blocks:
            yield [fn(item) for item in rows_of(block)]
        return
    site = context.guard.site("map", fn, context.trace)
    for block in blocks:
        made = [site.call(item, at) for at, item in enumerate(rows_of(block))]
        context.trace.keep([value is not SKIPPED for value in made])
        yield [value for value in made if value is not SKIPPED]


def _flat_map(op: FlatMap, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    fn = op.fn
    if context.guard is None:
        for block in blocks:
            yield from chunked(out for item in rows_of(block) for out in fn(item))
        return
    # The elements are drawn inside the guarded call: a generator raises when it is read, not when it is made.
    site = context.guard.site("flat_map", lambda item: list(fn(item)), context.trace)
    for block in blocks:
        made = [site.call(item, at) for at, item in enumerate(rows_of(block))]
        context.trace.positions = None
        yield from chunked(out for values in made if values is not SKIPPED for out in values)


def _filter(op: Filter, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    predicate = op.predicate
    ask: Callable[[Any, int], Any] | None = None
    if not isinstance(predicate, Expr):
        ask = lambda item, at: predicate(item)  # noqa: E731
        if context.guard is not None:
            ask = context.guard.site("filter", predicate, context.trace).call
    for block in blocks:
        if ask is not None:
            # Rows exist for the callable only; what it keeps is cut out of the columns.
            answers = (ask(item, at) for at, item in enumerate(rows_of(block)))
            mask = [answer is not SKIPPED and bool(answer) for answer in answers]
        else:
            mask = block_mask(block, predicate)
        out = take_mask(block, mask)
        context.trace.keep(mask)
        if num_rows(out):
            yield out


def block_mask(block: Block, predicate: Any) -> Any:
    """Which items of a block an expression keeps."""
    return row_mask(_records(block, "filter"), predicate) if isinstance(block, list) else batch_mask(block, predicate)


def take_mask(block: Block, mask: Any) -> Block:
    """The items of a block whose mask is true."""
    if isinstance(block, list):
        return [item for item, keep in zip(block, mask, strict=True) if keep]
    return block.filter(mask if isinstance(mask, pa.Array) else pa.array(mask, pa.bool_()))


def _records(items: list[Any], operation: str) -> list[Any]:
    for item in items:
        if not isinstance(item, dict):
            raise RecordTypeError(operation, type(item).__name__, repr(item)[:80])
    return items


def _select(op: Select, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    for block in blocks:
        if isinstance(block, list):
            yield [{name: row[name] for name in op.columns if name in row} for row in _records(block, "select")]
        else:
            yield block.select([name for name in op.columns if name in block.schema.names])


def _map_shard(op: MapShard, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    for block in chunked(op.fn(iterate(blocks), ShardInfo(context.shard, context.total))):
        context.trace.positions = None
        yield block


def _map_batches(op: MapBatches, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    for batch in batches_of(blocks, operation="map_batches"):
        out = op.fn(batch)
        for part in (out,) if isinstance(out, pa.RecordBatch | pa.Table) else out:
            pieces = part.to_batches() if isinstance(part, pa.Table) else (part,)
            for piece in pieces:
                if not isinstance(piece, pa.RecordBatch):
                    raise RecordTypeError(
                        "map_batches", type(piece).__name__, f"{repr(piece)[:80]} (a batch is needed)"
                    )
                if piece.num_rows:
                    context.trace.positions = None
                    yield piece


def _window(op: Window, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    for window in chunked(iterate(blocks), op.size):
        context.trace.positions = None
        yield [window]


def _window_by(op: WindowBy, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    window: list[Any] = []
    state = op.initial_state
    for item in iterate(blocks):
        keep, state = op.folder(state, item)
        if not keep and window:
            context.trace.positions = None
            yield [window]
            window = []
            _, state = op.folder(op.initial_state, item)
        window.append(item)
    if window:
        yield [window]


def _slice(block: Block, start: int, length: int) -> Block:
    return block[start : start + length] if isinstance(block, list) else block.slice(start, length)


def _take(op: TakePerShard, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    left = op.limit
    if left == 0:
        return
    for block in blocks:
        size = num_rows(block)
        yield block if size <= left else _slice(block, 0, left)
        left -= min(size, left)
        if left == 0:
            return


def _sample(op: Sample, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    # Draws depend on seed, shard and position alone, however the shard is cut into blocks.
    generator = np.random.Generator(np.random.Philox(key=[op.seed & (2**64 - 1), context.shard]))
    for block in blocks:
        mask = generator.random(num_rows(block)) < op.fraction
        out = take_mask(block, mask.tolist() if isinstance(block, list) else pa.array(mask))
        context.trace.keep(mask.tolist())
        if num_rows(out):
            yield out


def _fold(op: FoldShard, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    items = iterate(blocks)
    for first in items:
        yield [op.fn(_chain_first(first, items))]
        return


def _chain_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _aggregate(op: PartialAggregate, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    yield from partial_blocks(blocks, op.keys, op.outputs, budget_bytes=context.memory_bytes)


def _count(op: CountShard, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    yield [sum(num_rows(block) for block in blocks)]


def _sum(op: SumShard, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    yield [sum(iterate(blocks))]


def _write(op: WriteShard, blocks: Iterable[Block], context: ChainContext) -> Iterator[Block]:
    target = op.paths[context.shard]
    staged = staged_path(target, context.execution, context.attempt)
    group_bytes = max(1 << 20, min(ROW_GROUP_BYTES, context.memory_bytes // 16))
    context.written[target] = write_file(
        blocks, kind=op.format, staged=staged, target=target, schema=op.schema, group_bytes=group_bytes
    )
    yield [target]


_TRANSFORMS: dict[type, Transform] = {
    Load: _load,
    ReadSource: _read_source,
    Map: _map,
    FlatMap: _flat_map,
    Filter: _filter,
    Select: _select,
    MapShard: _map_shard,
    MapBatches: _map_batches,
    Window: _window,
    WindowBy: _window_by,
    TakePerShard: _take,
    Sample: _sample,
    FoldShard: _fold,
    PartialAggregate: _aggregate,
    CountShard: _count,
    SumShard: _sum,
    WriteShard: _write,
}
