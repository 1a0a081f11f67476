"""Aggregation by key in columns: partial results in the mappers, merged in the reducers, never a Python row.

Every function is a fold whose partial results fold again: count -> sum, sum -> sum, min -> min, max -> max, and mean as
sum and count. Partials are kept in a table that is folded again whenever it has grown; what outgrows its share of
memory goes to the shuffle early, which changes the work of the reducers but not their result.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from zephyr._arrow import pc
from zephyr._blocks import Block, batches_of
from zephyr._ops import AggregateFunction, Aggregation
from zephyr._schema import conform, unify_all
from zephyr._shuffle.format import KEY, ROW, batch_of_struct, items_of
from zephyr.errors import SchemaConflictError

_AGAIN: Final[dict[str, str]] = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
_FOLD_BYTES = 16 << 20
_COUNT_SUFFIX = "\0count"
_POSITION = "\0position"


def _partials(outputs: Sequence[Aggregation]) -> list[tuple[str, str | None, AggregateFunction]]:
    """(partial column, input column, function); a mean needs two."""
    out: list[tuple[str, str | None, AggregateFunction]] = []
    for name, column, function in outputs:
        if function == "mean":
            out += [(name, column, "sum"), (name + _COUNT_SUFFIX, column, "count")]
        else:
            out.append((name, column, function))
    return out


def partial_blocks(
    blocks: Iterable[Block], keys: Sequence[str], outputs: Sequence[Aggregation], *, budget_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Records to partial results, one row per key and call of the folding."""
    wanted = _partials(outputs)
    fresh: list[pa.RecordBatch] = []
    folded: list[pa.Table] = []
    fresh_bytes = 0
    for batch in batches_of(blocks, operation="aggregate"):
        fresh.append(_prepare(batch, keys, wanted))
        fresh_bytes += fresh[-1].nbytes
        if fresh_bytes < min(_FOLD_BYTES, budget_bytes // 4):
            continue
        folded = _fold(folded, fresh, keys, wanted)
        fresh, fresh_bytes = [], 0
        if folded[0].nbytes > budget_bytes // 4:
            yield from folded[0].to_batches()
            folded = []
    if fresh:
        folded = _fold(folded, fresh, keys, wanted)
    for table in folded:
        yield from table.to_batches()


def _prepare(
    batch: pa.RecordBatch, keys: Sequence[str], wanted: Sequence[tuple[str, str | None, AggregateFunction]]
) -> pa.RecordBatch:
    """Keys and inputs under the names of the partials; a column that the batch lacks is null."""

    def column(name: str) -> pa.Array:
        at = batch.schema.get_field_index(name)
        return pa.nulls(batch.num_rows) if at < 0 else batch.column(at)

    arrays = [column(name) for name in keys]
    for _, source, function in wanted:
        if function == "count":
            ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
            arrays.append(ones if source is None else column(source).is_valid().cast(pa.int64()))
        else:
            assert source is not None, "only a count has no column"
            arrays.append(_number(column(source), source, function))
    return pa.RecordBatch.from_arrays(arrays, names=[*keys, *(name for name, _, _ in wanted)])


def _number(column: pa.Array, name: str, function: str) -> pa.Array:
    """Widen what is added up, so that partial sums of all shards have one type."""
    if function in ("min", "max"):
        return column
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    raise SchemaConflictError(name, "a number", str(kind), where=f"aggregate {function}")


def _fold(
    folded: Sequence[pa.Table],
    fresh: Sequence[pa.RecordBatch],
    keys: Sequence[str],
    wanted: Sequence[tuple[str, str | None, AggregateFunction]],
) -> list[pa.Table]:
    if not fresh and len(folded) < 2:
        return list(folded)
    batches = [*(batch for table in folded for batch in table.to_batches()), *fresh]
    schema = unify_all(batch.schema for batch in batches)
    table = pa.Table.from_batches([conform(batch, schema) for batch in batches], schema=schema)
    return [fold_table(table, keys, wanted)]


def fold_table(
    table: pa.Table, keys: Sequence[str], wanted: Sequence[tuple[str, str | None, AggregateFunction]]
) -> pa.Table:
    """One row per key, keys in no particular order."""
    names = list(keys)
    dictionary = None
    if len(keys) == 1 and (pa.types.is_string(table.schema.field(keys[0]).type)):
        # Grouping small integers instead of strings takes a third of the time.
        codes = table.column(keys[0]).combine_chunks().dictionary_encode()
        if isinstance(codes, pa.ChunkedArray):
            codes = codes.unify_dictionaries().combine_chunks()
        dictionary = codes.dictionary
        table = table.set_column(table.schema.get_field_index(keys[0]), keys[0], codes.indices)
    calls = [(name, _AGAIN[function]) for name, _, function in wanted]
    out = table.group_by(names, use_threads=False).aggregate(calls)
    columns = {name: out.column(name) for name in names}
    if dictionary is not None:
        columns[names[0]] = dictionary.take(columns[names[0]].combine_chunks())
    for (name, call), (_, _, _) in zip(calls, wanted, strict=True):
        columns[name] = out.column(f"{name}_{call}")
    return pa.table(columns)


def merge_partials(
    keyed: Iterable[pa.RecordBatch], keys: Sequence[str], outputs: Sequence[Aggregation]
) -> Iterator[pa.RecordBatch]:
    """Sorted partial results to final ones, one row per key, in key order."""
    position: tuple[str, str | None, AggregateFunction] = (_POSITION, None, "min")
    wanted = [*_partials(outputs), position]
    held: list[pa.Table] = []
    seen = 0
    for batch in keyed:
        codes = batch.column(KEY)
        rows = batch_of_struct(batch.column(ROW)) if ROW in batch.schema.names else None
        if rows is None:
            rows = pa.RecordBatch.from_pylist(items_of(batch))
        # Arrow's hash table forgets the order of keys that collide in it.
        rows = rows.append_column(_POSITION, pa.array(np.arange(seen, seen + rows.num_rows)))
        seen += rows.num_rows
        # The last key may go on in the next batch: its rows wait.
        start = pc.index(codes, codes[-1]).as_py()
        complete = rows.slice(0, start)
        if start:
            [table] = _fold(held, [complete], keys, wanted)
            yield from _finish(table, keys, outputs)
            held = []
        held = _fold(held, [rows.slice(start)], keys, wanted)
    for table in held:
        yield from _finish(table, keys, outputs)


def _finish(table: pa.Table, keys: Sequence[str], outputs: Sequence[Aggregation]) -> list[pa.RecordBatch]:
    table = table.sort_by(_POSITION)
    columns = {name: table.column(name) for name in keys}
    for name, _, function in outputs:
        value = table.column(name)
        if function == "mean":
            # A mean of nothing is null, as is a sum.
            count = table.column(name + _COUNT_SUFFIX).cast(pa.float64())
            value = pc.divide(value.cast(pa.float64()), pc.if_else(pc.greater(count, 0), count, None))
        columns[name] = value
    return pa.table(columns).combine_chunks().to_batches()
