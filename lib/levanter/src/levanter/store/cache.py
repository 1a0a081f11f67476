"""Token caches: written whole, committed by a ledger, read at random.

* :class:`SerialCacheWriter` writes one cache (usually one shard) into a sibling folder, opens every field again to
  check it (:func:`verify_cache`), writes the ledger and only then renames the folder into place. A killed writer
  leaves no cache; equal rows give equal bytes however they were batched.
* :func:`consolidate_shard_cache_ledgers` makes one cache of many shards by writing a ledger that names them. No array
  is copied.
* :class:`TreeCache` reads either layout. Shards are opened when first touched, several at a time; a window of tokens
  may cross shards.
"""

import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
from rigging.filesystem.atomic import atomic_rename

from levanter.store._arrays import is_local, join_path, local_path
from levanter.store._verify import verify_arrays
from levanter.store._verify import verify_cache as verify_cache
from levanter.store._windows import plan_windows
from levanter.store.errors import (
    CacheExistsError,
    CacheMetadataError,
    CorruptCacheError,
    RowIndexError,
    SchemaError,
)
from levanter.store.jagged_array import JaggedArrayStore, PreparedBatch
from levanter.store.ledger import (
    CONSOLIDATED,
    SHARDED,
    CacheLedger,
    FieldSpec,
    Schema,
    metadata_differences,
    read_ledger,
    read_ledger_or_none,
    write_ledger,
)
from levanter.store.tree_store import Row, TreeStore, schema_on_disk

logger = logging.getLogger(__name__)

FLUSH_BYTES = 64 * 1024 * 1024
"""Rows are buffered up to this many bytes: every flush rewrites the outer shard it touches."""

OPEN_THREADS = 32

OnMismatch = Literal["error", "warn", "ignore"]


