"""What all readers share: pushed-down work that is left over, plain Arrow types, and byte streams as files."""

import io
from collections.abc import Iterator

import pyarrow as pa

from zephyr._eval import batch_mask
from zephyr._ops import Load
from zephyr._trace import Trace


def finish_batch(batch: pa.RecordBatch, load: Load, trace: Trace) -> pa.RecordBatch:
    """Apply what was pushed into a reader and could not be applied earlier; `trace` follows."""
    if load.predicate is not None:
        mask = batch_mask(batch, load.predicate)
        batch = batch.filter(mask)
        if trace.exact:
            trace.keep(mask.to_pylist())
    if load.columns is not None:
        batch = batch.select([name for name in load.columns if name in batch.schema.names])
    return batch


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Dictionary columns as their values and views as plain strings, so that all operations see plain types."""
    plain = [plain_type(kind) for kind in batch.schema.types]
    if plain == batch.schema.types:
        return batch
    columns = []
    for column, kind in zip(batch.columns, plain, strict=True):
        value = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        columns.append(value if value.type == kind else value.cast(kind))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column has inside a pipeline.

    Example:
        >>> import pyarrow as pa
        >>> plain_type(pa.dictionary(pa.int8(), pa.string())), plain_type(pa.list_(pa.string_view()))
        (DataType(string), ListType(list<item: string>))
    """
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, plain_type(f.type), f.nullable) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


class ChunkStream(io.RawIOBase):
    """A file object over byte chunks, for parsers that want to read; `offset` counts bytes given out."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self.offset = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill from the next chunk; 0 at the end."""
        target = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        self.offset += size
        return size
