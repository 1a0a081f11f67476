"""Input patterns and output paths: braces, globs, and one path per shard."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from zephyr._adapters import remote
from zephyr._ops import PathPattern
from zephyr.errors import DatasetError, NoInputFilesError, PlanError

_SUFFIXES = (
    *(".gz", ".zst", ".zstd", ".jsonl", ".json", ".ndjson", ".parquet"),
    *(".txt", ".text", ".csv", ".tar", ".vortex"),
)


@dataclass(frozen=True)
class FileEntry:
    """A file found by a pattern, with its size in bytes."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class FileSpan:
    """One of several equal parts of a file: what starts in it belongs to it.

    Args:
        path: The file.
        part: Number of the part, from 0.
        parts: How many there are.
        size_bytes: Size of the file when the plan was made; a change since is an error.
    """

    path: str
    part: int
    parts: int
    size_bytes: int

    @property
    def start(self) -> int:
        """First byte."""
        return self.size_bytes * self.part // self.parts

    @property
    def end(self) -> int:
        """Byte after the last."""
        return self.size_bytes * (self.part + 1) // self.parts

    def holds(self, position: int, total: int) -> bool:
        """Whether this part is the one that `position` of `total` falls into.

        Example:
            >>> [FileSpan("x", part, 3, 0).holds(5, 10) for part in range(3)]
            [False, True, False]
        """
        return position * self.parts // total == self.part


def path_of(item: object) -> str | None:
    """The path that a source item stands for; None when it is none."""
    if isinstance(item, FileSpan):
        return item.path
    return item if isinstance(item, str) else None


def is_remote(path: str) -> bool:
    """Whether the path is a URL with a scheme other than file."""
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    """Strip a file:// scheme."""
    return path.removeprefix("file://")


def expand_braces(pattern: str) -> list[str]:
    """Expand {a,b} alternatives, nested ones too.

    Example:
        >>> expand_braces("x/{a,b{1,2}}.txt")
        ['x/a.txt', 'x/b1.txt', 'x/b2.txt']
    """
    start = pattern.find("{")
    if start < 0:
        return [pattern]
    depth, parts, last = 0, [], start + 1
    for at in range(start, len(pattern)):
        char = pattern[at]
        if char == "{":
            depth += 1
        elif char == "," and depth == 1:
            parts.append(pattern[last:at])
            last = at + 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                parts.append(pattern[last:at])
                head, tail = pattern[:start], pattern[at + 1 :]
                return [out for part in parts for out in expand_braces(head + part + tail)]
    raise DatasetError(
        f"cannot expand a pattern: pattern={pattern!r} has an unclosed brace; expected {{a,b}}. Close it."
    )


def collapse_slashes(path: str) -> str:
    """Collapse // into / except after a scheme."""
    scheme, sep, rest = path.rpartition("://")
    return scheme + sep + re.sub(r"/{2,}", "/", rest)


def resolve_glob(patterns: Sequence[str], *, empty_glob_ok: bool = False) -> list[FileEntry]:
    """List the files that patterns name, sorted by path, each once.

    Args:
        patterns: Local paths or fsspec URLs with `*`, `**`, `?`, `[...]` and `{a,b}`.
        empty_glob_ok: Allow a pattern that matches nothing.
    Raises:
        NoInputFilesError: a pattern matched nothing and that is not allowed.
    """
    found: dict[str, int] = {}
    for pattern in patterns:
        matched: dict[str, int] = {}
        for alternative in expand_braces(collapse_slashes(pattern)):
            matched.update(
                remote.list_files(alternative) if is_remote(alternative) else _list_local(local_path(alternative))
            )
        if not matched and not empty_glob_ok:
            raise NoInputFilesError(pattern)
        found.update(matched)
    return [FileEntry(path, found[path]) for path in sorted(found)]


def _list_local(pattern: str) -> dict[str, int]:
    names = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else [pattern]
    return {name: os.path.getsize(name) for name in names if os.path.isfile(name)}


def base_name(path: str) -> str:
    """File name without folder and without the data suffixes.

    Example:
        >>> base_name("in/part-1.jsonl.gz")
        'part-1'
    """
    name = path.rstrip("/").rsplit("/", 1)[-1]
    while (suffix := PurePosixPath(name).suffix) in _SUFFIXES and suffix:
        name = name.removesuffix(suffix)
    return name


def format_shard_path(pattern: PathPattern, shard: int, total: int, *, source_items: Sequence[Any] = ()) -> str:
    """Path of one output shard.

    Args:
        pattern: A string with {shard}, {total}, {basename} (format specs allowed), or callable(shard, total).
        shard: Shard number, from 0.
        total: Number of shards.
        source_items: Items of the shard's source; {basename} needs exactly one, a path.
    Raises:
        PlanError: a placeholder is unknown or has no value here.
    Example:
        >>> format_shard_path("out/{shard:05d}-of-{total:05d}.jsonl", 3, 8)
        'out/00003-of-00008.jsonl'
    """
    if callable(pattern):
        return collapse_slashes(pattern(shard, total))
    values: dict[str, Any] = {"shard": shard, "total": total}
    if "{basename" in pattern:
        if len(source_items) != 1 or not isinstance(source_items[0], str):
            raise PlanError(
                f"cannot name an output: pattern={pattern!r} uses {{basename}}, and shard {shard} comes from "
                f"{len(source_items)} source items; expected one input file per shard. Use {{shard:05d}} instead."
            )
        values["basename"] = base_name(source_items[0])
    try:
        return collapse_slashes(pattern.format(**values))
    except (KeyError, IndexError, ValueError) as error:
        raise PlanError(
            f"cannot name an output: pattern={pattern!r}, reason={error!r}; expected only the placeholders {{shard}}, "
            "{total} and {basename}. Double the braces that are part of the name."
        ) from error
