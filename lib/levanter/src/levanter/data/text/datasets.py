"""From caches to examples.

:class:`TokenSeqDataset` cuts the concatenated documents of a cache into windows of one length;
:class:`CausalLmDataset` makes language-model examples of the windows. Both build whole batches in numpy: no Python and
no compiled function runs per example.
"""

from collections.abc import Sequence
from typing import final

import haliax as hax
import numpy as np

from levanter.data._stacking import example_leaves
from levanter.data.dataset import AsyncDataset, check_indices
from levanter.data.text.examples import LmExample, build_example, causal_loss_weight, segments_from_eos
from levanter.store.cache import TreeCache

TOKEN_FIELD = "input_ids"


@final
class TokenSeqDataset(AsyncDataset[np.ndarray]):
    """Windows of ``seq_len`` tokens over all documents concatenated; what is left at the end is dropped.

    Args:
        cache: A finished token cache.
        seq_len: Tokens an item, ``>= 1``.
        field: Field that holds the token ids.
    """

    def __init__(self, cache: TreeCache, seq_len: int, *, field: str = TOKEN_FIELD) -> None:
        if seq_len < 1:
            raise ValueError(f"seq_len={seq_len}; expected >= 1. Use the model's sequence length.")
        self.cache = cache
        self.seq_len = seq_len
        self.field = field
        self._length = cache.flat_field_length(field) // seq_len

    async def async_len(self) -> int:
        """Whole windows that the cache holds."""
        return self._length

    def is_finite(self) -> bool:
        """Always."""
        return True

    async def read(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Windows as one int32 array, shape ``(n, seq_len)``."""
        index = check_indices(indices, self._length, f"tokens of {self.cache.cache_dir!r}")
        windows = await self.cache.get_flat_field_batch(self.field, index * self.seq_len, self.seq_len)
        return windows.astype(np.int32, copy=False)

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[np.ndarray]:
        """Windows, int32, each of shape ``(seq_len,)``."""
        return list(await self.read(indices)) if len(indices) else []

    async def get_stacked(self, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """One array, int32, shape ``(n, seq_len)``."""
        return [await self.read(indices)]


@final
class CausalLmDataset(AsyncDataset[LmExample]):
    """Language-model examples of token windows.

    Args:
        dataset: Windows: items are int arrays of shape ``(Pos.size,)``.
        Pos: Position axis; its size is the length of the windows.
        eos_id: Token that ends a document; needed to keep documents from seeing each other.
        ignore_id: Predictions of this token weigh nothing.
        block_cross_document_attention: Whether documents are kept apart.
        train_on_document_starts: Keep the weight of predicting the first token of the next document.
    """

    def __init__(
        self,
        dataset: AsyncDataset[np.ndarray],
        Pos: hax.Axis,
        *,
        eos_id: int | None = None,
        ignore_id: int | None = None,
        block_cross_document_attention: bool = True,
        train_on_document_starts: bool = False,
    ) -> None:
        self.dataset = dataset
        self.Pos = Pos
        self.eos_id = eos_id if block_cross_document_attention else None
        self.ignore_id = ignore_id
        self.train_on_document_starts = train_on_document_starts

    async def async_len(self) -> int:
        """Number of windows."""
        return await self.dataset.async_len()

    def is_finite(self) -> bool:
        """Whether the source has an end."""
        return self.dataset.is_finite()

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[LmExample]:
        """Examples in the order asked for, their arrays in numpy."""
        if len(indices) == 0:
            return []
        tokens, weight, segments = self._arrays(await self._windows(indices))
        return [
            build_example(tokens[i], weight[i], None if segments is None else segments[i], (self.Pos,))
            for i in range(len(tokens))
        ]

    async def get_stacked(self, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Leaves of the examples, stacked; built for all of them at once."""
        windows = await self._windows(indices)
        batch = hax.Axis("__batch__", len(windows))
        return example_leaves(build_example(*self._arrays(windows), (batch, self.Pos)))

    async def _windows(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        [windows] = await self.dataset.get_stacked(indices)
        if windows.shape[1] != self.Pos.size:
            raise ValueError(
                f"windows do not fit the position axis: length={windows.shape[1]}, {self.Pos.name}={self.Pos.size}; "
                "expected equal. Make the windows with seq_len=Pos.size."
            )
        return windows

    def _arrays(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        segments = None if self.eos_id is None else segments_from_eos(windows, self.eos_id)
        weight = causal_loss_weight(
            windows, ignore_id=self.ignore_id, segments=None if self.train_on_document_starts else segments
        )
        return windows, weight, segments
