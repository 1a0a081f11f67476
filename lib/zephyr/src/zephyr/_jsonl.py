"""JSON lines to Arrow, fast and strict.

Text is never decoded line by line. A block of whole lines is parsed at once: either into dicts, when a Python callable
wants them, or into typed structs whose attributes become Arrow columns. The types come from the first lines; a block
that does not fit them is parsed without types, the types are widened, and the next block is fast again. Only a block
in which something is wrong is walked line by line, to name the line.
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from zephyr import counters
from zephyr._blocks import Block, batch_of, column_of
from zephyr._eval import batch_mask
from zephyr._ops import Load
from zephyr._schema import unify_schemas
from zephyr._trace import Trace
from zephyr.errors import BadRecordError, RecordTooLargeError, SchemaConflictError
from zephyr.expr import Expr

BLOCK_BYTES = 4 << 20
"""Raw bytes that are parsed at once."""

_HEAD_BYTES = 1 << 16
_EXCERPT = 120
_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"


def line_blocks(
    path: str, chunks: Iterable[bytes], *, limit_bytes: int, first_line: int = 1
) -> Iterator[tuple[int, bytes]]:
    """Cut a byte stream into blocks of whole lines.

    Args:
        path: For messages.
        chunks: The stream.
        limit_bytes: Most bytes that one line may have.
        first_line: Number of the first line.
    Yields:
        (number of the first line from 1, block).
    Raises:
        RecordTooLargeError: a line is longer than `limit_bytes`.
    """
    held: list[bytes] = []
    size, line = 0, first_line
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size < BLOCK_BYTES:
            continue
        data = b"".join(held)
        cut = data.rfind(b"\n") + 1
        if cut == 0 and size > limit_bytes:
            raise RecordTooLargeError(path, line, size, limit_bytes)
        if cut:
            block = data[:cut]
            yield line, block
            line += count_lines(block)
        held, size = [data[cut:]], len(data) - cut
    rest = b"".join(held)
    if len(rest) > limit_bytes and b"\n" not in rest:
        raise RecordTooLargeError(path, line, len(rest), limit_bytes)
    if rest:
        yield line, rest


def count_lines(data: bytes) -> int:
    """Number of line ends; several times faster than `bytes.count` on long blocks."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))


def read_jsonl(
    path: str,
    chunks: Iterable[bytes],
    load: Load,
    *,
    limit_bytes: int,
    trace: Trace | None = None,
    first_line: int = 1,
) -> Iterator[Block]:
    """Parse a JSON lines stream.

    Args:
        path: For messages.
        chunks: Decompressed bytes.
        load: What to read: columns, predicate, policy for bad lines, rows or batches.
        limit_bytes: Most bytes of one line.
        trace: Told which lines each block is from.
        first_line: Number of the first line.
    Raises:
        BadRecordError: a line is not one JSON object in UTF-8, and the policy is to fail.
        SchemaConflictError: one column has values of types that cannot be unified (Arrow batches only).
    """
    trace = Trace() if trace is None else trace
    parser = _RowParser(path, load, trace) if load.as_rows else _BatchParser(path, load, trace)
    for line, data in line_blocks(path, chunks, limit_bytes=limit_bytes, first_line=first_line):
        if line == 1 and data.startswith(_BOM):
            data = data[len(_BOM) :]
        trace.begin(path, "line", line, line + count_lines(data) - data.endswith(b"\n"))
        block, seen = parser.parse(line, data)
        counters.increment("zephyr/records_in", seen)
        if len(block) if isinstance(block, list) else block.num_rows:
            yield block


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _one_per_line(data: bytes, num_rows: int) -> bool:
    """Whether the objects that a parse found lie one on each line.

    The parser takes several objects on a line, or one over several. In JSON a closing brace is followed by an opening
    one only between top-level values; when every line end is such a place, and there are as many objects as lines,
    each line holds one. Anything else (blank lines too) is left to the exact way.
    """
    if not data:
        return num_rows == 0
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes[:-1] == _NEWLINE)
    if num_rows != len(ends) + 1 or codes[0] != _OPEN:
        return False
    before = codes[ends - 1]
    if _RETURN in before:
        before = np.where(before == _RETURN, codes[ends - 2], before)
    return bool((before == _CLOSE).all() and (codes[ends + 1] == _OPEN).all())


