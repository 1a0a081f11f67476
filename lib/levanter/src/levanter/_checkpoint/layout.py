"""Where things are inside a checkpoint, and what the two JSON files say.

    step-<n>/                 state after n updates
      manifest.json           written first: format, drivers, path/shape/dtype/chunk of every array
      manifest.ocdbt, d/      one OCDBT key-value store; each array is a zarr3 array under its path
      metadata.json           written last, atomically: {step, timestamp, is_temporary, ...}

A folder without ``metadata.json`` is not a checkpoint. That one rule makes torn saves invisible.
"""

import json
import posixpath
from dataclasses import dataclass
from typing import Any

import fsspec
from rigging.filesystem.atomic import write_json_atomic

from levanter.errors import CheckpointCorruptError, CheckpointNotFoundError

MANIFEST = "manifest.json"
METADATA = "metadata.json"
FORMAT_VERSION = 1
ARRAY_DRIVER = "zarr3"
KVSTORE_DRIVER = "ocdbt"


@dataclass(frozen=True)
class ArrayEntry:
    """One array of a checkpoint.

    Attributes:
        path: Key inside the store, parts joined by ``/``.
        shape: Global shape.
        dtype: NumPy dtype name, ``bfloat16`` included.
        chunk_shape: Shape of a zarr chunk.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunk_shape: tuple[int, ...]


@dataclass(frozen=True)
class CheckpointMetadata:
    """The last file written.

    Attributes:
        step: Updates done when the state was taken.
        timestamp: ISO 8601 UTC time of the save.
        is_temporary: Whether the retention policy may delete it.
        extra: Anything else the caller stored, JSON values.
    """

    step: int
    timestamp: str
    is_temporary: bool
    extra: dict[str, Any]


def join(path: str, *parts: str) -> str:
    """Join path parts for local paths and URLs alike."""
    return posixpath.join(path, *parts)


def write_manifest(path: str, entries: list[ArrayEntry]) -> None:
    """Write ``manifest.json``."""
    arrays = [{"path": e.path, "shape": e.shape, "dtype": e.dtype, "chunk_shape": e.chunk_shape} for e in entries]
    document = {
        "format_version": FORMAT_VERSION,
        "array_driver": ARRAY_DRIVER,
        "kvstore_driver": KVSTORE_DRIVER,
        "arrays": arrays,
    }
    write_json_atomic(join(path, MANIFEST), document)


def read_manifest(path: str) -> dict[str, ArrayEntry]:
    """Read ``manifest.json`` as entries by path.

    Raises:
        CheckpointCorruptError: absent, unreadable, or of another format version.
    """
    document = _read_json(path, MANIFEST)
    if document.get("format_version") != FORMAT_VERSION:
        raise CheckpointCorruptError(path, MANIFEST, f"format_version={document.get('format_version')}")
    entries = (
        ArrayEntry(a["path"], tuple(a["shape"]), a["dtype"], tuple(a["chunk_shape"])) for a in document["arrays"]
    )
    return {entry.path: entry for entry in entries}


def write_metadata(path: str, metadata: CheckpointMetadata) -> None:
    """Commit a checkpoint by writing ``metadata.json``."""
    document = {
        **metadata.extra,
        "step": metadata.step,
        "timestamp": metadata.timestamp,
        "is_temporary": metadata.is_temporary,
    }
    write_json_atomic(join(path, METADATA), document)


def read_metadata(path: str) -> CheckpointMetadata:
    """Read ``metadata.json``.

    Raises:
        CheckpointNotFoundError: the folder is not a complete checkpoint.
        CheckpointCorruptError: the file is not what was written.
    """
    document = _read_json(path, METADATA)
    try:
        step, timestamp, temporary = document.pop("step"), document.pop("timestamp"), document.pop("is_temporary")
    except KeyError as error:
        raise CheckpointCorruptError(path, METADATA, f"key {error} is absent") from error
    return CheckpointMetadata(int(step), str(timestamp), bool(temporary), document)


def _read_json(path: str, name: str) -> dict[str, Any]:
    try:
        fs, plain = fsspec.core.url_to_fs(join(path, name))
        document = json.loads(fs.cat_file(plain))
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(path) from error
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise CheckpointCorruptError(path, name, str(error)) from error
    if not isinstance(document, dict):
        raise CheckpointCorruptError(path, name, f"top level is a {type(document).__name__}")
    return document
