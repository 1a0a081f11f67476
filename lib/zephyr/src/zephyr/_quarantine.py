"""Records on which user code fails, put aside with their file and position instead of failing the run.

A call that raises is made a second time; a record that fails twice is poison. It is left out, and a line about it goes
to the quarantine file of its task, which is committed together with the task's other output: exactly once, and gone
when the attempt is. A record that kills its worker is found by *careful* attempts, which note each call before they
make it; the note of the dead tells the next attempt which call to leave out.
"""

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from zephyr._files import StagedFile
from zephyr._trace import Trace
from zephyr.errors import DatasetError, QuarantineFullError
from zephyr.writers import WrittenFile

SKIPPED: Final = object()
"""Stands for the result of a call whose record went into quarantine."""

_EXCERPT = 400
_CALLS_PER_RECORD = 2


@dataclass(frozen=True)
class Quarantine:
    """Put records on which user code fails aside instead of failing.

    Args:
        folder: Where the files go: `stage-SS-shard-NNNNN.jsonl`, one line a record, only for tasks that have some.
        max_records: Most records over the whole execution; one more fails it.
    Raises:
        DatasetError: a limit below zero or no folder.
    Example:
        >>> Quarantine("bad", max_records=10).path(0, 3)
        'bad/stage-00-shard-00003.jsonl'
    """

    folder: str
    max_records: int = 100

    def __post_init__(self) -> None:
        if self.max_records < 0 or not self.folder:
            raise DatasetError(
                f"cannot set up a quarantine: folder={self.folder!r}, max_records={self.max_records}; expected a "
                "folder and a limit of 0 or more. Name a folder for the records."
            )

    def path(self, stage: int, shard: int) -> str:
        """File of one task."""
        return f"{self.folder.rstrip('/')}/stage-{stage:02d}-shard-{shard:05d}.jsonl"


class Guard:
    """Makes the calls of user code for one attempt.

    Args:
        quarantine: Folder and limit.
        stage: Stage of the task.
        shard: Number of the task.
        poison: Calls (site, number) that are not made.
        crumb: File for notes about calls; None for none.
    """

    def __init__(
        self, quarantine: Quarantine, *, stage: int, shard: int, poison: tuple[tuple[int, int], ...], crumb: str | None
    ) -> None:
        self.quarantine = quarantine
        self.stage, self.shard = stage, shard
        self.target = quarantine.path(stage, shard)
        self.poison = frozenset(poison)
        self.records: list[dict[str, Any]] = []
        self.sites = 0
        self._crumb = None if crumb is None else os.open(crumb, os.O_WRONLY | os.O_CREAT, 0o600)

    def site(self, operation: str, fn: Callable[[Any], Any], trace: Trace) -> "Site":
        """A place in the chain that calls user code; sites are numbered in the order in which they start."""
        self.sites += 1
        return Site(self, self.sites, operation, fn, trace)

    def note(self, site: int, call: int) -> None:
        """Leave word of the call that is about to be made."""
        if self._crumb is not None:
            os.pwrite(self._crumb, f"{site:8d} {call:20d}\n".encode(), 0)

    def add(self, record: dict[str, Any], cause: BaseException | None) -> None:
        """Put a record aside.

        Raises:
            QuarantineFullError: it is one too many.
        """
        self.records.append(record)
        if len(self.records) > self.quarantine.max_records:
            raise QuarantineFullError(
                self.quarantine.folder, self.quarantine.max_records, _place(record), str(record["error"])
            ) from cause

    def write(self, staged: str) -> WrittenFile:
        """Write the records to a staged file."""
        file = StagedFile(staged, self.target)
        file.write(msgspec.json.Encoder(order="deterministic").encode_lines(self.records))
        file.finish()
        return WrittenFile(staged, file.size_bytes, len(self.records))

    def close(self) -> None:
        """Give the note file back; it stays for the pool to read if the process dies."""
        if self._crumb is not None:
            os.close(self._crumb)
            self._crumb = None


class Site:
    """One user function in the chain, with a number for every call of it."""

    def __init__(self, guard: Guard, number: int, operation: str, fn: Callable[[Any], Any], trace: Trace) -> None:
        self.guard = guard
        self.number = number
        self.operation = operation
        self.fn = fn
        self.trace = trace
        self.calls = 0

    def call(self, item: Any, index: int) -> Any:
        """`fn(item)`, or `SKIPPED` when the item went into quarantine; `index` is its place in the present block."""
        self.calls += 1
        if (self.number, self.calls) in self.guard.poison:
            self._put_aside(item, index, None)
            return SKIPPED
        self.guard.note(self.number, self.calls)
        for left in reversed(range(_CALLS_PER_RECORD)):
            try:
                return self.fn(item)
            except Exception as error:  # User code may raise anything; that is what the quarantine is for.
                if not left:
                    self._put_aside(item, index, error)
        return SKIPPED

    def _put_aside(self, item: Any, index: int, error: Exception | None) -> None:
        trace = self.trace
        text = "the worker died in this call"
        where = ""
        if error is not None:
            text = "".join(traceback.format_exception_only(error)).strip()
            frames = traceback.extract_tb(error.__traceback__)
            where = "" if not frames else f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}"
        excerpt = repr(item)
        record = {
            "file": trace.path or None,
            "unit": trace.unit if trace.path else None,
            "position": trace.at(index),
            "first": trace.first if trace.path else None,
            "last": trace.last if trace.path else None,
            "stage": self.guard.stage,
            "shard": self.guard.shard,
            "operation": self.operation,
            "function": getattr(self.fn, "__qualname__", type(self.fn).__name__),
            "error": text,
            "raised_at": where,
            "item": excerpt if len(excerpt) <= _EXCERPT else excerpt[: _EXCERPT - 3] + "...",
        }
        self.guard.add(record, error)


def _place(record: dict[str, Any]) -> str:
    if record["file"] is None:
        return f"shard {record['shard']}"
    if record["position"] is not None:
        return f"{record['file']}, {record['unit']} {record['position']}"
    return f"{record['file']}, {record['unit']}s {record['first']} to {record['last']}"


def read_crumb(path: str) -> tuple[int, int] | None:
    """The call that a careful attempt noted last; None when there is no note."""
    try:
        with open(path, "rb") as stream:
            fields = stream.read(64).split()
    except OSError:
        return None
    return (int(fields[0]), int(fields[1])) if len(fields) == 2 else None
