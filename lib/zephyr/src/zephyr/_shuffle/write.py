"""The mapper's half of a shuffle: key the items, buffer them, and write sorted runs.

Buffered bytes are counted; past the flush limit the buffer is sorted, reduced where the operation allows it early
(first of each key, or the user's combiner), and written as one run. What a flush holds depends on the data and on
the configured limit only, never on the process's memory, so attempts of one task write equal runs.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from zephyr._arrow import pc
from zephyr._blocks import Block, num_rows, rows_of
from zephyr._eval import evaluate_batch
from zephyr._files import output_error
from zephyr._keys import decode_key, encode_key, encode_keys, invert_keys
from zephyr._ops import Key
from zephyr._schema import conform, unify_all
from zephyr._shuffle.format import (
    BATCH_BYTES,
    ITEM,
    KEY,
    ORDER,
    ROW,
    SIDE,
    WRITE_OPTIONS,
    Part,
    Run,
    dump_item,
    order_column,
    struct_of,
)
from zephyr._trace import Trace
from zephyr.errors import ExprError, RecordTooLargeError
from zephyr.expr import Column, Expr
from zephyr.physical import HashScatter, KeySpec, Output, RangeScatter, RowScatter

_SAMPLES_PER_RUN = 256
_COMBINE_ITEMS = 1 << 17
_SAMPLED_BYTES = 1 << 10
_SAMPLES_PER_PART = 8
_BYTES_PER_SAMPLE = 64 << 10
_PREFIX = 64


def key_values(block: Block, key: Key) -> list[Any]:
    """The key of every item of a block, as Python values."""
    if callable(key) and not isinstance(key, Expr):
        return [key(item) for item in rows_of(block)]
    if isinstance(key, tuple):
        return list(zip(*(key_values(block, name) for name in key), strict=True))
    expr = Column(key) if isinstance(key, str) else key
    if isinstance(block, pa.RecordBatch):
        return evaluate_batch(expr, block).to_pylist()
    return [expr.evaluate(item) for item in _records(block, expr)]


def _records(items: list[Any], expr: Expr) -> list[Any]:
    for item in items:
        if not hasattr(item, "get"):
            raise ExprError(repr(expr), f"the item is no record but {type(item).__name__}: {repr(item)[:80]}")
    return items


def key_codes(block: Block, key: Key) -> pa.Array:
    """The code of every item's key; columnar where the block and the key are."""
    if isinstance(block, pa.RecordBatch) and isinstance(key, tuple):
        # As `encode_key` has it for a tuple: a tag, the codes one after another, and an end.
        codes = [key_codes(block, name) for name in key]
        ends = pa.scalar(b"\x40", pa.binary()), pa.scalar(b"\0", pa.binary()), pa.scalar(b"", pa.binary())
        return pc.binary_join_element_wise(ends[0], *codes, ends[1], ends[2])
    if isinstance(block, pa.RecordBatch) and isinstance(key, Expr | str):
        return encode_keys(evaluate_batch(Column(key) if isinstance(key, str) else key, block))
    return pa.array([encode_key(value) for value in key_values(block, key)], pa.binary())


