"""Checkpoints: save, find, restore, keep.

The problem: a run is killed at any moment, and must come back bit for bit, without a stall at every save and without
filling the disk. The idea: a save is a folder that becomes a checkpoint only when its last file, ``metadata.json``, is
in place; the training thread pays only for the copy to host memory; what to keep is a pure policy
(:mod:`levanter._checkpoint.policy`). Several processes save together, each the shards it holds.

``step-<n>`` holds the state after ``n`` updates, in every folder and message.

References:
    Layout: TensorStore OCDBT and zarr3 drivers, https://google.github.io/tensorstore/.
"""

import datetime as dt
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from rigging.timing import Clock, SystemClock

from levanter._checkpoint import processes
from levanter._checkpoint.diagnostics import before_copy, watched_save
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
)
from levanter._checkpoint.options import CheckpointDebugConfig as CheckpointDebugConfig
from levanter._checkpoint.options import CheckpointWriteConfig as CheckpointWriteConfig
from levanter._checkpoint.policy import KeepEvery, Retention, SaveSituation, decide, validate_keep
from levanter._commit import commit
from levanter._commit import delete_checkpoint as delete_checkpoint
from levanter.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
)
from levanter.tensorstore_serialization import (
    HostArray,
    Staging,
    read_arrays,
    release_free_memory,
    snapshot,
    staged_bytes,
    staging_plan,
)
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
        keep_staging_buffers: On CPU, copy every save into the same host memory (as much as the state) instead of
            allocating it anew; the stall is several times shorter. Accelerators do not need it.
        max_failed_saves: Saves in a row that may fail (full disk, storage out of reach) before the run does; the last
            save of a run may never fail.
        debug: What is said about a save that takes its time.
        write: How its bytes are written.
    """

    base_path: str = "checkpoints/"
    temporary_base_path: str | None = None
    save_interval: dt.timedelta | None = dt.timedelta(minutes=15)
    keep: list[KeepEvery] | None = field(default_factory=lambda: [KeepEvery(10_000)])
    append_run_id_to_base_path: bool = True
    delete_old_temp_checkpoints: bool = True
    keep_last_temporary_checkpoints: int = 1
    asynchronous: bool = True
    keep_staging_buffers: bool = True
    max_failed_saves: int = 3
    debug: CheckpointDebugConfig = field(default_factory=CheckpointDebugConfig)
    write: CheckpointWriteConfig = field(default_factory=CheckpointWriteConfig)

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
    metadata = CheckpointMetadata(step, _now(), is_temporary, dict(extra or {}))
    commit(snapshot(_storable(tree)), path, metadata, processes.next_name("save"))


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


def load_newest(tree: Any, paths: Sequence[str], *, allow_partial: bool = False) -> tuple[Any, str]:
    """Restore the first of ``paths`` that is not damaged.

    Args:
        tree: As for :func:`load_checkpoint`.
        paths: Checkpoints, the preferred one first; at least one.
        allow_partial: As for :func:`load_checkpoint`.

    Returns:
        ``(restored tree, its path)``; every damaged one passed over is logged as an error.

    Raises:
        CheckpointCorruptError: all are damaged; the first is reported.
    """
    damage: CheckpointCorruptError | None = None
    for path in paths:
        try:
            return load_checkpoint(tree, path, allow_partial=allow_partial), path
        except CheckpointCorruptError as error:
            logger.error("passing over a damaged checkpoint: %s", error)
            damage = damage or error
    raise damage or CheckpointNotFoundError("(no paths)")


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

    Invariants: at most one save is in flight; a new save waits for the last one and puts up with ``max_failed_saves``
    failures in a row, ``wait_until_finished`` with none; older temporaries are pruned only after a newer checkpoint is
    committed. With several processes the first one decides and prunes; all must make the same calls.
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
        self.failed_saves = 0
        self._failed_in_a_row = 0
        self._staging = Staging() if config.keep_staging_buffers else None
        self._name = processes.next_name(f"checkpointer/{run_id}")
        self._saves = 0
        self._agreed: tuple[int, Retention | None] = (-1, None)
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

    def reserve(self, tree: Any) -> None:
        """Prepare host memory for saves of ``tree`` on a thread, so that the first save stalls no longer than others.

        The tree's own buffers may be donated meanwhile.

        Raises:
            ConfigError: it takes more than ``write.max_staged_host_bytes``.
        """
        if self.config.write.max_staged_host_bytes is not None:
            self.config.write.check_staging(staged_bytes(_storable(tree)))
        if self._staging is None:
            return
        self.wait_until_finished()
        self._thread = threading.Thread(
            target=self._staging.reserve, args=(staging_plan(_storable(tree)),), name="levanter-staging"
        )
        self._thread.start()

    def decide(self, step: int, *, force: bool = False, request: Retention | None = None) -> Retention | None:
        """Whether :meth:`on_step` would save now; with several processes the first one's clock counts.

        Args:
            step: Updates done.
            force: Whether :meth:`on_step` will be told to.
            request: A request that every process makes at this step.
        """
        interval = self.config.save_interval
        at = SaveSituation(
            step=step,
            last_saved_step=self._last_saved_step,
            elapsed_s=self._clock.monotonic() - self._last_save_time,
            requested=request or self._requested,
            force=force,
        )
        mine = decide(self.config.keep or (), interval.total_seconds() if interval else None, at)
        if jax.process_count() == 1 or force or request is not None:
            return mine
        if self._agreed[0] != step:
            answer = processes.from_first(f"{self._name}/decide/{step}", mine or "no")
            self._agreed = (step, None if answer == "no" else Retention(answer))
        return self._agreed[1]

    def on_step(
        self,
        tree: Any,
        step: int,
        *,
        force: bool = False,
        request: Retention | None = None,
        before_commit: Callable[[], None] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save if the policy says so.

        Args:
            tree: The state after ``step`` updates.
            step: Updates done.
            force: Save whatever the policy says, permanently.
            request: Save for at least this long, unless this very step is saved already.
            before_commit: Called on this thread before the copy; makes logs durable up to this step.
            extra: More JSON values for ``metadata.json``.

        Returns:
            The path being written, or None.
        """
        retention = self.decide(step, force=force, request=request)
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
        failure = self._join()
        if failure is not None:
            raise CheckpointError(f"a checkpoint could not be saved: {failure}") from failure

    def note_restored(self, step: int, path: str, *, is_temporary: bool) -> None:
        """Tell that the state of ``step`` came from ``path`` and need not be saved again."""
        self._last_saved_step = step
        self._last_is_temporary = is_temporary
        self.last_path = path

    def _join(self) -> BaseException | None:
        """Wait for the thread; what it met, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        self._failed_in_a_row = 0 if failure is None else self._failed_in_a_row + 1
        if failure is not None:
            self.failed_saves += 1
            self._last_saved_step = -1
        return failure

    def _save(self, tree: Any, retention: Retention, step: int, extra: dict[str, Any]) -> str:
        failure = self._join()
        if failure is not None and self._failed_in_a_row > self.config.max_failed_saves:
            raise CheckpointError(
                f"{self._failed_in_a_row} checkpoints in a row could not be saved, the last because: {failure}. "
                "Earlier ones are whole. Make room or repair the storage, and start it again to resume."
            ) from failure
        started = self._clock.monotonic()
        temporary = retention == Retention.TEMPORARY
        path = join(self.roots[-1] if temporary else self.roots[0], f"step-{step}")
        before_copy(self.config.debug)
        arrays = snapshot(_storable(tree), self._staging, chunk_limit=self.config.write.max_chunk_bytes)
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
        self._saves += 1
        try:
            with watched_save(self.config.debug, path, self._clock):
                commit(arrays, path, metadata, f"{self._name}/{self._saves}", self.config.write)
            if processes.is_first():
                self._prune(path, metadata.is_temporary)
        except BaseException as error:
            logger.error("saving %s failed; training goes on: %r", path, error)
            self._failure = error
        finally:
            release_free_memory()

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
