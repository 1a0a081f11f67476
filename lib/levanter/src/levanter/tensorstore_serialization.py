"""Arrays to and from one OCDBT store of zarr3 arrays.

Saving has two halves so that training stops only for the first. :func:`snapshot` copies every shard that this process
owns into host memory (the stall). :func:`write_snapshot` writes it, on any thread, while training goes on and the
original buffers are donated away. Restoring reads each shard's slice straight into the wanted sharding, so a checkpoint
written on one mesh, by any number of processes, opens on another.

Every chunk carries a CRC-32C, checked on read: a flipped bit is an error that names its array.

What makes it fast is memory, not the disk. Touching fresh pages costs more than writing them, so the copies of one save
are the buffers of the next (:class:`Staging`), chunks are small enough for the allocator to reuse, and on CPU an array
is read into memory that JAX can own without another copy.
"""

import ctypes
import functools
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from levanter._checkpoint.layout import ARRAY_DRIVER, KVSTORE_DRIVER, ArrayEntry
from levanter._checkpoint.options import CheckpointWriteConfig
from levanter.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError
from levanter.tree_paths import raw_array

CHUNK_BYTES = 4 << 20
MAX_CHUNK_BYTES = 64 << 20
CHUNKS_PER_BLOCK = 256
COPY_THREADS = 4
READ_IN_FLIGHT_BYTES = 16 << 30
ALIGNMENT = 64
"""XLA's buffers start at multiples of this; memory that does not is copied instead of shared."""


@dataclass(frozen=True)
class HostArray:
    """A host copy of the shards of one array that this process writes.

    Attributes:
        entry: Path, global shape, dtype and chunk shape.
        parts: ``(index, data)`` pairs; ``index`` is a tuple of slices into the global shape.
    """

    entry: ArrayEntry
    parts: tuple[tuple[tuple[slice, ...], np.ndarray], ...]


class Staging:
    """Host buffers that successive saves of one state share; empty until first used.

    One save at a time may use it: its owner waits for the last save before it takes the next snapshot.

    Example:
        >>> staging = Staging()
        >>> first = staging.buffer(("w", 0), (2,), np.dtype("float32"))
        >>> staging.buffer(("w", 0), (2,), np.dtype("float32")) is first
        True
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], np.ndarray] = {}

    def buffer(self, key: tuple[str, int], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The buffer of that name, new when its shape or dtype changed."""
        held = self._buffers.get(key)
        if held is None or held.shape != shape or held.dtype != dtype:
            held = self._buffers[key] = np.empty(shape, dtype)
        return held

    def reserve(self, plan: Sequence[tuple[tuple[str, int], tuple[int, ...], np.dtype]]) -> None:
        """Allocate and touch the buffers of a :func:`staging_plan`, before the first save needs them."""
        for key, shape, dtype in plan:
            self.buffer(key, shape, dtype).fill(0)


def staging_plan(leaves: Sequence[tuple[str, Any]]) -> list[tuple[tuple[str, int], tuple[int, ...], np.dtype]]:
    """Key, shape and dtype of every buffer that a snapshot of ``leaves`` will fill."""
    values = [(name, _plain(raw_array(leaf))) for name, leaf in leaves]
    return [
        ((name, index), shard.data.shape, np.dtype(value.dtype))
        for name, value in values
        if isinstance(value, jax.Array)
        for index, shard in enumerate(_owned_shards(value))
        if _shares_host_memory(shard)
    ]


def staged_bytes(leaves: Sequence[tuple[str, Any]]) -> int:
    """Host memory in bytes that a snapshot of ``leaves`` takes in this process."""
    values = [_plain(raw_array(leaf)) for _, leaf in leaves]
    return sum(shard.data.nbytes for v in values if isinstance(v, jax.Array) for shard in _owned_shards(v))


def snapshot(
    leaves: Sequence[tuple[str, Any]], staging: Staging | None = None, *, chunk_limit: int | None = None
) -> list[HostArray]:
    """Copy the shards this process writes to the host.

    Args:
        leaves: ``(path, array)``; JAX arrays (typed keys included), NumPy arrays and Python numbers.
        staging: Buffers to copy into; None allocates new ones.
        chunk_limit: Largest chunk in bytes; None chooses by the array's size.

    Returns:
        Independent copies: the originals may be donated or overwritten at once. Arrays without parts are written by
        other processes.
    """
    staging = staging or Staging()
    for _, leaf in leaves:
        if isinstance(raw_array(leaf), jax.Array):
            raw_array(leaf).copy_to_host_async()
    with ThreadPoolExecutor(COPY_THREADS) as pool:
        return list(pool.map(lambda pair: _copy(pair[0], pair[1], staging, chunk_limit), leaves))


