"""Normalise documents: one schema, ids from content, equal texts folded into one row.

The problem: raw records carry blank texts, megabyte runs of spaces that kill tokenisers, and the same text under many
names. The idea: clean, hash, group by the hash. The first record of a group (smallest ``source_id``) is kept; the
others are not thrown away silently but listed in its ``repeats`` column, and counted.

Output: ``outputs/main/part-NNNNN-of-MMMMM.parquet`` with columns ``id, text, source, metadata, repeats``, sorted by
``id``; equal input gives equal bytes at any number of workers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from dupekit import hash_xxh3_128_hex
from zephyr import Dataset, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import NormalizedData
from marin.datakit.errors import EmptyCorpusError
from marin.datakit.recipe import NormalizeConfig

NORMALISED_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("repeats", pa.list_(pa.string())),
    ]
)


def compact_whitespace(text: str, max_run: int) -> str:
    """Cut every run of white space longer than ``max_run`` characters to its first ``max_run`` characters.

    Example:
        >>> compact_whitespace("a" + " " * 9 + "b", 3)
        'a   b'
    """
    return re.sub(rf"(\s{{{max_run}}})\s+", r"\1", text)


def fold_repeats(rows: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Keep the first row of a group of equal texts and list the ``source_id`` of the others.

    Args:
        rows: Rows of one id, ordered by source id, at least one.
    Returns:
        The kept row with ``repeats``.
    """
    kept = next(rows)
    repeats = [json.loads(row["metadata"])["source_id"] for row in rows]
    counters.increment("datakit/repeats", len(repeats))
    counters.increment("datakit/bytes_kept", len(kept["text"].encode()))
    return {**kept, "repeats": repeats}


def normalize(config: NormalizeConfig) -> NormalizedData:
    """Normalise documents and fold exact repeats.

    Args:
        config: Inputs, output and rules.
    Returns:
        The artifact, with what was lost and why in its fields.
    Raises:
        EmptyCorpusError: No text is left.
    """
    max_run = config.max_whitespace_run_chars

    def clean(batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = [compact_whitespace(text or "", max_run) for text in batch.column("text").to_pylist()]
        keep = [bool(text.strip()) for text in texts]
        counters.increment("datakit/blank", len(keep) - sum(keep))
        counters.increment("datakit/documents_in", len(keep))
        columns = {
            "text": pa.array(texts, pa.string()),
            "source": batch.column("source").cast(pa.string()),
            "metadata": batch.column("metadata").cast(pa.string()),
        }
        mask = pa.array(keep)
        kept = pa.RecordBatch.from_pydict(columns).filter(mask)
        return kept.append_column("id", hash_xxh3_128_hex(kept.column("text")))

    dataset = (
        Dataset.from_files(f"{config.documents_path}/documents/part-*.jsonl.zst")
        .load_jsonl()
        .map_batches(clean)
        .group_by(
            lambda row: row["id"],
            reducer=lambda _id, rows: fold_repeats(iter(rows)),
            sort_by=lambda row: (row["source"], json.loads(row["metadata"])["source_id"]),
            num_output_shards=config.num_shards,
        )
        .write_parquet(
            f"{config.output_path}/outputs/main/part-{{shard:05d}}-of-{{total:05d}}.parquet", schema=NORMALISED_SCHEMA
        )
    )
    with pipeline("normalize") as context:
        counts = count(context, dataset)
    seen = counts.get("datakit/documents_in", 0)
    kept = counts.get("zephyr/records_out", 0)
    if not kept:
        raise EmptyCorpusError("normalisation", seen=seen, detail="All texts are blank: is --text-key the right field?")
    return NormalizedData(
        num_documents=kept,
        num_repeats=counts.get("datakit/repeats", 0),
        num_blank=counts.get("datakit/blank", 0),
        num_bytes=counts.get("datakit/bytes_kept", 0),
        counters=counts,
    )