class _Lines:
    """Line by line parsing of a block: exact, and used only when the fast way finds something odd."""

    def __init__(self, path: str, load: Load) -> None:
        self.path = path
        self.skip = load.on_bad_line == "skip"
        self.decoder = msgspec.json.Decoder()
        self.numbers: list[int] = []

    def parse(self, first_line: int, data: bytes) -> list[dict[str, Any]]:
        """The records; `numbers` then holds the line of each."""
        rows = []
        self.numbers = []
        for number, line in enumerate(data.split(b"\n"), first_line):
            if not line.strip():
                continue
            reason = self._reason(line, rows)
            if reason is None:
                self.numbers.append(number)
                continue
            if not self.skip:
                excerpt = line[:_EXCERPT].decode("utf-8", "backslashreplace")
                raise BadRecordError(self.path, number, reason, excerpt)
            counters.increment("zephyr/bad_records")
        return rows

    def _reason(self, line: bytes, rows: list[dict[str, Any]]) -> str | None:
        try:
            line.decode("utf-8")
            value = self.decoder.decode(line)
        except UnicodeDecodeError as error:
            return f"not UTF-8 at byte {error.start}"
        except (msgspec.DecodeError, RecursionError) as error:
            return f"not JSON: {error}"
        if type(value) is not dict:
            return f"not an object but {type(value).__name__}"
        rows.append(value)
        return None


class _RowParser:
    """Blocks of lines to lists of dicts."""

    def __init__(self, path: str, load: Load, trace: Trace) -> None:
        self.load = load
        self.trace = trace
        self.lines = _Lines(path, load)
        self.decoder = msgspec.json.Decoder()

    def parse(self, line: int, data: bytes) -> tuple[Block, int]:
        rows = self.decode(line, data)
        seen = len(rows)
        if self.load.predicate is not None:
            mask = row_mask(rows, self.load.predicate)
            rows = [row for row, keep in zip(rows, mask, strict=True) if keep]
            self.trace.keep(mask)
        if self.load.columns is not None:
            rows = [{name: row[name] for name in self.load.columns if name in row} for row in rows]
        return rows, seen

    def decode(self, line: int, data: bytes) -> list[dict[str, Any]]:
        if _is_utf8(data):
            try:
                rows = self.decoder.decode_lines(data)
            except (msgspec.DecodeError, RecursionError):
                return self._exact(line, data)
            if _one_per_line(data, len(rows)) and all(type(row) is dict for row in rows):
                if self.trace.exact:
                    self.trace.positions = range(line, line + len(rows))
                return rows
        return self._exact(line, data)

    def _exact(self, line: int, data: bytes) -> list[dict[str, Any]]:
        rows = self.lines.parse(line, data)
        if self.trace.exact:
            self.trace.positions = self.lines.numbers
        return rows


def row_mask(rows: list[Any], predicate: Expr) -> list[bool]:
    """Whether an expression is true, by dict; evaluated over columns where that is possible."""
    columns = {name: [row.get(name) for row in rows] for name in predicate.columns()}
    try:
        arrays = [column_of(values, name) for name, values in columns.items()]
    except SchemaConflictError:
        # Mixed values in one column are no error for rows: the expression decides about each pair it meets.
        return [predicate.evaluate(row) is True for row in rows]
    if not arrays:
        return [predicate.evaluate(row) is True for row in rows]
    return batch_mask(pa.RecordBatch.from_arrays(arrays, names=list(columns)), predicate).to_pylist()


