"""Every way a zephyr pipeline can fail, as one tree.

    ZephyrError
    ├── DatasetError (ValueError)              a Dataset method was called with arguments that cannot work
    │   └── NoInputFilesError (FileNotFoundError)   a pattern matched nothing
    ├── PlanError (ValueError)                 the pipeline cannot be planned
    │   └── DuplicateOutputError               two shards would write the same path
    ├── ExprError (TypeError)                  a column expression does not fit the data it meets
    ├── KeyTypeError (TypeError)               a grouping or sorting key has no defined order
    ├── KeyOrderError (ValueError)             a side of a merge is not sorted by its key
    ├── RecordTypeError (TypeError)            an operation needs records (dict) and got something else
    ├── SchemaConflictError (TypeError)        two values or schemas cannot share one column type
    ├── BadRecordError (ValueError)            one line of an input file is not a record
    ├── RecordTooLargeError (ValueError)       one record is larger than the memory a task may use
    ├── MemoryBudgetError (MemoryError)        a task grew beyond the memory of its worker
    ├── QuarantineFullError (ValueError)       more records failed than the quarantine may hold
    ├── CorruptInputError (OSError)            an input file is truncated or not what its suffix says
    ├── MissingInputError (FileNotFoundError)  an input file disappeared after planning
    ├── OutputError (OSError)                  an output could not be written (disk full, no permission)
    ├── TaskFailedError (RuntimeError)         user code failed more often than allowed
    ├── WorkersLostError (RuntimeError)        worker processes died more often than allowed
    ├── SharedDataError (KeyError)             a function asked for shared data that nobody put there
    ├── NoTaskError (RuntimeError)             a function asked for its task outside of one
    ├── ContextClosedError (RuntimeError)      a closed ZephyrContext was used
    └── IllegalTransitionError (RuntimeError)  the coordinator was told something impossible (a bug)

Each message says what failed with its values, what was expected, and what to do. Fields are attributes, and every
error survives pickling, so what the caller catches is what the worker raised. ``failure_category``, where there is one,
says whose turn it is (``data``, ``quota``, ``auth``) to programs that file failures.
"""

import errno
from collections.abc import Sequence
from typing import Any

_STORAGE_CATEGORIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "quota"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "auth"),
}


