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
    """

    num_documents: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)
    num_dropped_duplicates: int = 0
    dropped_bytes: int = 0
