"""What each curation stage is told. Plain data: planning a graph needs neither zephyr nor dupekit.

Paths are plumbing; every other field is a decision and part of the fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from marin.datakit.sources import Source

OnBadLine = Literal["fail", "skip"]


@dataclass(frozen=True)
class CollectConfig:
    """How to turn a source into documents.

    Attributes:
        output_path: Folder that receives ``documents/`` and ``source.json``.
        scratch_path: Folder for downloads.
        source: Where the text comes from.
        input_digest: Digest of the input files' names and bytes; a changed file changes the fingerprint.
        text_key: Field that holds the text of a jsonl or parquet record.
        on_bad_line: ``fail`` stops at the first malformed jsonl line, ``skip`` counts it.
        text_unit: What one document is in a text file: the whole ``file``, or each ``line``.
        num_shards: Shards to write where the source does not decide.
        max_files: Take only the first so many files, in path order; None takes all.
    """

    output_path: str
    scratch_path: str
    source: Source
    input_digest: str = ""
    text_key: str = "text"
    on_bad_line: OnBadLine = "fail"
    text_unit: Literal["file", "line"] = "file"
    num_shards: int = 8
    max_files: int | None = None


@dataclass(frozen=True)
class NormalizeConfig:
    """How to normalise.

    Attributes:
        output_path: Folder that receives ``outputs/main``.
        documents_path: Folder of a document collection.
        num_shards: Shards to write.
        max_whitespace_run_chars: Longer runs of white space are cut to this length.
    """

    output_path: str
    documents_path: str
    num_shards: int = 8
    max_whitespace_run_chars: int = 128


@dataclass(frozen=True)
class MinHashRule:
    """How candidates are proposed.

    Two documents of Jaccard similarity ``s`` share a bucket with probability ``1 - (1 - s**r)**b`` for ``b`` bands of
    ``r = num_perms / num_bands`` rows; the defaults put the middle of that curve near 0.74.

    Attributes:
        num_perms: Permutations in a signature; a multiple of ``num_bands``.
        num_bands: Bands, each one bucket.
        ngram_size: Characters in one shingle.
        seed: Seed of the permutations.
        text_cap_chars: Characters hashed of one document; mega-documents saturate a signature.
        kind: ``fast32`` (32-bit lanes, run-time dispatched SIMD) or ``compat`` (bit-equal to published signatures).
    """

    num_perms: int = 286
    num_bands: int = 26
    ngram_size: int = 5
    seed: int = 42
    text_cap_chars: int = 500_000
    kind: Literal["fast32", "compat"] = "fast32"

    def __post_init__(self) -> None:
        if self.num_bands < 1 or self.num_perms % self.num_bands:
            raise ValueError(
                f"bad MinHash rule: num_perms={self.num_perms}, num_bands={self.num_bands}; expected num_perms to be a "
                "multiple of num_bands."
            )


@dataclass(frozen=True)
class VerifyRule:
    """When a cluster member counts as a duplicate.

    Attributes:
        ngram_size: Tokens in one n-gram.
        min_containment: Least share of the member's distinct n-grams found in the reference, in (0, 1].
        max_references: Documents of one cluster that are kept as references to compare with.
    """

    ngram_size: int = 3
    min_containment: float = 0.95
    max_references: int = 64

    def __post_init__(self) -> None:
        if not 0.0 < self.min_containment <= 1.0:
            raise ValueError(
                f"bad duplicate rule: min_containment={self.min_containment}; expected a share in (0, 1]. "
                "Use 1.0 to remove only documents that are wholly contained in another."
            )
        if self.ngram_size < 1 or self.max_references < 1:
            raise ValueError(
                f"bad duplicate rule: ngram_size={self.ngram_size}, max_references={self.max_references}; "
                "expected both >= 1."
            )


@dataclass(frozen=True)
class FuzzyDedupConfig:
    """What to compare and where to write.

    Attributes:
        output_path: Folder that receives ``outputs/main``.
        scratch_path: Folder for intermediate edges.
        documents_path: Folder of the normalised documents.
        num_shards: Shards of those documents, and so of the attributes.
        minhash: How candidates are proposed.
        verify: What counts as a duplicate.
    """

    output_path: str
    scratch_path: str
    documents_path: str
    num_shards: int = 8
    minhash: MinHashRule = field(default_factory=MinHashRule)
    verify: VerifyRule = field(default_factory=VerifyRule)


@dataclass(frozen=True)
class SplitRule:
    """How documents are dealt to splits.

    Attributes:
        validation_percent: Share of groups held out for decisions during training, in percent.
        test_percent: Share of groups held out for the final measurement, in percent.
        salt: Changes the deal without changing the shares.
    """

    validation_percent: float = 3.0
    test_percent: float = 4.0
    salt: str = "marin"

    def __post_init__(self) -> None:
        held_out = self.validation_percent + self.test_percent
        if min(self.validation_percent, self.test_percent) <= 0 or held_out >= 100:
            raise ValueError(
                f"bad split: validation_percent={self.validation_percent}, test_percent={self.test_percent}; "
                "expected both > 0 and a sum below 100."
            )


@dataclass(frozen=True)
class ConsolidateConfig:
    """What to consolidate and where to write.

    Attributes:
        output_path: Folder that receives ``outputs/<split>``.
        documents_path: Folder of the normalised documents.
        duplicates_path: Folder of the co-partitioned duplicate attributes.
        split: How documents are dealt to splits.
    """

    output_path: str
    documents_path: str
    duplicates_path: str
    split: SplitRule = field(default_factory=SplitRule)
