"""Build one shard of a token cache: the unit of work of every builder, whoever runs it.

A :class:`ShardJob` names its part of the input by digest, so a shard that is already there is reused exactly when it
was made from the same bytes with the same settings; anything else is built anew. The result depends on the job alone:
how many workers run, and in which order, leaves no trace.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import itertools
import logging
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import fsspec

from levanter.data.errors import SourceError
from levanter.data.sharded_datasource import OnBadRecord, ReadCounts, expand_urls, file_digest, read_documents
from levanter.data.text._batch_tokenizer import BatchTokenizer
from levanter.store._arrays import is_local, join_path, local_path
from levanter.store.cache import SerialCacheWriter, consolidate_shard_cache_ledgers, verify_cache
from levanter.store.errors import CacheNotFinishedError, CorruptCacheError, LedgerFormatError
from levanter.store.ledger import LEDGER_NAME, CacheLedger, metadata_differences, read_ledger_or_none
from levanter.tokenizers.hf import load_tokenizer
from levanter.tokenizers.passthrough import PassthroughTokenizer

logger = logging.getLogger(__name__)

STRIPE_DOCUMENTS = 256
"""When one file is split over shards, shard *k* of *m* takes every *m*-th run of this many documents."""


@dataclasses.dataclass(frozen=True)
class TokenizeSettings:
    """What decides the tokens of a document.

    Attributes:
        tokenizer: Folder or ``tokenizer.json``; or ``"passthrough"`` for text that already is ids.
        text_key: Field of the text in jsonl and parquet.
        enforce_eos: Put the EOS id after every document.
        enforce_bos: Put the BOS id before every document.
        on_bad_record: Raise at a bad record, or skip and count it.
        passthrough_vocab_size: Vocabulary size of ``"passthrough"``.
    """

    tokenizer: str
    text_key: str = "text"
    enforce_eos: bool = True
    enforce_bos: bool = False
    on_bad_record: OnBadRecord = "raise"
    passthrough_vocab_size: int | None = None

    def load(self) -> BatchTokenizer:
        """The tokeniser these settings describe; kept for the next call while its files do not change."""
        return _load(self, _stamp(self.tokenizer))

    def metadata(self, tokenizer: BatchTokenizer) -> dict[str, Any]:
        """What the ledger records; equal metadata means equal tokens for equal input."""
        return {
            **tokenizer.metadata,
            "format": {"type": "text", "text_key": self.text_key},
            "on_bad_record": self.on_bad_record,
        }


@functools.lru_cache(maxsize=4)
def _load(settings: TokenizeSettings, stamp: tuple[tuple[str, int, int], ...]) -> BatchTokenizer:
    del stamp  # Part of the key: changed files are another tokenizer.
    if settings.tokenizer != "passthrough":
        loaded = load_tokenizer(settings.tokenizer)
        return BatchTokenizer(loaded, enforce_bos=settings.enforce_bos, enforce_eos=settings.enforce_eos)
    if settings.passthrough_vocab_size is None:
        raise ValueError("tokenizer='passthrough' needs a vocabulary size; expected vocab_size >= 1. Set vocab_size.")
    tokenizer = PassthroughTokenizer(settings.passthrough_vocab_size)
    return BatchTokenizer(tokenizer, enforce_bos=False, enforce_eos=False)


def _stamp(path: str) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files of a tokenizer; empty when there are none."""
    place = pathlib.Path(local_path(path))
    files = sorted(place.glob("*.json*") if place.is_dir() else place.parent.glob(f"{place.name}*"))
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


@dataclasses.dataclass(frozen=True)
class ShardJob:
    """One shard to build.

    Attributes:
        path: Where the shard goes.
        parts: Input files in order, each with the stripe to take: ``(file, stripe, stripes)``.
        settings: How to tokenise.
    """

    path: str
    parts: tuple[tuple[str, int, int], ...]
    settings: TokenizeSettings


