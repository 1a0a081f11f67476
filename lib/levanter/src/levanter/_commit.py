"""Turning a snapshot into a checkpoint on disk: folder, manifest, arrays, and ``metadata.json`` last.

With several processes the first one makes the folder, the manifest and the empty arrays, every process writes the
shards it owns, and when all have, the first one writes the metadata. A process that fails makes all of them fail.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import fsspec
import jax

from levanter._checkpoint import processes
from levanter._checkpoint.layout import CheckpointMetadata, join, write_manifest, write_metadata
from levanter._checkpoint.options import CheckpointWriteConfig
from levanter.tensorstore_serialization import HostArray, create_arrays, write_snapshot

logger = logging.getLogger(__name__)


def delete_checkpoint(path: str) -> None:
    """Delete a checkpoint: its ``metadata.json`` first, so that a crash half-way leaves nothing that looks complete."""
    fs, plain = fsspec.core.url_to_fs(path)
    if fs.exists(join(plain, "metadata.json")):
        fs.rm_file(join(plain, "metadata.json"))
    if fs.exists(plain):
        fs.rm(plain, recursive=True)


def commit(
    arrays: list[HostArray],
    path: str,
    metadata: CheckpointMetadata,
    name: str,
    options: CheckpointWriteConfig | None = None,
) -> None:
    """Write a snapshot and make it a checkpoint, on every process of the run.

    Args:
        arrays: This process's snapshot.
        path: Folder to create; whatever is there is replaced.
        metadata: Last file.
        name: Unique name of this save, the same on all processes.
        options: How the bytes are written.

    Raises:
        CheckpointError: storage refused here or on another process; the incomplete folder is removed, because on a full
            disk its bytes would make the next save fail as well.
    """
    try:
        alone = jax.process_count() == 1
        _phase(f"{name}/create", lambda: _create(arrays, path, empty=not alone) if processes.is_first() else None)
        _phase(f"{name}/write", lambda: write_snapshot(path, arrays, create=alone, options=options))
        _phase(f"{name}/commit", lambda: write_metadata(path, metadata) if processes.is_first() else None)
    except BaseException:
        if processes.is_first():
            with contextlib.suppress(OSError):
                delete_checkpoint(path)
        raise


def _phase(name: str, work: Callable[[], Any]) -> None:
    failure: BaseException | None = None
    try:
        work()
    except BaseException as error:  # every process must reach the meeting, whatever happened to it
        failure = error
    processes.meet(name, failure)


def _create(arrays: list[HostArray], path: str, *, empty: bool) -> None:
    delete_checkpoint(path)
    fs, plain = fsspec.core.url_to_fs(path)
    fs.makedirs(plain, exist_ok=True)
    write_manifest(path, [array.entry for array in arrays])
    if empty:
        create_arrays(path, arrays)
