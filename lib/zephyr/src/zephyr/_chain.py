"""What the operations of a chain share while they run: who they are, what they staged, and their limits."""

from dataclasses import dataclass, field

from zephyr._quarantine import Guard
from zephyr._trace import Trace
from zephyr.writers import WrittenFile


@dataclass
class ChainContext:
    """Where a chain runs, and what it has staged so far.

    Args:
        shard: Task number within the stage.
        total: Tasks of the stage.
        execution: Id of the run.
        attempt: Label of the attempt.
        record_limit_bytes: Most bytes of one record.
        memory_bytes: Bytes that may be held in buffers.
        folder: Folder that only this attempt writes.
        guard: Catches what user code raises, when the execution has a quarantine.
        trace: Where the present items came from.
        written: Staged files by final path.
    """

    shard: int
    total: int
    execution: str
    attempt: str
    record_limit_bytes: int
    memory_bytes: int = 256 << 20
    folder: str = ""
    guard: Guard | None = None
    trace: Trace = field(default_factory=Trace)
    written: dict[str, WrittenFile] = field(default_factory=dict)