def plan_shards(
    input_paths: Sequence[str], cache_dir: str, settings: TokenizeSettings, num_shards: int | None = None
) -> list[ShardJob]:
    """Divide the input into shards.

    Args:
        input_paths: Files, globs or folders.
        cache_dir: Folder of the whole cache.
        settings: How to tokenise.
        num_shards: How many; one a file when ``None``. Fewer than files: runs of files share a shard. More: files are
            split by runs of documents.
    Raises:
        SourceError: No input, or inputs that cannot be used.
    """
    files = expand_urls(input_paths)
    if not files:
        raise SourceError("no input files given", [], "at least one path")
    count = len(files) if num_shards is None else num_shards
    if count < 1:
        raise ValueError(f"num_shards={num_shards}; expected >= 1. Leave it out for one shard a file.")
    parts: list[tuple[tuple[str, int, int], ...]] = []
    if count <= len(files):
        bounds = [number * len(files) // count for number in range(count + 1)]
        parts = [tuple((f, 0, 1) for f in files[a:b]) for a, b in itertools.pairwise(bounds)]
    else:
        for number, file in enumerate(files):
            stripes = count // len(files) + (number < count % len(files))
            parts += [((file, stripe, stripes),) for stripe in range(stripes)]
    return [
        ShardJob(join_path(cache_dir, f"part-{number:05d}-of-{count:05d}"), part, settings)
        for number, part in enumerate(parts)
    ]


@contextlib.contextmanager
def building(cache_dir: str) -> Iterator[None]:
    """Let one process of this machine build a local cache at a time; others wait here.

    The lock is a file in the system's temporary folder, so the cache holds nothing but data; the kernel releases it
    when its holder dies. On several machines, have one of them build.
    """
    if not is_local(cache_dir):
        yield
        return
    name = hashlib.sha256(os.path.realpath(local_path(cache_dir)).encode()).hexdigest()[:32]
    with open(os.path.join(tempfile.gettempdir(), f"levanter-cache-{os.getuid()}-{name}.lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that builds %r", cache_dir)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def withdraw_commit(cache_dir: str) -> None:
    """Remove the ledger of an earlier cache in the same place: while shards change, there is no cache to read."""
    filesystem, native = fsspec.core.url_to_fs(join_path(cache_dir, LEDGER_NAME))
    if filesystem.exists(native):
        filesystem.rm(native)


def build_shard(job: ShardJob) -> dict[str, Any]:
    """Build a shard, or keep the one that is there when it is what the job would make.

    Returns:
        ``{"path", "rows", "tokens", "skipped", "reused"}`` for counters and progress.
    Raises:
        BadRecordError: A bad record, when the settings say raise.
    """
    tokenizer = job.settings.load()
    sources = [[file_digest(path), stripe, stripes] for path, stripe, stripes in job.parts]
    metadata = {**job.settings.metadata(tokenizer), "sources": sources}
    finished = _finished_shard(job.path, metadata)
    if finished is not None:
        return _summary(job.path, finished, reused=True)
    counts = ReadCounts()
    # The ledger records how many records were skipped, which is known at the end: the writer keeps this very dict.
    recorded: dict[str, Any] = dict(metadata)
    with SerialCacheWriter(job.path, BatchTokenizer.schema, recorded, shard_name=os.path.basename(job.path)) as writer:
        for path, stripe, stripes in job.parts:
            for texts in _striped(path, stripe, stripes, job.settings, counts):
                writer.write_columns(tokenizer(texts))
        recorded["skipped_records"] = counts.skipped
    return _summary(job.path, writer.result().ledger, reused=False)


def finish_cache(cache_dir: str, jobs: Sequence[ShardJob]) -> CacheLedger:
    """Commit the shards of all jobs as one cache, and clear away what earlier builds left behind."""
    settings = jobs[0].settings
    names = [os.path.basename(job.path) for job in jobs]
    skipped = 0
    for job in jobs:
        shard = read_ledger_or_none(job.path)
        skipped += int((shard.metadata or {}).get("skipped_records", 0)) if shard is not None else 0
    metadata = {**settings.metadata(settings.load()), "skipped_records": skipped}
    _remove_leftovers(cache_dir, set(names))
    return consolidate_shard_cache_ledgers(cache_dir, names, metadata)


def _striped(path: str, stripe: int, stripes: int, settings: TokenizeSettings, counts: ReadCounts) -> Any:
    documents = read_documents(path, text_key=settings.text_key, on_bad_record=settings.on_bad_record, counts=counts)
    if stripes == 1:
        yield from documents
        return
    own = ReadCounts()
    number = 0
    for batch in documents:
        runs = [(number + i) // STRIPE_DOCUMENTS % stripes for i in range(len(batch))]
        number += len(batch)
        mine = [text for text, run in zip(batch, runs, strict=True) if run == stripe]
        own.records += len(mine)
        if mine:
            yield mine
    counts.records = own.records
    if stripe:  # Every stripe reads the whole file; only the first one counts what it skipped.
        counts.skipped = 0


def _finished_shard(path: str, metadata: dict[str, Any]) -> CacheLedger | None:
    try:
        ledger = read_ledger_or_none(path)
        if ledger is None or not ledger.is_finished or metadata_differences(ledger.metadata, metadata):
            return None
        return verify_cache(path)
    except (CacheNotFinishedError, CorruptCacheError, LedgerFormatError):
        return None


def _summary(path: str, ledger: CacheLedger, *, reused: bool) -> dict[str, Any]:
    return {
        "path": path,
        "rows": ledger.total_num_rows,
        "tokens": sum(ledger.field_counts.values()),
        "skipped": int((ledger.metadata or {}).get("skipped_records", 0)),
        "reused": reused,
    }


def _remove_leftovers(cache_dir: str, keep: set[str]) -> None:
    """Shards of another division, and temporaries of killed writers."""
    if not is_local(cache_dir):
        return
    root = local_path(cache_dir)
    for name in os.listdir(root):
        if name.startswith("part-") and name not in keep:
            shutil.rmtree(os.path.join(root, name))