def write_snapshot(
    path: str, arrays: Sequence[HostArray], *, create: bool = True, options: CheckpointWriteConfig | None = None
) -> None:
    """Write host arrays into the OCDBT store at ``path``, replacing nothing that is already there.

    Args:
        path: The checkpoint.
        arrays: What :func:`snapshot` returned.
        create: Create the arrays; False where another process has.
        options: Threads and caches; None takes the defaults.

    Raises:
        CheckpointError: the storage layer refused (full disk, permissions).
    """
    options = options or CheckpointWriteConfig()
    context = _context(options.cache_pool_bytes, options.data_copy_concurrency)
    try:
        stores = [
            ts.open(_spec(path, a.entry.path, a.entry if create else None), create=create, open=not create,
                    context=context)
            for a in arrays if create or a.parts
        ]  # fmt: skip
        writes = []
        for array, opening in zip((a for a in arrays if create or a.parts), stores, strict=True):
            store = opening.result()
            for index, data in array.parts:
                writes.append(store[index].write(data, can_reference_source_data_indefinitely=True))
        for write in writes:
            write.result()
    except (ValueError, OSError) as error:
        raise CheckpointError(f"cannot write the checkpoint: path={path}, reason={error}.", path=path) from error


def create_arrays(path: str, arrays: Sequence[HostArray]) -> None:
    """Create every array, empty, so that several processes can write their parts."""
    write_snapshot(path, [HostArray(a.entry, ()) for a in arrays])


def read_arrays(
    path: str, wanted: Mapping[str, jax.ShapeDtypeStruct], stored: Mapping[str, ArrayEntry]
) -> dict[str, jax.Array]:
    """Read arrays into their wanted dtype and sharding.

    Args:
        path: The checkpoint.
        wanted: Shape, dtype and optional sharding by array path.
        stored: The manifest.

    Raises:
        CheckpointMismatchError: a stored shape differs from the wanted one.
        CheckpointCorruptError: bytes cannot be read, or fail their checksum.
    """
    context = _context()
    for name, want in wanted.items():
        if stored[name].shape != tuple(want.shape):
            raise CheckpointMismatchError(
                path, name, expected=f"shape {tuple(want.shape)}", found=f"shape {stored[name].shape}"
            )
    result: dict[str, jax.Array] = {}
    for names in _groups(wanted):
        opened = {name: ts.open(_spec(path, name, None), open=True, read=True, context=context) for name in names}
        pending = {name: _start_reads(path, name, opened[name], wanted[name]) for name in names}
        result |= {name: _finish_reads(path, name, pending[name], wanted[name]) for name in names}
    return result


