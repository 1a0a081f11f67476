"""Build or open the token cache of one component of a mixture, in this process.

Small corpora do not need workers: the tokenizer library already uses every core for a batch. Large ones are built with
:func:`levanter.data.cache_builder.build_token_cache`, which makes the same bytes.
"""

import contextlib
import logging
from collections.abc import Sequence

from rigging.progress import Progress

from levanter.data._shard_build import (
    TokenizeSettings,
    build_shard,
    building,
    finish_cache,
    plan_shards,
    withdraw_commit,
)
from levanter.store.cache import TreeCache
from levanter.store.errors import CacheNotFinishedError

logger = logging.getLogger(__name__)


def build_cache_in_process(
    input_paths: Sequence[str], cache_dir: str, settings: TokenizeSettings, *, num_shards: int | None = None
) -> TreeCache:
    """Tokenise files into a cache, shard after shard.

    Args:
        input_paths: Files, globs or folders.
        cache_dir: Where the cache goes.
        settings: How to tokenise.
        num_shards: How many shards; one a file when ``None``.
    Raises:
        SourceError: Inputs are missing or of unknown kind.
        BadRecordError: A bad record, when the settings say raise.
    """
    with building(cache_dir):
        return _build(input_paths, cache_dir, settings, num_shards)


def _build(input_paths: Sequence[str], cache_dir: str, settings: TokenizeSettings, num_shards: int | None) -> TreeCache:
    jobs = plan_shards(input_paths, cache_dir, settings, num_shards)
    withdraw_commit(cache_dir)
    with Progress(len(jobs), unit="shard", description=f"tokenise {cache_dir}") as progress:
        tokens = 0
        for job in jobs:
            built = build_shard(job)
            tokens += built["tokens"]
            progress.advance(1, tokens=tokens)
    return TreeCache(cache_dir, finish_cache(cache_dir, jobs))


def load_or_build_cache(
    input_paths: Sequence[str],
    cache_dir: str,
    settings: TokenizeSettings,
    *,
    build: bool = True,
    num_shards: int | None = None,
) -> TreeCache:
    """Open a finished cache made with these settings, or build it.

    The input files are not read when a cache is there: a cache may outlive its input. Delete the folder (or change it)
    to tokenise changed files.

    Args:
        input_paths: Used only to build.
        cache_dir: Folder of the cache.
        settings: The cache must have been made with these.
        build: Build when there is none.
        num_shards: How many shards to build; one a file when ``None``.
    Raises:
        CacheNotFinishedError: There is none and it is not to be built, or there is nothing to build it from.
        CacheMetadataError: A cache made with other settings is there.
    """
    expected = settings.metadata(settings.load())
    try:
        return TreeCache.load(cache_dir, expected_metadata=expected)
    except CacheNotFinishedError:
        if not build or not input_paths:
            raise
    with building(cache_dir):
        with contextlib.suppress(CacheNotFinishedError):
            return TreeCache.load(cache_dir, expected_metadata=expected)  # Another process built it meanwhile.
        return _build(input_paths, cache_dir, settings, num_shards)
