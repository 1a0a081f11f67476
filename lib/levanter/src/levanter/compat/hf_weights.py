r"""Safetensors files of a model, read and written one tensor at a time.

Reading fills preallocated host arrays a few megabytes at a time, in a few threads, so that the peak is the model plus
their scratch; writing holds one shard. Nothing is guessed: a tensor that does not fit is an error that names it.

References:
    Format: https://github.com/huggingface/safetensors (8-byte header length, JSON header, raw little-endian bytes).
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from levanter.errors import HfCheckpointError, HfTensorError
from levanter.models.state_dict import STRIP, TensorSlot

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DEFAULT_SHARD_BYTES = 10_000_000_000
READERS = min(4, os.cpu_count() or 1)
"""Threads that read: copying and converting are memory-bound, and storage likes several requests."""
PIECE_BYTES = 4_000_000
"""Read at a time and thread: small enough to stay in cache until it is copied."""
_ALIGNMENT = 64
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def weight_files(path: str) -> list[str]:
    """The weights files of a folder, in the order of its index.

    Raises:
        HfCheckpointError: none, or the index names one that is absent.
    """
    files = [WEIGHTS]
    if os.path.exists(os.path.join(path, INDEX)):
        files = list(dict.fromkeys(read_json(path, INDEX).get("weight_map", {}).values()))
    for file in files:
        if not os.path.exists(os.path.join(path, file)):
            raise HfCheckpointError(
                f"cannot import the model: path={path}, file={file} is absent; expected safetensors weights. "
                "Convert the weights to safetensors first.",
                path=path,
            )
    return [os.path.join(path, file) for file in files]


def read_weights(
    path: str,
    template: Any,
    slots: Sequence[TensorSlot],
    *,
    dtype: str | None = None,
    ignored: Callable[[str], bool] = lambda name: False,
    rename: Callable[[str], str] = lambda name: name,
    place: Callable[[NamedArray], Any] | None = None,
) -> Any:
    """Read a folder's tensors into a model.

    Args:
        path: Folder with safetensors files.
        template: The model's structure, arrays or shapes.
        slots: Where each tensor goes.
        dtype: Dtype of the parameters; None keeps the stored one.
        ignored: Names that carry nothing to load.
        rename: Stored name to the name of a slot.
        place: What to do with each filled NamedArray; None puts it on the default device.

    Returns:
        ``template`` with arrays.

    Raises:
        HfCheckpointError: a file is absent, truncated or no safetensors file.
        HfTensorError: a tensor is missing, unexpected, ill-shaped, of a dtype that is no float, or stored in another
            dtype than its neighbours in a stacked array.
    """
    by_name = {slot.name: slot for slot in slots}
    wanted = {leaf.path: leaf for slot in slots if slot.constant is None for leaf in slot.leaves}
    buffers: dict[str, np.ndarray] = {}
    found: set[str] = set()
    tasks: list[tuple[_StoredTensor, TensorSlot]] = []
    for tensor in _tensors(path):
        stored = tensor.name
        name = rename(stored)
        if name not in by_name:
            if ignored(name):
                continue
            raise HfTensorError(path, stored, "unexpected", detail=f"one of the {len(slots)} tensors of this config")
        slot = by_name[name]
        if tensor.shape != slot.shape(template):
            detail = f"shape {slot.shape(template)} from config.json, found {tensor.shape}"
            raise HfTensorError(path, stored, "shape", detail=detail)
        kind = _dtype(path, stored, tensor.dtype, slot.dtype or dtype)
        if slot.constant is not None:
            value = float(tensor.read())
            if abs(value - slot.constant) > 0.01 * abs(slot.constant):
                raise HfTensorError(path, stored, "value", detail=f"{slot.constant}, found {value:g}")
            continue
        found.add(name)
        tasks.append((tensor, slot))
        for leaf in slot.leaves:
            if leaf.path not in buffers:
                buffers[leaf.path] = aligned_empty(leaf.array(template).shape, kind)
            elif buffers[leaf.path].dtype != kind:
                detail = f"{buffers[leaf.path].dtype} as in the tensors before it, found {kind}; pass dtype to convert"
                raise HfTensorError(path, stored, "dtype", detail=detail)
    missing = next((name for name, slot in by_name.items() if name not in found and slot.constant is None), None)
    if missing is not None:
        raise HfTensorError(path, missing, "missing", detail=f"every one of the {len(slots)} tensors of the config")
    with ThreadPoolExecutor(READERS) as pool:
        for done in [pool.submit(_copy, tensor, slot, buffers) for tensor, slot in tasks]:
            done.result()
    return _fill(template, list(wanted), buffers, place or _put)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose bytes start where XLA's CPU client can use them without copying.

    Example:
        >>> aligned_empty((3, 2), np.dtype("float32")).ctypes.data % 64
        0
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def write_weights(
    model: Any, slots: Sequence[TensorSlot], folder: str, *, dtype: str | None, max_shard_bytes: int
) -> None:
    """Write a model's tensors, one shard in memory at a time; an index is written when there are several.

    Args:
        model: The model.
        slots: What to write, in order.
        folder: Existing folder.
        dtype: Dtype of floating tensors; None keeps theirs.
        max_shard_bytes: Largest weights file; a tensor above it gets a file of its own.
    """
    shards: list[list[TensorSlot]] = [[]]
    filled = total = 0
    for slot in slots:
        wanted = slot.dtype or dtype
        stored = jnp.dtype(wanted) if wanted else slot.leaves[0].array(model).dtype
        size = math.prod(slot.shape(model)) * stored.itemsize
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(slot)
        filled += size
        total += size
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {slot.name: cast(slot.export(model), slot.dtype or dtype) for slot in shard}
        save_file(tensors, os.path.join(folder, file), metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, file))
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder, INDEX, index)


def cast(array: np.ndarray, dtype: str | None) -> np.ndarray:
    """Convert a floating array; other kinds stay as they are."""
    return array if dtype is None or not jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.dtype(dtype))


def read_json(path: str, name: str) -> dict[str, Any]:
    """Parse a JSON file of a folder.

    Raises:
        HfCheckpointError: it cannot be read or parsed.
    """
    try:
        with open(os.path.join(path, name), encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError) as error:
        raise HfCheckpointError(
            f"cannot read a Hugging Face folder: path={path}, file={name}, reason={error}; expected valid JSON there. "
            "Check the path.",
            path=path,
        ) from error


def write_json(folder: str, name: str, document: dict[str, Any]) -> None:
    """Write a JSON file with sorted keys, so that equal documents are equal bytes."""
    with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
        json.dump(document, stream, sort_keys=True, indent=2)
        stream.write("\n")


class _StoredTensor(NamedTuple):
    """One tensor of an open file, not yet read."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str
    start: int

    def read(self) -> np.ndarray:
        """The values."""
        return next(iter(self.parts(math.prod(self.shape) * self._kind.itemsize)))[1].reshape(self.shape)

    def parts(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """``(first row, rows)`` in pieces of about ``size`` bytes; a piece is overwritten by the next.

        Plain reads, because the pages of a memory map would count as ours until the file is closed.

        Raises:
            HfCheckpointError: the file ends too early.
        """
        shape = self.shape or (1,)
        width = math.prod(shape[1:]) * self._kind.itemsize
        unit = STRIP if len(shape) < 3 else 1  # rows of a stack are whole matrices
        step = max(unit, size // max(width, 1) // unit * unit)
        scratch = np.empty(min(step, shape[0]) * width, np.uint8)
        with open(self.path, "rb", buffering=0) as stream:
            stream.seek(self.start)
            for first in range(0, shape[0], step):
                count = min(step, shape[0] - first)
                _read_whole(stream, scratch[: count * width], self.path)
                yield first, scratch[: count * width].view(self._kind).reshape(count, *shape[1:])

    @property
    def _kind(self) -> np.dtype:
        return jnp.dtype(_DTYPES[self.dtype])


def _read_whole(stream: IO[bytes], target: np.ndarray, path: str) -> None:
    view, done = memoryview(target), 0
    while done < len(view):
        got = stream.readinto(view[done:])  # pyrefly: ignore
        if not got:
            raise HfCheckpointError(
                f"cannot read the weights: path={path}, size={stream.tell()} bytes; expected {len(view) - done} more. "
                "Copy it again.",
                path=path,
            )
        done += got


def _copy(tensor: _StoredTensor, slot: TensorSlot, buffers: dict[str, np.ndarray]) -> None:
    for first, rows in tensor.parts(PIECE_BYTES):
        slot.write(buffers, rows, first)


def _tensors(path: str) -> Iterator[_StoredTensor]:
    """Every tensor of a folder, file by file."""
    for full in weight_files(path):
        try:
            with safe_open(full, framework="numpy"):
                pass  # which checks that the file is whole and its header consistent
        except (SafetensorError, OSError) as error:
            raise HfCheckpointError(
                f"cannot read the weights: path={full}, size={os.path.getsize(full)} bytes, reason={error}; expected "
                "a whole safetensors file. Copy it again.",
                path=path,
            ) from error
        with open(full, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            start = 8 + length + entry["data_offsets"][0]
            yield _StoredTensor(name, entry["dtype"], tuple(entry["shape"]), full, start)


def _dtype(path: str, name: str, stored: str, wanted: str | None) -> np.dtype:
    if stored not in _DTYPES:
        detail = f"a float dtype ({', '.join(_DTYPES)}), found {stored}; dequantise the weights first"
        raise HfTensorError(path, name, "dtype", detail=detail)
    return jnp.dtype(wanted or _DTYPES[stored])


def _fill(
    template: Any, paths: Sequence[str], buffers: dict[str, np.ndarray], place: Callable[[NamedArray], Any]
) -> Any:
    """Put the buffers into the model, letting go of each."""
    named = []
    for path in paths:
        node = template
        for name in path.split("."):
            node = getattr(node, name)
        named.append(place(NamedArray(buffers.pop(path), node.axes)))

    def get(model: Any) -> list[Any]:
        nodes = []
        for path in paths:
            node = model
            for name in path.split("."):
                node = getattr(node, name)
            nodes.append(node)
        return nodes

    return eqx.tree_at(get, template, named, is_leaf=lambda node: isinstance(node, NamedArray))


def _put(leaf: NamedArray) -> NamedArray:
    return NamedArray(jax.device_put(leaf.array), leaf.axes)
