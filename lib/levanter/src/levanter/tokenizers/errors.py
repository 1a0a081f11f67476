"""Errors of tokenizers.

::

    LevanterError
    └── TokenizerError
        ├── TokenizerNotFoundError    (FileNotFoundError)  no tokenizer files at that path
        ├── TokenizerFileError        (ValueError)         files that are not a tokenizer, or name unknown tokens
        ├── InvalidTextError          (ValueError)         text that has no UTF-8 form, or is no string
        ├── MissingSpecialTokenError  (ValueError)         BOS or EOS is to be added but the tokenizer has none
        └── VocabularySizeError       (ValueError)         the data do not support a vocabulary of that size
"""

from levanter.errors import LevanterError


class TokenizerError(LevanterError):
    """Root of every error that :mod:`levanter.tokenizers` raises on purpose."""


class TokenizerNotFoundError(TokenizerError, FileNotFoundError):
    """Nothing that could be a tokenizer is at the path. Names are never looked up on a network."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"no tokenizer: path={path!r}; expected a folder that holds tokenizer.json, or that file itself. "
            "Names are not looked up on a hub: download the tokenizer first, or train one with train_byte_bpe."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class TokenizerFileError(TokenizerError, ValueError):
    """Files are there but do not make a tokenizer."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"tokenizer files are not usable: path={path!r}, reason={reason}; expected Hugging Face layout. "
            "Save the tokenizer again."
        )


class InvalidTextError(TokenizerError, ValueError):
    """A document that cannot be encoded."""

    failure_category = "data"

    def __init__(self, reason: str, excerpt: str) -> None:
        self.reason = reason
        self.excerpt = excerpt
        super().__init__(
            f"text cannot be encoded: reason={reason}, excerpt={excerpt!r}; expected Unicode scalar values. "
            "Repair or drop the document."
        )


class MissingSpecialTokenError(TokenizerError, ValueError):
    """A document should begin or end with a token that this tokenizer does not have."""

    def __init__(self, path: str, which: str) -> None:
        self.path = path
        self.which = which
        super().__init__(
            f"tokenizer has no {which} token: path={path!r}; expected one, because enforce_{which}=True. "
            f"Name it in tokenizer_config.json ({which}_token), or pass enforce_{which}=False."
        )


class VocabularySizeError(TokenizerError, ValueError):
    """The text does not contain enough different pairs for a vocabulary of the size asked for."""

    failure_category = "data"

    def __init__(self, asked: int, reached: int, documents: int, characters: int) -> None:
        self.asked = asked
        self.reached = reached
        self.documents = documents
        self.characters = characters
        super().__init__(
            f"data do not support this vocabulary: vocab_size={asked}, reachable={reached} "
            f"from documents={documents}, characters={characters}; expected vocab_size <= {reached}. "
            "Ask for fewer tokens or train on more text."
        )
