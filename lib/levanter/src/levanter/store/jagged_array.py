"""One field of a cache: rows of different lengths in one flat array.

The rows of a field are concatenated into ``data``; ``offsets`` says where each ends. Layout of the folder::

    <field>/data/     1-D, dtype of the field: every row flattened, one after the other
    <field>/offsets/  1-D int64: offsets[0] = number of rows, offsets[i] = end of row i-1 in ``data``
    <field>/shapes/   only for rank > 1: int64 [rows, rank-1], every dimension of a row but the last

``offsets[0]`` is written last, after the data, the ends and the shapes. It is the commit point: an append torn
anywhere before it leaves the old number of rows, and the next append overwrites what was left behind.
That holds against a killed process; against a power cut, whoever owns the folder must flush it before saying that it is
complete, as :class:`~levanter.store.cache.SerialCacheWriter` does.
All three are zarr3 arrays, open-ended, sharded and compressed (:mod:`levanter.store._arrays`).
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import tensorstore as ts
from numpy.typing import ArrayLike, DTypeLike

from levanter.store._arrays import (
    ReadPlan,
    create_array,
    cut_ranges,
    cut_windows,
    gather_all,
    join_path,
    open_array,
    plan_reads,
    start_reads,
    wait_all,
)
from levanter.store.errors import RowIndexError, SchemaError

OpenMode = Literal["r", "w", "a"]


@dataclasses.dataclass(frozen=True)
class PreparedBatch:
    """Rows of one field, already flattened.

    Attributes:
        data: Every element, rows concatenated. Shape ``(elements,)``.
        ends: End of each row in ``data``, int64. Shape ``(rows,)``.
        shapes: Leading dimensions of each row, int64, shape ``(rows, rank - 1)``; ``None`` for rank 1.
    """

    data: np.ndarray
    ends: np.ndarray
    shapes: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """How many rows the batch holds."""
        return len(self.ends)

    @property
    def rank(self) -> int:
        """Number of dimensions of each row."""
        return 1 if self.shapes is None else 1 + self.shapes.shape[1]

    @classmethod
    def from_batch(
        cls, items: Sequence[ArrayLike], *, item_rank: int = 1, dtype: DTypeLike | None = None
    ) -> "PreparedBatch":
        """Flatten rows.

        Args:
            items: One array (or list) a row, each of rank ``item_rank``.
            item_rank: Rank that every row must have, ``>= 1``.
            dtype: Element type; that of the first row when ``None``.
        Raises:
            SchemaError: A row has another rank.
        Example:
            >>> batch = PreparedBatch.from_batch([[1, 2], [3]], dtype=np.int32)
            >>> batch.data.tolist(), batch.ends.tolist()
            ([1, 2, 3], [2, 3])
        """
        arrays = [np.asarray(item, dtype=dtype) for item in items]
        for number, array in enumerate(arrays):
            if array.ndim != item_rank:
                raise SchemaError("row", f"row {number} has rank {array.ndim}", f"rank {item_rank}")
        ends = np.cumsum([array.size for array in arrays], dtype=np.int64)
        flat = [array.reshape(-1) for array in arrays]
        data = np.concatenate(flat) if flat else np.zeros(0, dtype=dtype or np.int32)
        shapes = None
        if item_rank > 1:
            shapes = np.array([array.shape[:-1] for array in arrays], dtype=np.int64).reshape(-1, item_rank - 1)
        return cls(data, ends, shapes)

    @classmethod
    def concat(cls, batches: Sequence["PreparedBatch"]) -> "PreparedBatch":
        """Put batches of one field behind each other."""
        if len(batches) == 1:
            return batches[0]
        bases = np.cumsum([0, *(len(batch.data) for batch in batches[:-1])])
        ends = np.concatenate([batch.ends + base for batch, base in zip(batches, bases, strict=True)])
        shapes = [batch.shapes for batch in batches if batch.shapes is not None]
        return cls(np.concatenate([batch.data for batch in batches]), ends, np.concatenate(shapes) if shapes else None)

    def astype(self, dtype: DTypeLike) -> "PreparedBatch":
        """The same rows with another element type."""
        return dataclasses.replace(self, data=self.data.astype(dtype))


class JaggedArrayStore:
    """Append-only rows of one dtype and rank, readable at random. Make one with :meth:`open`.

    One writer at a time; a reader sees the rows that were committed when it opened (or last called :meth:`reload`).
    """

    def __init__(
        self, path: str, data: ts.TensorStore, offsets: ts.TensorStore, shapes: ts.TensorStore | None, *, writable: bool
    ) -> None:
        self.path = path
        self._data = data
        self._offsets = offsets
        self._shapes = shapes
        self._writable = writable
        self._num_rows, self._data_size = self._read_sizes()

    @classmethod
    def open(
        cls, path: str, *, mode: OpenMode = "r", item_rank: int | None = None, dtype: DTypeLike | None = None
    ) -> "JaggedArrayStore":
        """Open or create the store in folder ``path``.

        Args:
            path: Local path or ``gs://``, ``s3://`` URL of the field's folder.
            mode: ``r`` read, ``a`` append to what is there, ``w`` start empty.
            item_rank: Rank of the rows; required for ``w``, checked otherwise.
            dtype: Element type; required for ``w``, checked otherwise.
        Raises:
            SchemaError: What is on disk has another dtype or rank.
            FileNotFoundError: Nothing is there and ``mode`` is not ``w``.
        """
        if mode == "w":
            if item_rank is None or item_rank < 1 or dtype is None:
                raise SchemaError(path, f"cannot create with item_rank={item_rank}, dtype={dtype}", "both given")
            return cls._create(path, item_rank, np.dtype(dtype))
        write = mode == "a"
        try:
            data = open_array(join_path(path, "data"), write=write)
            offsets = open_array(join_path(path, "offsets"), write=write)
        except ValueError as error:
            if "NOT_FOUND" in str(error):
                raise FileNotFoundError(
                    f"no jagged array at path={path!r}; expected data/ and offsets/. Build the cache first."
                ) from error
            raise
        found_rank = 1
        shapes = None
        try:
            shapes = open_array(join_path(path, "shapes"), write=write)
            found_rank = 1 + shapes.shape[1]
        except ValueError as error:
            if "NOT_FOUND" not in str(error):
                raise
        store = cls(path, data, offsets, shapes, writable=write)
        if dtype is not None and store.dtype != np.dtype(dtype):
            raise SchemaError(path, f"dtype on disk is {store.dtype}", f"dtype {np.dtype(dtype)}")
        if item_rank is not None and item_rank != found_rank:
            raise SchemaError(path, f"rank on disk is {found_rank}", f"rank {item_rank}")
        return store

    @classmethod
    def _create(cls, path: str, item_rank: int, dtype: np.dtype) -> "JaggedArrayStore":
        offsets = create_array(join_path(path, "offsets"), np.dtype(np.int64))
        data = create_array(join_path(path, "data"), dtype)
        shapes = None
        if item_rank > 1:
            shapes = create_array(join_path(path, "shapes"), np.dtype(np.int64), (item_rank - 1,))
        return cls(path, data, offsets, shapes, writable=True)

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return np.dtype(self._data.dtype.numpy_dtype)

    @property
    def item_rank(self) -> int:
        """Number of dimensions of each row."""
        return 1 if self._shapes is None else 1 + self._shapes.shape[1]

    @property
    def num_rows(self) -> int:
        """Committed rows."""
        return self._num_rows

    @property
    def data_size(self) -> int:
        """Elements of all committed rows together."""
        return self._data_size

    async def num_rows_async(self) -> int:
        """Committed rows; the twin of :attr:`num_rows` for coroutines."""
        return self._num_rows

    async def data_size_async(self) -> int:
        """Elements of all committed rows; the twin of :attr:`data_size` for coroutines."""
        return self._data_size

    def __len__(self) -> int:
        return self._num_rows

    def _read_sizes(self) -> tuple[int, int]:
        num_rows = int(self._offsets[0].read().result())
        return num_rows, int(self._offsets[num_rows].read().result()) if num_rows else 0

    def reload(self) -> "JaggedArrayStore":
        """A new handle that sees rows committed by other handles since this one opened."""
        return JaggedArrayStore.open(self.path, mode="a" if self._writable else "r")

    # Writing

    def append(self, item: ArrayLike) -> None:
        """Add one row and commit it."""
        self.extend([item])

    def extend(self, items: Sequence[ArrayLike] | PreparedBatch) -> None:
        """Add rows and commit them together: a reader sees all of them or none.

        Raises:
            SchemaError: A row has another rank than the store.
        """
        batch = self._prepare(items)
        if batch.num_rows == 0:
            return
        for future in self._start_body_writes(batch):
            future.result()
        self._commit(self._num_rows + batch.num_rows, self._data_size + len(batch.data))

    async def append_async(self, item: ArrayLike) -> None:
        """Add one row and commit it, without blocking the event loop."""
        await self.extend_async([item])

    async def extend_async(self, items: Sequence[ArrayLike] | PreparedBatch) -> None:
        """Add rows and commit them together, without blocking the event loop."""
        batch = self._prepare(items)
        if batch.num_rows == 0:
            return
        for future in self._start_body_writes(batch):
            await future
        num_rows = self._num_rows + batch.num_rows
        await self._offsets[0].write(num_rows)
        self._num_rows, self._data_size = num_rows, self._data_size + len(batch.data)

    def trim_to_size(self, num_rows: int) -> None:
        """Drop the rows from ``num_rows`` on. Asking for more rows than there are changes nothing."""
        if num_rows >= self._num_rows:
            return
        old_rows, old_size = self._num_rows, self._data_size
        new_size = self._end_of(num_rows)
        self._commit(num_rows, new_size)
        tails = [self._data[new_size:old_size], self._offsets[num_rows + 1 : old_rows + 1]]
        if self._shapes is not None:
            tails.append(self._shapes[num_rows:old_rows])
        for tail in tails:
            if tail.size:
                tail.write(0).result()

    def _end_of(self, num_rows: int) -> int:
        return int(self._offsets[num_rows].read().result()) if num_rows else 0

    def _prepare(self, items: Sequence[ArrayLike] | PreparedBatch) -> PreparedBatch:
        if not isinstance(items, PreparedBatch):
            return PreparedBatch.from_batch(items, item_rank=self.item_rank, dtype=self.dtype)
        if items.rank != self.item_rank:
            raise SchemaError(self.path, f"batch has rank {items.rank}", f"rank {self.item_rank}")
        return items if items.data.dtype == self.dtype else items.astype(self.dtype)

    def _start_body_writes(self, batch: PreparedBatch) -> list[ts.WriteFutures]:
        rows, size = self._num_rows, self._data_size
        writes = [self._offsets[rows + 1 : rows + 1 + batch.num_rows].write(batch.ends + size)]
        if len(batch.data):
            writes.append(self._data[size : size + len(batch.data)].write(batch.data))
        if self._shapes is not None and batch.shapes is not None:
            writes.append(self._shapes[rows : rows + batch.num_rows].write(batch.shapes))
        return writes

    def _commit(self, num_rows: int, data_size: int) -> None:
        self._offsets[0].write(num_rows).result()
        self._num_rows, self._data_size = num_rows, data_size

    # Reading

    def row_bounds(self, rows: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where rows begin and end in the flat data.

        Args:
            rows: Row numbers, any order. Shape ``(n,)``.
        Returns:
            Two int64 arrays of shape ``(n,)``: first element, and one past the last.
        Raises:
            RowIndexError: A row is outside the store.
        """
        index = self._checked_rows(rows)
        if len(index) == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        first, last = int(index.min()), int(index.max())
        if last - first < 64 * len(index) + 65536:
            ends = np.asarray(self._offsets[first : last + 2].read().result())
            starts_out, stops_out = ends[index - first], ends[index - first + 1]
        else:
            both = np.asarray(self._offsets[np.concatenate([index, index + 1])].read().result())
            starts_out, stops_out = both[: len(index)], both[len(index) :]
        return np.where(index == 0, 0, starts_out), stops_out

    def get_batch_sync(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Rows in the order asked for; duplicates allowed, nothing for nothing.

        Raises:
            RowIndexError: A row is outside the store.
        """
        starts, stops = self.row_bounds(rows)
        plan = plan_reads(starts, stops)
        items = cut_ranges(wait_all(start_reads(self._data, plan)), plan, stops - starts)
        return self._reshape(items, rows)

    async def get_batch(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """The twin of :meth:`get_batch_sync` for coroutines."""
        starts, stops = self.row_bounds(rows)
        plan = plan_reads(starts, stops)
        items = cut_ranges(await gather_all(start_reads(self._data, plan)), plan, stops - starts)
        return self._reshape(items, rows)

    def __getitem__(self, item: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(item, slice):
            return self.get_batch_sync(range(*item.indices(self._num_rows)))
        return self.get_batch_sync([item + self._num_rows if item < 0 else item])[0]

    def __iter__(self) -> Iterable[np.ndarray]:
        for begin in range(0, self._num_rows, 1024):
            yield from self.get_batch_sync(range(begin, min(begin + 1024, self._num_rows)))

    def read_flat_sync(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Equally long windows of the flat data, whatever rows they cross.

        Args:
            starts: First element of each window. Shape ``(n,)``.
            length: Elements a window, ``>= 1``.
        Returns:
            Array of the store's dtype, shape ``(n, length)``.
        Raises:
            RowIndexError: A window reaches outside the data.
        """
        plan, out = self._plan_windows(starts, length)
        cut_windows(wait_all(start_reads(self._data, plan)), plan, length, out)
        return out

    async def read_flat(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The twin of :meth:`read_flat_sync` for coroutines."""
        plan, out = self._plan_windows(starts, length)
        cut_windows(await gather_all(start_reads(self._data, plan)), plan, length, out)
        return out

    def _plan_windows(self, starts: np.ndarray, length: int) -> tuple[ReadPlan, np.ndarray]:
        begin = np.asarray(starts, dtype=np.int64).reshape(-1)
        if length < 1:
            raise RowIndexError(f"window length in {self.path!r}", length, 1)
        if len(begin) and (begin.min() < 0 or begin.max() + length > self._data_size):
            worst = int(begin.min()) if begin.min() < 0 else int(begin.max())
            raise RowIndexError(f"window of {length} elements in {self.path!r}", worst, self._data_size - length + 1)
        return plan_reads(begin, begin + length), np.empty((len(begin), length), dtype=self.dtype)

    def _checked_rows(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        index = np.asarray(rows, dtype=np.int64).reshape(-1)
        if len(index) and (index.min() < 0 or index.max() >= self._num_rows):
            worst = int(index.min()) if index.min() < 0 else int(index.max())
            raise RowIndexError(f"row of {self.path!r}", worst, self._num_rows)
        return index

    def _reshape(self, items: list[np.ndarray], rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        if self._shapes is None or not items:
            return items
        index = np.asarray(rows, dtype=np.int64)
        leading = np.asarray(self._shapes[index].read().result())
        shaped = []
        for item, lead in zip(items, leading, strict=True):
            # The last dimension is implied by the size; a row without elements has none to imply it.
            count = int(np.prod(lead))
            shaped.append(item.reshape(*lead.tolist(), item.size // count if count else 0))
        return shaped
