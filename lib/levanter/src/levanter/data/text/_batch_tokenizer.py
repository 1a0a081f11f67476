"""Texts to flat token columns, a batch at a time.

Documents are marked by appending ids, never text: an injected ``" </s>"`` would bring a stray space with it, and a mark
that depends on what a tokenizer adds by itself gets lost when the tokenizer changes. So special tokens of the tokenizer
are always off here and the marks are ours. The result is one flat array with row ends, ready for the store.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from levanter.store.jagged_array import PreparedBatch
from levanter.store.ledger import FieldSpec
from levanter.tokenizers.errors import MissingSpecialTokenError
from levanter.tokenizers.protocol import MarinTokenizer

TOKEN_FIELD = "input_ids"


class BatchTokenizer:
    """Tokenise documents for a cache.

    Args:
        tokenizer: Any tokenizer.
        enforce_bos: Put the BOS id before every document.
        enforce_eos: Put the EOS id after every document.
    Raises:
        MissingSpecialTokenError: A mark is enforced that the tokenizer does not have.
    """

    schema = {TOKEN_FIELD: FieldSpec("int32", 1)}

    def __init__(self, tokenizer: MarinTokenizer, *, enforce_bos: bool = False, enforce_eos: bool = True) -> None:
        if enforce_bos and tokenizer.bos_token_id is None:
            raise MissingSpecialTokenError(tokenizer.name_or_path, "bos")
        if enforce_eos and tokenizer.eos_token_id is None:
            raise MissingSpecialTokenError(tokenizer.name_or_path, "eos")
        self.tokenizer = tokenizer
        self._first = tokenizer.bos_token_id if enforce_bos else None
        self._last = tokenizer.eos_token_id if enforce_eos else None

    @property
    def metadata(self) -> dict[str, Any]:
        """Everything that decides the ids; recorded in the ledger. Holds no path, so caches can move."""
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "vocab_size": self.tokenizer.vocab_size,
            "append_bos": self._first is not None,
            "append_eos": self._last is not None,
        }

    def __call__(self, texts: Sequence[str] | pa.StringArray | pa.LargeStringArray) -> dict[str, PreparedBatch]:
        """Tokenise texts.

        Args:
            texts: Documents, as strings or an Arrow string column without nulls.
        Returns:
            ``{"input_ids": int32 rows}``.
        Raises:
            InvalidTextError: A document has no UTF-8 form.
        """
        documents = texts.to_pylist() if isinstance(texts, pa.Array) else texts
        rows = self.tokenizer.encode_batch(documents)
        marks = (self._first is not None) + (self._last is not None)
        ends = np.cumsum([len(row) + marks for row in rows], dtype=np.int64)
        data = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.int32)
        position = 0
        for row, end in zip(rows, ends.tolist(), strict=True):
            if self._first is not None:
                data[position] = self._first
                position += 1
            data[position : position + len(row)] = row
            if self._last is not None:
                data[end - 1] = self._last
            position = end
        return {TOKEN_FIELD: PreparedBatch(data, ends)}
