"""Contamination attributes beside normalised documents.

The overlap of a paragraph is the share of its n-grams, those of the drop sets left out, that are n-grams of a suite;
the overlap of a document is that of its worst paragraph, and a document at or above the threshold is contaminated.

Output, equal bytes at any number of workers:

* ``outputs/main/part-NNNNN-of-MMMMM.parquet`` beside the documents' shards, same names, sorted by ``id``: ``id,
  contaminated, max_overlap, matched_hashes`` (ascending). Sparse: a document without any n-gram of a suite has no row.
* ``outputs/flagged_sample/part-...``: of each shard the first contaminated documents in the order of their ids, which
  are hashes of the texts and so a uniform sample: ``id, source, max_overlap, eval_ids, text``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from zephyr import Dataset, ShardInfo, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import ContaminationAttributes
from marin.datakit.decontaminate.drop_sets import EVERYWHERE, load_drop_sets
from marin.datakit.decontaminate.eval_index import ONE_SHARD, contains, load_index
from marin.datakit.decontaminate.features import paragraph_features
from marin.datakit.errors import MissingSuiteError
from marin.datakit.recipe import DecontaminateConfig

CONTAMINATION_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("contaminated", pa.bool_(), nullable=False),
        pa.field("max_overlap", pa.float64(), nullable=False),
        pa.field("matched_hashes", pa.list_(pa.uint64()), nullable=False),
    ]
)
FLAGGED_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("max_overlap", pa.float64(), nullable=False),
        pa.field("eval_ids", pa.list_(pa.string()), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
MAX_EVAL_IDS = 16
NO_HASHES = np.empty(0, np.uint64)


def overlap(paragraphs: list[list[int]], index: np.ndarray, dropped: np.ndarray) -> tuple[float, np.ndarray]:
    """The overlap of a document with an index.

    Args:
        paragraphs: Features of each paragraph.
        index: Features of the suites, ascending ``uint64``.
        dropped: Features that are no evidence, ascending ``uint64``.
    Returns:
        The share of the worst paragraph, in [0, 1], and the distinct matched features, ascending.
    Example:
        >>> index = np.array([1, 2], np.uint64)
        >>> overlap([[1, 7, 8, 9], [2, 5]], index, NO_HASHES)[0]
        0.5
        >>> overlap([[2, 5]], index, np.array([5], np.uint64))[0]
        1.0
    """
    if not paragraphs:
        return 0.0, NO_HASHES
    features = np.array([feature for part in paragraphs for feature in part], np.uint64)
    kept = ~contains(dropped, features)
    hits = contains(index, features) & kept
    if not hits.any():
        return 0.0, NO_HASHES
    starts = np.concatenate([[0], np.cumsum([len(part) for part in paragraphs])[:-1]])
    found, of = (np.add.reduceat(mask, starts, dtype=np.int64) for mask in (hits, kept))
    shares = found / np.maximum(of, 1)
    return float(shares.max()), np.unique(features[hits])


def decontaminate(config: DecontaminateConfig) -> ContaminationAttributes:
    """Mark the documents that repeat evaluation suites.

    Args:
        config: Documents, index, suites, rules and output.
    Returns:
        The attributes.
    Raises:
        MissingSuiteError: The index does not hold a suite that the step says it removes.
        FeatureVersionError: The index holds features of another version.
    """
    index = load_index(config.index_path, config.feature_version)
    missing = [suite for suite in config.decontaminates if not index.suites.get(suite)]
    if missing:
        raise MissingSuiteError(missing, known=sorted(index.suites), detail="Build the index with them.")
    with pipeline("decontaminate") as context:
        counts = count(context, _marks(config))
        if config.overlap.flagged_per_shard:
            count(context, _flagged(config))
    return ContaminationAttributes(
        suites=config.decontaminates,
        num_documents=counts.get("datakit/documents_in", 0),
        num_touched=counts.get("datakit/touched", 0),
        num_contaminated=counts.get("datakit/contaminated", 0),
        contaminated_bytes=counts.get("datakit/contaminated_bytes", 0),
        counters=counts,
    )


def _documents(config: DecontaminateConfig) -> Dataset:
    pattern = f"{config.documents_path}/outputs/main/part-*.parquet"
    return Dataset.from_files(pattern).load_parquet(columns=["id", "text", "source"])


def _marks(config: DecontaminateConfig) -> Dataset:
    threshold, drop_path = config.overlap.threshold, config.drop_sets_path
    index_path, version = config.index_path, config.feature_version

    def marked(batch: pa.RecordBatch) -> pa.RecordBatch:
        index, drops = load_index(index_path, version), load_drop_sets(drop_path)
        rows = []
        ids, texts, sources = (batch.column(name).to_pylist() for name in ("id", "text", "source"))
        for identity, text, source in zip(ids, texts, sources, strict=True):
            dropped = drops.get(source or "", drops[EVERYWHERE])
            share, matched = overlap(paragraph_features(text, index.features), index.hashes, dropped)
            if len(matched):
                rows.append((identity, share >= threshold, share, matched))
                size = len(text.encode()) if share >= threshold else 0
                counters.increment("datakit/contaminated_bytes", size)
        counters.increment("datakit/documents_in", len(ids))
        counters.increment("datakit/touched", len(rows))
        counters.increment("datakit/contaminated", sum(row[1] for row in rows))
        columns = [pa.array([row[place] for row in rows], CONTAMINATION_SCHEMA.field(place).type) for place in range(4)]
        return pa.RecordBatch.from_arrays(columns, schema=CONTAMINATION_SCHEMA)

    target = f"{config.output_path}/outputs/main/part-{{shard:05d}}-of-{{total:05d}}.parquet"
    return _documents(config).map_batches(marked).write_parquet(target, schema=CONTAMINATION_SCHEMA)


def _flagged(config: DecontaminateConfig) -> Dataset:
    marks, limit, index_path = f"{config.output_path}/outputs/main", config.overlap.flagged_per_shard, config.index_path

    def sampled(rows: Iterable[dict[str, Any]], shard: ShardInfo) -> Iterator[dict[str, Any]]:
        name = f"part-{shard.shard_idx:05d}-of-{shard.total_shards:05d}.parquet"
        table = pq.read_table(f"{marks}/{name}", filters=[("contaminated", "=", True)])
        flagged = {mark["id"]: mark for mark in table.slice(0, limit).to_pylist()}
        names = _eval_ids(index_path, [mark["matched_hashes"] for mark in flagged.values()])
        for row in rows:
            mark = flagged.get(row["id"])
            if mark is not None:
                found = sorted({name for value in mark["matched_hashes"] for name in names[value]})[:MAX_EVAL_IDS]
                yield {**row, "max_overlap": mark["max_overlap"], "eval_ids": found}

    target = f"{config.output_path}/outputs/flagged_sample/part-{{shard:05d}}-of-{{total:05d}}.parquet"
    return _documents(config).map_shard(sampled).write_parquet(target, schema=FLAGGED_SCHEMA)


def _eval_ids(index_path: str, matched: list[list[int]]) -> dict[int, list[str]]:
    """Evaluation documents that hold a feature, by feature."""
    wanted = {value for values in matched for value in values}
    names: dict[int, list[str]] = {value: [] for value in wanted}
    if wanted:
        column = pa.array(sorted(wanted), pa.uint64())
        table = pq.read_table(f"{index_path}/{ONE_SHARD}", filters=pc.field("hash").isin(column))
        for row in table.to_pylist():
            names[row["hash"]].append(row["eval_id"])
    return names
