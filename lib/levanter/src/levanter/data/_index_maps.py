"""Maps between indices: the pure kernel under every dataset view.

Each map is a frozen value with a length and a vectorised ``__call__`` from view indices to source indices, both int64.
Datasets (:mod:`levanter.data.dataset`) add reading; nothing here does I/O or knows what an item is.
"""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from levanter.data._prp import Permutation

V = TypeVar("V")
PermutationFactory = Callable[[int], Permutation]


class IndexMap(Protocol):
    """View index to source index. ``length`` is ``None`` for a view without end."""

    @property
    def length(self) -> int | None: ...

    def __call__(self, indices: np.ndarray) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class SliceMap:
    """``i -> i + start``."""

    start: int
    length: int | None

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        return indices + self.start


@dataclasses.dataclass(frozen=True)
class PermutedMap:
    """``i -> permutation(i)``, the first ``length`` images."""

    permutation: Permutation
    length: int

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        return self.permutation(indices)


class RetainedMap:
    """What is left of ``0 .. n-1`` when ``held_out`` is taken away, moving as few items as possible.

    Held-out indices below ``n - k`` are replaced, in ascending order, by the tail indices ``>= n - k`` that are not
    held out; everything else stays where it is, so locality survives.
    """

    def __init__(self, total: int, held_out: np.ndarray) -> None:
        held = np.sort(held_out)
        self._length = total - len(held)
        self._holes = held[held < self._length]
        self._fillers = np.setdiff1d(np.arange(self._length, total), held, assume_unique=True)

    @property
    def length(self) -> int:
        return self._length

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        if len(self._holes) == 0:
            return indices
        place = np.minimum(np.searchsorted(self._holes, indices), len(self._holes) - 1)
        return np.where(self._holes[place] == indices, self._fillers[place], indices)


class EpochMap:
    """``i -> order_e(i mod n)`` with ``e = i // n``: repeats a source, each epoch in its own order."""

    def __init__(self, source_length: int, num_epochs: int | None, order_of_epoch: PermutationFactory | None) -> None:
        self._source_length = source_length
        self._num_epochs = num_epochs
        self._orders = None if order_of_epoch is None else Recent(order_of_epoch, 4)

    @property
    def length(self) -> int | None:
        return None if self._num_epochs is None else self._num_epochs * self._source_length

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        epochs, within = np.divmod(indices, self._source_length)
        if self._orders is None:
            return within
        out = np.empty_like(within)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            out[rows] = self._orders(epoch)(within[rows])
        return out


class BlockShuffleMap:
    """Shuffle blocks of the source, then items inside windows of blocks: near-global mixing with local reads.

    With ``b = io_block_size``, ``w = window_blocks``, ``F = n // b`` full blocks and a tail of ``t = n % b`` items: the
    full blocks are permuted, the tail block stays last; window *j* takes block slots ``[j·w, (j+1)·w)``; the items of
    its full blocks are permuted among each other, those of the tail among themselves. A window so touches ``w``
    contiguous blocks of the source, whatever the size of the source.

    Args:
        total: Items of the source.
        io_block_size: Items a block, ``>= 1``.
        window_blocks: Blocks a window, ``>= 1``.
        blocks: Permutation of the full blocks; ``None`` when there is at most one.
        window_order: Window number to the permutation of its full region.
        tail_order: Window number to the permutation of its tail region.
    """

    WINDOW_ORDERS_KEPT = 4

    def __init__(
        self,
        total: int,
        io_block_size: int,
        window_blocks: int,
        *,
        blocks: Permutation | None,
        window_order: Callable[[int, int], Permutation],
        tail_order: Callable[[int, int], Permutation],
    ) -> None:
        self._total = total
        self._block = io_block_size
        self._full_blocks, self._tail = divmod(total, io_block_size)
        num_blocks = self._full_blocks + (self._tail > 0)
        self._num_windows = -(-num_blocks // window_blocks)
        self._window_blocks = window_blocks
        self._window_items = window_blocks * io_block_size
        self._block_order = np.arange(self._full_blocks, dtype=np.int64)
        if blocks is not None:
            self._block_order = blocks(self._block_order)
        self._window_orders = Recent(lambda window: window_order(window, self._full_items(window)), 4)
        self._tail_orders = Recent(lambda window: tail_order(window, self._tail), 1)

    @property
    def length(self) -> int:
        return self._total

    def _full_items(self, window: int) -> int:
        first = window * self._window_blocks
        return (min(first + self._window_blocks, self._full_blocks) - first) * self._block

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        windows = np.minimum(indices // self._window_items, self._num_windows - 1)
        out = np.empty_like(indices)
        for window in np.unique(windows).tolist():
            rows = np.flatnonzero(windows == window)
            out[rows] = self._inside(window, indices[rows] - window * self._window_items)
        return out

    def _inside(self, window: int, offsets: np.ndarray) -> np.ndarray:
        full = self._full_items(window)
        out = np.empty_like(offsets)
        in_full = offsets < full
        if in_full.any():
            slot, within = np.divmod(self._window_orders(window)(offsets[in_full]), self._block)
            out[in_full] = self._block_order[window * self._window_blocks + slot] * self._block + within
        if not in_full.all():
            tail = self._tail_orders(window)(offsets[~in_full] - full)
            out[~in_full] = self._full_blocks * self._block + tail
        return out


class Recent[V]:
    """The results of a function for the arguments used last; one per instance, unlike ``lru_cache`` on a method."""

    def __init__(self, function: Callable[[int], V], size: int) -> None:
        self._function = function
        self._size = size
        self._kept: OrderedDict[int, V] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, argument: int) -> V:
        with self._lock:
            found = self._kept.pop(argument, None)
            if found is None:
                found = self._function(argument)
            self._kept[argument] = found
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return found
