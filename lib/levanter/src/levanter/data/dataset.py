"""Datasets: a length and a pure map from index to item, composed lazily.

An :class:`AsyncDataset` answers ``get_batch(indices)``: any indices, any order, duplicates allowed, no state. Slices,
shuffles, holdouts and epochs are views that only translate indices (:class:`AbstractIndexView`, with the arithmetic in
:mod:`levanter.data._index_maps`), so a stack of views costs one pass over an index array and reaches the source as one
read. Seeds come from JAX keys.
"""

import abc
import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from levanter.data._blocking import blocking_wait
from levanter.data._index_maps import BlockShuffleMap, EpochMap, IndexMap, PermutedMap, RetainedMap, SliceMap
from levanter.data._keys import fold_in, fold_in_for_user, split
from levanter.data._prp import make_permutation
from levanter.data._stacking import stack_examples
from levanter.data.errors import DatasetIndexError, EmptyDatasetError, InfiniteDatasetError

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)


@dataclasses.dataclass(frozen=True)
class BlockShuffleConfig:
    """Sizes of the block shuffle.

    Attributes:
        io_block_size: Items that stay together on disk and are read together, ``>= 1``.
        window_blocks: Blocks whose items are mixed with each other, ``>= 1``.
        perm_type: Kind of permutation, ``"feistel"`` or ``"linear"``.
    """

    io_block_size: int = 256
    window_blocks: int = 512
    perm_type: str = "feistel"

    def __post_init__(self) -> None:
        if self.io_block_size < 1 or self.window_blocks < 1:
            raise ValueError(
                f"block shuffle sizes too small: io_block_size={self.io_block_size}, "
                f"window_blocks={self.window_blocks}; expected both >= 1. Use the defaults (256, 512)."
            )


