"""Batches on devices, as a function of the step number.

Step *s* of a :class:`DataLoader` holds the examples ``offset(s) .. offset(s) + size(s) - 1`` of the dataset, whatever
the number of processes or devices, the prefetch settings, or the step at which iteration began. Resuming is therefore
``loader.iter_from_step(s)``: nothing is replayed.

Each process reads only the rows that its devices hold. Several steps are read in one request, which lets the store
merge their reads; the first request is a single batch and later ones double up to ``prefetch_size``, so that the first
step does not wait for thousands of cold rows. Reading happens in a thread; its errors are raised by ``next``.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, final

import haliax as hax
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from levanter.data._background import BackgroundIterator
from levanter.data._blocking import blocking_wait
from levanter.data._stacking import batch_from_leaves, example_leaves, is_named
from levanter.data.dataset import AsyncDataset
from levanter.data.errors import BatchSizeError, EmptyDatasetError, InfiniteDatasetError
from levanter.schedule import BatchSchedule, IntSchedule

logger = logging.getLogger(__name__)

Ex = TypeVar("Ex")

DEFAULT_BATCH_AXIS = "batch"
SLOW_NEXT_S = 0.5

REQUEST_BYTES = 8 * 1024 * 1024
"""Most bytes of one array in one request. Larger arrays are mapped anew by the allocator every time, and faulting their
pages in costs more than reading them: measured 1.7 times the processor time at 32 MiB."""

AxisResources = Mapping[str, str | Sequence[str] | None]


@dataclasses.dataclass(frozen=True)
class _StepPlan:
    """One step: which rows of the padded batch this process needs, and which examples they are.

    Attributes:
        step: Training step.
        padded_size: Rows of the batch, a multiple of the data axis.
        rows: Rows needed here, ascending. Shape ``(r,)``.
        indices: Examples for those rows that are not padding. Shape ``(<= r,)``; the padding comes last.
    """

    step: int
    padded_size: int
    rows: np.ndarray
    indices: np.ndarray


@final
class DataLoader[Ex]:
    """Batches of a dataset. Iterate over it, or from any step with :meth:`iter_from_step`.

    Args:
        data: Examples: pytrees of arrays and named arrays, all of one structure.
        batch_size: A size, an axis, or a schedule of sizes by step.
        batch_axis_name: Name of the new first axis; that of an axis given as size, else ``"batch"``.
        max_buffered_batches: Batches kept ready by the thread; 0 reads in ``next``; ``None`` for no bound.
        mesh: Devices to place batches on; the default device when ``None``.
        axis_resources: Axis name to mesh axis (or axes). The batch axis should be among them.
        prefetch_size: Most steps read in one request once warm; fewer when their arrays exceed `REQUEST_BYTES`.
        pad_final_batch: Fill an incomplete last batch with zeros (loss weights included); otherwise drop it.
        allow_nondivisible_batch_size: Pad batches that the data axis does not divide, instead of refusing them.
    Raises:
        EmptyDatasetError: The dataset has no items.
        BatchSizeError: A size of the schedule is not a multiple of the data axis.
    """

    def __init__(
        self,
        data: AsyncDataset[Ex],
        batch_size: int | hax.Axis | IntSchedule | BatchSchedule,
        *,
        batch_axis_name: str | None = None,
        max_buffered_batches: int | None = 64,
        mesh: Mesh | None = None,
        axis_resources: AxisResources | None = None,
        prefetch_size: int = 32,
        pad_final_batch: bool = True,
        allow_nondivisible_batch_size: bool = False,
    ) -> None:
        if isinstance(batch_size, hax.Axis):
            batch_axis_name, batch_size = batch_axis_name or batch_size.name, batch_size.size
        if prefetch_size < 1:
            raise ValueError(f"prefetch_size={prefetch_size}; expected >= 1. Use the default.")
        self.data = data
        self.batch_axis_name = batch_axis_name or DEFAULT_BATCH_AXIS
        self.schedule = batch_size if isinstance(batch_size, BatchSchedule) else BatchSchedule(batch_size)
        self.max_buffered_batches = max_buffered_batches
        self.prefetch_size = prefetch_size
        self.pad_final_batch = pad_final_batch
        self._mesh = mesh
        self._resources = dict(axis_resources or {})
        self._data_axis_size = self._batch_shards()
        self._check_sizes(allow_nondivisible_batch_size)
        self._length = blocking_wait(data.async_len()) if data.is_finite() else None
        if self._length == 0:
            raise EmptyDatasetError(type(data).__name__, "Check the input, or use shorter sequences.")
        self.exemplar: Ex = blocking_wait(data.getitem_async(0))
        self._exemplar_leaves = example_leaves(self.exemplar)

    def _batch_shards(self) -> int:
        if self._mesh is None:
            return 1
        names = _as_names(self._resources.get(self.batch_axis_name))
        return int(np.prod([self._mesh.shape[name] for name in names], dtype=np.int64))

    def _check_sizes(self, allow_nondivisible: bool) -> None:
        for size in sorted(self.schedule.unique_batch_sizes()):
            if size % self._data_axis_size:
                error = BatchSizeError(size, self._data_axis_size)
                if not allow_nondivisible:
                    raise error
                logger.warning("padding every batch: %s", error)

    def has_len(self) -> bool:
        """Whether iteration from step 0 ends."""
        return self._length is not None

    def __len__(self) -> int:
        if self._length is None:
            raise InfiniteDatasetError(type(self.data).__name__, "len(loader)")
        if self.pad_final_batch:
            return self.schedule.find_step_containing_offset(self._length - 1) + 1
        return self.schedule.find_step_containing_offset(self._length)

    def __iter__(self) -> "DataLoaderIterator[Ex]":
        return self.iter_from_step(0)

    def iter_from_step(self, step: int | None = None) -> "DataLoaderIterator[Ex]":
        """Batches of ``step``, ``step + 1`` ...

        Raises:
            ValueError: ``step`` is negative.
        """
        if step is not None and step < 0:
            raise ValueError(f"cannot start at a negative step: step={step}; expected >= 0.")
        return DataLoaderIterator(self, step or 0)

    def batch_at(self, step: int) -> Ex:
        """The batch of one step, read now.

        Raises:
            IndexError: The dataset ends before that step.
        """
        plans = self._plans(step, 1)
        if not plans:
            raise IndexError(f"no batch at step={step}; expected step < {len(self)}. The dataset ends before it.")
        return next(iter(self._read(plans)))

    def batch_shapes(self, step: int) -> Ex:
        """The batch of one step with a :class:`jax.ShapeDtypeStruct` for every array; nothing is read."""
        rows = len(self.schedule.batch_indices_at_step(step))
        axis = hax.Axis(self.batch_axis_name, -(-rows // self._data_axis_size) * self._data_axis_size)
        shapes = [
            jax.ShapeDtypeStruct((axis.size, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))
            for leaf in self._exemplar_leaves
        ]
        return batch_from_leaves(self.exemplar, shapes, axis, finish=self._with_sharding)

    def _with_sharding(self, node: Any, shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if self._mesh is None:
            return shape
        sharding = NamedSharding(self._mesh, self._partition_spec(node, shape.shape))
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    def _steps_per_request(self) -> int:
        largest = max((leaf.nbytes for leaf in self._exemplar_leaves), default=1)
        batch_bytes = max(largest, 1) * max(self.schedule.unique_batch_sizes())
        return max(1, min(self.prefetch_size, REQUEST_BYTES // batch_bytes))

    def _plans(self, step: int, count: int) -> list[_StepPlan]:
        last = min(step + count, len(self)) if self._length is not None else step + count
        return [self._plan(number) for number in range(step, last)]

    def _plan(self, step: int) -> _StepPlan:
        indices = self.schedule.batch_indices_at_step(step)
        padded = -(-len(indices) // self._data_axis_size) * self._data_axis_size
        rows = self._rows_here(padded)
        end = len(indices)
        if self._length is not None:
            end = min(end, self._length - indices.start)
        return _StepPlan(step, padded, rows, indices.start + rows[rows < end])

    def _rows_here(self, padded: int) -> np.ndarray:
        """Rows of a batch that devices of this process hold, ascending."""
        if self._mesh is None:
            return np.arange(padded)
        sharding = NamedSharding(self._mesh, PartitionSpec(self._spec_of(self.batch_axis_name)))
        needed = np.zeros(padded, dtype=bool)
        for index in sharding.addressable_devices_indices_map((padded,)).values():
            needed[index or slice(None)] = True
        return np.flatnonzero(needed)

    def _read(self, plans: Sequence[_StepPlan]) -> Iterator[Ex]:
        """Read several steps in one request and build their batches one by one."""
        wanted = np.concatenate([plan.indices for plan in plans])
        if len(wanted):
            leaves = blocking_wait(self.data.get_stacked(wanted))
        else:
            leaves = [np.zeros((0, *leaf.shape), leaf.dtype) for leaf in self._exemplar_leaves]
        begin = 0
        for plan in plans:
            end = begin + len(plan.indices)
            yield self._batch(plan, [leaf[begin:end] for leaf in leaves])
            begin = end

    def _batch(self, plan: _StepPlan, leaves: Sequence[np.ndarray]) -> Ex:
        missing = len(plan.rows) - len(plan.indices)
        if missing:
            leaves = [np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) for leaf in leaves]
        axis = hax.Axis(self.batch_axis_name, plan.padded_size)
        return batch_from_leaves(self.exemplar, leaves, axis, finish=lambda node, rows: self._place(node, rows, plan))

    def _place(self, node: Any, local: np.ndarray, plan: _StepPlan) -> jax.Array:
        """Put the rows that this process holds on its devices, as one global array."""
        if self._mesh is None:
            return jax.device_put(local)
        shape = (plan.padded_size, *local.shape[1:])
        sharding = NamedSharding(self._mesh, self._partition_spec(node, shape))

        def rows_of_device(index: tuple[slice, ...] | None) -> np.ndarray:
            if index is None:
                return local
            first, last, _ = index[0].indices(plan.padded_size)
            place = int(np.searchsorted(plan.rows, first))
            return local[(slice(place, place + last - first), *index[1:])]

        return jax.make_array_from_callback(shape, sharding, rows_of_device)

    def _partition_spec(self, node: Any, shape: tuple[int, ...]) -> PartitionSpec:
        names = [axis.name for axis in node.axes] if is_named(node) else [""] * (len(shape) - 1)
        used = set(_as_names(self._resources.get(self.batch_axis_name)))
        spec = [self._spec_of(self.batch_axis_name)]
        for name, size in zip(names, shape[1:], strict=True):
            mesh_axes = _as_names(self._resources.get(name))
            shards = int(np.prod([self._mesh.shape[axis] for axis in mesh_axes], dtype=np.int64)) if self._mesh else 1
            if used.intersection(mesh_axes) or size % shards:
                spec.append(None)
                continue
            used.update(mesh_axes)
            spec.append(self._spec_of(name))
        return PartitionSpec(*spec)

    def _spec_of(self, name: str) -> tuple[str, ...] | None:
        return _as_names(self._resources.get(name)) or None


@final
class DataLoaderIterator(Iterator[Ex]):
    """Batches from one step on. Close it with :meth:`stop`, or drop it.

    Attributes:
        next_step: Step of the batch that ``next`` returns next.
    """

    def __init__(self, loader: DataLoader[Ex], first_step: int) -> None:
        self.next_step = first_step
        self._loader = loader
        self._batches: BackgroundIterator[Ex] = BackgroundIterator(
            lambda: _batches_from(loader, first_step), loader.max_buffered_batches, name="levanter-data-loader"
        )

    def __iter__(self) -> "DataLoaderIterator[Ex]":
        return self

    def __next__(self) -> Ex:
        before = self._batches.wait_s
        batch = next(self._batches)
        waited = self._batches.wait_s - before
        if waited > SLOW_NEXT_S:
            logger.warning(
                "waited %.2f s for the batch of step %d: %d ready, max_buffered_batches=%s, prefetch_size=%d",
                waited, self.next_step, self._batches.num_ready, self._loader.max_buffered_batches,
                self._loader.prefetch_size,
            )  # fmt: skip
        self.next_step += 1
        return batch

    @property
    def loading_time_s(self) -> float:
        """Seconds spent waiting for batches so far."""
        return self._batches.wait_s

    def stop(self) -> None:
        """End the reading thread. Idempotent."""
        self._batches.stop()


def _batches_from[Ex](loader: DataLoader[Ex], step: int) -> Iterator[Ex]:
    count, most = 1, loader._steps_per_request()
    while True:
        plans = loader._plans(step, count)
        if not plans:
            return
        yield from loader._read(plans)
        step += len(plans)
        count = min(count * 2, most)


def check_sharded_consistency(tree: Any, *, check_disjoint_indices_are_different: bool = False) -> None:
    """Check that shards of every array agree where they show the same part; the oracle of loader tests.

    Args:
        tree: Pytree; JAX arrays in it are checked.
        check_disjoint_indices_are_different: Also check that different parts differ.
    Raises:
        AssertionError: Two replicas differ, or two different parts are equal.
    """
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, jax.Array):
            continue
        seen: dict[tuple[tuple[int, int], ...], np.ndarray] = {}
        for shard in leaf.addressable_shards:
            part = tuple(piece.indices(size)[:2] for piece, size in zip(shard.index, leaf.shape, strict=True))
            data = np.asarray(shard.data)
            if part in seen and not np.array_equal(seen[part], data):
                raise AssertionError(f"replicas differ: part={part}")
            seen[part] = data
        if check_disjoint_indices_are_different:
            parts = list(seen.items())
            for number, (part, data) in enumerate(parts):
                for other, values in parts[:number]:
                    if data.shape == values.shape and np.array_equal(data, values):
                        raise AssertionError(f"different parts are equal: {part} and {other}")


def _as_names(resource: str | Sequence[str] | None) -> tuple[str, ...]:
    if resource is None:
        return ()
    return (resource,) if isinstance(resource, str) else tuple(resource)
