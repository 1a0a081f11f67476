"""Finding checkpoints: one listing per root, never a recursive walk."""

import logging
from collections.abc import Collection
from dataclasses import dataclass

import fsspec

from levanter._checkpoint.layout import METADATA, CheckpointMetadata, join, read_metadata
from levanter.errors import CheckpointCorruptError, CheckpointNotFoundError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointCandidate:
    """A complete checkpoint found under a root."""

    path: str
    metadata: CheckpointMetadata

    @property
    def step(self) -> int:
        """Updates done when it was taken."""
        return self.metadata.step


def is_checkpoint_path(path: str) -> bool:
    """Tell whether ``path`` is a complete checkpoint."""
    fs, plain = fsspec.core.url_to_fs(path)
    return fs.exists(join(plain, METADATA))


def discover_checkpoint_candidates(
    *roots: str, exclude_paths: Collection[str] = (), max_step: int | None = None
) -> list[CheckpointCandidate]:
    """List complete checkpoints directly under the roots (or the roots themselves), oldest first.

    Args:
        *roots: Folders that hold ``step-<n>`` folders, or single checkpoints. Absent roots count as empty.
        exclude_paths: Checkpoints to leave out.
        max_step: Leave out anything later.

    Returns:
        Candidates sorted by (step, timestamp, path). One whose metadata cannot be read is left out with a warning.
    """
    found = []
    for root in roots:
        for path in [root, *_children(root)]:
            if path in exclude_paths:
                continue
            try:
                metadata = read_metadata(path)
            except CheckpointNotFoundError:
                continue
            except CheckpointCorruptError as error:
                logger.warning("ignoring a damaged checkpoint: %s", error)
                continue
            if max_step is None or metadata.step <= max_step:
                found.append(CheckpointCandidate(path, metadata))
    return sorted(found, key=lambda c: (c.step, c.metadata.timestamp, c.path))


def discover_latest_checkpoint(*roots: str) -> str | None:
    """Path of the newest complete checkpoint under the roots, or None."""
    candidates = discover_checkpoint_candidates(*roots)
    return candidates[-1].path if candidates else None


def latest_checkpoint_path(*roots: str) -> str:
    """Path of the newest complete checkpoint.

    Raises:
        CheckpointNotFoundError: there is none; incomplete folders are named.
    """
    found = discover_latest_checkpoint(*roots)
    if found is None:
        incomplete = [child for root in roots for child in _children(root) if "step-" in child]
        raise CheckpointNotFoundError(", ".join(roots), incomplete=incomplete)
    return found


def _children(root: str) -> list[str]:
    """Folders directly under ``root``; empty when there is no such folder."""
    fs, plain = fsspec.core.url_to_fs(root)
    try:
        entries = fs.ls(plain, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = sorted(entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory")
    return [join(root, name.rsplit("/", 1)[-1]) for name in names]