def chunk_shape(shape: Sequence[int], itemsize: int, limit: int | None = None) -> tuple[int, ...]:
    """Split a block along its leading axes into equal chunks of at most ``limit`` bytes.

    Chunks divide the block where that is possible without making them tiny, so that two writers of neighbouring blocks
    share no chunk.

    Args:
        shape: The block.
        itemsize: Bytes of an element.
        limit: Most bytes in a chunk; None means 4 MiB, growing for blocks of over 256 chunks to 64 MiB.

    Example:
        >>> chunk_shape((4, 1024, 1024), 4, limit=4 << 20)
        (1, 1024, 1024)
        >>> chunk_shape((12, 1024), 4, limit=20_000)
        (4, 1024)
        >>> chunk_shape((), 4)
        ()
    """
    if limit is None:
        limit = min(MAX_CHUNK_BYTES, max(CHUNK_BYTES, itemsize * math.prod(shape) // CHUNKS_PER_BLOCK))
    chunk = [max(1, size) for size in shape]
    for axis in range(len(chunk)):
        rest = itemsize * math.prod(chunk[axis + 1 :])
        if rest * chunk[axis] <= limit:
            break
        chunk[axis] = _divisor(chunk[axis], max(1, limit // rest))
    return tuple(chunk)


def release_free_memory() -> None:
    """Give the allocator's free pages back to the system, where the C library can (glibc)."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def _divisor(size: int, most: int) -> int:
    """The largest divisor of ``size`` up to ``most``; ``most`` itself when every divisor is far smaller."""
    best = next(d for d in range(min(size, most), 0, -1) if size % d == 0)
    return best if 4 * best >= most else most


def _groups(wanted: Mapping[str, jax.ShapeDtypeStruct]) -> list[list[str]]:
    """Names in order, cut so that a group's bytes fit the memory that reads may hold."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, want in wanted.items():
        size = math.prod(want.shape) * np.dtype(want.dtype).itemsize
        if groups[-1] and held + size > READ_IN_FLIGHT_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def _copy(name: str, leaf: Any, staging: Staging, limit: int | None) -> HostArray:
    value = _plain(raw_array(leaf))
    if not isinstance(value, jax.Array):
        data = np.array(value)
        entry = ArrayEntry(name, data.shape, data.dtype.name, chunk_shape(data.shape, data.dtype.itemsize, limit))
        parts = ((tuple(slice(0, n) for n in data.shape), data),) if jax.process_index() == 0 else ()
        return HostArray(entry, parts)
    parts = tuple(
        (_index(shard.index or (), value.shape), _host_copy(shard, (name, index), staging))
        for index, shard in enumerate(_owned_shards(value))
    )
    block = value.sharding.shard_shape(value.shape)
    chunk = chunk_shape(block, value.dtype.itemsize, limit)
    return HostArray(ArrayEntry(name, value.shape, value.dtype.name, chunk), parts)


def _owned_shards(value: jax.Array) -> list[Any]:
    """The shards this process writes: of every distinct shard, the first replica."""
    return [shard for shard in value.addressable_shards if shard.replica_id == 0]


def _host_copy(shard: Any, key: tuple[str, int], staging: Staging) -> np.ndarray:
    view = np.asarray(shard.data)
    if not _shares_host_memory(shard):
        return view
    buffer = staging.buffer(key, view.shape, view.dtype)
    np.copyto(buffer, view)
    return buffer


def _shares_host_memory(shard: Any) -> bool:
    """Whether NumPy sees the device's own memory, which the next step overwrites."""
    return shard.device.platform == "cpu"


def _plain(value: Any) -> Any:
    """The raw integers of a typed PRNG key; anything else as it is."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value


def _index(index: Sequence[Any], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(*part.indices(size)) for part, size in zip(index, shape, strict=True))


@functools.cache
def _context(cache_pool_bytes: int = 0, copy_threads: int = 8) -> ts.Context:
    return ts.Context(
        {
            "cache_pool": {"total_bytes_limit": cache_pool_bytes},
            "data_copy_concurrency": {"limit": copy_threads},
        }
    )


def _spec(path: str, name: str, entry: ArrayEntry | None) -> dict[str, Any]:
    base = path if "://" in path else f"file://{os.path.abspath(path)}"
    spec: dict[str, Any] = {
        "driver": ARRAY_DRIVER,
        "kvstore": {"driver": KVSTORE_DRIVER, "base": base.rstrip("/") + "/", "path": f"{name}/"},
    }
    if entry is not None:
        spec["metadata"] = {
            "shape": list(entry.shape),
            "data_type": entry.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(entry.chunk_shape)}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        }
    return spec


@dataclass(frozen=True)
class _Read:
    """One block on its way: the device it is for (None for any), where the bytes will be, and the read."""

    device: jax.Device | None
    block: np.ndarray | None
    future: Any


def _start_reads(path: str, name: str, opening: Any, want: jax.ShapeDtypeStruct) -> list[_Read]:
    """Issue one read per distinct shard; replicas share theirs."""
    try:
        store = opening.result()
    except (ValueError, OSError) as error:
        raise CheckpointCorruptError(path, name, str(error)) from error
    sharding = getattr(want, "sharding", None)
    if sharding is None:
        return [_Read(None, *_issue(store, want.dtype))]
    reads: dict[Any, tuple[np.ndarray | None, Any]] = {}
    rows = []
    for device, index in sharding.addressable_devices_indices_map(tuple(want.shape)).items():
        place = _index(index or (), want.shape)
        key = tuple((s.start, s.stop) for s in place)
        if key not in reads:
            reads[key] = _issue(store[place], want.dtype)
        rows.append(_Read(device, *reads[key]))
    return rows


def _issue(view: Any, dtype: Any) -> tuple[np.ndarray | None, Any]:
    """Read into memory that XLA can take over; bytes of another dtype go through a conversion of their own."""
    if view.dtype.numpy_dtype != np.dtype(dtype):
        return None, view.read()
    block = _aligned(tuple(view.domain.shape), np.dtype(dtype))
    return block, ts.array(block).write(view)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + size].view(dtype).reshape(shape)


def _finish_reads(path: str, name: str, rows: list[_Read], want: jax.ShapeDtypeStruct) -> jax.Array:
    blocks = []
    try:
        for row in rows:
            value = row.future.result()
            blocks.append(np.asarray(value).astype(want.dtype) if row.block is None else row.block)
    except (ValueError, OSError) as error:
        raise CheckpointCorruptError(path, name, str(error)) from error
    # On CPU the blocks become the arrays' memory. XLA copies rather than overwrites memory it does not own, so a step
    # that donates them is safe.
    if rows[0].device is None:
        return jax.device_put(blocks[0], jax.devices()[0])
    if len(blocks) == 1 and jax.process_count() == 1:
        return jax.device_put(blocks[0], want.sharding)
    shards = [jax.device_put(block, row.device) for block, row in zip(blocks, rows, strict=True)]
    return jax.make_array_from_single_device_arrays(tuple(want.shape), want.sharding, shards)
