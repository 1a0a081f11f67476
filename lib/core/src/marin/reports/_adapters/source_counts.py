"""How many documents of each source a curation stage handed on, counted in its Parquet files (extra ``datakit``)."""

import glob
import os

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    pq = None


def count_by_source(output_path: str) -> dict[str, int]:
    """Documents by the ``source`` column of ``outputs/**/part-*.parquet``; only that column is read.

    Args:
        output_path: Folder of a stage's output on this machine.
    Returns:
        Count by source, largest first; empty where there is no such column, no such file, or no pyarrow.
    """
    counts: dict[str, int] = {}
    if pq is None:
        return counts
    for path in sorted(
        glob.glob(os.path.join(glob.escape(output_path), "outputs", "**", "part-*.parquet"), recursive=True)
    ):
        try:
            with pq.ParquetFile(path) as file:
                if "source" not in file.schema_arrow.names:
                    return {}
                for batch in file.iter_batches(columns=["source"]):
                    for item in batch.column(0).cast(pa.string()).value_counts().to_pylist():
                        counts[str(item["values"])] = counts.get(str(item["values"]), 0) + item["counts"]
        except (OSError, pa.ArrowInvalid):
            return {}  # a damaged file is a finding of the verification, not of this table
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
