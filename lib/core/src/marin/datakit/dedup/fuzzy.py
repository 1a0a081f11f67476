"""Near-duplicate attributes beside normalised documents.

Three zephyr pipelines and one in-process step::

    documents --MinHash, LSH--> buckets --group--> edges --components--> clusters --verify on text--> duplicates

Output: ``outputs/main/part-NNNNN-of-MMMMM.parquet``, sparse rows ``id, duplicate_of, cluster, containment, jaccard``
with the shard count and partitioning of the documents (both are grouped by ``id``), so the two join shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from glob import glob
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from dupekit import NgramKind, Transformation, transform
from zephyr import Dataset, ZephyrContext, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import DuplicateAttributes
from marin.datakit.dedup.components import connected_components
from marin.datakit.dedup.verify import verify_cluster
from marin.datakit.recipe import FuzzyDedupConfig, MinHashRule

DUPLICATE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("containment", pa.float64(), nullable=False),
        pa.field("jaccard", pa.float64(), nullable=False),
    ]
)
EDGE_SCHEMA = pa.schema([pa.field("low", pa.string(), nullable=False), pa.field("high", pa.string(), nullable=False)])


def bucket_rows(batch: pa.RecordBatch, rule: MinHashRule) -> pa.RecordBatch:
    """One row a band of every document: the bucket it falls into.

    Args:
        batch: Rows with ``id`` and ``text``.
        rule: How signatures are made.
    Returns:
        Columns ``bucket`` (``band:hash``) and ``id``; texts too short for one shingle still get their buckets.
    """
    capped = pa.RecordBatch.from_pydict(
        {
            "id": batch.column("id"),
            "text": pa.array([text[: rule.text_cap_chars] for text in batch.column("text").to_pylist()], pa.string()),
        }
    )
    hashed = transform(
        capped,
        [
            Transformation.CleanText("text", "clean"),
            Transformation.MinHash(
                "clean",
                "signature",
                num_perms=rule.num_perms,
                ngram_size=rule.ngram_size,
                ngram_kind=NgramKind.Char,
                seed=rule.seed,
                kind=rule.kind,
            ),
            Transformation.MinHashLSH("signature", "buckets", num_bands=rule.num_bands),
            Transformation.SelectColumns(["id", "buckets"]),
        ],
    )
    names, ids = [], []
    for identity, buckets in zip(hashed.column("id").to_pylist(), hashed.column("buckets").to_pylist(), strict=True):
        for band, value in enumerate(buckets or ()):
            names.append(f"{band}:{value:016x}")
            ids.append(identity)
    return pa.RecordBatch.from_pydict({"bucket": pa.array(names, pa.string()), "id": pa.array(ids, pa.string())})


def star_edges(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Join the members of one bucket to its smallest id; a bucket of one gives nothing."""
    members = sorted({row["id"] for row in rows})
    for member in members[1:]:
        yield {"low": members[0], "high": member}


def find_edges(context: ZephyrContext, config: FuzzyDedupConfig) -> list[tuple[str, str]]:
    """Candidate pairs of all documents, sorted and without repeats."""
    rule = config.minhash
    dataset = (
        Dataset.from_files(f"{config.documents_path}/outputs/main/part-*.parquet")
        .load_parquet(columns=["id", "text"])
        .map_batches(lambda batch: bucket_rows(batch, rule))
        .group_by(
            lambda row: row["bucket"],
            reducer=lambda _bucket, rows: star_edges(iter(rows)),
            num_output_shards=config.num_shards,
        )
        .write_parquet(f"{config.scratch_path}/edges/part-{{shard:05d}}-of-{{total:05d}}.parquet", schema=EDGE_SCHEMA)
    )
    paths = context.execute(dataset).results
    pairs: set[tuple[str, str]] = set()
    for path in sorted(paths):
        table = pq.read_table(path)
        pairs.update(zip(table.column("low").to_pylist(), table.column("high").to_pylist(), strict=True))
    return sorted(pairs)


def mark_fuzzy_duplicates(config: FuzzyDedupConfig) -> DuplicateAttributes:
    """Find the near duplicates of a set of normalised documents.

    Args:
        config: Inputs, rules and outputs.
    Returns:
        The attributes; with no candidate they are empty shards, not missing ones.
    """
    with pipeline("fuzzy-duplicates") as context:
        clusters = connected_components(find_edges(context, config))
        rule = config.verify

        def duplicates_of_cluster(cluster: str, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            members = [(row["id"], row["text"]) for row in rows]
            counters.increment("datakit/candidates", len(members))
            for found in verify_cluster(members, rule):
                yield {
                    "id": found.id,
                    "duplicate_of": found.duplicate_of,
                    "cluster": cluster,
                    "containment": found.containment,
                    "jaccard": found.jaccard,
                }

        dataset = (
            Dataset.from_files(f"{config.documents_path}/outputs/main/part-*.parquet")
            .load_parquet(columns=["id", "text"])
            .filter(lambda row: row["id"] in clusters)
            .group_by(lambda row: clusters[row["id"]], reducer=duplicates_of_cluster)
            .group_by(
                lambda row: row["id"],
                reducer=lambda _id, rows: next(iter(rows)),
                num_output_shards=config.num_shards,
            )
            .write_parquet(
                f"{config.output_path}/outputs/main/part-{{shard:05d}}-of-{{total:05d}}.parquet",
                schema=DUPLICATE_SCHEMA,
            )
        )
        counts = count(context, dataset)
    return DuplicateAttributes(
        num_candidates=counts.get("datakit/candidates", 0),
        num_clusters=len(set(clusters.values())),
        num_duplicates=sum(pq.read_metadata(path).num_rows for path in glob(_shards(config.output_path))),
        counters=counts,
    )


def _shards(output_path: str) -> str:
    return f"{output_path}/outputs/main/part-*.parquet"
