"""The reducer's half of a shuffle: merge sorted runs under a memory budget and walk the groups.

Small targets are read whole and sorted once. Larger ones are merged block by block: of each run one small batch is
held; everything below the smallest last key of these batches is complete, is sorted together and goes out. Equal keys
leave in run order, so the result is the stable sort of the mappers' output, in whatever way it was cut. More runs than
the budget has room for are first merged in consecutive groups into longer runs.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from zephyr._arrow import pc
from zephyr._blocks import Block, chunked
from zephyr._chain import ChainContext
from zephyr._files import output_error, remove_file
from zephyr._keys import decode_key
from zephyr._schema import conform, unify_all
from zephyr._shuffle.aggregate import merge_partials
from zephyr._shuffle.format import (
    BATCH_BYTES,
    ITEM,
    KEY,
    ROW,
    SIDE,
    WRITE_OPTIONS,
    RunSlice,
    batch_of_struct,
    items_of,
    order_column,
    with_items,
)
from zephyr._shuffle.spill import SpilledList
from zephyr._shuffle.write import first_of_each
from zephyr.physical import DropKeys, JoinGroups, KeepFirst, MergeAggregates, PhysicalOp, ReduceGroups

_OUTPUT_ROWS = 65_536


def read_slice(piece: RunSlice, *, keep_empty: bool = False) -> Iterator[pa.RecordBatch]:
    """The batches of a run that belong to one reducer, cut to its range; without rows if `keep_empty`."""
    with pa.OSFile(piece.path, "rb") as file, pa.ipc.open_file(file) as reader:
        for index in piece.batches:
            batch = reader.get_batch(index)
            if piece.low is not None or piece.high is not None:
                orders = order_column(batch)
                start = 0 if piece.low is None else _bisect(orders, piece.low, after=False)
                end = len(orders) if piece.high is None else _bisect(orders, piece.high, after=False)
                batch = batch.slice(start, max(0, end - start))
            if batch.num_rows or keep_empty:
                yield batch


def _bisect(orders: pa.Array, bound: bytes, *, after: bool) -> int:
    low, high = 0, len(orders)
    while low < high:
        middle = (low + high) // 2
        value = orders[middle].as_py()
        if value < bound or (after and value == bound):
            low = middle + 1
        else:
            high = middle
    return low


def merge_slices(pieces: Sequence[RunSlice], *, budget_bytes: int, folder: str) -> Iterator[pa.RecordBatch]:
    """All rows of the slices as one stable sorted stream of keyed batches, all of one schema.

    Args:
        pieces: Slices in source order, which decides between equal keys.
        budget_bytes: Bytes that the merge may hold.
        folder: Folder of this attempt, for runs merged on the way.
    """
    if sum(piece.size_bytes for piece in pieces) <= budget_bytes // 2:
        # Batches without rows stay for their schema: what a reducer sees must not depend on which way was taken.
        yield from _sorted_whole([batch for piece in pieces for batch in read_slice(piece, keep_empty=True)])
        return
    schema = _merged_schema(pieces)
    fan_in = max(2, budget_bytes // 2 // BATCH_BYTES)
    level, passes = list(pieces), 0
    temporary: list[str] = []
    try:
        while len(level) > fan_in:
            merged: list[RunSlice] = []
            for at in range(0, len(level), fan_in):
                path = f"{folder}/merge-{passes:02d}-{at:05d}.arrow"
                temporary.append(path)
                merged.append(_write_merged(level[at : at + fan_in], path))
            for piece in level:
                if piece.path in temporary:
                    remove_file(piece.path)
            level, passes = merged, passes + 1
        for batch in _merge([read_slice(piece) for piece in level]):
            yield conform(batch if ROW in schema.names else with_items(batch), schema)
    finally:
        for path in temporary:
            remove_file(path)


def _write_merged(pieces: Sequence[RunSlice], path: str) -> RunSlice:
    """Merge some runs into one file; batches whose schema is wider than the first's go as items."""
    total = count = 0
    schema = _merged_schema(pieces)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema, options=WRITE_OPTIONS) as writer:
            for batch in _merge([read_slice(piece) for piece in pieces]):
                out = conform(batch if ROW in schema.names else with_items(batch), schema)
                step = max(1, BATCH_BYTES * out.num_rows // max(1, out.nbytes))
                for at in range(0, out.num_rows, step):
                    writer.write_batch(out.slice(at, step))
                    count += 1
                total += out.nbytes
    except OSError as error:
        raise output_error(path, error) from error
    return RunSlice(path, tuple(range(count)), total)


def _merged_schema(pieces: Sequence[RunSlice]) -> pa.Schema:
    schemas = []
    for piece in pieces:
        with pa.OSFile(piece.path, "rb") as file, pa.ipc.open_file(file) as reader:
            schemas.append(reader.schema)
    if len({ROW in schema.names for schema in schemas}) > 1:
        schemas = [_item_schema(schema) for schema in schemas]
    return unify_all(schemas)


def _item_schema(schema: pa.Schema) -> pa.Schema:
    at = schema.get_field_index(ROW)
    return schema if at < 0 else schema.set(at, pa.field(ITEM, pa.binary()))


def _combined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if len({ROW in batch.schema.names for batch in batches}) > 1:
        batches = [with_items(batch) for batch in batches]
    schema = unify_all(batch.schema for batch in batches)
    table = pa.Table.from_batches([conform(batch, schema) for batch in batches], schema=schema)
    return table.combine_chunks().to_batches()[0]


def _sorted_whole(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not any(batch.num_rows for batch in batches):
        return
    batch = _combined(batches)
    del batches
    indices = pc.array_sort_indices(order_column(batch))
    step = max(1, min(_OUTPUT_ROWS, 8 * BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for at in range(0, len(indices), step):
        yield batch.take(indices.slice(at, step))


class _Cursor:
    """The rest of one run: a held batch, and the batches that follow."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch: pa.RecordBatch | None = next(batches, None)

    def last(self) -> bytes:
        assert self.batch is not None
        return order_column(self.batch)[-1].as_py()

    def cut(self, bound: bytes, *, after: bool) -> pa.RecordBatch | None:
        """Take the rows below `bound` (or up to it) off the held batch."""
        if self.batch is None:
            return None
        at = _bisect(order_column(self.batch), bound, after=after)
        head, rest = self.batch.slice(0, at), self.batch.slice(at)
        self.batch = rest if rest.num_rows else next(self._batches, None)
        return head if at else None


def _merge(runs: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    cursors = [_Cursor(run) for run in runs]
    while active := [cursor for cursor in cursors if cursor.batch is not None]:
        if len(active) == 1:
            batch = active[0].batch
            assert batch is not None
            yield batch
            active[0].cut(active[0].last(), after=True)
            continue
        bound = min(cursor.last() for cursor in active)
        heads = [head for cursor in active if (head := cursor.cut(bound, after=False)) is not None]
        if heads:
            yield from _sorted_whole(heads)
            continue
        # Only rows equal to the bound come next: they leave run by run, however many there are.
        for cursor in active:
            while cursor.batch is not None and order_column(cursor.batch)[0].as_py() == bound:
                head = cursor.cut(bound, after=True)
                if head is not None:
                    yield head


def merge_piece(pieces: Sequence[RunSlice], *, budget_bytes: int, folder: str) -> Iterator[pa.RecordBatch]:
    """As `merge_slices`, for a range of a target: every batch has the schema of the whole target.

    A run without rows in the range is a slice without batches, which only its schema matters of.
    """
    schema = _merged_schema(pieces)
    for batch in merge_slices(pieces, budget_bytes=budget_bytes, folder=folder):
        yield conform(batch if ROW in schema.names else with_items(batch), schema)


# What reducers do with the merged stream


def reduce_stream(op: PhysicalOp, keyed: Iterator[pa.RecordBatch], context: ChainContext) -> Iterator[Block]:
    """Run the operation that reads a shuffle."""
    match op:
        case DropKeys():
            for batch in keyed:
                yield _payload(batch)
        case KeepFirst():
            yield from _keep_first(keyed)
        case MergeAggregates(keys, outputs):
            yield from merge_partials(keyed, keys, outputs)
        case ReduceGroups(reducer):
            yield from chunked(_reduce_groups(keyed, reducer))
        case JoinGroups():
            yield from chunked(_join_groups(keyed, op, context))


def _payload(batch: pa.RecordBatch) -> Block:
    if ROW in batch.schema.names:
        return batch_of_struct(batch.column(ROW))
    return items_of(batch)


def _keep_first(keyed: Iterator[pa.RecordBatch]) -> Iterator[Block]:
    previous: bytes | None = None
    for batch in keyed:
        keys = batch.column(KEY)
        mask = first_of_each(keys)
        mask[0] = keys[0].as_py() != previous
        previous = keys[-1].as_py()
        kept = batch if mask.all() else batch.filter(pa.array(mask))
        if kept.num_rows:
            yield _payload(kept)


def _pairs(keyed: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, Any]]:
    for batch in keyed:
        yield from zip(batch.column(KEY).to_pylist(), items_of(batch), strict=True)


def _reduce_groups(keyed: Iterator[pa.RecordBatch], reducer: Any) -> Iterator[Any]:
    for code, pairs in groupby(_pairs(keyed), key=itemgetter(0)):
        out = reducer(decode_key(code), map(itemgetter(1), pairs))
        if isinstance(out, Iterator):
            yield from out
        else:
            yield out


def _join_groups(keyed: Iterator[pa.RecordBatch], op: JoinGroups, context: ChainContext) -> Iterator[Any]:
    def triples() -> Iterator[tuple[bytes, int, Any]]:
        for batch in keyed:
            yield from zip(batch.column(KEY).to_pylist(), batch.column(SIDE).to_pylist(), items_of(batch), strict=True)

    combine = op.combiner or (lambda left, right: {**left, **right})
    for code, group in groupby(triples(), key=itemgetter(0)):
        sides = tuple(SpilledList(f"{context.folder}/group-{at}", context.memory_bytes // 4) for at in (0, 1))
        for _, side, item in group:
            sides[side].append(item)
        left, right = sides
        # As in SQL, null equals nothing, not even null.
        if decode_key(code) is None:
            yield from (combine(item, None) for item in left if op.how in ("left", "outer"))
            yield from (combine(None, item) for item in right if op.how in ("right", "outer"))
        elif left and right:
            yield from (combine(a, b) for a in left for b in right)
        elif op.how in ("left", "outer") and left:
            yield from (combine(item, None) for item in left)
        elif op.how in ("right", "outer") and right:
            yield from (combine(None, item) for item in right)
        left.close()
        right.close()
