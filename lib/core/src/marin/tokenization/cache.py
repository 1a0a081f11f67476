"""Turn documents into a token cache in levanter's on-disk layout, one folder a split."""

from __future__ import annotations

from glob import glob

from levanter.data.cache_builder import build_token_cache
from rigging.hashing import sha256_file

from marin.datakit._pipeline import pipeline
from marin.datakit.errors import SourceNotFoundError
from marin.tokenization.recipe import TokenizeConfig, TokenizedCache


def tokenize(config: TokenizeConfig) -> TokenizedCache:
    """Tokenise every split.

    Args:
        config: Splits, tokeniser and output.
    Returns:
        The artifact, with tokens and documents of every split.
    Raises:
        SourceNotFoundError: A split has no shards.
    """
    tokens: dict[str, int] = {}
    documents: dict[str, int] = {}
    with pipeline("tokenize") as context:
        for split in config.splits:
            pattern = f"{config.documents_path}/outputs/{split}/part-*.parquet"
            paths = sorted(glob(pattern))
            if not paths:
                raise SourceNotFoundError(pattern, f"Parquet shards of the {split} split")
            ledger = build_token_cache(
                paths, f"{config.output_path}/{split}", tokenizer=config.tokenizer_path, context=context
            )
            tokens[split] = ledger.field_counts["input_ids"]
            documents[split] = ledger.total_num_rows
    digest = sha256_file(f"{config.tokenizer_path}/tokenizer.json")
    return TokenizedCache(tokenizer_digest=digest, num_tokens=tokens, num_documents=documents)
