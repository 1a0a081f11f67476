"""Checkpoints: save, find, restore, keep.

The problem: a run is killed at any moment, and must come back bit for bit, without a stall at every save and without
filling the disk. The idea: a save is a folder that becomes a checkpoint only when its last file, ``metadata.json``, is
in place; the training thread pays only for the copy to host memory; what to keep is a pure policy
(:mod:`levanter._checkpoint.policy`).

``step-<n>`` holds the state after ``n`` updates, in every folder and message.

References:
    Layout: TensorStore OCDBT and zarr3 drivers, https://google.github.io/tensorstore/.
"""

import datetime as dt
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec
import jax
from rigging.timing import Clock, SystemClock

from levanter._checkpoint.discovery import CheckpointCandidate as CheckpointCandidate
from levanter._checkpoint.discovery import discover_checkpoint_candidates as discover_checkpoint_candidates
from levanter._checkpoint.discovery import discover_latest_checkpoint as discover_latest_checkpoint
from levanter._checkpoint.discovery import is_checkpoint_path as is_checkpoint_path
from levanter._checkpoint.discovery import latest_checkpoint_path as latest_checkpoint_path
from levanter._checkpoint.layout import (
    CheckpointMetadata,
    join,
    read_manifest,
    read_metadata,
    write_manifest,
    write_metadata,
)
from levanter._checkpoint.policy import KeepEvery, Retention, SaveSituation, decide, validate_keep
from levanter.errors import CheckpointError, CheckpointMismatchError, ConfigError
from levanter.tensorstore_serialization import HostArray, read_arrays, snapshot, write_snapshot
from levanter.tree_paths import is_named, named_leaves, path_name, raw_array

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointerConfig:
    """Where and how often to save.

    Attributes:
        base_path: Root of permanent checkpoints.
        temporary_base_path: Root of temporary ones; None uses ``base_path``.
        save_interval: Time between temporary saves; None switches them off.
        keep: Schedule of permanent saves; None keeps only the forced ones.
        append_run_id_to_base_path: Put the run id below the roots.
        delete_old_temp_checkpoints: Adopt and prune temporary checkpoints found at start.
        keep_last_temporary_checkpoints: Temporary checkpoints to keep.
        asynchronous: Write on a thread.
    """

    base_path: str = "checkpoints/"
    temporary_base_path: str | None = None
    save_interval: dt.timedelta | None = dt.timedelta(minutes=15)
    keep: list[KeepEvery] | None = field(default_factory=lambda: [KeepEvery(10_000)])
    append_run_id_to_base_path: bool = True
    delete_old_temp_checkpoints: bool = True
    keep_last_temporary_checkpoints: int = 1
    asynchronous: bool = True

    def __post_init__(self) -> None:
        validate_keep(self.keep or ())
        if self.save_interval is not None and self.save_interval.total_seconds() <= 0:
            raise ConfigError(f"save_interval={self.save_interval}; expected > 0.", key="checkpointer.save_interval")
        if self.keep_last_temporary_checkpoints < 1:
            raise ConfigError(
                f"keep_last_temporary_checkpoints={self.keep_last_temporary_checkpoints}; expected >= 1.",
                key="checkpointer.keep_last_temporary_checkpoints",
            )

    def roots(self, run_id: str) -> list[str]:
        """The folders of this run's checkpoints, permanent first."""
        bases = [self.base_path] + ([self.temporary_base_path] if self.temporary_base_path else [])
        return [join(base, run_id) if self.append_run_id_to_base_path else base for base in bases]

    def create(self, run_id: str, *, clock: Clock | None = None) -> "Checkpointer":
        """Build the checkpointer of a run."""
        return Checkpointer(self, run_id, clock=clock or SystemClock())


def save_checkpoint(
    tree: Any, step: int, path: str, *, is_temporary: bool = False, extra: Mapping[str, Any] | None = None
) -> None:
    """Save a tree of arrays and wait until it is committed.

    Args:
        tree: Any pytree; NamedArrays are stored as their arrays. Leaves that are not arrays or numbers are errors.
        step: Updates done.
        path: Folder to create; an incomplete one left by a crash is replaced.
        is_temporary: Whether a policy may delete it.
        extra: More JSON values for ``metadata.json``.

    Raises:
        CheckpointError: storage refused, or a leaf cannot be stored.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> folder = tempfile.mkdtemp() + "/step-3"
        >>> save_checkpoint({"w": jnp.ones(2)}, 3, folder)
        >>> load_checkpoint({"w": jnp.zeros(2)}, folder)["w"].tolist()
        [1.0, 1.0]
    """
    _commit(snapshot(_storable(tree)), path, CheckpointMetadata(step, _now(), is_temporary, dict(extra or {})))


