"""A tokenizer for text that already is token ids: whitespace-separated decimal numbers."""

from collections.abc import Sequence
from typing import final

from levanter.tokenizers.errors import InvalidTextError


@final
class PassthroughTokenizer:
    """Parses and prints ids; used for data that were tokenised elsewhere.

    Args:
        vocab_size: Ids must be below this.
    Example:
        >>> PassthroughTokenizer(10).encode("1 2 3")
        [1, 2, 3]
    """

    bos_token: str | None = None
    eos_token: str | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    chat_template: str | None = None

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size={vocab_size}; expected >= 1. Give the size the ids were made with.")
        self._vocab_size = vocab_size

    @property
    def name_or_path(self) -> str:
        """Always ``"passthrough"``."""
        return "passthrough"

    @property
    def fingerprint(self) -> str:
        """Names the vocabulary size, which is all there is."""
        return f"passthrough-{self._vocab_size}"

    @property
    def vocab_size(self) -> int:
        """One more than the highest id allowed."""
        return self._vocab_size

    @property
    def all_special_ids(self) -> list[int]:
        """There are none."""
        return []

    def __len__(self) -> int:
        return self._vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = False) -> list[int]:
        """The numbers in the text.

        Raises:
            InvalidTextError: Something is no number, or outside the vocabulary.
        """
        del add_special_tokens, parse_special
        ids = []
        for piece in text.split():
            if not (piece.isascii() and piece.isdigit()) or int(piece) >= self._vocab_size:
                raise InvalidTextError(f"not a token id below {self._vocab_size}", piece[:80])
            ids.append(int(piece))
        return ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, parse_special: bool = False
    ) -> list[list[int]]:
        """The numbers in each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The numbers, separated by spaces."""
        return " ".join(str(number) for number in ids)

    def get_vocab(self) -> dict[str, int]:
        """Decimal spelling to id."""
        return {str(number): number for number in range(self._vocab_size)}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Decimal spellings."""
        return [str(number) for number in ids]

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """Numbers of decimal spellings."""
        return [int(token) for token in tokens]
