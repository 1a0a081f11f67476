"""Vortex files (extra `vortex`)."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from zephyr.errors import CorruptInputError, DatasetError


def _vortex() -> Any:
    try:
        import vortex
        import vortex.io
    except ImportError as error:
        raise DatasetError(
            "cannot use Vortex files: module vortex is not installed; expected the extra. "
            "Run: pip install 'marin-zephyr[vortex]'."
        ) from error
    return vortex


def read_batches(path: str, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Record batches of a file, only these columns of those that it has.

    Raises:
        CorruptInputError: it is no Vortex file.
        DatasetError: the extra is missing.
    """
    vortex = _vortex()
    try:
        file = vortex.open(path, without_segment_cache=True)
        names = file.dtype.to_arrow_schema().names
        kept = None if columns is None else [name for name in names if name in columns]
        yield from file.to_arrow(kept, batch_size=batch_rows)
    except (ValueError, RuntimeError, OSError) as error:
        if isinstance(error, CorruptInputError):
            raise
        raise CorruptInputError(path, f"not a readable Vortex file: {str(error).splitlines()[0]}") from error


def write_batches(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Write one file."""
    vortex = _vortex()
    vortex.io.write(pa.RecordBatchReader.from_batches(schema, batches), path)


def num_rows(path: str) -> int:
    """Rows of a file."""
    return sum(batch.num_rows for batch in read_batches(path, [], 1 << 20))
