"""Files to blocks: JSON lines, Parquet, text, CSV, tar and Vortex, columnar and bounded in size.

The suffix decides about format and compression. Each reader takes a `Load`, honours its columns and predicate while it
reads, and raises errors that name the file and the place.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from zephyr import counters
from zephyr._adapters import vortex
from zephyr._blocks import Block
from zephyr._csv_read import read_csv
from zephyr._files import count_line_ends, read_decompressed, read_span
from zephyr._jsonl import line_blocks, read_jsonl
from zephyr._ops import Load
from zephyr._parquet_read import read_parquet
from zephyr._paths import FileSpan
from zephyr._reading import finish_batch, plain_batch
from zephyr._tar_read import read_tar
from zephyr._trace import Trace
from zephyr._zip_read import ZipMember, load_zip_members
from zephyr.errors import BadRecordError, DatasetError, RecordTooLargeError

__all__ = ["DEFAULT_RECORD_LIMIT_BYTES", "ZipMember", "format_of", "load_zip_members", "read_file"]

DEFAULT_RECORD_LIMIT_BYTES = 512 << 20
"""Most bytes of one record unless the context says otherwise."""

_VORTEX_ROWS = 16_384
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".csv": "csv",
    ".tar": "webdataset",
    ".parquet": "parquet",
    ".vortex": "vortex",
}
_NEVER_PACKED = ("parquet", "vortex")


def format_of(path: str) -> str:
    """Format by suffix.

    Raises:
        DatasetError: the suffix names no known format.
    Example:
        >>> format_of("a/b.jsonl.zst"), format_of("c.parquet"), format_of("d.tar.gz")
        ('jsonl', 'parquet', 'webdataset')
    """
    plain = path.removesuffix(".gz").removesuffix(".zst").removesuffix(".zstd")
    for suffix, name in _FORMATS.items():
        if plain.endswith(suffix) and (plain == path or name not in _NEVER_PACKED):
            return name
    raise DatasetError(
        f"cannot read a file: path={path!r} has no known suffix; expected .jsonl, .json, .ndjson, .txt, .csv or .tar "
        "(with .gz or .zst), .parquet or .vortex. Rename it, or use load_jsonl, load_parquet or another load method."
    )


def read_file(
    item: Any, load: Load, *, limit_bytes: int = DEFAULT_RECORD_LIMIT_BYTES, trace: Trace | None = None
) -> Iterator[Block]:
    """Read one file, or one part of a file.

    Args:
        item: Local path or fsspec URL, or a `FileSpan` of one; the suffix decides about compression.
        load: Format ("auto" goes by suffix), columns, predicate, policy for bad lines, rows or batches.
        limit_bytes: Most bytes of one record.
        trace: Told which records each block is from.
    Raises:
        BadRecordError, CorruptInputError, MissingInputError, SchemaConflictError, RecordTooLargeError, DatasetError.
    """
    trace = Trace() if trace is None else trace
    span = item if isinstance(item, FileSpan) else None
    path = item.path if isinstance(item, FileSpan) else item
    if not isinstance(path, str):
        raise DatasetError(f"cannot read a file: item={path!r}; expected a path as str. Map the items to paths first.")
    blocks = _read(path, span, load, limit_bytes, trace)
    yield from blocks if load.path_column is None else _with_path(blocks, path, load.path_column)


def _with_path(blocks: Iterator[Block], path: str, column: str) -> Iterator[Block]:
    """Say in each record which file it is from."""
    for block in blocks:
        names = block.schema.names if isinstance(block, pa.RecordBatch) else {name for row in block for name in row}
        if column in names:
            raise DatasetError(
                f"cannot add the path of {path}: file_path_column={column!r}, and its records have that column; "
                "expected a new name. Pass another file_path_column."
            )
        if isinstance(block, pa.RecordBatch):
            yield block.append_column(column, pa.array([path] * block.num_rows, pa.string()))
        else:
            yield [{**row, column: path} for row in block]


def _read(path: str, span: FileSpan | None, load: Load, limit_bytes: int, trace: Trace) -> Iterator[Block]:
    match format_of(path) if load.format == "auto" else load.format:
        case "jsonl":
            yield from _lines(path, span, load, trace, limit_bytes, jsonl=True)
        case "text":
            yield from _lines(path, span, load, trace, limit_bytes, jsonl=False)
        case "parquet":
            yield from read_parquet(path, load, trace, span)
        case "csv":
            yield from read_csv(path, load, trace)
        case "webdataset":
            yield from read_tar(path, load, trace, limit_bytes=limit_bytes)
        case "vortex":
            yield from _read_vortex(path, load, trace)


def _lines(
    path: str, span: FileSpan | None, load: Load, trace: Trace, limit_bytes: int, *, jsonl: bool
) -> Iterator[Block]:
    """Read lines; those of a span are numbered from the start of the file, which is counted when somebody asks."""
    chunks = read_decompressed(path) if span is None else read_span(path, span.start, span.end, span.size_bytes)
    before = _lines_before(span) if trace.exact else 0
    read = read_jsonl if jsonl else _read_text
    try:
        yield from read(path, chunks, load, limit_bytes=limit_bytes, trace=trace, first_line=before + 1)
    except (BadRecordError, RecordTooLargeError) as error:
        if not trace.exact:
            error.moved(_lines_before(span))
        raise


def _lines_before(span: FileSpan | None) -> int:
    """Lines of the file before the first that begins in the span."""
    if span is None or not span.start:
        return 0
    return count_line_ends(span.path, span.start - 1) + 1


def _read_text(
    path: str, chunks: Iterator[bytes], load: Load, *, limit_bytes: int, trace: Trace, first_line: int = 1
) -> Iterator[Block]:
    for line, data in line_blocks(path, chunks, limit_bytes=limit_bytes, first_line=first_line):
        try:
            text = data.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            number = line + data.count(b"\n", 0, error.start)
            excerpt = data[max(0, error.start - 40) : error.start + 40].decode("utf-8", "backslashreplace")
            raise BadRecordError(path, number, "not UTF-8", excerpt) from error
        lines = [item.removesuffix("\r") for item in text.removesuffix("\n").split("\n")]
        last = line + len(lines) - 1
        trace.begin(path, "line", line, last, range(line, last + 1) if trace.exact else None)
        counters.increment("zephyr/records_in", len(lines))
        yield finish_batch(pa.RecordBatch.from_pydict({"text": lines}), load, trace)


def _read_vortex(path: str, load: Load, trace: Trace) -> Iterator[Block]:
    columns = None
    if load.columns is not None:
        extra = load.predicate.columns() if load.predicate is not None else frozenset()
        columns = [*load.columns, *extra]
    first = 1
    for batch in vortex.read_batches(path, columns, _VORTEX_ROWS):
        last = first + batch.num_rows - 1
        trace.begin(path, "row", first, last, range(first, last + 1) if trace.exact else None)
        first = last + 1
        counters.increment("zephyr/records_in", batch.num_rows)
        out = finish_batch(plain_batch(batch), load, trace)
        if out.num_rows:
            yield out
