"""What flows between operations: a block is an Arrow record batch, or a list of Python items.

Records stay in Arrow from reader to sink. A list appears where a user's function made or needs Python items, and goes
back to Arrow at the next columnar step, thousands of items at a time. A missing key and a null are the same value.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import pyarrow as pa

from zephyr._schema import unify_types
from zephyr.errors import RecordTypeError, SchemaConflictError

type Block = pa.RecordBatch | list[Any]

BLOCK_ROWS = 4096
"""Most items that an operation puts into one list block."""


def rows_of(block: Block) -> list[Any]:
    """The items of a block as Python objects; records are dicts."""
    if isinstance(block, list):
        return block
    if block.num_columns == 0:
        return [{} for _ in range(block.num_rows)]
    names = block.schema.names
    columns = [_column_values(column) for column in block.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _column_values(column: pa.Array) -> list[Any]:
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_boolean(kind)
    if column.null_count == 0 and plain:
        return column.to_numpy(zero_copy_only=False).tolist()
    return column.to_pylist()


def num_rows(block: Block) -> int:
    """Number of items in a block."""
    return len(block) if isinstance(block, list) else block.num_rows


def as_record(item: Any, operation: str) -> Mapping[str, Any]:
    """View an item as a record; dataclass instances count as records.

    Raises:
        RecordTypeError: it is not one.
    """
    if isinstance(item, Mapping):
        return item
    if is_dataclass(item) and not isinstance(item, type):
        return asdict(item)
    text = repr(item)
    raise RecordTypeError(operation, type(item).__name__, text if len(text) <= 80 else text[:77] + "...")


def batch_of(rows: list[Any], *, operation: str = "a columnar operation", where: str = "") -> pa.RecordBatch:
    """Pack records into one batch; columns are the union of the keys in order of first appearance.

    Raises:
        RecordTypeError: an item is not a record.
        SchemaConflictError: the values of one column have no common type.
    """
    records = [as_record(row, operation) for row in rows]
    names: dict[str, None] = {}
    for record in records:
        if record.keys() != names.keys():
            names.update(dict.fromkeys(record))
    for name in names:
        if not isinstance(name, str):
            raise RecordTypeError(operation, "dict", f"key {name!r}")
    arrays = [column_of([record.get(name) for record in records], name, where=where) for name in names]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def column_of(values: list[Any], field: str, *, where: str = "") -> pa.Array:
    """Pack the values of one column.

    Raises:
        SchemaConflictError: the values have no common type; names both.
    """
    try:
        out = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        return _explain_column(values, field, where, error)
    # Arrow turns a set or an odd mixture of numbers into something else without a word; those it gets right are kept.
    return out.combine_chunks() if isinstance(out, pa.ChunkedArray) else out


def _unsigned_column(values: list[Any]) -> pa.Array | None:
    """Numbers of which some are beyond int64, as uint64; None when they are not all whole numbers from zero."""
    if not set(map(type, values)) <= {int, type(None)}:
        return None  # Arrow would cut a float to fit
    try:
        return pa.array(values, pa.uint64())
    except (pa.ArrowException, OverflowError):
        return None


def _type_of(value: Any) -> pa.DataType:
    """Arrow type of one value; Arrow itself finds none where a number beyond int64 lies in a list or a record."""
    try:
        return pa.array([value]).type
    except OverflowError:
        if isinstance(value, Mapping):
            return pa.struct([(name, _type_of(item)) for name, item in value.items()])
        if isinstance(value, list | tuple):
            kind: pa.DataType = pa.null()
            for item in value:
                kind = unify_types(kind, _type_of(item), field="[]")
            return pa.list_(kind)
        if isinstance(value, int) and value >= 0:
            return pa.array([value], pa.uint64()).type
        raise


def _explain_column(values: list[Any], field: str, where: str, cause: Exception) -> pa.Array:
    """Find which two values disagree, one by one: slow, and on the way to an error or for unsigned numbers in lists."""
    if isinstance(cause, OverflowError) and (column := _unsigned_column(values)) is not None:
        return column
    kind: pa.DataType = pa.null()
    for value in values:
        try:
            this = _type_of(value)
        except (pa.ArrowException, OverflowError) as error:
            raise SchemaConflictError(field, str(kind), f"{type(value).__name__} ({error})", where=where) from error
        kind = unify_types(kind, this, field=field, where=where)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaConflictError(field, str(kind), f"a value that does not fit ({error})", where=where) from cause


def chunked(items: Iterable[Any], size: int = BLOCK_ROWS) -> Iterator[list[Any]]:
    """Cut a stream of items into list blocks."""
    block: list[Any] = []
    for item in items:
        block.append(item)
        if len(block) >= size:
            yield block
            block = []
    if block:
        yield block


def iterate(blocks: Iterable[Block]) -> Iterator[Any]:
    """All items of all blocks, one by one."""
    for block in blocks:
        yield from rows_of(block)


def batches_of(blocks: Iterable[Block], *, operation: str, where: str = "") -> Iterator[pa.RecordBatch]:
    """All blocks as record batches; small lists are joined before they are packed."""
    pending: list[Any] = []
    for block in blocks:
        if isinstance(block, list):
            pending.extend(block)
            if len(pending) >= BLOCK_ROWS:
                yield batch_of(pending, operation=operation, where=where)
                pending = []
            continue
        if pending:
            yield batch_of(pending, operation=operation, where=where)
            pending = []
        if block.num_rows:
            yield block
    if pending:
        yield batch_of(pending, operation=operation, where=where)
