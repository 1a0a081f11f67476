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
from marin.policy.spdx import UNKNOWN_LICENCE
from marin.policy.terms import PII_RISKS, USES

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
        allowed_uses: What the provider allows of ``train``, ``eval``, ``redistribute``; None when the licence alone
            decides.
        eval_suite: Evaluation suite that it is (a part of); no training step may then be made from it.
        pii_risk: ``none``, ``reviewed`` or ``unknown``: whether somebody looked for personal data.
        terms_url: Where the terms can be read.
    Raises:
        ValueError: A use or a risk that no policy knows.
    """

    kind: SourceKind
    location: str
    revision: str = ""
    licence: str = UNKNOWN_LICENCE
    allowed_uses: tuple[str, ...] | None = None
    eval_suite: str = ""
    pii_risk: str = "unknown"
    terms_url: str = ""

    def __post_init__(self) -> None:
        unknown = [use for use in self.allowed_uses or () if use not in USES]
        if unknown:
            raise ValueError(f"bad source: allowed_uses={unknown}; expected some of {', '.join(USES)}.")
        if self.pii_risk not in PII_RISKS:
            raise ValueError(f"bad source: pii_risk={self.pii_risk!r}; expected one of {', '.join(PII_RISKS)}.")

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
    return Source(SourceKind.STDLIB, "python", version, "PSF-2.0", terms_url="https://docs.python.org/3/license.html")


HUB_LICENCES = {
    # Read on a stored copy of the data set's own card.
    "HuggingFaceFW/fineweb": "ODC-By-1.0",
    "allenai/dolma": "ODC-By-1.0",  # from 2024-04-15 on; earlier copies were under AI2's ImpACT licence
    "openai/gsm8k": "MIT",
    # Read elsewhere: on the card of the same owner's Parquet copy, and in the documentation of a library that loads it.
    "mlfoundations/dclm-baseline-1.0": "CC-BY-4.0",
    "allenai/c4": "ODC-By-1.0",  # and Common Crawl's terms of use
    # Not verified: no copy of the card was at hand. Look at the page that ``terms_url`` of the source names.
    "HuggingFaceFW/fineweb-edu": "ODC-By-1.0",
    "Salesforce/wikitext": "CC-BY-SA-3.0 OR GFDL-1.3-or-later",
    "cais/mmlu": "MIT",
    "roneneldan/TinyStories": "CDLA-Sharing-1.0",
    "wikimedia/wikipedia": "CC-BY-SA-3.0 OR GFDL-1.3-or-later",
}
"""Licences that data sets of the hub state on their pages, by id; what the caller vouches for goes over them.

A card may change, and a licence covers the collection, not each page in it: ``licence=`` is the way to state what you
have read yourself.
"""


def parse_source(argument: str, *, licence: str | None = None) -> Source:
    """Read a ``--data`` argument.

    Args:
        argument: ``stdlib``, ``path:GLOB`` or ``hf:ID[@REVISION]`` (the revision defaults to ``main``).
        licence: SPDX expression that the caller vouches for; that of the standard library and of the data sets in
            ``HUB_LICENCES`` is known.
    Returns:
        The source it names.
    Raises:
        SourceSyntaxError: The argument has none of these forms, or its place is empty.
    Example:
        >>> parse_source("hf:wikitext@b08601e").revision
        'b08601e'
        >>> parse_source("path:data/*.jsonl").location
        'data/*.jsonl'
        >>> parse_source("hf:roneneldan/TinyStories").licence
        'CDLA-Sharing-1.0'
    """
    if argument == SourceKind.STDLIB:
        return stdlib_source()
    scheme, separator, rest = argument.partition(":")
    if separator and rest and scheme == SourceKind.PATH:
        return Source(SourceKind.PATH, rest, licence=licence or UNKNOWN_LICENCE)
    if separator and scheme == SourceKind.HUGGING_FACE:
        location, _, revision = rest.partition("@")
        if location:
            stated = HUB_LICENCES.get(location, "")
            page = f"https://huggingface.co/datasets/{location}" if stated and not licence else ""
            terms = licence or stated or UNKNOWN_LICENCE
            return Source(SourceKind.HUGGING_FACE, location, revision or "main", terms, terms_url=page)
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
