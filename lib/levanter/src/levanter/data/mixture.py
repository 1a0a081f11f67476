"""Mix datasets by weight so that every block of samples holds exactly the same share of each.

Sampling a component for every example drifts: after a million draws a rare component is off by hundreds. Here the
stream is cut into blocks of ``block_size`` samples; each block holds ``c_d`` samples of component *d*, fixed by the
weights, and only their order inside the block is random. So counts are exact, sample *i* is found by arithmetic, and
the stream is a pure function of (weights, block size, key, component lengths); changing any of those changes it, which
is why :meth:`MixtureDataset.stream_fingerprint` digests them.

Weights may change at sample positions that are multiples of the block size (*stages*).
"""

import asyncio
import bisect
import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from levanter.data._index_maps import Recent
from levanter.data._keys import fold_in, key_words, random_order
from levanter.data.dataset import AsyncDataset, check_indices, lengths_of
from levanter.data.errors import EmptyDatasetError, InfiniteDatasetError, MixtureError
from levanter.schedule import BatchSchedule

logger = logging.getLogger(__name__)

T = TypeVar("T")
Weights = Mapping[str, float]
StagedWeights = Sequence[tuple[int, Weights]]

BLOCKS_KEPT = 32


class StopStrategy(StrEnum):
    """When a mixture ends."""

    RESTART = "restart"
    """Never: a component that runs out starts again."""
    FIRST_EXHAUSTED = "first_exhausted"
    """When the first component has given as many samples as it holds."""
    ALL_EXHAUSTED = "all_exhausted"
    """When every component has given as many samples as it holds; those that run out earlier start again."""


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Weights that hold from block ``first_block`` on.

    ``counts[d]`` samples of component *d* a block; ``emitted[d]`` of them before the stage began.
    """

    first_block: int
    counts: np.ndarray
    emitted: np.ndarray
    component_of: np.ndarray
    ordinal_of: np.ndarray


def block_counts(weights: Weights, names: Sequence[str], block_size: int) -> np.ndarray:
    """Samples of each component in a block: largest-remainder rounding of ``weight · block_size``.

    Args:
        weights: Component to weight; normalised here. Names not listed weigh nothing.
        names: Components in order.
        block_size: Samples a block.
    Returns:
        int64 counts that sum to ``block_size``. Shape ``(len(names),)``.
    Raises:
        MixtureError: A weight is negative or not finite, all are zero, or a name is unknown.
    Example:
        >>> block_counts({"a": 2, "b": 1}, ["a", "b"], 10).tolist()
        [7, 3]
    """
    unknown = sorted(set(weights) - set(names))
    if unknown:
        raise MixtureError(f"weights name unknown components {unknown}", f"some of {list(names)}", "Correct the names.")
    for name, weight in weights.items():
        if not math.isfinite(weight) or weight < 0:
            raise MixtureError(f"weight of {name!r} is {weight}", "a finite weight >= 0", "Correct the weight.")
    raw = np.array([float(weights.get(name, 0.0)) for name in names])
    if raw.sum() == 0:
        raise MixtureError("all weights are zero", "at least one positive weight", "Give a component a weight.")
    exact = raw / raw.sum() * block_size
    counts = np.floor(exact).astype(np.int64)
    remainder = np.where(raw > 0, exact - counts, -1.0)
    # Ties go to the component named first; rounding keeps them from depending on the last bit of a product.
    order = np.argsort(-np.round(remainder, 9), kind="stable")
    counts[order[: block_size - int(counts.sum())]] += 1
    return counts


class MixtureDataset(AsyncDataset[T]):
    """Several datasets as one stream.

    Args:
        datasets: Components by name; their order is part of the stream.
        weights: One set of weights, or ``(first sample, weights)`` stages: the first at 0, later ones rising and
            multiples of ``block_size``.
        block_size: Samples a block, ``>= 1``.
        randomize_blocks: Shuffle inside blocks; otherwise a block lists its components one after the other.
        key: Seed of the order inside blocks.
        stop_strategy: When the mixture ends.
        on_zero: What to do when a positive weight is so small that a block holds no sample of the component.
    Raises:
        MixtureError: Weights, stages or block size do not make a mixture.
    """

    def __init__(
        self,
        datasets: Mapping[str, AsyncDataset[T]],
        weights: Weights | StagedWeights,
        block_size: int,
        *,
        randomize_blocks: bool = True,
        key: jax.Array,
        stop_strategy: StopStrategy | str = StopStrategy.RESTART,
        on_zero: Literal["error", "warn"] = "error",
    ) -> None:
        if block_size < 1:
            raise MixtureError(f"block_size={block_size}", "block_size >= 1", "Use 2048.")
        self.block_size = block_size
        self.stop_strategy = StopStrategy(stop_strategy)
        staged = [(0, weights)] if isinstance(weights, Mapping) else [(int(start), stage) for start, stage in weights]
        _check_starts(staged, block_size)
        for _, stage in staged:
            block_counts(stage, list(datasets), block_size)
        used = {name for _, stage in staged for name, weight in stage.items() if weight > 0}
        self.datasets = {name: dataset for name, dataset in datasets.items() if name in used}
        self.weight_stages = [(start, {n: float(w) for n, w in stage.items() if n in used}) for start, stage in staged]
        self._names = list(self.datasets)
        self._stages = self._make_stages(on_zero)
        self._first_blocks = [stage.first_block for stage in self._stages]
        self._key = key
        self._randomize = randomize_blocks
        self._orders = Recent(self._block_order, BLOCKS_KEPT)
        self._lengths: list[int | None] | None = None

    def _make_stages(self, on_zero: str) -> list[_Stage]:
        stages: list[_Stage] = []
        for start, weights in self.weight_stages:
            counts = block_counts(weights, self._names, self.block_size)
            starved = [n for n, c in zip(self._names, counts, strict=True) if c == 0 and weights.get(n, 0) > 0]
            if starved:
                error = MixtureError(
                    f"components {starved} get no sample in a block of {self.block_size}",
                    "every positive weight to be sampled",
                    "Enlarge mixture_block_size, raise the weight, or set it to 0.",
                )
                if on_zero == "error":
                    raise error
                logger.warning("%s", error)
            first_block = start // self.block_size
            emitted = np.zeros(len(self._names), dtype=np.int64)
            if stages:
                emitted = stages[-1].emitted + (first_block - stages[-1].first_block) * stages[-1].counts
            ordinals = [np.arange(count) for count in counts.tolist()]
            stages.append(
                _Stage(
                    first_block, counts, emitted, np.repeat(np.arange(len(counts)), counts), np.concatenate(ordinals)
                )
            )
        return stages

    def is_finite(self) -> bool:
        """Whether the mixture ends; decided by the stop strategy and by which components have an end."""
        finite = [dataset.is_finite() for dataset in self.datasets.values()]
        if self.stop_strategy == StopStrategy.FIRST_EXHAUSTED:
            # A component that a late stage never samples may not run out; then only its siblings can end the mixture.
            return any(done and count > 0 for done, count in zip(finite, self._stages[-1].counts, strict=True))
        if self.stop_strategy == StopStrategy.ALL_EXHAUSTED:
            return all(finite) and bool((self._stages[-1].counts > 0).all())
        return False

    async def async_len(self) -> int:
        """Number of samples.

        Raises:
            InfiniteDatasetError: The mixture does not end.
        """
        if not self.is_finite():
            raise InfiniteDatasetError("mixture", "async_len")
        lengths = await self._component_lengths()
        ends = [self._end_of_component(number, length) for number, length in enumerate(lengths) if length is not None]
        reached = [end for end in ends if end is not None]
        return min(reached) if self.stop_strategy == StopStrategy.FIRST_EXHAUSTED else max(reached)

    async def get_batch(self, indices: Sequence[int] | np.ndarray) -> Sequence[T]:
        """Samples in the order asked for; components are read together."""
        if len(indices) == 0:
            return []
        groups = await self._group(indices)
        parts = await asyncio.gather(*(self.datasets[name].get_batch(local) for name, _, local in groups))
        out: list[Any] = [None] * len(indices)
        for (_, places, _), items in zip(groups, parts, strict=True):
            for place, item in zip(places.tolist(), items, strict=True):
                out[place] = item
        return out

    async def get_stacked(self, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Stacked leaves of the samples; components are read together and interleaved leaf by leaf."""
        groups = await self._group(indices)
        parts = await asyncio.gather(*(self.datasets[name].get_stacked(local) for name, _, local in groups))
        if len(groups) == 1:
            return parts[0]
        # Leaves may be one array under several names (segment ids of queries and keys): interleave it once.
        merged: dict[tuple[int, ...], np.ndarray] = {}
        out = []
        for leaves in zip(*parts, strict=True):
            identity = tuple(id(leaf) for leaf in leaves)
            if identity not in merged:
                target = np.empty((len(indices), *leaves[0].shape[1:]), dtype=leaves[0].dtype)
                for (_, places, _), leaf in zip(groups, leaves, strict=True):
                    target[places] = leaf
                merged[identity] = target
            out.append(merged[identity])
        return out

    def locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Component number and running index inside the component (before it wraps) of each sample.

        Args:
            indices: Sample positions. Shape ``(n,)``.
        Returns:
            Two int64 arrays of shape ``(n,)``.
        """
        index = check_indices(indices, None, "mixture")
        components = np.empty_like(index)
        running = np.empty_like(index)
        blocks, within = np.divmod(index, self.block_size)
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            stage = self._stage_of_block(block)
            place = within[rows] if not self._randomize else self._orders(block)[within[rows]]
            component = stage.component_of[place]
            components[rows] = component
            before = stage.emitted + (block - stage.first_block) * stage.counts
            running[rows] = before[component] + stage.ordinal_of[place]
        return components, running

    def stream_fingerprint(self, lengths: Mapping[str, int | None] | None = None) -> str:
        """Digest of everything but the items that decides the stream; store it beside a checkpoint.

        Args:
            lengths: Component lengths, when known: a changed length changes where a component wraps.
        """
        identity = {
            "block_size": self.block_size,
            "components": self._names,
            "key": key_words(self._key),
            "lengths": None if lengths is None else dict(lengths),
            "randomize": self._randomize,
            "stages": self.weight_stages,
            "stop": str(self.stop_strategy),
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    def _stage_of_block(self, block: int) -> _Stage:
        return self._stages[bisect.bisect_right(self._first_blocks, block) - 1]

    def _block_order(self, block: int) -> np.ndarray:
        return random_order(fold_in(self._key, block), self.block_size)

    async def _component_lengths(self) -> list[int | None]:
        if self._lengths is None:
            lengths = await lengths_of(list(self.datasets.values()))
            for name, length in zip(self._names, lengths, strict=True):
                if length == 0 and self.stop_strategy != StopStrategy.FIRST_EXHAUSTED:
                    raise EmptyDatasetError(
                        name, "It may be shorter than one sequence: remove it, or give it weight 0."
                    )
            self._lengths = lengths
        return self._lengths

    async def _group(self, indices: Sequence[int] | np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Samples by component: (name, places in the batch, indices in the component)."""
        if self.is_finite():
            check_indices(indices, await self.async_len(), "mixture")
        components, running = self.locate(indices)
        lengths = await self._component_lengths()
        groups = []
        for component in np.unique(components).tolist():
            places = np.flatnonzero(components == component)
            length = lengths[component]
            local = running[places] if length is None else running[places] % length
            groups.append((self._names[component], places, local))
        return groups

    def _end_of_component(self, component: int, length: int) -> int | None:
        """One past the position where the component has given ``length`` samples; ``None`` when it never does."""
        if length == 0:
            return 0
        for number, stage in enumerate(self._stages):
            count = int(stage.counts[component])
            left = length - int(stage.emitted[component])
            if count == 0:
                continue
            block = stage.first_block + (left - 1) // count
            if number + 1 < len(self._stages) and block >= self._stages[number + 1].first_block:
                continue
            component_of = stage.component_of[self._orders(block)] if self._randomize else stage.component_of
            place = int(np.flatnonzero(component_of == component)[(left - 1) % count])
            return block * self.block_size + place + 1
        return None


