"""Files to blocks: JSON lines, Parquet and text, columnar and bounded in size.

The suffix decides about format and compression. Each reader takes a `Load`, honours its columns and predicate while it
reads, and raises errors that name the file and the place.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zephyr import counters
from zephyr._adapters import remote
from zephyr._blocks import Block
from zephyr._eval import filter_batch
from zephyr._files import read_decompressed
from zephyr._jsonl import line_blocks, read_jsonl
from zephyr._ops import Load
from zephyr._paths import is_remote, local_path
from zephyr._prune import ColumnStatistics, may_match
from zephyr.errors import BadRecordError, CorruptInputError, DatasetError, MissingInputError

DEFAULT_RECORD_LIMIT_BYTES = 512 << 20
"""Most bytes of one record unless the context says otherwise."""

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 65_536


def format_of(path: str) -> str:
    """Format by suffix.

    Raises:
        DatasetError: the suffix names no known format.
    Example:
        >>> format_of("a/b.jsonl.zst"), format_of("c.parquet")
        ('jsonl', 'parquet')
    """
    plain = path.removesuffix(".gz").removesuffix(".zst").removesuffix(".zstd")
    for suffix, name in {
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".json": "jsonl",
        ".txt": "text",
        ".text": "text",
    }.items():
        if plain.endswith(suffix):
            return name
    if path.endswith(".parquet"):
        return "parquet"
    raise DatasetError(
        f"cannot read a file: path={path!r} has no known suffix; expected .jsonl, .json, .ndjson or .txt (with .gz or "
        ".zst), or .parquet. Rename it, or use load_jsonl, load_parquet or load_text."
    )


def read_file(path: Any, load: Load, *, limit_bytes: int = DEFAULT_RECORD_LIMIT_BYTES) -> Iterator[Block]:
    """Read one file.

    Args:
        path: Local path or fsspec URL; the suffix decides about compression.
        load: Format ("auto" goes by suffix), columns, predicate, policy for bad lines, rows or batches.
        limit_bytes: Most bytes of one record.
    Raises:
        BadRecordError, CorruptInputError, MissingInputError, SchemaConflictError, RecordTooLargeError, DatasetError.
    """
    if not isinstance(path, str):
        raise DatasetError(f"cannot read a file: item={path!r}; expected a path as str. Map the items to paths first.")
    match format_of(path) if load.format == "auto" else load.format:
        case "jsonl":
            yield from read_jsonl(path, read_decompressed(path), load, limit_bytes=limit_bytes)
        case "parquet":
            yield from _read_parquet(path, load)
        case _:
            yield from _read_text(path, load, limit_bytes=limit_bytes)


def _read_text(path: str, load: Load, *, limit_bytes: int) -> Iterator[Block]:
    for line, data in line_blocks(path, read_decompressed(path), limit_bytes=limit_bytes):
        try:
            text = data.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            number = line + data.count(b"\n", 0, error.start)
            excerpt = data[max(0, error.start - 40) : error.start + 40].decode("utf-8", "backslashreplace")
            raise BadRecordError(path, number, "not UTF-8", excerpt) from error
        lines = [item.removesuffix("\r") for item in text.removesuffix("\n").split("\n")]
        counters.increment("zephyr/records_in", len(lines))
        yield finish_batch(pa.RecordBatch.from_pydict({"text": lines}), load)


def finish_batch(batch: pa.RecordBatch, load: Load) -> pa.RecordBatch:
    """Apply what was pushed into a reader and could not be applied earlier."""
    if load.predicate is not None:
        batch = filter_batch(batch, load.predicate)
    if load.columns is not None:
        batch = batch.select([name for name in load.columns if name in batch.schema.names])
    return batch


def _open_parquet(path: str) -> pq.ParquetFile:
    try:
        if is_remote(path):
            return pq.ParquetFile(remote.open_url(path, "rb"))
        return pq.ParquetFile(local_path(path))
    except FileNotFoundError as error:
        raise MissingInputError(path) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptInputError(path, f"not a readable Parquet file: {error}") from error


def _read_parquet(path: str, load: Load) -> Iterator[Block]:
    with _open_parquet(path) as file:
        names = file.schema_arrow.names
        columns = None
        if load.columns is not None:
            extra = load.predicate.columns() if load.predicate is not None else frozenset()
            columns = [name for name in names if name in load.columns or name in extra]
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            counters.increment("zephyr/records_in", group.num_rows)
            if load.predicate is not None and not may_match(load.predicate, _statistics(group), frozenset(names)):
                counters.increment("zephyr/row_groups_pruned")
                continue
            per_row = max(1, group.total_byte_size // max(1, group.num_rows))
            size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // per_row))
            try:
                for batch in file.iter_batches(size, row_groups=[index], columns=columns, use_threads=False):
                    out = finish_batch(_decoded(batch), load)
                    if out.num_rows:
                        yield out
            except (pa.ArrowInvalid, OSError) as error:
                raise CorruptInputError(path, f"damaged row group {index}: {error}") from error


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Dictionary columns as their values, so that all operations see plain types."""
    if not any(pa.types.is_dictionary(kind) for kind in batch.schema.types):
        return batch
    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


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
