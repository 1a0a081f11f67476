"""What each curation stage is told. Plain data: planning a graph needs neither zephyr nor dupekit.

Paths are plumbing; every other field is a decision and part of the fingerprint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from marin.datakit.errors import MissingSuiteError
from marin.datakit.sources import Source

OnBadLine = Literal["fail", "skip"]
FEATURE_VERSION = 3
"""Version of the features of decontamination; another one gives other hashes, and so other indices and marks."""


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


@dataclass(frozen=True, kw_only=True)
class CleanConsolidateConfig(ConsolidateConfig):
    """Consolidation that also drops contaminated documents.

    A class of its own, so that the recipe of a corpus without decontamination has no field of it.

    Attributes:
        contamination_path: Folder of the co-partitioned contamination attributes.
    """

    contamination_path: str


@dataclass(frozen=True)
class FeatureRule:
    """How a text is cut for decontamination.

    Attributes:
        ngram_length: Tokens in one n-gram; None takes every line as one feature.
        min_tokens: Tokens of the shortest paragraph that counts, when it is shorter than an n-gram.
    """

    ngram_length: int | None = 13
    min_tokens: int = 3

    def __post_init__(self) -> None:
        if self.min_tokens < 1 or (self.ngram_length is not None and self.ngram_length < self.min_tokens):
            raise ValueError(
                f"bad features: ngram_length={self.ngram_length}, min_tokens={self.min_tokens}; "
                "expected 1 <= min_tokens <= ngram_length."
            )


@dataclass(frozen=True)
class EvalFiles:
    """Evaluation documents that lie in jsonl or Parquet files.

    Attributes:
        source: Files by glob, with their licence.
        text_keys: Fields whose texts make the document, joined as paragraphs; fields that a record lacks are left out,
            but one of them must be there.
        input_digest: Digest of the files (``marin.datakit.sources.digest_inputs``); a changed file changes the recipe.
    """

    source: Source
    text_keys: tuple[str, ...] = ("text",)
    input_digest: str = ""


@dataclass(frozen=True)
class EvalSuite:
    """One evaluation suite and where its documents are.

    Attributes:
        suite: ``name@version``.
        files: Documents in files, or
        documents_path: the folder of a document collection or of normalised documents.
    """

    suite: str
    files: EvalFiles | None = None
    documents_path: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\s@]+@[^\s@]+", self.suite):
            raise ValueError(f"bad evaluation suite: suite={self.suite!r}; expected name@version, like 'gsm8k@1'.")
        if (self.files is None) == (not self.documents_path):
            raise ValueError(
                f"bad evaluation suite: suite={self.suite!r}, files={self.files}, "
                f"documents_path={self.documents_path!r}; expected exactly one of the two places."
            )


@dataclass(frozen=True)
class EvalIndexConfig:
    """Which suites to index and where to write.

    Attributes:
        output_path: Folder that receives ``outputs/main`` and ``index.json``.
        scratch_path: Folder for the features of each suite.
        suites: The suites.
        required: Suites that must be there and hold text; others are taken when they are.
        features: How texts are cut.
        feature_version: Version of the features.
    """

    output_path: str
    scratch_path: str
    suites: tuple[EvalSuite, ...]
    required: tuple[str, ...]
    features: FeatureRule = field(default_factory=FeatureRule)
    feature_version: int = FEATURE_VERSION

    def __post_init__(self) -> None:
        given = [item.suite for item in self.suites]
        if len(set(given)) < len(given):
            raise ValueError(f"bad index: suites={given}; expected every suite once.")
        missing = [suite for suite in self.required if suite not in given]
        if missing or not given:
            raise MissingSuiteError(missing, known=given, detail="They are not among the suites of the index.")


@dataclass(frozen=True)
class DropRule:
    """Which n-grams are common language and no evidence.

    A source counts as one that holds an n-gram of an index only with at least ``min_source_share`` of the documents
    that hold it: what piles up in one source is a leak in that source, however common.

    Attributes:
        sample_documents: Documents of a source that its own drop set is made from.
        min_documents: Least documents of the sample that hold a dropped n-gram.
        min_share: Least share of the sample that holds it.
        global_documents: Documents of each source that the global drop set is made from.
        global_min_documents: Least documents, over all sources, that hold a dropped n-gram.
        min_sources: Sources that an n-gram of an index must be spread over to be dropped, by either rule.
        min_source_share: Share of an n-gram's documents from which a source counts.
    """

    sample_documents: int = 5_000
    min_documents: int = 5
    min_share: float = 0.005
    global_documents: int = 1_000_000
    global_min_documents: int = 50
    min_sources: int = 3
    min_source_share: float = 0.05

    def __post_init__(self) -> None:
        if self.min_sources < 2:
            raise ValueError(
                f"bad drop rule: min_sources={self.min_sources}; expected >= 2. With one source a leak hides itself."
            )


@dataclass(frozen=True)
class DropSetsConfig:
    """Which documents tell what is common, and where to write.

    Attributes:
        output_path: Folder that receives ``outputs/main``.
        scratch_path: Folder for counts of each shard.
        documents_paths: Folders of normalised documents.
        index_path: Folder of the index.
        rule: What is common.
        feature_version: Version of the features.
    """

    output_path: str
    scratch_path: str
    documents_paths: tuple[str, ...]
    index_path: str
    rule: DropRule = field(default_factory=DropRule)
    feature_version: int = FEATURE_VERSION


@dataclass(frozen=True)
class OverlapRule:
    """When a document is contaminated.

    Attributes:
        threshold: Least share of a paragraph's n-grams that are a suite's, in (0, 1], for the worst paragraph.
        flagged_per_shard: Contaminated texts of each shard that are kept for reading.
    """

    threshold: float = 0.5
    flagged_per_shard: int = 8

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"bad overlap rule: threshold={self.threshold}; expected a share in (0, 1].")
        if self.flagged_per_shard < 0:
            raise ValueError(f"bad overlap rule: flagged_per_shard={self.flagged_per_shard}; expected >= 0.")


@dataclass(frozen=True)
class DecontaminateConfig:
    """What to mark and where to write.

    Attributes:
        output_path: Folder that receives ``outputs/main`` and ``outputs/flagged_sample``.
        documents_path: Folder of the normalised documents.
        index_path: Folder of the index.
        decontaminates: Suites that are searched for; ``marin.policy`` reads this field.
        drop_sets_path: Folder of the drop sets, or empty for none.
        overlap: What counts as contaminated.
        feature_version: Version of the features.
    """

    output_path: str
    documents_path: str
    index_path: str
    decontaminates: tuple[str, ...]
    drop_sets_path: str = ""
    overlap: OverlapRule = field(default_factory=OverlapRule)
    feature_version: int = FEATURE_VERSION

    def __post_init__(self) -> None:
        if not self.decontaminates:
            raise ValueError("bad decontamination: decontaminates=(); expected at least one suite, like 'gsm8k@1'.")
