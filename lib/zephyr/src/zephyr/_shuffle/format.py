"""What lies between mappers and reducers.

A *run* is one Arrow IPC file, written by one attempt of one task: keyed rows in (target, order) order, cut into small
record batches so that a reducer reads only its own. Columns:

    key    binary    code of the key (see `_keys`)
    order  binary    key code + secondary sort code; absent when it equals `key`
    side   int8      which side of a join; absent elsewhere
    row    struct    a record in columns  - or -  item  binary  a pickled Python item

The index of a run travels in the task's report, never in a file beside it: the driver passes on what an accepted
attempt reported, so a reader cannot meet a loser's file or a half-written index.
"""

import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa

from zephyr._blocks import rows_of

KEY, ORDER, SIDE, ROW, ITEM = "key", "order", "side", "row", "item"

BATCH_BYTES = 1 << 20
"""Aim for the size of one batch inside a run; bounds what a merge holds per run."""

WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class Part:
    """One batch of a run: where it goes, and what it holds.

    Args:
        batch: Number within the run.
        target: Whose batch it is.
        num_rows: Rows.
        size_bytes: Bytes in memory.
        first: Lowest order code for ranges; for hashes the start of the lowest key code, or empty where of no use.
        last: The highest, likewise.
        sample: Starts of codes inside, evenly spaced by rows; what a target that is too large is cut by.
    """

    batch: int
    target: int
    num_rows: int
    size_bytes: int
    first: bytes = b""
    last: bytes = b""
    sample: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Run:
    """One sorted file of an accepted attempt."""

    path: str
    parts: tuple[Part, ...]
    sample: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class RunSlice:
    """What one reducer reads of a run: some batches, and of these the orders in [low, high)."""

    path: str
    batches: tuple[int, ...]
    size_bytes: int
    low: bytes | None = None
    high: bytes | None = None


def dump_item(item: Any) -> bytes:
    """Pickle an item; functions and classes of the main script go by value."""
    try:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(item)


def struct_of(batch: pa.RecordBatch) -> pa.StructArray:
    """A record batch as one struct column, without copying."""
    if batch.num_columns == 0:
        return pa.array([{}] * batch.num_rows, pa.struct([]))
    return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))


def batch_of_struct(rows: pa.StructArray) -> pa.RecordBatch:
    """The record batch inside a struct column, without copying."""
    return pa.RecordBatch.from_struct_array(rows)


def order_column(batch: pa.RecordBatch) -> pa.Array:
    """What a keyed batch is sorted by."""
    return batch.column(ORDER if ORDER in batch.schema.names else KEY)


def with_items(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same keyed batch with pickled items in place of columns."""
    if ITEM in batch.schema.names:
        return batch
    at = batch.schema.get_field_index(ROW)
    items = pa.array([dump_item(row) for row in rows_of(batch_of_struct(batch.column(at)))], pa.binary())
    return batch.set_column(at, ITEM, items)


def items_of(batch: pa.RecordBatch) -> list[Any]:
    """The Python items of a keyed batch."""
    if ITEM in batch.schema.names:
        return [pickle.loads(data) for data in batch.column(ITEM).to_pylist()]
    return rows_of(batch_of_struct(batch.column(ROW)))
