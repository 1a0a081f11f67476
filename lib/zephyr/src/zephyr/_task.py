"""One attempt of one task: read the shard's input, run the chain, and report where the output lies.

Everything an attempt writes carries its number: the folder of its blocks or runs, and the hidden names of its staged
files. Whatever an attempt does after the driver has given up on it can therefore not touch the data of another.
"""

import os
import pickle
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from zephyr import counters
from zephyr._blocks import Block, chunked, iterate, num_rows, rows_of
from zephyr._chain import ChainContext
from zephyr._files import output_error, remove_file, remove_tree, staged_path
from zephyr._merge import merge_sides
from zephyr._quarantine import Guard, Quarantine
from zephyr._shuffle.format import Run, RunSlice
from zephyr._shuffle.read import merge_piece, merge_slices, reduce_stream
from zephyr._shuffle.write import ShuffleWriter
from zephyr._trace import Trace
from zephyr._transforms import head_length, run_chain
from zephyr.counters import CounterValues
from zephyr.errors import ZephyrError
from zephyr.physical import (
    Collect,
    JoinGroups,
    MergeSides,
    PairInput,
    PhysicalOp,
    Plan,
    ReduceGroups,
    ShuffleInput,
    SourceInput,
    WriteShard,
)
from zephyr.worker_context import WorkerContext, working
from zephyr.writers import WrittenFile

INLINE_BYTES = 256 << 10
"""Collected blocks up to this size travel in the report instead of a file."""


@dataclass(frozen=True)
class BlockRef:
    """One collected block: pickled bytes, in the report or in a file of the attempt."""

    num_rows: int
    size_bytes: int
    data: bytes | None = None
    path: str = ""
    offset: int = 0


SIDES_BORDER = BlockRef(0, 0, path="(border)")
"""Lies between the blocks of the left and the right side of a merge."""


@dataclass(frozen=True)
class TaskSpec:
    """What a worker needs to know beyond the plan.

    Args:
        execution: Identifies the run; part of every path.
        stage: Stage number.
        shard: Task number within the stage.
        attempt: Counts from 1 within the task; never reused.
        inputs: Blocks or run slices; empty when the plan carries the source items.
        careful: Note which call is being made before each call of user code, because earlier workers died here.
        poison: Calls (site, number) that are put into quarantine without being made.
        piece: Which piece of a shuffle target that was cut, from 1; 0 is the whole shard.
        joins: The inputs are what the pieces of the target made, in their order.
    """

    execution: str
    stage: int
    shard: int
    attempt: int
    inputs: tuple[BlockRef | RunSlice, ...] = ()
    careful: bool = False
    poison: tuple[tuple[int, int], ...] = ()
    piece: int = 0
    joins: bool = False

    @property
    def label(self) -> str:
        """stage-shard-attempt, with the piece behind the shard if there is one, as it appears in paths."""
        piece = f"p{self.piece}" if self.piece else ""
        return f"{self.stage}-{self.shard}{piece}-{self.attempt}"


@dataclass(frozen=True)
class TaskReport:
    """What an attempt that succeeded made."""

    blocks: tuple[BlockRef, ...] = ()
    runs: tuple[Run, ...] = ()
    written: dict[str, WrittenFile] = field(default_factory=dict)
    counters: CounterValues = field(default_factory=dict)
    quarantined: int = 0


@dataclass(frozen=True)
class TaskError:
    """Why an attempt failed, in a form that always pickles; `where` is the file and records it was reading."""

    text: str
    trace: str
    error: bytes | None
    retryable: bool
    where: str = ""


@dataclass(frozen=True)
class TaskSettings:
    """Limits and places that are equal for all tasks of an execution.

    Args:
        folder: Scratch folder of the execution.
        memory_bytes: What a task may hold in buffers.
        working_folder: What relative paths are relative to: the driver's folder when it started the execution.
        written: (stage, shard) whose output file is proven; their chains start after the write.
        quarantine: Where records go on which user code fails; None lets it fail.
        limit_bytes: Resident memory at which a worker gives its task up; None does not watch.
    """

    folder: str
    memory_bytes: int
    working_folder: str
    written: frozenset[tuple[int, int]] = frozenset()
    quarantine: Quarantine | None = None
    limit_bytes: int | None = None


def attempt_folder(settings: TaskSettings, spec: TaskSpec) -> str:
    """Folder that only this attempt writes."""
    return f"{settings.folder}/{spec.label}"


def crumb_path(settings: TaskSettings, spec: TaskSpec) -> str:
    """File in which a careful attempt notes which call of user code it is about to make."""
    return f"{settings.folder}/crumb-{spec.label}"