class _BatchParser:
    """Blocks of lines to record batches by way of typed structs."""

    def __init__(self, path: str, load: Load, trace: Trace) -> None:
        self.path = path
        self.load = load
        self.trace = trace
        self.rows = _RowParser(path, Load("jsonl", on_bad_line=load.on_bad_line), trace)
        self.wanted: list[str] | None = None
        if load.columns is not None:
            extra = load.predicate.columns() if load.predicate is not None else frozenset()
            self.wanted = [*load.columns, *sorted(extra - set(load.columns))]
        self.schema = pa.schema([])
        self.decoder: msgspec.json.Decoder[Any] | None = None

    def parse(self, line: int, data: bytes) -> tuple[Block, int]:
        batch = self._typed(line, data)
        if batch is None:
            batch = self._untyped(line, data)
        seen = batch.num_rows
        if self.load.predicate is not None:
            mask = batch_mask(batch, self.load.predicate)
            batch = batch.filter(mask)
            if self.trace.exact:
                self.trace.keep(mask.to_pylist())
        if self.load.columns is not None:
            batch = batch.select([name for name in self.load.columns if name in batch.schema.names])
        return batch, seen

    def _typed(self, line: int, data: bytes) -> pa.RecordBatch | None:
        if not _is_utf8(data):
            return None
        if self.decoder is None:
            head = data[: data.rfind(b"\n", 0, _HEAD_BYTES) + 1] if len(data) > _HEAD_BYTES else data
            if not head or len(head) == len(data):
                return None
            self._learn(self._project(self.rows.decode(line, head)))
        decoder = self.decoder
        assert decoder is not None
        try:
            rows = decoder.decode_lines(data)
        except (msgspec.DecodeError, RecursionError):
            return None
        if not _one_per_line(data, len(rows)):
            return None
        if self.trace.exact:
            self.trace.positions = range(line, line + len(rows))
        return self._pack(rows)

    def _pack(self, rows: list[Any]) -> pa.RecordBatch | None:
        arrays = []
        for at, field in enumerate(self.schema):
            values = list(map(attrgetter(f"f{at}"), rows))
            if pa.types.is_primitive(field.type) or pa.types.is_string(field.type):
                try:
                    arrays.append(pa.array(values, field.type))
                except (pa.ArrowException, OverflowError):
                    return None
            else:
                arrays.append(column_of(values, field.name, where=self.path))
        if not arrays:
            return batch_of([{}] * len(rows))
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)

    def _untyped(self, line: int, data: bytes) -> pa.RecordBatch:
        rows = self._project(self.rows.decode(line, data))
        return self._learn(rows)

    def _project(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.wanted is None:
            return rows
        return [{name: row[name] for name in self.wanted if name in row} for row in rows]

    def _learn(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        batch = batch_of(rows, operation="load_jsonl", where=self.path)
        self.schema = unify_schemas(self.schema, batch.schema, where=self.path)
        fields = [(f"f{at}", _python_type(field.type), None) for at, field in enumerate(self.schema)]
        rename = {f"f{at}": field.name for at, field in enumerate(self.schema)}
        if self.wanted is not None:
            # A column that no line had so far is watched for: a value in it makes the typed parse give up.
            for name in self.wanted:
                if name not in self.schema.names:
                    rename[f"f{len(fields)}"] = name
                    fields.append((f"f{len(fields)}", type(None), None))
        struct = msgspec.defstruct("Row", fields, rename=rename, forbid_unknown_fields=self.wanted is None, gc=False)
        self.decoder = msgspec.json.Decoder(struct)
        return batch


def _python_type(kind: pa.DataType) -> Any:
    if pa.types.is_null(kind):
        return type(None)
    if pa.types.is_boolean(kind):
        return bool | None
    if pa.types.is_integer(kind):
        return int | None
    if pa.types.is_floating(kind):
        return float | None
    if pa.types.is_string(kind):
        return str | None
    return Any
