"""Train a byte-level BPE tokeniser as an artifact: ``tokenizer.json`` and nothing a reader would have to guess.

Reference: Sennrich, Haddow and Birch, Neural machine translation of rare words with subword units, ACL 2016, section 3;
the byte alphabet is that of Radford et al., Language models are unsupervised multitask learners, 2019, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from glob import glob

import pyarrow.parquet as pq
from levanter.tokenizers import save_tokenizer, train_byte_bpe

from marin.datakit.errors import SourceNotFoundError
from marin.tokenization.recipe import END_OF_TEXT, TokenizerConfig, TrainedTokenizer


def iterate_texts(pattern: str) -> Iterator[str]:
    """The ``text`` column of all Parquet shards that a glob names, in shard and row order.

    Raises:
        SourceNotFoundError: The glob matches nothing.
    """
    paths = sorted(glob(pattern))
    if not paths:
        raise SourceNotFoundError(pattern, "Parquet shards with a text column")
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["text"]):
                yield from batch.column("text").to_pylist()


def train_tokenizer(config: TokenizerConfig) -> TrainedTokenizer:
    """Train the tokeniser on the training split alone.

    Args:
        config: Documents, size and output.
    Returns:
        The artifact.
    Raises:
        SourceNotFoundError: The documents have no training split.
        levanter.tokenizers.errors.TokenizerError: The documents support fewer merges than the vocabulary asks for.
    """
    texts = iterate_texts(f"{config.documents_path}/outputs/train/part-*.parquet")
    tokenizer = train_byte_bpe(texts, vocab_size=config.vocab_size, special_tokens=[END_OF_TEXT])
    save_tokenizer(tokenizer, config.output_path, eos_token=END_OF_TEXT)
    return TrainedTokenizer(vocab_size=tokenizer.get_vocab_size())