def run_task(
    plan: Plan, spec: TaskSpec, settings: TaskSettings, counted: CounterValues | None = None
) -> TaskReport | TaskError:
    """Run an attempt; errors come back as data, and leave nothing behind.

    Args:
        plan: The plan.
        spec: Which attempt.
        settings: Places and limits.
        counted: Filled with the attempt's counters as they grow, for whoever watches it.
    """
    stage = plan.stages[spec.stage]
    guard = None
    if settings.quarantine is not None:
        crumb = crumb_path(settings, spec) if spec.careful else None
        guard = Guard(settings.quarantine, stage=spec.stage, shard=spec.shard, poison=spec.poison, crumb=crumb)
    context = ChainContext(
        shard=spec.shard,
        total=stage.num_tasks,
        execution=spec.execution,
        attempt=spec.label,
        record_limit_bytes=max(1 << 20, settings.memory_bytes // 2),
        memory_bytes=settings.memory_bytes,
        folder=attempt_folder(settings, spec),
        guard=guard,
        trace=Trace(exact=guard is not None),
    )
    try:
        task = WorkerContext(spec.execution, spec.stage, spec.shard, spec.attempt, settings.folder)
        with counters.collecting(counted, stage=stage.label) as values, working(task):
            report = _run(plan, spec, settings, context, values)
            if guard is not None and guard.records:
                target = guard.target
                context.written[target] = guard.write(staged_path(target, spec.execution, spec.label))
                report = replace(report, quarantined=len(guard.records))
            return report
    except Exception as error:  # The boundary between user code and the coordinator: every error becomes a report.
        remove_tree(attempt_folder(settings, spec))
        for written in context.written.values():
            remove_file(written.staged)
        return replace(describe_error(error), where=context.trace.describe())
    finally:
        if guard is not None:
            guard.close()


def _run(
    plan: Plan, spec: TaskSpec, settings: TaskSettings, context: ChainContext, counted: CounterValues
) -> TaskReport:
    stage = plan.stages[spec.stage]
    branch, local = stage.locate(spec.shard)
    folder = attempt_folder(settings, spec)
    ops = branch.ops
    blocks: Iterable[Block]
    if (spec.stage, spec.shard) in settings.written:
        at, write = next((at, op) for at, op in enumerate(ops) if isinstance(op, WriteShard))
        blocks, ops = [[write.paths[spec.shard]]], ops[at + 1 :]
    elif isinstance(branch.input, SourceInput):
        blocks = [list(branch.input.shards[local])]
    elif isinstance(branch.input, ShuffleInput):
        head = head_length(ops, quarantined=settings.quarantine is not None)
        if spec.joins:
            blocks, ops = _joined(spec, ops[0]), ops[head:]
        else:
            slices = [piece for piece in spec.inputs if isinstance(piece, RunSlice)]
            merge = merge_piece if spec.piece else merge_slices
            keyed = merge(slices, budget_bytes=settings.memory_bytes, folder=folder)
            blocks, ops = reduce_stream(ops[0], keyed, context), ops[1:head] if spec.piece else ops[1:]
    elif isinstance(branch.input, PairInput):
        refs = [ref for ref in spec.inputs if isinstance(ref, BlockRef)]
        border = refs.index(SIDES_BORDER)
        sides = load_blocks(refs[:border]), load_blocks(refs[border + 1 :])
        assert isinstance(ops[0], MergeSides), "a pair of sides is read by a merge"
        blocks, ops = chunked(merge_sides(*sides, ops[0], context)), ops[1:]
    else:
        blocks = (load_block(ref) for ref in spec.inputs if isinstance(ref, BlockRef))
    out = run_chain(ops, blocks, context)
    if spec.piece or isinstance(stage.output, Collect):
        return TaskReport(blocks=_collect(out, folder), written=context.written, counters=counted)
    writer = ShuffleWriter(
        folder,
        stage.output,
        shard=spec.shard,
        flush_bytes=max(1 << 16, settings.memory_bytes // 8),
        limit_bytes=context.record_limit_bytes,
        trace=context.trace,
    )
    return TaskReport(runs=writer.write(out, branch.key), written=context.written, counters=counted)


def _joined(spec: TaskSpec, reducer: PhysicalOp) -> Iterable[Block]:
    """What the pieces of a target made; lists of the same length as one reducer would have made."""
    blocks = load_blocks(ref for ref in spec.inputs if isinstance(ref, BlockRef))
    return chunked(iterate(blocks)) if isinstance(reducer, ReduceGroups | JoinGroups) else blocks


def describe_error(error: Exception) -> TaskError:
    """Turn an exception into a report; zephyr's own errors are about data and gain nothing from a retry."""
    trace = "".join(traceback.format_exception(error))
    text = "".join(traceback.format_exception_only(error)).strip()
    try:
        data = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:  # Any class may refuse to be pickled or revived, in any way; then its text must do.
        data = None
    return TaskError(text, trace, data, retryable=not isinstance(error, ZephyrError))


def _collect(blocks: Iterable[Block], folder: str) -> tuple[BlockRef, ...]:
    refs: list[BlockRef] = []
    held = 0
    path = f"{folder}/blocks.bin"
    stream: Any = None
    offset = 0
    try:
        for block in blocks:
            if not num_rows(block):
                continue
            data = dump_block(block)
            if stream is None and held + len(data) <= INLINE_BYTES:
                held += len(data)
                refs.append(BlockRef(num_rows(block), len(data), data=data))
                continue
            if stream is None:
                os.makedirs(folder, exist_ok=True)
                stream = open(path, "wb")  # noqa: SIM115
            stream.write(data)
            refs.append(BlockRef(num_rows(block), len(data), path=path, offset=offset))
            offset += len(data)
    except OSError as error:
        if isinstance(error, ZephyrError) or stream is None:
            raise
        raise output_error(path, error) from error
    finally:
        if stream is not None:
            stream.close()
    return tuple(refs)


def dump_block(block: Block) -> bytes:
    """A block as bytes."""
    if not isinstance(block, list) and block.num_columns == 0:
        block = rows_of(block)  # pickling a batch without columns forgets how many rows it has
    try:
        return pickle.dumps(block, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(block)


def load_block(ref: BlockRef) -> Block:
    """The block that a reference points to."""
    if ref.data is not None:
        return pickle.loads(ref.data)
    with open(ref.path, "rb") as stream:
        stream.seek(ref.offset)
        return pickle.loads(stream.read(ref.size_bytes))


def load_blocks(refs: Iterable[BlockRef]) -> Iterator[Block]:
    """The blocks of references, one after another."""
    for ref in refs:
        yield load_block(ref)
