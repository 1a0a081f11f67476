"""What a data set does with files: read the contents of those it names, write one for each shard.

Shapes read "input shards -> output shards", as in `zephyr.dataset`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from zephyr._adapters.entry_points import named_sink
from zephyr._ops import BadLinePolicy, Load, LogicalOp, PathPattern, Write
from zephyr.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

    from zephyr.connectors import Sink


FILE_PATH_COLUMN = "__file_path"
"""Name of the column that says which file a record is from, unless another is given."""


class FileOperations:
    """The methods of `Dataset` that read and write files."""

    def _then(self, op: LogicalOp) -> Self:
        raise TypeError(f"{type(self).__name__} adds no operations; expected a Dataset")

    def _sized(self, shard_bytes: int) -> Self:
        raise TypeError(f"{type(self).__name__} has no files; expected a Dataset")

    # Readers: items are paths before and contents after

    # Each reader can say which file a record is from: with `include_file_paths` the records have one more column, named
    # `file_path_column`, behind the others; a projection by `columns` must then name it.

    def load_jsonl(
        self,
        *,
        columns: Sequence[str] | None = None,
        on_bad_line: BadLinePolicy = "fail",
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Self:
        """Records of JSON lines files: path -> records. `.gz` and `.zst` are decompressed by suffix.

        Args:
            columns: Read only these.
            on_bad_line: "fail" raises `BadRecordError`; "skip" counts `zephyr/bad_records` and goes on.
            include_file_paths: Add the path of the file to each record.
            file_path_column: Name of that column.
        Raises:
            DatasetError: `columns` leaves the path out; at run time, records have a column of that name.
        """
        load = Load("jsonl", _columns(columns), on_bad_line=_policy(on_bad_line))
        return self._then(_with_path(load, include_file_paths, file_path_column))

    def load_parquet(
        self,
        columns: Sequence[str] | None = None,
        approx_shard_bytes: int | None = None,
        *,
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Self:
        """Records of Parquet files: path -> records, row group by row group.

        Args:
            columns: Read only these.
            approx_shard_bytes: Aim for shards of this many bytes, as `shard_bytes` of `from_files` does: large files
                are cut between row groups, and consecutive small ones go together.
            include_file_paths: Add the path of the file to each record.
            file_path_column: Name of that column.
        Raises:
            DatasetError: `approx_shard_bytes` behind anything but `from_files`, below one, or unequal to its
                `shard_bytes`; `columns` leaves the path out.
        Example:
            >>> from zephyr import Dataset
            >>> Dataset.from_files("in/*.parquet").load_parquet(approx_shard_bytes=64 << 20).pipeline.source.shard_bytes
            67108864
        """
        sized = self if approx_shard_bytes is None else self._sized(approx_shard_bytes)
        return sized._then(_with_path(Load("parquet", _columns(columns)), include_file_paths, file_path_column))

    def load_text(self, *, include_file_paths: bool = False, file_path_column: str = FILE_PATH_COLUMN) -> Self:
        """Lines of text files: path -> records `{"text": line}` without line ends; empty lines are kept."""
        return self._then(_with_path(Load("text"), include_file_paths, file_path_column))

    def load_txt(self, *, include_file_paths: bool = False, file_path_column: str = FILE_PATH_COLUMN) -> Self:
        """The same as `load_text`."""
        return self.load_text(include_file_paths=include_file_paths, file_path_column=file_path_column)

    def load_csv(
        self,
        *,
        columns: Sequence[str] | None = None,
        delimiter: str = ",",
        types: "Mapping[str, pa.DataType] | None" = None,
        on_bad_line: BadLinePolicy = "fail",
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Self:
        """Records of CSV files with a header line: path -> records; an empty field is null.

        Args:
            columns: Read only these.
            delimiter: One character between fields.
            types: Arrow type of a column, where the one that the first block suggests would not do.
            on_bad_line: "fail" raises `BadRecordError` at a row with too few or too many fields; "skip" counts it.
        Raises:
            DatasetError: a delimiter of another length.
        """
        if len(delimiter) != 1:
            raise DatasetError(f"cannot read CSV: delimiter={delimiter!r}; expected one character. Pass one.")
        options = (("delimiter", delimiter), ("types", tuple((types or {}).items())))
        load = Load("csv", _columns(columns), on_bad_line=_policy(on_bad_line), options=options)
        return self._then(_with_path(load, include_file_paths, file_path_column))

    def load_webdataset(
        self,
        *,
        columns: Sequence[str] | None = None,
        decode: bool = True,
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Self:
        """Records of tar files, one for consecutive members with one name up to the first dot: path -> records.

        A record is `{"__key__": "folder/0001", "jpg": b"...", "txt": "...", ...}`, by extension.

        Args:
            columns: Keep only these extensions (and `__key__` if it is named).
            decode: Make text of txt, values of json and numbers of cls; everything else, and all else without it,
                stays bytes.
        """
        load = Load("webdataset", _columns(columns), options=(("decode", decode),))
        return self._then(_with_path(load, include_file_paths, file_path_column))

    def load_vortex(
        self,
        columns: Sequence[str] | None = None,
        *,
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Self:
        """Records of Vortex files (extra `vortex`): path -> records; `columns` limits what is read."""
        return self._then(_with_path(Load("vortex", _columns(columns)), include_file_paths, file_path_column))

    def load_file(
        self,
        *,
        columns: Sequence[str] | None = None,
        on_bad_line: BadLinePolicy = "fail",
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Self:
        """Records of files of any known format, by suffix: path -> records."""
        load = Load("auto", _columns(columns), on_bad_line=_policy(on_bad_line))
        return self._then(_with_path(load, include_file_paths, file_path_column))

    # Sinks: the item of each shard afterwards is the path

    def write_jsonl(self, pattern: PathPattern, skip_existing: bool = False) -> Self:
        """Write one JSON lines file per shard; `.gz` and `.zst` compress by suffix. Items become the paths.

        Args:
            pattern: Path with {shard:05d}, {total:05d}, {basename}, or callable(shard, total).
            skip_existing: Leave a file alone when its lineage note proves that it is complete and made from this input.
        """
        return self._then(Write("jsonl", pattern, None, skip_existing))

    def write_parquet(
        self, pattern: PathPattern, schema: "pa.Schema | None" = None, skip_existing: bool = False
    ) -> Self:
        """Write one Parquet file (zstd) per shard. Items become the paths.

        Args:
            schema: A contract: anything else raises `SchemaConflictError`. Without it, inferred and widened.
        """
        return self._then(Write("parquet", pattern, schema, skip_existing))

    def write_binary(self, pattern: PathPattern, skip_existing: bool = False) -> Self:
        """Write items that are bytes back to back, one file per shard. Items become the paths.

        Nothing is put between them, and no suffix compresses: frame, or compress, in a `map` before. An empty shard
        gives an empty file.

        Args:
            pattern: Path with {shard:05d}, {total:05d}, {basename}, or callable(shard, total).
            skip_existing: Leave a file alone when its lineage note proves that it is complete and made from this input.
        Raises:
            RecordTypeError: (at run time) an item is not bytes, bytearray or memoryview.
        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from zephyr import Dataset, ZephyrContext
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ds = Dataset.from_list([b"ab", b"c"], shards=1).write_binary(f"{folder}/{{shard}}.bin")
            ...     [path] = ZephyrContext(inline=True).execute(ds).results
            ...     Path(path).read_bytes()
            b'abc'
        """
        return self._then(Write("binary", pattern, None, skip_existing))

    def write_vortex(
        self, pattern: PathPattern, schema: "pa.Schema | None" = None, skip_existing: bool = False
    ) -> Self:
        """Write one Vortex file (extra `vortex`) per shard. Items become the paths.

        Args:
            schema: A contract: anything else raises `SchemaConflictError`. Without it, inferred and widened.
        """
        return self._then(Write("vortex", pattern, schema, skip_existing))

    def write_to(self, sink: "Sink", pattern: PathPattern, skip_existing: bool = False) -> Self:
        """Write each shard with a sink of your own, to a file or a folder; see `zephyr.connectors.Sink`."""
        return self._then(Write(sink, pattern, None, skip_existing))

    def write_levanter_cache(
        self,
        pattern: PathPattern,
        metadata: "Mapping[str, Any] | None" = None,
        skip_existing: bool = False,
        batch_size: int | None = None,
    ) -> Self:
        """Write each shard as a token cache that levanter trains on: one folder per shard. Items become the paths.

        The sink comes from whoever registers one under `levanter_cache` in the entry point group `zephyr.sinks`,
        which levanter does; zephyr itself knows nothing of the format.

        Args:
            metadata: Kept in the cache's ledger.
            batch_size: Records per batch handed to the store; default the sink's.
        Raises:
            DatasetError: no such sink is installed.
        """
        options = {} if batch_size is None else {"batch_size": batch_size}
        return self.write_to(
            named_sink("levanter_cache", metadata=dict(metadata or {}), **options), pattern, skip_existing
        )


def _columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(columns)


def _policy(on_bad_line: BadLinePolicy) -> BadLinePolicy:
    if on_bad_line not in ("fail", "skip"):
        raise DatasetError(f"cannot read lines: on_bad_line={on_bad_line!r}; expected 'fail' or 'skip'. Pick one.")
    return on_bad_line


def _with_path(load: Load, included: bool, column: str) -> Load:
    if not included:
        return load
    if not column or (load.columns is not None and column not in load.columns):
        raise DatasetError(
            f"cannot include file paths: file_path_column={column!r}, columns={load.columns}; expected a name, which "
            "columns names too if they are given. Add it to columns."
        )
    columns = None if load.columns is None else tuple(name for name in load.columns if name != column)
    return replace(load, columns=columns, path_column=column)