def _rebuild(cls: type["ZephyrError"], args: tuple[Any, ...], state: dict[str, Any]) -> "ZephyrError":
    # The constructors take fields, not messages; and `cls.__new__` may find the wrong one of two builtin parents.
    error: ZephyrError = OSError.__new__(cls) if issubclass(cls, OSError) else Exception.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ZephyrError(Exception):
    """Root of the tree; catching it catches everything zephyr raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class DatasetError(ZephyrError, ValueError):
    """A Dataset method was called with arguments that cannot work."""


class NoInputFilesError(DatasetError, FileNotFoundError):
    """A pattern of `Dataset.from_files` matched no file."""

    failure_category = "data"

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        super().__init__(
            f"cannot read input files: pattern={pattern!r} matched nothing; expected at least one file. "
            "Check the path, or pass empty_glob_ok=True."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class PlanError(ZephyrError, ValueError):
    """The pipeline cannot be planned."""


class DuplicateOutputError(PlanError):
    """Two shards would write the same path."""

    def __init__(self, path: str, shards: Sequence[int]) -> None:
        self.path = path
        self.shards = tuple(shards)
        super().__init__(
            f"cannot plan the write: path={path!r} is produced by shards {list(shards)}; expected one path per shard. "
            "Put {shard:05d} into the pattern."
        )


class ExprError(ZephyrError, TypeError):
    """A column expression does not fit the data it meets."""

    def __init__(self, expression: str, reason: str) -> None:
        self.expression = expression
        self.reason = reason
        super().__init__(
            f"cannot evaluate expression={expression}: {reason}; expected operands of one kind. "
            "Compare numbers with numbers and strings with strings, or use a Python callable."
        )


class KeyTypeError(ZephyrError, TypeError):
    """A grouping or sorting key has no defined order."""

    def __init__(self, value_type: str, value: str) -> None:
        self.value_type = value_type
        self.value = value
        super().__init__(
            f"cannot use a key: type={value_type}, value={value}; expected None, bool, int (64 bit), float, str, "
            "bytes, date, datetime, or a tuple or list of these. Return one of them from the key function."
        )


class KeyOrderError(ZephyrError, ValueError):
    """A side of a `sorted_merge_join` is not sorted by its key."""

    failure_category = "data"

    def __init__(self, side: str, position: int, before: str, after: str) -> None:
        self.side = side
        self.position = position
        self.before = before
        self.after = after
        super().__init__(
            f"cannot merge: the {side} side is not sorted, item {position} has key={after} after key={before}; "
            "expected keys that never go down, in the order that sort_by gives. Use sort_by first, or join()."
        )


class RecordTypeError(ZephyrError, TypeError):
    """An operation needs records (dict with string keys), or bytes, and got something else."""

    def __init__(self, operation: str, value_type: str, value: str, expected: str = "a dict with string keys") -> None:
        self.operation = operation
        self.value_type = value_type
        self.value = value
        self.expected = expected
        super().__init__(
            f"cannot run {operation}: got an item of type={value_type}, value={value}; expected {expected}. "
            "Map the items to that first."
        )


class SchemaConflictError(ZephyrError, TypeError):
    """Two values or schemas cannot share one column type."""

    failure_category = "data"

    def __init__(self, field: str, left: str, right: str, *, where: str = "") -> None:
        self.field = field
        self.left = left
        self.right = right
        self.where = where
        place = f" in {where}" if where else ""
        super().__init__(
            f"cannot unify schemas{place}: field={field!r} is {left} on one side and {right} on the other; expected "
            "one type per column. Cast the column in a map(), or pass schema= to the sink."
        )


class BadRecordError(ZephyrError, ValueError):
    """One line of an input file is not a record."""

    failure_category = "data"

    def __init__(self, path: str, line_number: int, reason: str, excerpt: str) -> None:
        self.path = path
        self.line_number = line_number
        self.reason = reason
        self.excerpt = excerpt
        super().__init__(self._text())

    def _text(self) -> str:
        return (
            f"cannot read a record: path={self.path}, line={self.line_number}, reason={self.reason}, "
            f"excerpt={self.excerpt!r}; expected one record of the file's format, such as one JSON object in UTF-8 per "
            "line. Repair it, or pass on_bad_line='skip' to count and drop such lines."
        )

    def moved(self, lines: int) -> None:
        """Count from the start of the file: the part that was read begins `lines` lines into it."""
        self.line_number += lines
        self.args = (self._text(),)


class RecordTooLargeError(ZephyrError, ValueError):
    """One record is larger than the memory a task may use."""

    failure_category = "data"

    def __init__(self, path: str, line_number: int, size_bytes: int, limit_bytes: int) -> None:
        self.path = path
        self.line_number = line_number
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(self._text())

    def _text(self) -> str:
        return (
            f"cannot hold a record: path={self.path}, line={self.line_number}, size_bytes>={self.size_bytes}, "
            f"limit_bytes={self.limit_bytes}; expected a record within the limit. Give the workers more memory "
            "(ZephyrContext(task_memory=...)) or split the record."
        )

    def moved(self, lines: int) -> None:
        """Count from the start of the file: the part that was read begins `lines` lines into it."""
        self.line_number += lines
        self.args = (self._text(),)


class MemoryBudgetError(ZephyrError, MemoryError):
    """A task grew beyond the memory of its worker, spilling notwithstanding."""

    def __init__(self, peak_bytes: int, limit_bytes: int, where: str = "") -> None:
        self.peak_bytes = peak_bytes
        self.limit_bytes = limit_bytes
        self.where = where
        place = f", where={where}" if where else ""
        super().__init__(
            f"cannot go on within the memory of a worker: resident_bytes={peak_bytes}, limit_bytes={limit_bytes}{place}"
            "; expected user code to fit beside the buffers, which spill. Give the workers more "
            "(resources=ResourceConfig(ram=...)), lower task_memory, or hold less in your functions."
        )


class QuarantineFullError(ZephyrError, ValueError):
    """More records failed than the quarantine may hold; the error of the last one is the `__cause__` in the worker."""

    failure_category = "data"

    def __init__(self, folder: str, max_records: int, where: str, cause: str) -> None:
        self.folder = folder
        self.max_records = max_records
        self.where = where
        self.cause = cause
        super().__init__(
            f"cannot put another record into quarantine: folder={folder}, max_records={max_records}, last={where}, "
            f"error={cause}; expected fewer bad records. Look at what is there, mend the function or the data, or "
            "raise max_records."
        )


class CorruptInputError(ZephyrError, OSError):
    """An input file is truncated or not what its suffix says."""

    failure_category = "data"

    def __init__(self, path: str, reason: str, offset_bytes: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.offset_bytes = offset_bytes
        place = "" if offset_bytes is None else f", offset_bytes={offset_bytes}"
        super().__init__(
            f"cannot read an input file: path={path}{place}, reason={reason}; expected a complete file in the format "
            "its suffix names. Fetch the file again."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class MissingInputError(ZephyrError, FileNotFoundError):
    """An input file disappeared after planning."""

    failure_category = "data"

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"cannot open an input file: path={path} does not exist; expected the file that was there when the "
            "pipeline was planned. Restore it, or run again to plan from what is there."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class OutputError(ZephyrError, OSError):
    """An output could not be written; what was staged has been removed."""

    def __init__(self, path: str, reason: str, *, code: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.code = code
        super().__init__(
            f"cannot write an output: path={path}, reason={reason}; expected a writable place with enough room. "
            "Nothing half-written was left. Free space or choose another path, then run again."
        )

    @property
    def failure_category(self) -> str:
        """``quota`` when there is no room, ``auth`` when it is not allowed, else ``unknown``."""
        return _STORAGE_CATEGORIES.get(self.code or 0, "unknown")

    def __str__(self) -> str:
        return str(self.args[0])


class TaskFailedError(ZephyrError, RuntimeError):
    """User code failed more often than allowed; the original exception is the `__cause__`."""

    def __init__(
        self, stage: str, shard: int, failures: int, worker: str, cause: str, trace: str = "", *, where: str = ""
    ) -> None:
        self.stage = stage
        self.shard = shard
        self.failures = failures
        self.worker = worker
        self.cause = cause
        self.trace = trace
        self.where = where
        place = f", reading={where}" if where else ""
        super().__init__(
            f"cannot finish a task: stage={stage}, shard={shard}{place}, failures={failures}, worker={worker}, "
            f"error={cause}; expected the user function to succeed. Fix the function; its traceback is in .trace."
        )


class WorkersLostError(ZephyrError, RuntimeError):
    """Worker processes died more often than allowed."""

    def __init__(self, stage: str, shard: int, losses: int, detail: str) -> None:
        self.stage = stage
        self.shard = shard
        self.losses = losses
        self.detail = detail
        super().__init__(
            f"cannot finish a task: stage={stage}, shard={shard} lost its worker {losses} times, last={detail}; "
            "expected workers to stay alive (an out-of-memory kill looks like this). Lower max_workers, or make the "
            "shards smaller."
        )


class ContextClosedError(ZephyrError, RuntimeError):
    """A closed ZephyrContext was used."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"cannot execute: context name={name!r} is closed; expected an open context. Execute inside its `with` "
            "block, or make a new ZephyrContext."
        )


class SharedDataError(ZephyrError, KeyError):
    """A function asked for shared data that nobody put there."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(
            f"cannot find shared data: name={name!r}, known={list(self.known)}; expected one of these. "
            "Call ZephyrContext.put before the execution."
        )

    __str__ = Exception.__str__  # KeyError's own shows the message in quotes


class NoTaskError(ZephyrError, RuntimeError):
    """A function asked for its task outside of one."""

    def __init__(self) -> None:
        super().__init__(
            "cannot tell the task: no zephyr task is running in this thread; expected a function that zephyr calls. "
            "Ask in the function itself, and hand the answer to threads of your own."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return NoTaskError, ()


class IllegalTransitionError(ZephyrError, RuntimeError):
    """The coordinator was told something impossible; the last events are attached."""

    def __init__(self, event: str, reason: str, story: Sequence[str]) -> None:
        self.event = event
        self.reason = reason
        self.story = tuple(story)
        tail = "; ".join(story) or "none"
        super().__init__(
            f"cannot apply an event: event={event}, reason={reason}; expected events that follow the protocol. "
            f"Report this with the last events: {tail}"
        )
