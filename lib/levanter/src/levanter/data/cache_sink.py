"""Write token caches from a zephyr pipeline: the sink behind ``Dataset.write_levanter_cache``.

zephyr finds it by the entry point ``zephyr.sinks`` / ``levanter_cache``; this module imports nothing of zephyr, since
a sink is known by its methods. Each shard of the pipeline becomes one cache folder; make one cache of them with
:func:`levanter.store.cache.consolidate_shard_cache_ledgers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from levanter.store.cache import SerialCacheWriter, verify_cache
from levanter.store.errors import CorruptCacheError, SchemaError
from levanter.store.jagged_array import PreparedBatch
from levanter.store.ledger import FieldSpec

DEFAULT_BATCH_SIZE: Final = 16_384
"""Records handed to the store at once."""


@dataclass(frozen=True)
class LevanterCacheSink:
    """One cache folder per shard; records are dicts of lists of numbers, such as ``{"input_ids": [5, 7]}``.

    Args:
        metadata: Every setting that shaped the tokens; readers compare it.
        batch_size: Records handed to the store at once; leaves no trace in the bytes.
        dtypes: Element type by field. Every record must have exactly these fields.

    Example:
        >>> import tempfile
        >>> from levanter.store.cache import TreeCache
        >>> folder = tempfile.mkdtemp() + "/cache"
        >>> LevanterCacheSink({"tokenizer": "demo"}).write(iter([[{"input_ids": [1, 2]}, {"input_ids": []}]]), folder)
        2
        >>> len(TreeCache.load(folder))
        2
    """

    metadata: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = DEFAULT_BATCH_SIZE
    dtypes: Mapping[str, str] = field(default_factory=lambda: {"input_ids": "int32"})

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}; expected >= 1. Leave it out for {DEFAULT_BATCH_SIZE}.")

    def write(self, blocks: Iterator[Any], path: str) -> int:
        """Write all records to a new cache.

        Args:
            blocks: Arrow record batches, or lists of records.
            path: Folder of the cache.
        Returns:
            How many records there were.
        Raises:
            SchemaError: A record has other fields than ``dtypes``, nulls, or numbers that do not fit.
        """
        schema = {name: FieldSpec(dtype) for name, dtype in self.dtypes.items()}
        count = 0
        with SerialCacheWriter(path, schema, dict(self.metadata)) as writer:
            for block in blocks:
                for at in range(0, len(block), self.batch_size):
                    if isinstance(block, pa.RecordBatch):
                        piece = block.slice(at, self.batch_size)
                        writer.write_columns(self._columns(piece))
                    else:
                        self._write_rows(writer, block[at : at + self.batch_size])
                count += len(block)
        return count

    def check(self, path: str, count: int) -> None:
        """Open the cache again and compare.

        Raises:
            CorruptCacheError: It does not hold what was written.
        """
        found = verify_cache(path).total_num_rows
        if found != count:
            raise CorruptCacheError(path, "*", f"{found} rows, {count} were written")

    def _write_rows(self, writer: SerialCacheWriter, rows: Sequence[Any]) -> None:
        for row in rows:
            if not isinstance(row, Mapping) or row.keys() != self.dtypes.keys():
                found = sorted(row) if isinstance(row, Mapping) else type(row).__name__
                raise SchemaError("*", f"a record is {found}", f"the fields {sorted(self.dtypes)}")
        writer.write_columns(
            {name: _prepared(name, [row[name] for row in rows], dtype) for name, dtype in self.dtypes.items()}
        )

    def _columns(self, batch: pa.RecordBatch) -> dict[str, PreparedBatch]:
        if set(batch.schema.names) != self.dtypes.keys():
            raise SchemaError(
                "*", f"records have the fields {sorted(batch.schema.names)}", f"exactly {sorted(self.dtypes)}"
            )
        return {name: _flat(name, batch.column(name), dtype) for name, dtype in self.dtypes.items()}


def _prepared(name: str, values: Sequence[Any], dtype: str) -> PreparedBatch:
    arrays = [np.asarray(value if len(value) else np.zeros(0, dtype)) for value in values if value is not None]
    if len(arrays) != len(values):
        raise SchemaError(name, "a record holds null", "a list of numbers")
    ends = np.cumsum([array.size for array in arrays], dtype=np.int64)
    for number, array in enumerate(arrays):
        if array.ndim != 1:
            raise SchemaError(name, f"record {number} has rank {array.ndim}", "rank 1, a list of numbers")
    data = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    return PreparedBatch(_narrow(name, data, dtype), ends)


def _flat(name: str, column: pa.Array, dtype: str) -> PreparedBatch:
    """A list column as it lies in memory, without a Python object for any record."""
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise SchemaError(name, f"the column is {column.type}", "lists of numbers")
    values = column.flatten()
    if column.null_count or values.null_count:
        raise SchemaError(name, "a record holds null", "a list of numbers")
    offsets = column.offsets.to_numpy().astype(np.int64)
    data = values.to_numpy(zero_copy_only=False) if len(values) else np.zeros(0, dtype)
    return PreparedBatch(_narrow(name, data, dtype), offsets[1:] - offsets[0])


def _narrow(name: str, data: np.ndarray, dtype: str) -> np.ndarray:
    """Cast without losing a value of whole numbers.

    Raises:
        SchemaError: A value does not fit.
    """
    wanted = np.dtype(dtype)
    if data.dtype.kind not in "iufb":
        raise SchemaError(name, f"elements are {data.dtype}", f"numbers for {dtype}")
    if wanted.kind in "iu" and data.size:
        limits = np.iinfo(wanted)
        if data.dtype.kind == "f" or data.min() < limits.min or data.max() > limits.max:
            raise SchemaError(name, f"values from {data.min()} to {data.max()} as {data.dtype}", f"values of {dtype}")
    return data.astype(wanted, copy=False)
