"""Look into Parquet files: the footer, and rows of as few row groups as will do."""

from collections.abc import Iterator
from typing import Any

from rigging.errors import MissingExtraError, ParquetFormatError
from rigging.filesystem.storage_path import StoragePath


def _opened(path: str, stream: Any) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("reading Parquet files", "parquet") from error
    try:
        return pq.ParquetFile(stream)
    except pa.ArrowInvalid as error:
        raise ParquetFormatError(path, " ".join(str(error).split())) from error


def parquet_schema(path: str) -> dict[str, Any]:
    """Return what the footer of a Parquet file says.

    Returns:
        ``columns`` (name, type, nullable), ``rows``, ``row_groups``, ``compression``, ``bytes`` (of row groups, not
        compressed), ``created_by`` and ``metadata`` (keys only, without Arrow's own).
    Raises:
        MissingExtraError: The extra ``parquet`` is not installed.
        ParquetFormatError: Not a Parquet file.
        FileNotFoundError: Nothing is there.
    """
    with StoragePath(path).open("rb") as stream:
        file = _opened(path, stream)
        footer = file.metadata
        groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
        keys = [key.decode("utf-8", "replace") for key in footer.metadata or {} if key != b"ARROW:schema"]
        codecs = sorted({group.column(n).compression for group in groups for n in range(group.num_columns)})
        return {
            "path": path,
            "columns": [
                {"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in file.schema_arrow
            ],
            "rows": footer.num_rows,
            "row_groups": footer.num_row_groups,
            "compression": codecs,
            "bytes": sum(group.total_byte_size for group in groups),
            "created_by": footer.created_by,
            "metadata": sorted(keys),
        }


def parquet_rows(path: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield rows as dicts; row groups behind the last wanted row are not read.

    Args:
        path: Local path or URL.
        limit: Most rows; None for all.
    Raises:
        MissingExtraError: The extra ``parquet`` is not installed.
        ParquetFormatError: Not a Parquet file.
        FileNotFoundError: Nothing is there.
    """
    left = limit
    with StoragePath(path).open("rb") as stream:
        file = _opened(path, stream)
        for group in range(file.metadata.num_row_groups):
            if left is not None and left <= 0:
                return
            for batch in file.iter_batches(batch_size=1024, row_groups=[group]):
                rows = batch.to_pylist() if left is None else batch.slice(0, left).to_pylist()
                yield from rows
                if left is not None:
                    left -= len(rows)
                    if left <= 0:
                        return