def load_checkpoint(tree: Any, path: str, *, subpath: str | None = None, allow_partial: bool = False) -> Any:
    """Restore arrays into the structure, dtypes and shardings of ``tree``.

    Args:
        tree: Arrays or ShapeDtypeStructs (with ``sharding`` to reshard on load).
        path: A complete checkpoint.
        subpath: Read below this key only, for example ``model``.
        allow_partial: Keep the caller's leaf where the checkpoint has none; such leaves must be arrays.

    Raises:
        CheckpointNotFoundError: ``path`` is not complete.
        CheckpointMismatchError: a leaf is absent or has another shape; the leaf is named.
        CheckpointCorruptError: stored bytes are damaged; the leaf is named.
    """
    read_metadata(path)
    stored = read_manifest(path)
    prefix = f"{subpath}/" if subpath else ""
    wanted: dict[str, jax.ShapeDtypeStruct] = {}
    for name, leaf in named_leaves(tree, "/"):
        key = prefix + name
        if key in stored:
            wanted[key] = _template(raw_array(leaf))
        elif not allow_partial:
            raise CheckpointMismatchError(path, key, expected="an array", found="nothing")
    values = read_arrays(path, wanted, stored)

    def place(key_path: tuple[Any, ...], leaf: Any) -> Any:
        key = prefix + path_name(key_path, "/")
        if key not in values:
            return leaf
        value = _like(values[key], raw_array(leaf))
        return jax.tree.unflatten(jax.tree.structure(leaf), [value]) if is_named(leaf) else value

    return jax.tree_util.tree_map_with_path(place, tree, is_leaf=is_named)


def verify_checkpoint(path: str) -> int:
    """Read every byte and check every checksum.

    Returns:
        Number of arrays checked.

    Raises:
        CheckpointNotFoundError: ``path`` is not complete.
        CheckpointCorruptError: an array is damaged; it is named.
    """
    read_metadata(path)
    stored = read_manifest(path)
    for name, entry in stored.items():
        read_arrays(path, {name: jax.ShapeDtypeStruct(entry.shape, jax.numpy.dtype(entry.dtype))}, stored)
    return len(stored)


