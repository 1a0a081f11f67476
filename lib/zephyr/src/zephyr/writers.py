"""Blocks to files: staged, validated, and renamed only after the driver has accepted the attempt.

Equal items give equal bytes: no time, host or random value enters a file, and neither the number of workers nor the
way items were cut into blocks on the way is visible in it. JSON lines keep the keys of each record in their order;
NaN becomes null, as JSON has none. Parquet is zstd-compressed; its schema is the one given, or the union of what the
records have (see `_schema`), also when a wider type turns up after part of the file is written.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from zephyr import counters
from zephyr._arrow import pc
from zephyr._blocks import Block, batches_of, rows_of
from zephyr._files import CompressedWriter, StagedFile, open_input, output_error, remove_file
from zephyr._schema import conform, unify_schemas
from zephyr._sinks import SinkAdapter, StagedOutput, VortexSink
from zephyr.errors import OutputError, RecordTypeError

if TYPE_CHECKING:
    from zephyr.connectors import Sink

ROW_GROUP_BYTES = 64 << 20
"""Bytes of values that one Parquet row group aims at, judged by the first rows of the file."""

_ROW_GROUP_ROWS = 1 << 20
_SIZING_ROWS = 8192
_PENDING_LIMIT = 4
_PARQUET_ZSTD_LEVEL = 3
_LONG_TEXT = 64
_ENCODE_ROWS = 1024
_BINARY_BYTES = 1 << 20


@dataclass(frozen=True)
class WrittenFile:
    """What a writer made: the staged file, its size, and the number of items in it."""

    staged: str
    size_bytes: int
    num_rows: int


def write_file(
    blocks: Iterable[Block],
    *,
    kind: "Literal['jsonl', 'parquet', 'vortex', 'binary'] | Sink",
    staged: str,
    target: str,
    schema: pa.Schema | None = None,
    group_bytes: int = ROW_GROUP_BYTES,
) -> WrittenFile:
    """Write all blocks to a staged file and check what is on disk.

    Args:
        blocks: The items.
        kind: "jsonl", "parquet", "vortex", "binary", or a sink of the user's.
        staged: Where to write.
        target: Final path, whose suffix decides about compression; for messages.
        schema: Contract for Parquet and Vortex; inferred when None.
        group_bytes: Bytes of values that one Parquet row group aims at; a few times as much is held.
    Raises:
        OutputError: the file could not be written, or is not what was written; nothing is left.
        SchemaConflictError, RecordTypeError: the items do not fit one schema; nothing is left.
    """
    sink: _JsonlSink | _BinarySink | _ParquetSink | SinkAdapter
    match kind:
        case "jsonl":
            sink = _JsonlSink(StagedFile(staged, target))
        case "binary":
            sink = _BinarySink(StagedFile(staged, target))
        case "parquet":
            sink = _ParquetSink(StagedFile(staged, target), schema, group_bytes)
        case "vortex":
            sink = SinkAdapter(VortexSink(schema, target), StagedOutput(staged, target))
        case _:
            sink = SinkAdapter(kind, StagedOutput(staged, target))
    try:
        count = sink.write(blocks)
        sink.check(count)
    except BaseException:
        sink.file.discard()
        raise
    counters.increment("zephyr/records_out", count)
    counters.increment("zephyr/bytes_out", sink.file.size_bytes)
    return WrittenFile(sink.file.path, sink.file.size_bytes, count)


class _JsonlSink:
    """Lines, encoded a thousand at a time."""

    def __init__(self, file: StagedFile) -> None:
        self.file = file

    def write(self, blocks: Iterable[Block]) -> int:
        """Write all items; returns how many."""
        writer = CompressedWriter(self.file)
        encoder = msgspec.json.Encoder()
        count = 0
        for block in blocks:
            rows = rows_of(block)
            for at in range(0, len(rows), _ENCODE_ROWS):
                writer.write(_encode(encoder, rows[at : at + _ENCODE_ROWS]))
            count += len(rows)
        writer.finish()
        return count

    def check(self, count: int) -> None:
        """Compare what is on disk with what was written."""
        _check_size(self.file)


class _BinarySink:
    """Bytes back to back, as they are: no suffix compresses, since items may be members of a format of their own."""

    def __init__(self, file: StagedFile) -> None:
        self.file = file

    def write(self, blocks: Iterable[Block]) -> int:
        """Write all items; returns how many."""
        buffer = bytearray()
        count = 0
        for block in blocks:
            for item in rows_of(block):
                if not isinstance(item, bytes | bytearray | memoryview):
                    raise RecordTypeError("write_binary", type(item).__name__, repr(item)[:80], "bytes")
                buffer += item
                count += 1
                if len(buffer) >= _BINARY_BYTES:
                    self.file.write(buffer)
                    buffer = bytearray()
        if buffer:
            self.file.write(buffer)
        self.file.finish()
        return count

    def check(self, count: int) -> None:
        """Compare what is on disk with what was written."""
        _check_size(self.file)


def _check_size(file: StagedFile) -> None:
    with open_input(file.path) as stream:
        size = stream.seek(0, 2)
    if size != file.size_bytes:
        raise OutputError(file.target, f"wrote {file.size_bytes} bytes but the file has {size}")


def _encode(encoder: msgspec.json.Encoder, rows: list[object]) -> bytes:
    try:
        return encoder.encode_lines(rows)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        for row in rows:
            try:
                encoder.encode(row)
            except (TypeError, ValueError, OverflowError, RecursionError) as cause:
                raise RecordTypeError("write_jsonl", type(row).__name__, f"{repr(row)[:80]} ({cause})") from cause
        raise RecordTypeError("write_jsonl", "list", str(error)) from error


class _Counted:
    """The file-like face of a staged file that Arrow's Parquet writer needs; remembers our own error."""

    closed = False

    def __init__(self, file: StagedFile) -> None:
        self.file = file
        self.error: OutputError | None = None

    def write(self, data: bytes) -> int:
        """Pass bytes on to the staged file."""
        try:
            return self.file.write(data)
        except OutputError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Nothing is buffered here."""
        return

    def close(self) -> None:
        """The staged file is closed by its owner."""
        self.closed = True

    def tell(self) -> int:
        """Bytes so far."""
        return self.file.size_bytes

    def seekable(self) -> bool:
        """Never."""
        return False

    def readable(self) -> bool:
        """Never."""
        return False

    def writable(self) -> bool:
        """Always."""
        return True


class _ParquetSink:
    """Row groups of a fixed size; when the schema widens late, what is written so far is written again."""

    def __init__(self, file: StagedFile, schema: pa.Schema | None, group_bytes: int) -> None:
        self.file = file
        self.group_bytes = group_bytes
        self.contract = schema
        self.schema = schema
        self.pending: list[pa.RecordBatch] = []
        self.pending_bytes = self.pending_rows = self.count = self.group_rows = 0
        self.writer: pq.ParquetWriter | None = None
        self.stream: _Counted | None = None

    def write(self, blocks: Iterable[Block]) -> int:
        """Write all items; returns how many."""
        target = self.file.target
        for batch in batches_of(blocks, operation="write_parquet", where=target):
            self._admit(batch)
            if self.group_rows == 0 and self.pending_rows >= _SIZING_ROWS:
                self._size_groups()
            if self.pending_rows >= self.group_rows > 0 or self.pending_bytes >= _PENDING_LIMIT * self.group_bytes:
                self._flush(whole_groups=True)
        if self.count and self.schema is not None and len(self.schema) == 0:
            raise RecordTypeError("write_parquet", "dict", "{} (no record has a column)")
        self._flush()
        self._open()
        self._close()
        self.file.finish()
        return self.count

    def check(self, count: int) -> None:
        """Compare what is on disk with what was written."""
        with open_input(self.file.path) as stream:
            try:
                found = pq.read_metadata(stream).num_rows
            except pa.ArrowInvalid as error:
                raise OutputError(self.file.target, f"the file cannot be read back: {error}") from error
        if found != count:
            raise OutputError(self.file.target, f"wrote {count} rows but the file has {found}")

    def _admit(self, batch: pa.RecordBatch) -> None:
        target = self.file.target
        if self.contract is not None:
            batch = conform(batch, self.contract, where=target)
        else:
            batch = _without_metadata(batch)
            wider = batch.schema if self.schema is None else unify_schemas(self.schema, batch.schema, where=target)
            if self.writer is not None and not wider.equals(self.schema):
                self._rewrite(wider)
            self.schema = wider
        self.pending.append(batch)
        self.pending_bytes += batch.nbytes
        self.pending_rows += batch.num_rows
        self.count += batch.num_rows

    def _size_groups(self) -> None:
        """Fix the rows of a row group from the values of the first rows, however they were cut into batches."""
        head = self._table().slice(0, _SIZING_ROWS)
        row_bytes = max(1, sum(map(_value_bytes, head.columns)) // head.num_rows)
        self.group_rows = max(1, min(_ROW_GROUP_ROWS, self.group_bytes // row_bytes))

    def _table(self) -> pa.Table:
        assert self.schema is not None
        batches = [conform(batch, self.schema, where=self.file.target) for batch in self.pending]
        # Arrow starts a page at every chunk border: without chunks the bytes do not tell how the rows came in.
        return pa.Table.from_batches(batches, schema=self.schema).combine_chunks()

    def _open(self, first: pa.Table | None = None) -> pq.ParquetWriter:
        if self.writer is None:
            schema = self.schema if self.schema is not None else pa.schema([])
            self.stream = _Counted(self.file)
            self.writer = pq.ParquetWriter(
                self.stream,
                schema,
                compression="zstd",
                compression_level=_PARQUET_ZSTD_LEVEL,
                use_dictionary=True if first is None else _dictionary_columns(first),
                write_page_index=True,
            )
        return self.writer

    def _flush(self, *, whole_groups: bool = False) -> None:
        if not self.pending:
            return
        table = self._table()
        self.pending = []
        step = self.group_rows or table.num_rows
        end = table.num_rows - table.num_rows % step if whole_groups and self.group_rows else table.num_rows
        for at in range(0, end, step):
            self._write_group(table.slice(at, min(step, end - at)))
        rest = table.slice(end)
        self.pending = rest.to_batches()
        self.pending_rows, self.pending_bytes = rest.num_rows, rest.nbytes

    def _write_group(self, table: pa.Table) -> None:
        self._guard(lambda writer: writer.write_table(table, row_group_size=max(1, table.num_rows)), table)

    def _guard(self, action: Callable[[pq.ParquetWriter], object], first: pa.Table | None = None) -> None:
        try:
            action(self._open(first))
        except OSError as error:
            known = self.stream.error if self.stream is not None else None
            raise known or output_error(self.file.target, error) from error

    def _close(self) -> None:
        self._guard(lambda writer: writer.close())
        self.writer = None

    def _rewrite(self, schema: pa.Schema) -> None:
        """Write the row groups so far again with a wider schema, into the same staged name."""
        self._flush()
        self._close()
        old = self.file
        old.finish()
        wide = StagedFile(old.path.removesuffix(".tmp") + "w.tmp", old.target)
        self.file, self.schema = wide, schema
        try:
            with pq.ParquetFile(old.path) as written:
                for index in range(written.num_row_groups):
                    table = written.read_row_group(index)
                    batches = [conform(b, schema, where=old.target) for b in table.to_batches()]
                    out = pa.Table.from_batches(batches, schema=schema)
                    self._write_group(out)
        finally:
            remove_file(old.path)


def _without_metadata(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch if batch.schema.metadata is None else batch.replace_schema_metadata(None)


def _dictionary_columns(first: pa.Table) -> list[str] | bool:
    """Columns worth a dictionary: not long text, where building one costs time and never pays."""
    kept = []
    for field in first.schema:
        if pa.types.is_nested(field.type):
            return True
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            mean = pc.mean(pc.binary_length(first.column(field.name))).as_py()
            if mean is not None and mean > _LONG_TEXT:
                continue
        kept.append(field.name)
    return kept or False


def _value_bytes(column: pa.ChunkedArray | pa.Array) -> int:
    """Bytes of the values alone: equal values count equally, whatever buffers lie behind them."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        return sum(map(_value_bytes, column.chunks))
    if pa.types.is_struct(kind):
        return sum(map(_value_bytes, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 * len(column) + _value_bytes(column.flatten())
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return 4 * len(column) + (pc.sum(pc.binary_length(column)).as_py() or 0)
    return 8 * len(column)
