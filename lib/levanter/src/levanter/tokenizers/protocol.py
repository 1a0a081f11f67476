"""What the rest of the library may ask of a tokenizer."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class MarinTokenizer(Protocol):
    """Text to token ids and back. Implementations are immutable and may be shared between threads."""

    @property
    def name_or_path(self) -> str:
        """Where it came from; for messages only, never part of an identity."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides ids: equal fingerprints give equal caches."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Id that marks the beginning of a document, if there is one."""
        ...

    @property
    def eos_token_id(self) -> int | None:
        """Id that marks the end of a document, if there is one."""
        ...

    @property
    def pad_token_id(self) -> int | None:
        """Id for padding, if there is one."""
        ...

    @property
    def bos_token(self) -> str | None:
        """Text of the beginning-of-document token."""
        ...

    @property
    def eos_token(self) -> str | None:
        """Text of the end-of-document token."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Jinja template that renders a conversation, if the files bring one."""
        ...

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of control tokens, ascending."""
        ...

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool = False, parse_special: bool = False) -> list[int]:
        """Ids of a text.

        Args:
            text: Any string without lone surrogates.
            add_special_tokens: Put the BOS id first and the EOS id last, those of them that exist.
            parse_special: Turn control-token strings inside the text into their ids. Only for text we rendered
                ourselves, such as chat templates; never for documents.
        Raises:
            InvalidTextError: Not a string, or not encodable.
        """
        ...

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, parse_special: bool = False
    ) -> list[list[int]]:
        """Ids of many texts, in parallel where the backend can; equal to :meth:`encode` one by one."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of ids. Incomplete UTF-8 sequences at the edges become U+FFFD."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Token piece to id, added tokens included."""
        ...

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Pieces of ids, as the vocabulary spells them.

        Raises:
            IndexError: An id is not in the vocabulary.
        """
        ...

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """Ids of pieces.

        Raises:
            KeyError: A piece is not in the vocabulary.
        """
        ...