class SerialCacheWriter:
    """Write a cache from rows that arrive in order; a context manager.

    Leaving the block without an exception commits; leaving it with one, or being killed, leaves nothing to read.

    Args:
        cache_dir: Where the cache will be.
        schema: Field name to dtype and rank.
        metadata: Every setting that shaped the rows; readers compare it.
        shard_name: Name under which the ledger counts the rows.
        mode: ``"x"`` refuses to replace a finished cache, ``"w"`` replaces it.
        flush_bytes: Bytes buffered before a write; has no effect on what is written.
    Raises:
        CacheExistsError: ``mode`` is ``"x"`` and a finished cache is there.
        SchemaError: The schema is empty.
    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp() + "/cache"
        >>> with SerialCacheWriter(folder, {"input_ids": FieldSpec("int32")}, {"tokenizer": "demo"}) as writer:
        ...     writer.write_batch([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])
        >>> TreeCache.load(folder).flat_field_length("input_ids")
        4
    """

    def __init__(
        self,
        cache_dir: str,
        schema: Schema,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard_name: str = "",
        mode: Literal["x", "w"] = "w",
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        if not schema:
            raise SchemaError("*", "schema has no fields", "at least one field")
        self.cache_dir = cache_dir
        self._schema = dict(schema)
        self._metadata = metadata
        self._shard_name = shard_name
        self._mode = mode
        self._flush_bytes = flush_bytes
        self._stack = contextlib.ExitStack()
        self._pending: list[Mapping[str, PreparedBatch]] = []
        self._pending_bytes = 0
        self._tree: TreeStore | None = None
        self._ledger: CacheLedger | None = None

    def __enter__(self) -> "SerialCacheWriter":
        if self._mode == "x":
            previous = read_ledger_or_none(self.cache_dir)
            if previous is not None and previous.is_finished:
                raise CacheExistsError(self.cache_dir)
        self._stack.__enter__()
        target = self.cache_dir
        if is_local(target):
            target = self._stack.enter_context(atomic_rename(local_path(target)))
        self._target = target
        self._tree = TreeStore.open(target, self._schema, mode="w")
        return self

    def write_batch(self, rows: Sequence[Row]) -> None:
        """Add rows.

        Raises:
            SchemaError: A row does not fit the schema.
        """
        self.write_columns(self._open_tree().prepare(rows))

    def write_columns(self, columns: Mapping[str, PreparedBatch]) -> None:
        """Add rows that are already flat, one batch a field: the fast path of the tokeniser.

        Raises:
            SchemaError: Fields are missing or have different numbers of rows.
        """
        self._pending.append(columns)
        self._pending_bytes += sum(batch.data.nbytes + batch.ends.nbytes for batch in columns.values())
        if self._pending_bytes >= self._flush_bytes:
            self._flush()

    def result(self) -> "TreeCache":
        """The committed cache.

        Raises:
            RuntimeError: The block has not been left successfully.
        """
        if self._ledger is None:
            raise RuntimeError(f"cache is not committed yet: path={self.cache_dir!r}. Leave the `with` block first.")
        return TreeCache(self.cache_dir, self._ledger)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._pending.clear()
            self._stack.__exit__(kind, error, trace)
            return
        # An error while committing must also leave nothing behind, so the commit runs inside the stack.
        with self._stack:
            self._flush()
            ledger = self._make_ledger()
            verify_arrays(self._target, ledger, self._schema)
            write_ledger(self._target, ledger)
        self._ledger = ledger

    def _open_tree(self) -> TreeStore:
        if self._tree is None:
            raise RuntimeError(f"cache writer is not open: path={self.cache_dir!r}. Use it in a `with` block.")
        return self._tree

    def _flush(self) -> None:
        if self._pending:
            names = self._pending[0].keys()
            merged = {name: PreparedBatch.concat([batch[name] for batch in self._pending]) for name in names}
            self._pending.clear()
            self._pending_bytes = 0
            self._open_tree().extend_columns(merged)

    def _make_ledger(self) -> CacheLedger:
        tree = self._open_tree()
        counts = {name: store.data_size for name, store in tree.fields.items()}
        return CacheLedger(
            total_num_rows=tree.num_rows,
            shard_rows={self._shard_name: tree.num_rows},
            is_finished=True,
            finished_shards=(self._shard_name,),
            field_counts=counts,
            field_counts_by_shard={self._shard_name: counts},
            layout=CONSOLIDATED,
            metadata=self._metadata,
            schema=self._schema,
        )


def consolidate_shard_cache_ledgers(
    root: str, shard_names: Sequence[str], metadata: Mapping[str, Any] | None = None
) -> CacheLedger:
    """Commit finished shards as one cache by writing a ledger; copies no array.

    Args:
        root: Folder of the whole cache.
        shard_names: Sub-folders in reading order, relative to ``root``, each a finished cache.
        metadata: Recorded in the new ledger.
    Returns:
        The ledger written to ``root``.
    Raises:
        CacheNotFinishedError: A shard has no committed ledger.
        CorruptCacheError: A shard lacks data its ledger promises.
        SchemaError: Shards have different fields.
        LedgerFormatError: A shard name is used twice or leaves ``root``.
    """
    CacheLedger(0, {name: 0 for name in shard_names}, True, tuple(shard_names), layout=SHARDED).validate(root)
    with concurrent.futures.ThreadPoolExecutor(OPEN_THREADS) as pool:
        shards = list(pool.map(lambda name: verify_cache(join_path(root, name)), shard_names))
    schema: Schema = shards[0].schema if shards else {}
    for name, shard in zip(shard_names, shards, strict=True):
        if dict(shard.schema) != dict(schema):
            raise SchemaError(name, f"shard has fields {dict(shard.schema)}", f"those of {shard_names[0]}: {schema}")
    by_shard = {name: dict(shard.field_counts) for name, shard in zip(shard_names, shards, strict=True)}
    ledger = CacheLedger(
        total_num_rows=sum(shard.total_num_rows for shard in shards),
        shard_rows={name: shard.total_num_rows for name, shard in zip(shard_names, shards, strict=True)},
        is_finished=True,
        finished_shards=tuple(shard_names),
        field_counts={field: sum(counts[field] for counts in by_shard.values()) for field in schema},
        field_counts_by_shard=by_shard,
        layout=SHARDED,
        metadata=metadata,
        schema=schema,
    )
    write_ledger(root, ledger)
    return ledger


class TreeCache:
    """A finished cache, either layout, read at random. Make one with :meth:`load`."""

    def __init__(self, cache_dir: str, ledger: CacheLedger) -> None:
        self.cache_dir = cache_dir
        self.ledger = ledger
        self._sharded = ledger.layout == SHARDED
        self._names = list(ledger.finished_shards) if self._sharded else [""]
        rows = [ledger.shard_rows[name] for name in self._names] if self._sharded else [ledger.total_num_rows]
        self._row_ends = np.cumsum(rows, dtype=np.int64)
        self._trees: dict[int, TreeStore] = {}
        self._lock = threading.Lock()
        self._field_ends: dict[str, np.ndarray] = {}

    @classmethod
    def load(
        cls,
        cache_dir: str,
        *,
        expected_metadata: Mapping[str, Any] | None = None,
        on_mismatch: OnMismatch = "error",
    ) -> "TreeCache":
        """Open a finished cache.

        Args:
            cache_dir: Folder that holds the ledger.
            expected_metadata: Settings the cache must have been built with; keys not given are not compared.
            on_mismatch: What to do when they differ: raise, log a warning, or nothing.
        Raises:
            CacheNotFinishedError: No committed ledger.
            CacheMetadataError: The settings differ and ``on_mismatch`` is ``"error"``.
            LedgerFormatError: The ledger contradicts itself.
        """
        ledger = read_ledger(cache_dir)
        differences = metadata_differences(ledger.metadata, expected_metadata or {})
        if differences and on_mismatch != "ignore":
            error = CacheMetadataError(cache_dir, differences)
            if on_mismatch == "error":
                raise error
            logger.warning("%s", error)
        return cls(cache_dir, ledger)

    @property
    def schema(self) -> dict[str, FieldSpec]:
        """Field name to dtype and rank; empty for a cache of no shards."""
        if self.ledger.schema:
            return dict(self.ledger.schema)
        return self._shard(0).schema if self._names else {}

    def __len__(self) -> int:
        return self.ledger.total_num_rows

    async def async_len(self) -> int:
        """Rows of the cache."""
        return self.ledger.total_num_rows

    def flat_field_length(self, field: str) -> int:
        """Elements of a field over all rows.

        Raises:
            SchemaError: No such field.
        """
        ends = self._ends_of(field)
        return int(ends[-1]) if len(ends) else 0

    def get_batch_sync(self, rows: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Rows in the order asked for.

        Raises:
            RowIndexError: A row is outside the cache.
        """
        out: list[Any] = [None] * len(rows)
        for shard, places, local in self._rows_by_shard(rows):
            for place, row in zip(places, self._shard(shard).get_batch_sync(local), strict=True):
                out[place] = row
        return out

    async def get_batch(self, rows: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """The twin of :meth:`get_batch_sync` for coroutines."""
        out: list[Any] = [None] * len(rows)
        for shard, places, local in self._rows_by_shard(rows):
            for place, row in zip(places, await self._shard(shard).get_batch(local), strict=True):
                out[place] = row
        return out

    def get_flat_field_batch_sync(self, field: str, offsets: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
        """Equally long windows of a field, rows (and shards) concatenated.

        Args:
            field: Field name, rank 1 in the usual case.
            offsets: First element of each window. Shape ``(n,)``.
            length: Elements a window.
        Returns:
            Array of the field's dtype, shape ``(n, length)``.
        Raises:
            RowIndexError: A window reaches outside the field.
            SchemaError: No such field.
        """
        begins = self._checked_windows(field, offsets, length)
        pieces = plan_windows(self._ends_of(field), begins, length)
        if len(pieces) == 1 and pieces[0].size == length:
            return self._field(pieces[0].shard, field).read_flat_sync(pieces[0].starts, length)
        out = self._empty_windows(field, len(begins), length)
        for piece in pieces:
            piece.put(out, self._field(piece.shard, field).read_flat_sync(piece.starts, piece.size))
        return out

    async def get_flat_field_batch(self, field: str, offsets: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
        """The twin of :meth:`get_flat_field_batch_sync` for coroutines."""
        begins = self._checked_windows(field, offsets, length)
        pieces = plan_windows(self._ends_of(field), begins, length)
        if len(pieces) == 1 and pieces[0].size == length:
            return await self._field(pieces[0].shard, field).read_flat(pieces[0].starts, length)
        out = self._empty_windows(field, len(begins), length)
        for piece in pieces:
            piece.put(out, await self._field(piece.shard, field).read_flat(piece.starts, piece.size))
        return out

    def row_lengths(self, field: str) -> np.ndarray:
        """Elements of every row of a field, int64, shape ``(rows,)``. Reads all offsets once."""
        return np.diff(self.row_ends(field), prepend=0)

    def row_ends(self, field: str) -> np.ndarray:
        """End of every row in the flat field, int64, shape ``(rows,)``. Reads all offsets."""
        ends = self._ends_of(field)
        with concurrent.futures.ThreadPoolExecutor(OPEN_THREADS) as pool:
            trees = list(pool.map(self._shard, range(len(self._names))))
        parts = [np.zeros(0, dtype=np.int64)]
        for number, tree in enumerate(trees):
            base = int(ends[number - 1]) if number else 0
            parts.append(base + tree.fields[field].row_bounds(range(tree.fields[field].num_rows))[1])
        return np.concatenate(parts)

    def _shard(self, number: int) -> TreeStore:
        tree = self._trees.get(number)
        if tree is None:
            path = join_path(self.cache_dir, self._names[number]) if self._sharded else self.cache_dir
            schema = self.ledger.schema or schema_on_disk(path)
            try:
                tree = TreeStore.open(path, schema)
            except (FileNotFoundError, ValueError) as error:
                raise CorruptCacheError(path, "*", f"cannot be opened ({error})") from error
            with self._lock:
                tree = self._trees.setdefault(number, tree)
        return tree

    def _ends_of(self, field: str) -> np.ndarray:
        found = self._field_ends.get(field)
        if found is not None:
            return found
        if self._names and field not in self.schema:
            raise SchemaError(field, f"cache has fields {sorted(self.schema)}", "one of them")
        if self._sharded and self.ledger.field_counts_by_shard:
            sizes = [self.ledger.field_counts_by_shard[name].get(field, 0) for name in self._names]
        else:
            sizes = [self._shard(number).fields[field].data_size for number in range(len(self._names))]
        ends = np.cumsum(sizes, dtype=np.int64)
        self._field_ends[field] = ends
        return ends

    def _rows_by_shard(self, rows: Sequence[int] | np.ndarray) -> Iterable[tuple[int, list[int], np.ndarray]]:
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        if len(index) and (index.min() < 0 or index.max() >= len(self)):
            worst = int(index.min()) if index.min() < 0 else int(index.max())
            raise RowIndexError(f"row of cache {self.cache_dir!r}", worst, len(self))
        shard_of = np.searchsorted(self._row_ends, index, side="right")
        for shard in np.unique(shard_of).tolist():
            places = np.flatnonzero(shard_of == shard)
            base = int(self._row_ends[shard - 1]) if shard else 0
            yield shard, places.tolist(), index[places] - base

    def _field(self, shard: int, field: str) -> JaggedArrayStore:
        return self._shard(shard).fields[field]

    def _empty_windows(self, field: str, count: int, length: int) -> np.ndarray:
        spec = self.schema.get(field)
        return np.empty((count, length), dtype="int32" if spec is None else spec.dtype)

    def _checked_windows(self, field: str, offsets: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
        total = self.flat_field_length(field)
        begins = np.asarray(offsets, dtype=np.int64).reshape(-1)
        if length < 1 or (len(begins) and (begins.min() < 0 or begins.max() + length > total)):
            worst = int(begins.min()) if len(begins) and begins.min() < 0 else int(begins.max(initial=0))
            raise RowIndexError(f"window of {length} elements of {field!r}", worst, max(total - length + 1, 0))
        return begins