class Checkpointer:
    """Saves a run's state as its policy says; one save at a time, on a thread.

    Invariants: at most one save is in flight; a new save waits for the last one; ``wait_until_finished`` raises what
    the thread met; older temporaries are pruned only after a newer checkpoint is committed.
    """

    def __init__(self, config: CheckpointerConfig, run_id: str, *, clock: Clock) -> None:
        self.config = config
        self.last_path: str | None = None
        self.last_stall_s = 0.0
        self.roots = config.roots(run_id)
        self._clock = clock
        self._last_save_time = clock.monotonic()
        self._last_saved_step = -1
        self._last_is_temporary = False
        self._requested: Retention | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._temporaries: list[str] = []
        if config.delete_old_temp_checkpoints:
            self._temporaries = [c.path for c in self.candidates() if c.metadata.is_temporary]

    def candidates(self) -> list[CheckpointCandidate]:
        """Complete checkpoints of this run, oldest first."""
        return discover_checkpoint_candidates(*self.roots)

    def request_checkpoint(self, retention: Retention = Retention.TEMPORARY) -> None:
        """Ask for a save at the next step; a permanent request wins over a temporary one. Safe from any thread."""
        with self._lock:
            if self._requested != Retention.PERMANENT:
                self._requested = retention

    def decide(self, step: int, *, force: bool = False) -> Retention | None:
        """Whether :meth:`on_step` would save now."""
        interval = self.config.save_interval
        at = SaveSituation(
            step=step,
            last_saved_step=self._last_saved_step,
            elapsed_s=self._clock.monotonic() - self._last_save_time,
            requested=self._requested,
            force=force,
        )
        return decide(self.config.keep or (), interval.total_seconds() if interval else None, at)

    def on_step(
        self,
        tree: Any,
        step: int,
        *,
        force: bool = False,
        before_commit: Callable[[], None] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save if the policy says so.

        Args:
            tree: The state after ``step`` updates.
            step: Updates done.
            force: Save whatever the policy says, permanently.
            before_commit: Called on this thread before the copy; makes logs durable up to this step.
            extra: More JSON values for ``metadata.json``.

        Returns:
            The path being written, or None.
        """
        retention = self.decide(step, force=force)
        if retention is None:
            return None
        if step == self._last_saved_step and (not self._last_is_temporary or retention == Retention.TEMPORARY):
            return self.last_path
        if before_commit is not None:
            before_commit()
        with self._lock:
            self._requested = None
        return self._save(tree, retention, step, dict(extra or {}))

    def wait_until_finished(self) -> None:
        """Wait for the save in flight.

        Raises:
            CheckpointError: that save failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError(f"a checkpoint could not be saved: {failure}") from failure

    def note_restored(self, step: int, path: str, *, is_temporary: bool) -> None:
        """Tell that the state of ``step`` came from ``path`` and need not be saved again."""
        self._last_saved_step = step
        self._last_is_temporary = is_temporary
        self.last_path = path

    def _save(self, tree: Any, retention: Retention, step: int, extra: dict[str, Any]) -> str:
        self.wait_until_finished()
        started = self._clock.monotonic()
        temporary = retention == Retention.TEMPORARY
        path = join(self.roots[-1] if temporary else self.roots[0], f"step-{step}")
        arrays = snapshot(_storable(tree))
        self.last_stall_s = self._clock.monotonic() - started
        self._last_save_time = self._clock.monotonic()
        self._last_saved_step = step
        self._last_is_temporary = temporary
        self.last_path = path
        metadata = CheckpointMetadata(step, _now(), temporary, extra)
        if not self.config.asynchronous:
            self._write(arrays, path, metadata)
            self.wait_until_finished()
            return path
        self._thread = threading.Thread(target=self._write, args=(arrays, path, metadata), name="levanter-checkpoint")
        self._thread.start()
        return path

    def _write(self, arrays: list[HostArray], path: str, metadata: CheckpointMetadata) -> None:
        try:
            _commit(arrays, path, metadata)
            self._prune(path, metadata.is_temporary)
        except BaseException as error:
            logger.exception("saving %s failed", path)
            self._failure = error

    def _prune(self, path: str, temporary: bool) -> None:
        if temporary:
            self._temporaries.append(path)
        elif path in self._temporaries:
            self._temporaries.remove(path)
        keep = self.config.keep_last_temporary_checkpoints if temporary else 0
        doomed = self._temporaries[: len(self._temporaries) - keep]
        for old in doomed:
            self._temporaries.remove(old)
            # Somebody may have promoted it by hand since: believe the file, not our memory.
            if is_checkpoint_path(old) and read_metadata(old).is_temporary:
                delete_checkpoint(old)


def delete_checkpoint(path: str) -> None:
    """Delete a checkpoint: its ``metadata.json`` first, so that a crash half-way leaves nothing that looks complete."""
    fs, plain = fsspec.core.url_to_fs(path)
    if fs.exists(join(plain, "metadata.json")):
        fs.rm_file(join(plain, "metadata.json"))
    if fs.exists(plain):
        fs.rm(plain, recursive=True)


def _commit(arrays: list[HostArray], path: str, metadata: CheckpointMetadata) -> None:
    delete_checkpoint(path)
    fs, plain = fsspec.core.url_to_fs(path)
    fs.makedirs(plain, exist_ok=True)
    write_manifest(path, [array.entry for array in arrays])
    write_snapshot(path, arrays)
    write_metadata(path, metadata)


def _storable(tree: Any) -> list[tuple[str, Any]]:
    leaves = named_leaves(tree, "/")
    for name, leaf in leaves:
        value = raw_array(leaf)
        if not hasattr(value, "dtype") and not isinstance(value, int | float):
            raise CheckpointError(
                f"cannot store leaf={name}, type={type(value).__name__}; expected an array or number."
            )
    return leaves


def _template(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, int | float):
        return jax.ShapeDtypeStruct((), jax.numpy.result_type(leaf))
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return jax.ShapeDtypeStruct(data.shape, data.dtype)
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _like(value: jax.Array, leaf: Any) -> Any:
    if isinstance(leaf, int | float):
        return type(leaf)(value)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    return value


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()
