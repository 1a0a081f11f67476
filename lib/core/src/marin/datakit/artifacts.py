"""What curation stages leave behind. Plain data: reading a record needs neither zephyr nor dupekit."""

from __future__ import annotations

from dataclasses import field

from marin.execution import Artifact


class DocumentCollection(Artifact):
    """Documents of one source as ``documents/part-*.jsonl.zst``, with where they come from in ``source.json``.

    Attributes:
        source: Label of the source, revision included.
        licence: SPDX expression.
        num_documents: Records written.
        num_bytes: UTF-8 bytes of their texts.
        num_bad_lines: Malformed lines that were skipped.
        counters: Everything the pipeline counted.
    """

    source: str = ""
    licence: str = ""
    num_documents: int = 0
    num_bytes: int = 0
    num_bad_lines: int = 0
    counters: dict[str, int] = field(default_factory=dict)


class NormalizedData(Artifact):
    """Normalised documents, one row a distinct text, in ``outputs/main/part-*.parquet``.

    Attributes:
        num_documents: Rows written.
        num_repeats: Documents whose text another one already had; they are listed in its ``repeats``.
        num_blank: Documents without text.
        num_bytes: UTF-8 bytes of the rows' texts.
        counters: Everything the pipeline counted.
    """

    num_documents: int = 0
    num_repeats: int = 0
    num_blank: int = 0
    num_bytes: int = 0
    counters: dict[str, int] = field(default_factory=dict)


class DuplicateAttributes(Artifact):
    """Verified near duplicates, one row a document to remove, in ``outputs/main/part-*.parquet``.

    Attributes:
        num_candidates: Documents that shared a bucket with another.
        num_clusters: Connected components of candidates.
        num_duplicates: Rows written.
        counters: Everything the pipeline counted.
    """

    num_candidates: int = 0
    num_clusters: int = 0
    num_duplicates: int = 0
    counters: dict[str, int] = field(default_factory=dict)


class ConsolidatedData(Artifact):
    """Documents ready for a tokeniser, in ``outputs/<split>/part-*.parquet``.

    Attributes:
        num_documents: Rows by split.
        num_bytes: UTF-8 bytes by split.
        num_dropped_duplicates: Near duplicates left out.
        dropped_bytes: Their UTF-8 bytes.
        num_dropped_contaminated: Documents left out for repeating an evaluation suite, duplicates not counted again.
        dropped_contaminated_bytes: Their UTF-8 bytes.
    """

    num_documents: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)
    num_dropped_duplicates: int = 0
    dropped_bytes: int = 0
    num_dropped_contaminated: int = 0
    dropped_contaminated_bytes: int = 0


class EvalIndex(Artifact):
    """Hashed features of evaluation suites, sorted, in ``outputs/main``; what they are in ``index.json``.

    Attributes:
        suites: Features of each suite that was found.
        missing: Suites that were not required and not found.
        num_documents: Evaluation documents read.
        num_features: Distinct features.
        counters: Everything the pipeline counted.
    """

    suites: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    num_documents: int = 0
    num_features: int = 0
    counters: dict[str, int] = field(default_factory=dict)


class DropSets(Artifact):
    """N-grams that are common language, by source and for all, in ``outputs/main``.

    Attributes:
        num_documents: Documents read, by source.
        num_dropped: N-grams dropped, by source.
        num_dropped_everywhere: N-grams dropped in every source.
        num_kept_concentrated: N-grams of the index that are frequent and stay evidence, because few sources hold them.
    """

    num_documents: dict[str, int] = field(default_factory=dict)
    num_dropped: dict[str, int] = field(default_factory=dict)
    num_dropped_everywhere: int = 0
    num_kept_concentrated: int = 0


class ContaminationAttributes(Artifact):
    """Documents that share n-grams with an evaluation suite, in ``outputs/main``; texts to read in ``flagged_sample``.

    Attributes:
        suites: Suites that were searched for.
        num_documents: Documents looked at.
        num_touched: Documents with at least one n-gram of a suite: rows written.
        num_contaminated: Rows that reach the threshold.
        contaminated_bytes: UTF-8 bytes of their texts.
        counters: Everything the pipeline counted.
    """

    suites: tuple[str, ...] = ()
    num_documents: int = 0
    num_touched: int = 0
    num_contaminated: int = 0
    contaminated_bytes: int = 0
    counters: dict[str, int] = field(default_factory=dict)
