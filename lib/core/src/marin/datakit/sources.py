"""Where text comes from, and under which terms.

The problem: a model whose corpus has no licence on record cannot be released, and finding out later is archaeology.
The idea: a source is a small value that names its kind, its place, its revision and its licence before a byte is read;
it is part of the identity of everything built from it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from glob import glob

from marin.datakit.errors import SourceNotFoundError, SourceSyntaxError

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")
PARQUET_SUFFIXES = (".parquet",)
TEXT_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
READABLE = "files ending in .jsonl, .json, .txt (each also .gz or .zst) or .parquet"


class SourceKind(StrEnum):
    """How the bytes of a source are reached."""

    STDLIB = "stdlib"
    PATH = "path"
    HUGGING_FACE = "hf"


@dataclass(frozen=True)
class Source:
    """One place that text comes from.

    Attributes:
        kind: How the bytes are reached.
        location: ``python-3.12.1`` for the standard library, a glob for files, a data set id for the hub.
        revision: Commit, tag or version of the data; empty where the source has none.
        licence: SPDX expression, or ``LicenseRef-unknown`` when nobody has said.
    """

    kind: SourceKind
    location: str
    revision: str = ""
    licence: str = "LicenseRef-unknown"

    @property
    def label(self) -> str:
        """The name that documents carry in their ``source`` column.

        Example:
            >>> Source(SourceKind.HUGGING_FACE, "roneneldan/TinyStories", "main").label
            'hf:roneneldan/TinyStories@main'
        """
        suffix = f"@{self.revision}" if self.revision else ""
        return f"{self.kind}:{self.location}{suffix}"


def stdlib_source() -> Source:
    """The Python standard library of the running interpreter, under the Python Software Foundation licence.

    Example:
        >>> stdlib_source().licence
        'PSF-2.0'
    """
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Source(SourceKind.STDLIB, "python", version, "PSF-2.0")


def parse_source(argument: str, *, licence: str | None = None) -> Source:
    """Read a ``--data`` argument.

    Args:
        argument: ``stdlib``, ``path:GLOB`` or ``hf:ID[@REVISION]`` (the revision defaults to ``main``).
        licence: SPDX expression that the caller vouches for; the standard library's own is known.
    Returns:
        The source it names.
    Raises:
        SourceSyntaxError: The argument has none of these forms, or its place is empty.
    Example:
        >>> parse_source("hf:wikitext@b08601e").revision
        'b08601e'
        >>> parse_source("path:data/*.jsonl").location
        'data/*.jsonl'
    """
    if argument == SourceKind.STDLIB:
        return stdlib_source()
    scheme, separator, rest = argument.partition(":")
    terms = licence or "LicenseRef-unknown"
    if separator and rest and scheme == SourceKind.PATH:
        return Source(SourceKind.PATH, rest, licence=terms)
    if separator and scheme == SourceKind.HUGGING_FACE:
        location, _, revision = rest.partition("@")
        if location:
            return Source(SourceKind.HUGGING_FACE, location, revision or "main", terms)
    raise SourceSyntaxError(argument)


def list_inputs(pattern: str) -> list[str]:
    """The readable files a glob names, sorted.

    Args:
        pattern: Glob; ``~`` and ``**`` work.
    Returns:
        Paths of regular files with a suffix this room reads.
    Raises:
        SourceNotFoundError: It matches nothing, or only files of other kinds.
    """
    found = [path for path in sorted(glob(os.path.expanduser(pattern), recursive=True)) if os.path.isfile(path)]
    readable = [path for path in found if path.endswith(JSONL_SUFFIXES + PARQUET_SUFFIXES + TEXT_SUFFIXES)]
    if not readable:
        raise SourceNotFoundError(pattern, f"{READABLE}; {len(found)} files of other kinds matched")
    return readable


def digest_inputs(paths: list[str]) -> str:
    """SHA-256 over the base names and bytes of files, so that a changed file is a changed corpus.

    Args:
        paths: Files, in an order that matters.
    Returns:
        64 hex digits. Costs one read of every file.
    """
    total = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            total.update(f"{os.path.basename(path)}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()
