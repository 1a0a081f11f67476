"""One-dimensional zarr3 arrays behind tensorstore: opening them, and reading many ranges in few reads.

Everything the store keeps is an open-ended array: declared 2**54 long, stored as outer shards of 512 inner chunks, of
which only those written exist on disk. The bytes of a shard depend on its content alone (inner chunks are laid out in
index order), so how a writer batches its appends leaves no trace.

Random reads cost a decoded inner chunk each (1 MiB of int32 for 8 KiB used), so reads are *planned*: ranges that touch
or nearly touch are merged, read once, and cut up again (:func:`plan_reads`).
"""

import asyncio
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts

from levanter._env import ts_cache_limit_bytes
from levanter.store.errors import StoragePathError

DECLARED_LENGTH = 2**54
INNER_CHUNK_ELEMENTS = 256 * 1024
OUTER_SHARD_ELEMENTS = 512 * INNER_CHUNK_ELEMENTS
BLOSC_LEVEL = 5

MERGE_GAP_ELEMENTS = 16 * 1024
"""Ranges closer than this are read together: the bytes between are in the same compressed chunk anyway."""

MERGED_READ_ELEMENTS = 4 * 1024 * 1024
"""Upper bound on one merged read, so that a large batch is several reads in parallel."""


def join_path(root: str, *parts: str) -> str:
    """Join with single slashes, for local paths and URLs alike."""
    return "/".join([root.rstrip("/") or "/", *(part.strip("/") for part in parts)])


def is_local(path: str) -> bool:
    """Whether ``path`` names the local file system."""
    return "://" not in path or path.startswith("file://")


def local_path(path: str) -> str:
    """``path`` without a ``file://`` prefix."""
    return path.removeprefix("file://")


def kvstore_spec(path: str) -> dict[str, Any]:
    """The tensorstore key-value store that holds the folder ``path``.

    Raises:
        StoragePathError: No driver serves the scheme of ``path``.
    """
    if is_local(path):
        return {"driver": "file", "path": os.path.abspath(local_path(path)) + "/"}
    parts = urlsplit(path)
    key = parts.path.strip("/") + "/"
    if parts.scheme in ("gs", "gcs"):
        return {"driver": "gcs", "bucket": parts.netloc, "path": key}
    if parts.scheme == "s3":
        return {"driver": "s3", "bucket": parts.netloc, "path": key}
    raise StoragePathError(path, parts.scheme)


@functools.cache
def _read_context() -> ts.Context:
    return ts.Context({"cache_pool": {"total_bytes_limit": ts_cache_limit_bytes()}})


@functools.cache
def _write_context() -> ts.Context:
    # No fsync a write: a killed process loses nothing by it, and cache writers flush the folder before committing.
    return ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_sync": False})


def array_spec(path: str, dtype: np.dtype, trailing: tuple[int, ...] = ()) -> dict[str, Any]:
    """The full zarr3 spec of one array of the store.

    Args:
        path: Folder of the array.
        dtype: Element type.
        trailing: Sizes of fixed dimensions after the open-ended first one (``shapes`` has one).
    """
    ones = list(trailing)
    inner = {
        "chunk_shape": [INNER_CHUNK_ELEMENTS, *ones],
        "codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "blosc", "configuration": {"clevel": BLOSC_LEVEL}},
        ],
    }
    return {
        "driver": "zarr3",
        "kvstore": kvstore_spec(path),
        "metadata": {
            "shape": [DECLARED_LENGTH, *ones],
            "data_type": str(np.dtype(dtype)),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [OUTER_SHARD_ELEMENTS, *ones]}},
            "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        },
    }


def create_array(path: str, dtype: np.dtype, trailing: tuple[int, ...] = ()) -> ts.TensorStore:
    """Create an empty array, replacing one that is there."""
    spec = array_spec(path, dtype, trailing)
    return ts.open(spec, create=True, delete_existing=True, context=_write_context()).result()


def open_array(path: str, *, write: bool) -> ts.TensorStore:
    """Open an existing array; what other handles wrote before this call is seen."""
    spec = {"driver": "zarr3", "kvstore": kvstore_spec(path), "recheck_cached_data": "open"}
    if write:
        return ts.open(spec, open=True, read=True, write=True, context=_write_context()).result()
    return ts.open(spec, open=True, read=True, write=False, context=_read_context()).result()


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """Ranges merged into reads.

    Attributes:
        reads: Half-open element ranges to read, in ascending order.
        read_of: For each requested range, the index of the read that holds it.
        begin_in_read: For each requested range, its first element relative to that read.
    """

    reads: list[tuple[int, int]]
    read_of: np.ndarray
    begin_in_read: np.ndarray


def plan_reads(starts: np.ndarray, stops: np.ndarray) -> ReadPlan:
    """Merge ranges that overlap, touch or nearly touch.

    Args:
        starts: First element of each range, any order, duplicates allowed. Shape ``(n,)``.
        stops: One past the last element of each range. Shape ``(n,)``.

    Example:
        >>> plan = plan_reads(np.array([10, 0, 9_000_000]), np.array([20, 10, 9_000_001]))
        >>> plan.reads
        [(0, 20), (9000000, 9000001)]
        >>> plan.read_of.tolist(), plan.begin_in_read.tolist()
        ([0, 0, 1], [10, 0, 0])
    """
    order = np.argsort(starts, kind="stable")
    reads: list[tuple[int, int]] = []
    read_of = np.zeros(len(starts), dtype=np.int64)
    for position in order.tolist():
        begin, end = int(starts[position]), int(stops[position])
        if reads:
            first, last = reads[-1]
            if begin <= last + MERGE_GAP_ELEMENTS and max(last, end) - first <= MERGED_READ_ELEMENTS:
                reads[-1] = (first, max(last, end))
                read_of[position] = len(reads) - 1
                continue
        reads.append((begin, end))
        read_of[position] = len(reads) - 1
    firsts = np.array([first for first, _ in reads], dtype=np.int64)
    begin_in_read = starts - firsts[read_of] if len(starts) else np.zeros(0, dtype=np.int64)
    return ReadPlan(reads, read_of, begin_in_read)


def start_reads(array: ts.TensorStore, plan: ReadPlan) -> list[ts.Future]:
    """Issue every read of ``plan`` at once; the futures resolve to numpy arrays."""
    return [array[begin:end].read() for begin, end in plan.reads]


def cut_ranges(blocks: Sequence[np.ndarray], plan: ReadPlan, lengths: np.ndarray) -> list[np.ndarray]:
    """Give each requested range its elements out of the blocks that were read."""
    cut = zip(plan.read_of.tolist(), plan.begin_in_read.tolist(), lengths.tolist(), strict=True)
    return [blocks[read][begin : begin + length] for read, begin, length in cut]


def cut_windows(blocks: Sequence[np.ndarray], plan: ReadPlan, length: int, out: np.ndarray) -> None:
    """Fill ``out`` (shape ``(n, length)``) with equally long ranges out of the blocks that were read."""
    for row, (read, begin) in enumerate(zip(plan.read_of.tolist(), plan.begin_in_read.tolist(), strict=True)):
        out[row] = blocks[read][begin : begin + length]


def wait_all(futures: Sequence[ts.Future]) -> list[np.ndarray]:
    """Block for every read."""
    return [np.asarray(future.result()) for future in futures]


async def gather_all(futures: Sequence[ts.Future]) -> list[np.ndarray]:
    """Await every read; they already run in parallel."""
    return [np.asarray(block) for block in await asyncio.gather(*(_as_coroutine(future) for future in futures))]


async def _as_coroutine(future: ts.Future) -> Any:
    return await future
