"""What tokenisation is told and what it leaves behind. Plain data: planning needs no tokeniser library."""

from __future__ import annotations

from dataclasses import dataclass, field

from marin.execution import Artifact

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class TokenizerConfig:
    """What to train a tokeniser on, and how large.

    Attributes:
        output_path: Folder that receives ``tokenizer.json``.
        documents_path: Folder of consolidated documents; the ``train`` split is read.
        vocab_size: Entries, special tokens included.
    """

    output_path: str
    documents_path: str
    vocab_size: int = 4096


class TrainedTokenizer(Artifact):
    """A tokeniser in Hugging Face's ``tokenizer.json`` form.

    Attributes:
        vocab_size: Entries, special tokens included.
        end_of_text: The token that ends every document.
    """

    vocab_size: int = 0
    end_of_text: str = END_OF_TEXT


@dataclass(frozen=True)
class TokenizeConfig:
    """What to tokenise.

    Attributes:
        output_path: Folder that receives one cache a split.
        documents_path: Folder of consolidated documents.
        tokenizer_path: Folder of ``tokenizer.json``.
        splits: Splits to tokenise.
    """

    output_path: str
    documents_path: str
    tokenizer_path: str
    splits: tuple[str, ...] = ("train", "validation")


class TokenizedCache(Artifact):
    """Token caches by split; ``<path>/<split>`` opens with ``levanter.store.cache.TreeCache.load``.

    Attributes:
        tokenizer_digest: SHA-256 of the ``tokenizer.json`` that made the tokens.
        num_tokens: Tokens by split.
        num_documents: Documents by split.
    """

    tokenizer_digest: str = ""
    num_tokens: dict[str, int] = field(default_factory=dict)
    num_documents: dict[str, int] = field(default_factory=dict)
