"""Build a token cache with zephyr: shards in parallel, committed by one ledger.

This is the only module of levanter that imports zephyr (extra ``cache``). Zephyr schedules and retries; what a shard is
and how it is made is :mod:`levanter.data._shard_build`, so a cache built here is byte-equal to one built in-process.
"""

from collections.abc import Sequence

from zephyr import Dataset, ZephyrContext

from levanter.data._shard_build import (
    TokenizeSettings,
    build_shard,
    building,
    finish_cache,
    plan_shards,
    withdraw_commit,
)
from levanter.data.sharded_datasource import OnBadRecord
from levanter.store.ledger import CacheLedger


def build_token_cache(
    input_paths: Sequence[str],
    cache_dir: str,
    *,
    tokenizer: str,
    text_key: str = "text",
    enforce_eos: bool = True,
    enforce_bos: bool = False,
    num_shards: int | None = None,
    on_bad_record: OnBadRecord = "raise",
    context: ZephyrContext | None = None,
) -> CacheLedger:
    """Tokenise files into a cache.

    Equal inputs and settings give equal bytes, whatever the number of workers. Interrupted anywhere, a second call
    keeps the shards that are finished and builds the rest.

    Args:
        input_paths: jsonl, json, parquet or txt files (compressed or not), globs, or folders.
        cache_dir: Where the cache goes.
        tokenizer: Folder in Hugging Face layout, or a ``tokenizer.json``.
        text_key: Field of the text in jsonl and parquet.
        enforce_eos: Put the EOS id after every document.
        enforce_bos: Put the BOS id before every document.
        num_shards: How many shards; one a file when ``None``.
        on_bad_record: Raise at a bad record, or skip and count it in the ledger.
        context: Where to run; local processes when ``None``.
    Returns:
        The ledger of the cache.
    Raises:
        SourceError: Inputs are missing or of unknown kind.
        BadRecordError: A bad record and ``on_bad_record`` is ``"raise"``.
        MissingSpecialTokenError: A mark is enforced that the tokenizer does not have.
    """
    settings = TokenizeSettings(tokenizer, text_key, enforce_eos, enforce_bos, on_bad_record)
    settings.load()  # Fail here, not in every worker.
    jobs = plan_shards(input_paths, cache_dir, settings, num_shards)
    context = ZephyrContext(name="token-cache") if context is None else context
    with building(cache_dir):
        withdraw_commit(cache_dir)
        context.execute(Dataset.from_list(jobs, shards=len(jobs)).map(build_shard))
        return finish_cache(cache_dir, jobs)