def rescale_mixture_schedule_for_batch_schedule(
    schedule: StagedWeights, batch_schedule: BatchSchedule
) -> list[tuple[int, Weights]]:
    """Turn stages given in training steps into stages given in samples.

    Args:
        schedule: ``(training step, weights)``.
        batch_schedule: Says how many samples the steps before consume.
    Raises:
        MixtureError: A step is negative.
    Example:
        >>> from levanter.schedule import ScheduleStep
        >>> batches = BatchSchedule([ScheduleStep(0, 10), ScheduleStep(5, 20)])
        >>> rescale_mixture_schedule_for_batch_schedule([(0, {"a": 1}), (10, {"b": 1})], batches)
        [(0, {'a': 1}), (150, {'b': 1})]
    """
    scaled = []
    for step, weights in schedule:
        if step < 0:
            raise MixtureError(f"stage starts at step {step}", "step >= 0", "Count steps from the start of training.")
        scaled.append((batch_schedule.global_data_offset_by_step(step), weights))
    return scaled


def _check_starts(staged: StagedWeights, block_size: int) -> None:
    if not staged:
        raise MixtureError("there is no stage", "at least one", "Give weights.")
    if staged[0][0] != 0:
        raise MixtureError(f"stage 0 starts at sample {staged[0][0]}", "start 0", "Add a stage at 0.")
    for number, (start, _) in enumerate(staged):
        if start % block_size:
            nearest = max(round(start / block_size), 1) * block_size
            raise MixtureError(
                f"stage {number} starts at sample {start}",
                f"a multiple of block_size={block_size}",
                f"The nearest is {nearest}.",
            )
        if number and start <= staged[number - 1][0]:
            raise MixtureError(
                f"stage {number} starts at sample {start}, not after stage {number - 1}", "rising starts", "Sort them."
            )
