"""Arrays to and from one OCDBT store of zarr3 arrays.

Saving has two halves so that training stops only for the first. :func:`snapshot` copies every shard that this process
owns into host memory (the stall). :func:`write_snapshot` writes it, on any thread, while training goes on and the
original buffers are donated away. Restoring reads each shard's slice straight into the wanted sharding, so a checkpoint
written on one mesh opens on another.

Every chunk carries a CRC-32C, checked on read: a flipped bit is an error that names its array.
"""

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
from levanter.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError
from levanter.tree_paths import raw_array

CHUNK_BYTES = 64 << 20
COPY_THREADS = 4


@dataclass(frozen=True)
class HostArray:
    """A host copy of the shards of one array that this process writes.

    Attributes:
        entry: Path, global shape, dtype and chunk shape.
        parts: ``(index, data)`` pairs; ``index`` is a tuple of slices into the global shape.
    """

    entry: ArrayEntry
    parts: tuple[tuple[tuple[slice, ...], np.ndarray], ...]


def snapshot(leaves: Sequence[tuple[str, Any]]) -> list[HostArray]:
    """Copy arrays to the host.

    Args:
        leaves: ``(path, array)``; JAX arrays (typed keys included), NumPy arrays and Python numbers.

    Returns:
        Independent copies: the originals may be donated or overwritten at once.
    """
    if jax.process_count() > 1:
        raise CheckpointError(
            f"cannot save: process_count={jax.process_count()}; expected one process. "
            "Saving from several processes is not supported in this release."
        )
    for _, leaf in leaves:
        if isinstance(raw_array(leaf), jax.Array):
            raw_array(leaf).copy_to_host_async()
    with ThreadPoolExecutor(COPY_THREADS) as pool:
        return list(pool.map(lambda pair: _copy(*pair), leaves))


def write_snapshot(path: str, arrays: Sequence[HostArray]) -> None:
    """Write host arrays into the OCDBT store at ``path``, replacing nothing that is already there.

    Raises:
        CheckpointError: the storage layer refused (full disk, permissions).
    """
    context = _context()
    writes = []
    try:
        stores = [ts.open(_spec(path, a.entry.path, a.entry), create=True, context=context) for a in arrays]
        for array, opening in zip(arrays, stores, strict=True):
            store = opening.result()
            for index, data in array.parts:
                writes.append(store[index].write(data, can_reference_source_data_indefinitely=True))
        for write in writes:
            write.result()
    except (ValueError, OSError) as error:
        raise CheckpointError(f"cannot write the checkpoint: path={path}, reason={error}.", path=path) from error


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
    opened = {name: ts.open(_spec(path, name, None), open=True, read=True, context=context) for name in wanted}
    pending = {name: _start_reads(path, name, opened[name], want) for name, want in wanted.items()}
    return {name: _finish_reads(path, name, pending[name], want) for name, want in wanted.items()}


def chunk_shape(shape: Sequence[int], itemsize: int, limit: int = CHUNK_BYTES) -> tuple[int, ...]:
    """Split a block along its leading axes until a chunk holds at most ``limit`` bytes.

    Example:
        >>> chunk_shape((4, 1024, 1024), 4, limit=4 << 20)
        (1, 1024, 1024)
        >>> chunk_shape((), 4)
        ()
    """
    chunk = [max(1, size) for size in shape]
    for axis in range(len(chunk)):
        rest = itemsize * math.prod(chunk[axis + 1 :])
        if rest * chunk[axis] <= limit:
            break
        chunk[axis] = max(1, limit // rest)
    return tuple(chunk)


def _copy(name: str, leaf: Any) -> HostArray:
    value = _plain(raw_array(leaf))
    if not isinstance(value, jax.Array):
        data = np.array(value)
        entry = ArrayEntry(name, data.shape, data.dtype.name, chunk_shape(data.shape, data.dtype.itemsize))
        return HostArray(entry, ((tuple(slice(0, n) for n in data.shape), data),))
    parts = [
        (_index(shard.index or (), value.shape), np.array(shard.data))
        for shard in value.addressable_shards
        if shard.replica_id == 0
    ]
    block = parts[0][1].shape
    entry = ArrayEntry(name, value.shape, value.dtype.name, chunk_shape(block, value.dtype.itemsize))
    return HostArray(entry, tuple(parts))


def _plain(value: Any) -> Any:
    """The raw integers of a typed PRNG key; anything else as it is."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value


def _index(index: Sequence[Any], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(*part.indices(size)) for part, size in zip(index, shape, strict=True))


def _context() -> ts.Context:
    return ts.Context({"cache_pool": {"total_bytes_limit": 0}, "data_copy_concurrency": {"limit": 8}})


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


def _start_reads(path: str, name: str, opening: Any, want: jax.ShapeDtypeStruct) -> list[tuple[Any, Any, Any]]:
    """Issue one read per distinct shard; return ``(device, index, future)`` with futures shared between replicas."""
    try:
        store = opening.result()
    except (ValueError, OSError) as error:
        raise CheckpointCorruptError(path, name, str(error)) from error
    sharding = getattr(want, "sharding", None)
    if sharding is None:
        return [(None, None, store.read())]
    reads: dict[Any, Any] = {}
    rows = []
    for device, index in sharding.addressable_devices_indices_map(tuple(want.shape)).items():
        key = tuple((s.start, s.stop) for s in _index(index or (), want.shape))
        if key not in reads:
            reads[key] = store[_index(index or (), want.shape)].read()
        rows.append((device, index, reads[key]))
    return rows


def _finish_reads(path: str, name: str, rows: list[tuple[Any, Any, Any]], want: jax.ShapeDtypeStruct) -> jax.Array:
    try:
        blocks = [np.asarray(future.result()).astype(want.dtype, copy=False) for _, _, future in rows]
    except (ValueError, OSError) as error:
        raise CheckpointCorruptError(path, name, str(error)) from error
    if rows[0][0] is None:
        return jax.numpy.asarray(blocks[0])
    if len(blocks) == 1:
        return jax.device_put(blocks[0], want.sharding)
    shards = [jax.device_put(block, row[0]) for block, row in zip(blocks, rows, strict=True)]
    return jax.make_array_from_single_device_arrays(tuple(want.shape), want.sharding, shards)
