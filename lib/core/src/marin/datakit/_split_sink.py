"""A zephyr sink that deals the documents of one shard to one Parquet file a split, in one pass.

Row groups are cut where the text of a group passes 16 MiB, a matter of the rows alone: equal documents give equal
bytes, in whatever blocks they arrive, and no more than a group a split is held in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from zephyr.connectors import Block, batches_of

SPLIT_COLUMN = "split"
_GROUP_BYTES = 16 * 2**20


class SplitSink:
    """Writes a folder with ``<split>.parquet`` for every split; the column ``split`` deals and is not written.

    Args:
        splits: Their names.
        schema: Columns of the files; ``text`` is one of them.
    """

    def __init__(self, splits: Sequence[str], schema: pa.Schema) -> None:
        self.splits = tuple(splits)
        self.schema = schema

    def write(self, blocks: Iterator[Block], path: str) -> int:
        """Write all documents; returns how many."""
        os.makedirs(path)
        files = {split: _SplitFile(os.path.join(path, f"{split}.parquet"), self.schema) for split in self.splits}
        count = 0
        try:
            for batch in batches_of(blocks, operation="consolidate"):
                count += batch.num_rows
                rows = pa.Table.from_batches([batch])
                for split, file in files.items():
                    part = rows.filter(pc.field(SPLIT_COLUMN) == split)
                    file.add(part.select(self.schema.names).cast(self.schema))
        finally:
            for file in files.values():
                file.close()
        return count

    def check(self, path: str, count: int) -> None:
        """Compare the rows on disk with those written.

        Raises:
            ValueError: They differ.
        """
        found = sum(pq.read_metadata(os.path.join(path, f"{split}.parquet")).num_rows for split in self.splits)
        if found != count:
            raise ValueError(f"{path} holds {found} documents, expected {count}")


class _SplitFile:
    """One Parquet file, row group by row group."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", write_page_index=True)
        self._waiting = schema.empty_table()

    def add(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        waiting = pa.concat_tables([self._waiting, rows])
        lengths = pc.call_function("binary_length", [waiting.column("text")])
        ends = lengths.to_numpy().cumsum(dtype="int64")
        start = 0
        while (passed := int(ends.searchsorted((ends[start - 1] if start else 0) + _GROUP_BYTES))) < waiting.num_rows:
            self._write(waiting.slice(start, passed + 1 - start))
            start = passed + 1
        self._waiting = waiting.slice(start)

    def close(self) -> None:
        self._write(self._waiting)
        self._writer.close()

    def _write(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._writer.write_table(rows.combine_chunks(), row_group_size=rows.num_rows)