def _join_codes(keys: pa.Array, sorts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(keys, sorts, pa.scalar(b"", pa.binary()))


def hash_targets(codes: pa.Array, num_targets: int) -> np.ndarray:
    """Target of each key code."""
    if num_targets == 1:
        return np.zeros(len(codes), np.int64)
    digest = xxhash.xxh3_64_intdigest
    hashes = np.fromiter(map(digest, codes.to_pylist()), np.uint64, len(codes))
    return (hashes % np.uint64(num_targets)).astype(np.int64)


class ShuffleWriter:
    """Writes the runs of one attempt.

    Args:
        folder: Folder of this attempt; nobody else writes there.
        output: What kind of shuffle.
        shard: Number of the task, which spreads row-wise dealing.
        flush_bytes: Buffered bytes that make a run.
        limit_bytes: Most bytes of one item.
        trace: Where the present items came from, for messages.
    """

    def __init__(
        self, folder: str, output: Output, *, shard: int, flush_bytes: int, limit_bytes: int, trace: Trace
    ) -> None:
        self.limit_bytes = limit_bytes
        self.trace = trace
        self.folder = folder
        self.output = output
        self.shard = shard
        self.flush_bytes = flush_bytes
        self.runs: list[Run] = []
        self.buffer: list[pa.RecordBatch] = []
        self.buffered = 0
        self.position = 0
        self.seen = 0
        self.groups: dict[Any, list[Any]] = {}
        self.grouped = 0
        self.sort_by: Key | None = None
        self.side: int | None = None

    def write(self, blocks: Iterable[Block], key: KeySpec | None) -> tuple[Run, ...]:
        """Consume a stream of blocks and return the runs."""
        combiner = self.output.combiner if isinstance(self.output, HashScatter) else None
        if key is not None:
            self.sort_by, self.side = key.sort_by, key.side
        for block in blocks:
            if key is None:
                self._add(self._keyed(block, pa.array([b""] * num_rows(block), pa.binary()), None))
            elif combiner is not None:
                self._group(block, key.key, combiner)
            else:
                sorts = None if key.sort_by is None else key_codes(block, key.sort_by)
                self._add(self._keyed(block, key_codes(block, key.key), sorts))
        if combiner is not None:
            self._combine(combiner)
            self._spill_groups()
        self._flush()
        return tuple(self.runs)

    def _keyed(self, block: Block, keys: pa.Array, sorts: pa.Array | None) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {KEY: keys}
        if isinstance(self.output, RangeScatter) and self.output.reverse:
            columns[ORDER] = invert_keys(keys)
        if sorts is not None:
            columns[ORDER] = _join_codes(keys, sorts)
        if self.side is not None:
            columns[SIDE] = pa.array(np.full(len(keys), self.side, np.int8))
            block = rows_of(block)
        if isinstance(block, pa.RecordBatch):
            columns[ROW] = struct_of(block)
        else:
            items = list(map(dump_item, block))
            largest = max(map(len, items), default=0)
            if largest > self.limit_bytes:
                where = self.trace.describe() or f"items of shard {self.shard}"
                raise RecordTooLargeError(where, self.seen + 1, largest, self.limit_bytes)
            columns[ITEM] = pa.array(items, pa.binary())
        self.seen += len(keys)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _add(self, batch: pa.RecordBatch) -> None:
        # One run holds one kind of payload; a change from columns to items starts another.
        if self.buffer and (ROW in self.buffer[0].schema.names) != (ROW in batch.schema.names):
            self._flush()
        self.buffer.append(batch)
        self.buffered += batch.nbytes
        if self.buffered >= self.flush_bytes:
            self._flush()

    # Combining: items of one key are held together and folded whenever there are many

    def _group(self, block: Block, key: Key, combiner: Callable[[Any, Any], Any]) -> None:
        items = rows_of(block)
        groups = self.groups
        for value, item in zip(key_values(block, key), items, strict=True):
            # Only strings are their own dictionary key: 1, 1.0 and True would fall together.
            slot = value if type(value) is str else encode_key(value)
            held = groups.get(slot)
            if held is None:
                groups[slot] = [item]
            else:
                held.append(item)
        self.grouped += len(items)
        most = self._most_grouped(items)
        if self.grouped >= most:
            self._combine(combiner)
            if self.grouped >= most // 2:
                self._spill_groups()

    def _most_grouped(self, items: list[Any]) -> int:
        """How many items may be held in groups: few when they are large, judged by some of the newest."""
        some = items[:: max(1, len(items) // 4)][:4]
        mean = max((len(dump_item(item)) for item in some), default=1)
        return max(2, min(_COMBINE_ITEMS, self.flush_bytes // max(1, mean)))

    def _combine(self, combiner: Callable[[Any, Any], Any]) -> None:
        for slot, items in self.groups.items():
            if len(items) > 1:
                self.groups[slot] = list(combiner(slot if type(slot) is str else decode_key(slot), iter(items)))
        self.grouped = sum(map(len, self.groups.values()))

    def _spill_groups(self) -> None:
        codes, items = [], []
        for slot, held in self.groups.items():
            codes.extend([encode_key(slot) if type(slot) is str else slot] * len(held))
            items.extend(held)
        self.groups, self.grouped = {}, 0
        if items:
            sorts = None if self.sort_by is None else key_codes(items, self.sort_by)
            self._add(self._keyed(items, pa.array(codes, pa.binary()), sorts))

    # Flushing

    def _targets(self, keys: pa.Array) -> np.ndarray:
        match self.output:
            case HashScatter(num_targets):
                return hash_targets(keys, num_targets)
            case RowScatter(num_targets):
                first = self.shard + self.position
                self.position += len(keys)
                return np.arange(first, first + len(keys)) % num_targets
        return np.zeros(len(keys), np.int64)

    def _flush(self) -> None:
        if not self.buffer:
            return
        schema = unify_all(batch.schema for batch in self.buffer)
        buffer, self.buffer, self.buffered = self.buffer, [], 0
        batch = joined(buffer, schema)
        # What is held twice here is held twice in every worker: the pieces go before the run is written.
        del buffer
        indices, bounds = self._arrange(batch)
        path = f"{self.folder}/run-{len(self.runs):04d}.arrow"
        try:
            os.makedirs(self.folder, exist_ok=True)
            self.runs.append(self._write_run(path, batch, indices, bounds))
        except OSError as error:
            raise output_error(path, error) from error

    def _arrange(self, batch: pa.RecordBatch) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
        """Row numbers in (target, order) order, and (target, start, end) of each target in them."""
        keys, orders = batch.column(KEY), order_column(batch)
        targets = self._targets(keys)
        by_target = np.argsort(targets, kind="stable")
        counts = np.bincount(targets, minlength=1)
        pieces: list[np.ndarray] = []
        bounds: list[tuple[int, int, int]] = []
        start = done = 0
        for target, count in enumerate(counts.tolist()):
            if not count:
                continue
            rows = by_target[start : start + count]
            start += count
            if not isinstance(self.output, RowScatter):
                rows = rows[pc.array_sort_indices(orders.take(pa.array(rows))).to_numpy()]
            if isinstance(self.output, HashScatter) and self.output.keep_first:
                rows = rows[first_of_each(keys.take(pa.array(rows)))]
            pieces.append(rows)
            bounds.append((target, done, done + len(rows)))
            done += len(rows)
        return np.concatenate(pieces), bounds

    def _extent(self, piece: pa.RecordBatch, *, alone: bool) -> tuple[tuple[bytes, bytes], tuple[bytes, ...]]:
        """Ends and sample of a batch, as far as somebody may need them: the index lies in the driver's memory."""
        if isinstance(self.output, RangeScatter):
            orders = order_column(piece)
            return (orders[0].as_py(), orders[-1].as_py()), code_sample(orders, piece.nbytes)
        if isinstance(self.output, RowScatter) or piece.nbytes < _SAMPLED_BYTES:
            return (b"", b""), ()
        keys = piece.column(KEY)
        # The only batch of a target in this run reaches over all its keys anyway.
        ends = (b"", b"") if alone else (keys[0].as_py()[:_PREFIX], keys[-1].as_py()[:_PREFIX])
        return ends, code_sample(keys, piece.nbytes)

    def _write_run(
        self, path: str, batch: pa.RecordBatch, indices: np.ndarray, bounds: list[tuple[int, int, int]]
    ) -> Run:
        ranged = isinstance(self.output, RangeScatter)
        step = max(1, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
        parts: list[Part] = []
        sample: list[bytes] = []
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema, options=WRITE_OPTIONS) as writer:
            for target, start, end in bounds:
                for at in range(start, end, step):
                    piece = batch.take(pa.array(indices[at : min(at + step, end)]))
                    writer.write_batch(piece)
                    ends, inside = self._extent(piece, alone=end - start <= step)
                    parts.append(Part(len(parts), target, piece.num_rows, piece.nbytes, *ends, inside))
        if ranged:
            picks = np.unique(np.linspace(0, len(indices) - 1, min(len(indices), _SAMPLES_PER_RUN)).astype(np.int64))
            sample = order_column(batch).take(pa.array(indices[picks])).to_pylist()
        return Run(path, tuple(parts), tuple(sample))


def code_sample(codes: pa.Array, size_bytes: int) -> tuple[bytes, ...]:
    """Some codes from inside a sorted batch, more of a larger one, cut to a prefix so that the index stays small."""
    num = min(len(codes), _SAMPLES_PER_PART, 1 + size_bytes // _BYTES_PER_SAMPLE)
    picks = [(2 * at + 1) * len(codes) // (2 * num) for at in range(num)]
    return tuple(code[:_PREFIX] for code in codes.take(pa.array(picks, pa.int64())).to_pylist())


def joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of all rows."""
    if len(batches) == 1 and batches[0].schema.equals(schema):
        return batches[0]
    table = pa.Table.from_batches([conform(batch, schema) for batch in batches], schema=schema)
    return table.combine_chunks().to_batches()[0]


def first_of_each(keys: pa.Array) -> np.ndarray:
    """Mask of the rows whose key differs from the row before; `keys` are sorted."""
    mask = np.ones(len(keys), bool)
    if len(keys) > 1:
        mask[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return mask