class AsyncDataset[T_co](abc.ABC):
    """Items by index. Implementations are stateless and may be read from several threads."""

    @abc.abstractmethod
    async def async_len(self) -> int:
        """Number of items.

        Raises:
            InfiniteDatasetError: The dataset has no end.
        """

    @abc.abstractmethod
    def is_finite(self) -> bool:
        """Whether the dataset has an end."""

    @abc.abstractmethod
    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[T_co]:
        """Items in the order asked for; nothing for nothing.

        Raises:
            DatasetIndexError: An index is outside the dataset.
        """

    async def get_stacked(self, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Array leaves of the items, each stacked along a new first axis; what the loader reads.

        Override where a batch can be built faster than item by item.

        Args:
            indices: At least one.
        """
        return stack_examples(await self.get_batch(indices))

    async def getitem_async(self, index: int) -> T_co:
        """One item.

        Raises:
            DatasetIndexError: The index is outside the dataset.
        """
        return (await self.get_batch([index]))[0]

    def as_sync_dataset(self) -> "SyncifiedDataset[T_co]":
        """The same items for code without coroutines."""
        return SyncifiedDataset(self)

    def map(self, function: Callable[..., U], *args: Any, **kwargs: Any) -> "MappedAsyncDataset[U]":
        """Apply ``function(item, *args, **kwargs)`` to every item.

        A keyword named ``key`` is folded with the item's index, so random augmentation depends on the index alone.
        """
        return MappedAsyncDataset(self, function, *args, **kwargs)

    def map_batches(self, function: Callable[..., Sequence[U]], *args: Any, **kwargs: Any) -> "AsyncDataset[U]":
        """Apply ``function(items, *args, **kwargs)`` to what is read together; it must act on each item alone.

        A keyword named ``key`` becomes a list of keys, one an item, each folded with its index.
        """
        return BatchMappedAsyncDataset(self, function, *args, **kwargs)

    def slice_dataset(self, start: int = 0, end: int | None = None) -> "SlicedAsyncDataset[T_co]":
        """Items ``start .. end-1``; a slice with an end of an endless dataset is finite.

        Raises:
            ValueError: ``start`` is negative or after ``end``.
        """
        return SlicedAsyncDataset(self, start, end)

    def take(self, num_items: int) -> "SlicedAsyncDataset[T_co]":
        """The first ``num_items`` items."""
        return self.slice_dataset(0, num_items)

    def shuffle(self, key: jax.Array, *, perm_type: str = "feistel") -> "PermutationDataset[T_co]":
        """All items in an order drawn from ``key``."""
        return PermutationDataset(self, key, perm_type=perm_type)

    def block_shuffle(
        self, *, io_block_size: int, window_blocks: int, key: jax.Array, perm_type: str = "feistel"
    ) -> "BlockShufflingDataset[T_co]":
        """All items, mixed nearly globally while reads stay in contiguous blocks.

        Raises:
            ValueError: A size is below 1.
            InfiniteDatasetError: The dataset has no end.
        """
        return BlockShufflingDataset(self, BlockShuffleConfig(io_block_size, window_blocks, perm_type), key)

    def random_holdout_split(
        self, num_holdout: int, *, key: jax.Array, perm_type: str = "feistel"
    ) -> "tuple[RetainedDataset[T_co], HeldOutDataset[T_co]]":
        """Two disjoint views that together hold every item: what is kept, and ``num_holdout`` random items.

        The kept view is the identity except for at most ``num_holdout`` positions, so reads stay local.
        """
        return (
            RetainedDataset(self, num_holdout, key, perm_type=perm_type),
            HeldOutDataset(self, num_holdout, key, perm_type=perm_type),
        )

    def repeat(
        self, num_epochs: int | None = None, *, reshuffle_key: jax.Array | None = None, perm_type: str = "feistel"
    ) -> "RepeatedDataset[T_co]":
        """The items again and again.

        Args:
            num_epochs: How often; without end when ``None``.
            reshuffle_key: Draw a new order for every epoch; the same order every time when ``None``.
            perm_type: Kind of permutation.
        """
        return RepeatedDataset(self, num_epochs, reshuffle_key, perm_type=perm_type)


class SyncifiedDataset[T_co]:
    """An async dataset behind ordinary methods."""

    def __init__(self, dataset: AsyncDataset[T_co]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return blocking_wait(self.dataset.async_len())

    def is_finite(self) -> bool:
        """Whether the dataset has an end."""
        return self.dataset.is_finite()

    def __getitem__(self, index: int) -> T_co:
        return blocking_wait(self.dataset.getitem_async(index))

    def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[T_co]:
        """Items in the order asked for."""
        return blocking_wait(self.dataset.get_batch(indices))


class ListAsyncDataset(AsyncDataset[T]):
    """Items that are already in memory.

    Example:
        >>> ListAsyncDataset([10, 20, 30]).slice_dataset(1).as_sync_dataset()[0]
        20
    """

    def __init__(self, items: Sequence[T]) -> None:
        self.items = list(items)

    async def async_len(self) -> int:
        """Number of items."""
        return len(self.items)

    def is_finite(self) -> bool:
        """Always."""
        return True

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[T]:
        """Items in the order asked for."""
        index = check_indices(indices, len(self.items), "list")
        return [self.items[i] for i in index.tolist()]


class MappedAsyncDataset(AsyncDataset[U]):
    """A function applied to every item; see :meth:`AsyncDataset.map`."""

    def __init__(self, dataset: AsyncDataset[Any], function: Callable[..., U], *args: Any, **kwargs: Any) -> None:
        self.dataset = dataset
        self._function = function
        self._args = args
        self._key = kwargs.pop("key", None)
        self._kwargs = kwargs

    async def async_len(self) -> int:
        """Number of items of the source."""
        return await self.dataset.async_len()

    def is_finite(self) -> bool:
        """Whether the source has an end."""
        return self.dataset.is_finite()

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[U]:
        """Mapped items in the order asked for."""
        items = await self.dataset.get_batch(indices)
        if self._key is None:
            return [self._function(item, *self._args, **self._kwargs) for item in items]
        keys = [fold_in_for_user(self._key, int(index)) for index in indices]
        return [
            self._function(item, *self._args, key=key, **self._kwargs) for item, key in zip(items, keys, strict=True)
        ]


class BatchMappedAsyncDataset(AsyncDataset[U]):
    """A function applied to items read together; see :meth:`AsyncDataset.map_batches`."""

    def __init__(
        self, dataset: AsyncDataset[Any], function: Callable[..., Sequence[U]], *args: Any, **kwargs: Any
    ) -> None:
        self.dataset = dataset
        self._function = function
        self._args = args
        self._key = kwargs.pop("key", None)
        self._kwargs = kwargs

    async def async_len(self) -> int:
        """Number of items of the source."""
        return await self.dataset.async_len()

    def is_finite(self) -> bool:
        """Whether the source has an end."""
        return self.dataset.is_finite()

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[U]:
        """Mapped items in the order asked for."""
        if len(indices) == 0:
            return []
        items = await self.dataset.get_batch(indices)
        kwargs = self._kwargs
        if self._key is not None:
            kwargs = {**kwargs, "key": [fold_in_for_user(self._key, int(index)) for index in indices]}
        return self._function(items, *self._args, **kwargs)


class AbstractIndexView(AsyncDataset[T]):
    """A view that only translates indices. Leaves say how, given the length of the source."""

    def __init__(self, dataset: AsyncDataset[T]) -> None:
        self.dataset = dataset
        self._map: IndexMap | None = None

    @abc.abstractmethod
    def make_index_map(self, source_length: int | None) -> IndexMap:
        """The map of this view; ``source_length`` is ``None`` for a source without end."""

    async def index_map(self) -> IndexMap:
        """The map of this view, made once."""
        if self._map is None:
            length = await self.dataset.async_len() if self.dataset.is_finite() else None
            self._map = self.make_index_map(length)
        return self._map

    async def async_len(self) -> int:
        """Number of items of the view.

        Raises:
            InfiniteDatasetError: The view has no end.
        """
        length = (await self.index_map()).length
        if length is None:
            raise InfiniteDatasetError(type(self).__name__, "async_len")
        return length

    def is_finite(self) -> bool:
        """Whether the source, and so the view, has an end."""
        return self.dataset.is_finite()

    async def source_indices(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Where items of the view lie in the source.

        Raises:
            DatasetIndexError: An index is outside the view.
        """
        index_map = await self.index_map()
        return index_map(check_indices(indices, index_map.length, type(self).__name__))

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[T]:
        """Items in the order asked for."""
        if len(indices) == 0:
            return []
        return await self.dataset.get_batch(await self.source_indices(indices))

    async def get_stacked(self, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Stacked leaves of the items, read by the source in one go."""
        return await self.dataset.get_stacked(await self.source_indices(indices))


class SlicedAsyncDataset(AbstractIndexView[T]):
    """See :meth:`AsyncDataset.slice_dataset`."""

    def __init__(self, dataset: AsyncDataset[T], start: int = 0, end: int | None = None) -> None:
        if start < 0 or (end is not None and start > end):
            raise ValueError(f"not a slice: start={start}, end={end}; expected 0 <= start <= end. Correct them.")
        super().__init__(dataset)
        self.start = start
        self.end = end

    def is_finite(self) -> bool:
        """Whether the slice has an end."""
        return self.end is not None or self.dataset.is_finite()

    def make_index_map(self, source_length: int | None) -> SliceMap:
        """``i -> start + i``."""
        ends = [end for end in (self.end, source_length) if end is not None]
        return SliceMap(self.start, max(min(ends) - self.start, 0) if ends else None)


class PermutationDataset(AbstractIndexView[T]):
    """See :meth:`AsyncDataset.shuffle`."""

    def __init__(self, dataset: AsyncDataset[T], key: jax.Array, *, perm_type: str = "feistel") -> None:
        super().__init__(dataset)
        self._key = key
        self._perm_type = perm_type

    def make_index_map(self, source_length: int | None) -> IndexMap:
        """``i -> permutation(i)``."""
        length = _finite(source_length, "shuffle")
        if length == 0:
            return SliceMap(0, 0)
        return PermutedMap(make_permutation(self._perm_type, length, self._key), length)


class BlockShufflingDataset(AbstractIndexView[T]):
    """See :meth:`AsyncDataset.block_shuffle`; the order is :class:`~levanter.data._index_maps.BlockShuffleMap`."""

    def __init__(self, dataset: AsyncDataset[T], config: BlockShuffleConfig, key: jax.Array) -> None:
        if not dataset.is_finite():
            raise InfiniteDatasetError(type(dataset).__name__, "block_shuffle")
        super().__init__(dataset)
        self.config = config
        self._key = key

    def make_index_map(self, source_length: int | None) -> IndexMap:
        """Blocks permuted, then items inside windows of blocks."""
        length = _finite(source_length, "block_shuffle")
        if length == 0:
            return SliceMap(0, 0)
        kind = self.config.perm_type
        block_key, full_key, tail_key = split(self._key, 3)
        full_blocks = length // self.config.io_block_size
        return BlockShuffleMap(
            length,
            self.config.io_block_size,
            self.config.window_blocks,
            blocks=make_permutation(kind, full_blocks, block_key) if full_blocks > 1 else None,
            window_order=lambda window, items: make_permutation(kind, items, fold_in(full_key, window)),
            tail_order=lambda window, items: make_permutation(kind, items, fold_in(tail_key, window)),
        )

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[T]:
        """Items in the order asked for; the source is read in ascending order."""
        if len(indices) == 0:
            return []
        physical = await self.source_indices(indices)
        order = np.argsort(physical, kind="stable")
        items: list[Any] = [None] * len(order)
        for place, item in zip(order.tolist(), await self.dataset.get_batch(physical[order]), strict=True):
            items[place] = item
        return items


class RetainedDataset(AbstractIndexView[T]):
    """What is left when a random holdout is taken away; see :meth:`AsyncDataset.random_holdout_split`."""

    def __init__(
        self, dataset: AsyncDataset[T], num_holdout: int, key: jax.Array, *, perm_type: str = "feistel"
    ) -> None:
        super().__init__(dataset)
        self.num_holdout = num_holdout
        self._key = key
        self._perm_type = perm_type

    def make_index_map(self, source_length: int | None) -> RetainedMap:
        """The identity, except that held-out positions show tail items instead."""
        length = _finite(source_length, "random_holdout_split")
        permutation = _holdout_permutation(length, self.num_holdout, self._key, self._perm_type)
        return RetainedMap(length, permutation(np.arange(self.num_holdout)))


class HeldOutDataset(AbstractIndexView[T]):
    """A random holdout; see :meth:`AsyncDataset.random_holdout_split`."""

    def __init__(
        self, dataset: AsyncDataset[T], num_holdout: int, key: jax.Array, *, perm_type: str = "feistel"
    ) -> None:
        super().__init__(dataset)
        self.num_holdout = num_holdout
        self._key = key
        self._perm_type = perm_type

    def make_index_map(self, source_length: int | None) -> PermutedMap:
        """The first ``num_holdout`` images of the permutation."""
        length = _finite(source_length, "random_holdout_split")
        permutation = _holdout_permutation(length, self.num_holdout, self._key, self._perm_type)
        return PermutedMap(permutation, self.num_holdout)


class RepeatedDataset(AbstractIndexView[T]):
    """See :meth:`AsyncDataset.repeat`."""

    def __init__(
        self, dataset: AsyncDataset[T], num_epochs: int | None, key: jax.Array | None, *, perm_type: str = "feistel"
    ) -> None:
        if num_epochs is not None and num_epochs < 0:
            raise ValueError(f"num_epochs={num_epochs}; expected >= 0, or None for no end.")
        super().__init__(dataset)
        self.num_epochs = num_epochs
        self._key = key
        self._perm_type = perm_type

    def is_finite(self) -> bool:
        """Whether the number of epochs is given."""
        return self.num_epochs is not None

    def make_index_map(self, source_length: int | None) -> EpochMap:
        """``i -> order of epoch (i // n) at (i mod n)``."""
        length = _finite(source_length, "repeat")
        if length == 0:
            raise EmptyDatasetError(type(self.dataset).__name__, "An empty dataset cannot be repeated.")
        key = self._key
        if key is None:
            return EpochMap(length, self.num_epochs, None)
        return EpochMap(
            length, self.num_epochs, lambda epoch: make_permutation(self._perm_type, length, fold_in(key, epoch))
        )


def check_indices(indices: Sequence[int] | np.ndarray, length: int | None, what: str) -> np.ndarray:
    """Indices as an int64 array.

    Raises:
        DatasetIndexError: One is negative, or not below ``length``.
    """
    index = np.asarray(indices, dtype=np.int64).reshape(-1)
    if index.size:
        if index.min() < 0:
            raise DatasetIndexError(what, int(index.min()), length or 0)
        if length is not None and index.max() >= length:
            raise DatasetIndexError(what, int(index.max()), length)
    return index


async def lengths_of(datasets: Sequence[AsyncDataset[Any]]) -> list[int | None]:
    """Lengths of several datasets, asked for together; ``None`` for one without end."""

    async def one(dataset: AsyncDataset[Any]) -> int | None:
        return await dataset.async_len() if dataset.is_finite() else None

    return list(await asyncio.gather(*(one(dataset) for dataset in datasets)))


def _finite(length: int | None, operation: str) -> int:
    if length is None:
        raise InfiniteDatasetError("source", operation)
    return length


def _holdout_permutation(length: int, num_holdout: int, key: jax.Array, perm_type: str) -> Any:
    if not 0 < num_holdout < length:
        raise ValueError(
            f"cannot hold out: num_holdout={num_holdout}, length={length}; expected 0 < num_holdout < length. "
            "Hold out fewer items."
        )
    return make_permutation(perm_type, length, key)
