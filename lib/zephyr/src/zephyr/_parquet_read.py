"""Parquet files to blocks: row group by row group, only the columns and groups that are wanted."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zephyr import counters
from zephyr._adapters import remote
from zephyr._blocks import Block
from zephyr._ops import Load
from zephyr._paths import FileSpan, is_remote, local_path
from zephyr._prune import ColumnStatistics, may_match
from zephyr._reading import finish_batch, plain_batch
from zephyr._trace import Trace
from zephyr.errors import CorruptInputError, MissingInputError

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 65_536


def _open(path: str) -> pq.ParquetFile:
    try:
        if is_remote(path):
            return pq.ParquetFile(remote.open_url(path, "rb"))
        return pq.ParquetFile(local_path(path))
    except FileNotFoundError as error:
        raise MissingInputError(path) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptInputError(path, f"not a readable Parquet file: {error}") from error


def read_parquet(path: str, load: Load, trace: Trace, span: FileSpan | None = None) -> Iterator[Block]:
    """Read one file, or the row groups of it whose middle row lies in a span."""
    with _open(path) as file:
        names = file.schema_arrow.names
        columns = None
        if load.columns is not None:
            extra = load.predicate.columns() if load.predicate is not None else frozenset()
            columns = [name for name in names if name in load.columns or name in extra]
        first = 1
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            start, first = first, first + group.num_rows
            if span is not None and not span.holds(2 * start - 1 + group.num_rows, 2 * file.metadata.num_rows + 1):
                continue
            counters.increment("zephyr/records_in", group.num_rows)
            if load.predicate is not None and not may_match(load.predicate, _statistics(group), frozenset(names)):
                counters.increment("zephyr/row_groups_pruned")
                continue
            counters.increment("zephyr/bytes_in", _stored_bytes(group, columns))
            yield from _read_group(path, file, index, start, columns, load, trace)


def _read_group(
    path: str, file: pq.ParquetFile, index: int, first: int, columns: list[str] | None, load: Load, trace: Trace
) -> Iterator[Block]:
    group = file.metadata.row_group(index)
    per_row = max(1, group.total_byte_size // max(1, group.num_rows))
    size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // per_row))
    try:
        for batch in file.iter_batches(size, row_groups=[index], columns=columns, use_threads=False):
            last = first + batch.num_rows - 1
            trace.begin(path, "row", first, last, range(first, last + 1) if trace.exact else None)
            first = last + 1
            out = finish_batch(plain_batch(batch), load, trace)
            if out.num_rows:
                yield out
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptInputError(path, f"damaged row group {index}: {error}") from error


def _stored_bytes(group: Any, columns: list[str] | None) -> int:
    chunks = (group.column(at) for at in range(group.num_columns))
    return sum(c.total_compressed_size for c in chunks if columns is None or c.path_in_schema.split(".")[0] in columns)


def _statistics(group: Any) -> dict[str, ColumnStatistics]:
    out = {}
    for at in range(group.num_columns):
        chunk = group.column(at)
        stats = chunk.statistics
        if stats is None or "." in chunk.path_in_schema:
            continue
        low, high = (stats.min, stats.max) if stats.has_min_max else (None, None)
        nulls = stats.null_count if stats.has_null_count else None
        out[chunk.path_in_schema] = ColumnStatistics(low, high, nulls, group.num_rows)
    return out
