"""What a user function may ask while it runs: which task it is part of, and the data that the driver shared.

A table that every task needs (a tokenizer, a set of banned hosts) should not be captured by a closure: it would be in
the plan that each worker loads, however few tasks look at it. `ZephyrContext.put` writes it once to the scratch folder,
and a worker reads it when a function first asks; the tasks that follow in the same worker find it in memory.
"""

import os
import pickle
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from zephyr.errors import NoTaskError, SharedDataError

__all__ = ["WorkerContext", "zephyr_worker_ctx"]

_SHARED = "shared"
_SUFFIX = ".pkl"


@dataclass(frozen=True)
class WorkerContext:
    """The task that a user function is part of.

    Args:
        execution: Id of the execution.
        stage: Stage number.
        shard: Task number within the stage.
        attempt: Number of the attempt, from 1.
        folder: Scratch folder of the execution.
    """

    execution: str
    stage: int
    shard: int
    attempt: int
    folder: str

    def get_shared(self, name: str) -> Any:
        """What the driver put under `name`: one object for all tasks of a process, so treat it as read-only.

        Raises:
            SharedDataError: nothing was put under that name before the execution began.
        """
        return _cache.get(self.folder, name)


_current: ContextVar[WorkerContext | None] = ContextVar("zephyr_worker", default=None)


def zephyr_worker_ctx() -> WorkerContext:
    """The task that is running here. A thread of your own does not inherit it: ask first, and hand it what you got.

    Raises:
        NoTaskError: no task is running.
    Example:
        >>> from zephyr import Dataset, ZephyrContext
        >>> with ZephyrContext(inline=True) as ctx:
        ...     ctx.put("names", {1: "one", 2: "two"})
        ...     ds = Dataset.from_list([1, 2, 1]).map(lambda n: zephyr_worker_ctx().get_shared("names")[n])
        ...     ctx.execute(ds).results
        ['one', 'two', 'one']
    """
    current = _current.get()
    if current is None:
        raise NoTaskError()
    return current


@contextmanager
def working(context: WorkerContext) -> Iterator[None]:
    """Let functions that run in the block know their task."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


class _Cache:
    """Shared objects of the execution that was asked about last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder = ""
        self._objects: dict[str, Any] = {}

    def get(self, folder: str, name: str) -> Any:
        with self._lock:
            if folder != self._folder:
                self._folder, self._objects = folder, {}
            if name not in self._objects:
                self._objects[name] = _read(folder, name)
            return self._objects[name]


_cache = _Cache()


def _read(folder: str, name: str) -> Any:
    try:
        with open(_path(folder, name), "rb") as stream:
            return pickle.load(stream)
    except FileNotFoundError:
        there = f"{folder}/{_SHARED}"
        files = os.listdir(there) if os.path.isdir(there) else []
        known = sorted(urllib.parse.unquote(file.removesuffix(_SUFFIX)) for file in files)
        raise SharedDataError(name, known) from None


def write_shared(folder: str, objects: Mapping[str, bytes]) -> None:
    """Lay out pickled objects for the tasks of an execution."""
    for name, data in objects.items():
        os.makedirs(f"{folder}/{_SHARED}", exist_ok=True)
        with open(_path(folder, name), "wb") as stream:
            stream.write(data)


def _path(folder: str, name: str) -> str:
    return f"{folder}/{_SHARED}/{urllib.parse.quote(name, safe='')}{_SUFFIX}"
