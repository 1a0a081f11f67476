"""Sinks that write a path themselves: the user's own, and Vortex. Around them: staging, syncing, clean-up, checks."""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from zephyr._adapters import vortex
from zephyr._blocks import Block, batches_of
from zephyr._files import output_error, remove_file
from zephyr._paths import is_remote, local_path
from zephyr._schema import conform, unify_schemas
from zephyr.errors import OutputError, ZephyrError

if TYPE_CHECKING:
    from zephyr.connectors import Sink


class StagedOutput:
    """A path under construction that somebody else writes: a file or a folder."""

    def __init__(self, path: str, target: str) -> None:
        self.path = path
        self.target = target
        self.size_bytes = 0
        self.discard()
        if not is_remote(path):
            try:
                os.makedirs(os.path.dirname(local_path(path)) or ".", exist_ok=True)
            except OSError as error:
                raise output_error(target, error) from error

    def finish(self) -> None:
        """Make what was written durable and measure it.

        Raises:
            OutputError: nothing was written, or it could not be synced.
        """
        if is_remote(self.path):
            return
        try:
            self.size_bytes = sum(map(_sync, _files_of(local_path(self.path))))
        except OSError as error:
            raise output_error(self.target, error) from error

    def discard(self) -> None:
        """Remove it; safe to call twice."""
        remove_file(self.path)


def _files_of(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def _sync(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


class SinkAdapter:
    """One shard's write through a sink."""

    def __init__(self, sink: "Sink", file: StagedOutput) -> None:
        self.sink = sink
        self.file = file

    def write(self, blocks: Iterable[Block]) -> int:
        """Write all items; returns how many."""
        try:
            count = self.sink.write(iter(blocks), self.file.path)
        except OSError as error:
            if isinstance(error, ZephyrError):
                raise
            raise output_error(self.file.target, error) from error
        if not isinstance(count, int):
            raise OutputError(self.file.target, f"the sink returned {count!r} instead of the number of items")
        self.file.finish()
        return count

    def check(self, count: int) -> None:
        """Let the sink look at what is on disk."""
        self.sink.check(self.file.path, count)


class VortexSink:
    """Vortex files. The format wants the schema first, so batches lie in a file beside it until the last is known."""

    def __init__(self, schema: pa.Schema | None, target: str) -> None:
        self.contract = schema
        self.target = target

    def write(self, blocks: Iterator[Block], path: str) -> int:
        """Write all items; returns how many."""
        waiting = f"{path}.arrow"
        try:
            schema, count = self._collect(blocks, waiting)
            vortex.write_batches(path, schema, self._waiting(waiting, schema))
        finally:
            remove_file(waiting)
        return count

    def _collect(self, blocks: Iterator[Block], path: str) -> tuple[pa.Schema, int]:
        schema, count = self.contract, 0
        with open(path, "wb") as stream:
            for batch in batches_of(blocks, operation="write_vortex", where=self.target):
                if self.contract is not None:
                    batch = conform(batch, self.contract, where=self.target)
                else:
                    batch = batch.replace_schema_metadata(None)
                    wider = schema if schema is not None else batch.schema
                    schema = unify_schemas(wider, batch.schema, where=self.target)
                count += batch.num_rows
                with pa.ipc.new_stream(stream, batch.schema) as writer:
                    writer.write_batch(batch)
        return (pa.schema([]) if schema is None else schema), count

    def _waiting(self, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with open(path, "rb") as stream:
            while stream.peek(1):
                with pa.ipc.open_stream(stream) as reader:
                    for batch in reader:
                        yield conform(batch, schema, where=self.target)

    def check(self, path: str, count: int) -> None:
        """Compare what is on disk with what was written."""
        found = vortex.num_rows(path)
        if found != count:
            raise OutputError(self.target, f"wrote {count} rows but the file has {found}")
