"""N-grams that are common language: removed from both sides of the overlap, in one source or in all.

The problem: a licence header or a stock phrase that an evaluation document happens to hold marks half a corpus. The
idea: count documents. The danger: a leaked suite is common too, in the source that leaked it. So an n-gram of the index
is dropped only when it is *spread*: at least ``min_sources`` sources each hold a share of the documents that hold it.

Two rules (`marin.datakit.recipe.DropRule`): of one source, by a sample of its documents, any n-gram; of all, by
many documents of each source, n-grams of the index only, because for others the rule changes nothing but denominators.
A sample is the documents with the smallest ids; ids are hashes of the texts, so it is uniform, and the same at any
sharding.

Output: ``outputs/main/part-00000-of-00001.parquet`` with columns ``source`` (``*``: all), ``hash``, ``documents``,
``sources``, sorted.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import lru_cache
from glob import glob

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from zephyr import Dataset

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import DropSets
from marin.datakit.decontaminate.eval_index import ONE_SHARD, contains, load_index, write_table
from marin.datakit.decontaminate.features import paragraph_features
from marin.datakit.errors import EmptyCorpusError
from marin.datakit.recipe import DropRule, DropSetsConfig, FeatureRule

EVERYWHERE = "*"
DROP_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("sources", pa.int64(), nullable=False),
    ]
)
COUNT_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("sampled", pa.int64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
    ]
)


def load_drop_sets(path: str) -> dict[str, np.ndarray]:
    """Dropped n-grams by source, those of all sources included and under ``EVERYWHERE`` too.

    Args:
        path: Folder of the drop sets, or empty for none.
    Returns:
        Ascending ``uint64`` arrays.
    """
    if not path:
        return {EVERYWHERE: np.empty(0, np.uint64)}
    return _load(path, os.stat(f"{path}/{ONE_SHARD}").st_mtime_ns)


@lru_cache(maxsize=2)
def _load(path: str, _changed: int) -> dict[str, np.ndarray]:
    table = pq.read_table(f"{path}/{ONE_SHARD}", columns=["source", "hash"])
    sources, hashes = np.array(table.column("source").to_pylist(), object), table.column("hash").to_numpy()
    everywhere = hashes[sources == EVERYWHERE]
    names = set(sources.tolist()) | {EVERYWHERE}
    return {name: np.union1d(hashes[sources == name], everywhere) for name in names}


def choose_drops(counts: pa.Table, sizes: dict[str, int], index: np.ndarray, rule: DropRule) -> tuple[pa.Table, int]:
    """Decide from document frequencies.

    Args:
        counts: Rows of ``COUNT_SCHEMA``, one for each source and n-gram.
        sizes: Documents in the sample of each source.
        index: Features of the suites, ascending.
        rule: What is common.
    Returns:
        Rows of ``DROP_SCHEMA``, sorted, and how many frequent n-grams of the index stay evidence.
    """
    source = np.array(counts.column("source").to_pylist(), object)
    hashes, sampled, documents = (counts.column(name).to_numpy() for name in ("hash", "sampled", "documents"))
    distinct, inverse = np.unique(hashes, return_inverse=True)
    total = np.bincount(inverse, documents, len(distinct)).astype(np.int64)
    holds = documents >= np.maximum(rule.min_source_share * total[inverse], 1)
    spread = np.bincount(inverse, holds, len(distinct)).astype(np.int64)
    evidence = contains(index, distinct) & (spread < rule.min_sources)
    least = np.array([max(rule.min_documents, rule.min_share * sizes[name]) for name in source], float)
    common = sampled >= least
    here = common & ~evidence[inverse]
    everywhere = contains(index, distinct) & (total >= rule.global_min_documents) & (spread >= rule.min_sources)
    frequent = np.zeros(len(distinct), bool)
    frequent[inverse[common]] = True
    frequent |= total >= rule.global_min_documents
    rows = pa.table(
        [
            pa.array([*source[here], *([EVERYWHERE] * int(everywhere.sum()))], pa.string()),
            pa.array(np.concatenate([hashes[here], distinct[everywhere]]), pa.uint64()),
            pa.array(np.concatenate([sampled[here], total[everywhere]]), pa.int64()),
            pa.array(np.concatenate([spread[inverse][here], spread[everywhere]]), pa.int64()),
        ],
        schema=DROP_SCHEMA,
    )
    return rows.sort_by([("source", "ascending"), ("hash", "ascending")]), int((frequent & evidence).sum())


def build_drop_sets(config: DropSetsConfig) -> DropSets:
    """Find the n-grams that are common language.

    Args:
        config: Documents, index, rule and output.
    Returns:
        The artifact.
    Raises:
        EmptyCorpusError: There are no documents.
        FeatureVersionError: The index holds features of another version.
    """
    patterns = [f"{path}/outputs/main/part-*.parquet" for path in config.documents_paths]
    bounds = _sample_bounds([path for pattern in patterns for path in sorted(glob(pattern))], config.rule)
    index = load_index(config.index_path, config.feature_version)
    index_path, version = config.index_path, config.feature_version

    def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
        loaded = load_index(index_path, version)
        return count_batch(batch, bounds, loaded.hashes, loaded.features)

    parts = [Dataset.from_files(pattern).load_parquet(columns=["id", "text", "source"]) for pattern in patterns]
    folder = f"{config.scratch_path}/counts"
    with pipeline("drop-sets") as context:
        target = f"{folder}/part-{{shard:05d}}-of-{{total:05d}}.parquet"
        count(context, Dataset.union(*parts).map_batches(counted).write_parquet(target, schema=COUNT_SCHEMA))
    tables = [pq.read_table(path, schema=COUNT_SCHEMA) for path in sorted(glob(f"{folder}/part-*.parquet"))]
    merged = pa.concat_tables(tables).group_by(["source", "hash"]).aggregate([("sampled", "sum"), ("documents", "sum")])
    counts = merged.rename_columns({"sampled_sum": "sampled", "documents_sum": "documents"})
    sizes = {name: bound[2] for name, bound in bounds.items()}
    drops, kept = choose_drops(counts, sizes, index.hashes, config.rule)
    write_table(drops, config.output_path)
    by_source = Counter(drops.column("source").to_pylist())
    return DropSets(
        num_documents={name: bound[3] for name, bound in sorted(bounds.items())},
        num_dropped={name: by_source[name] for name in sorted(bounds)},
        num_dropped_everywhere=by_source[EVERYWHERE],
        num_kept_concentrated=kept,
    )


Bounds = dict[str, tuple[str, str, int, int]]
"""By source: last id of its sample, last id that is counted for the global rule, and the documents up to each."""


def count_batch(batch: pa.RecordBatch, bounds: Bounds, index: np.ndarray, features: FeatureRule) -> pa.RecordBatch:
    """Document frequencies of one batch: all n-grams of sampled documents, n-grams of the index of the others."""
    found: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    ids, texts, sources = (batch.column(name).to_pylist() for name in ("id", "text", "source"))
    for identity, text, source in zip(ids, texts, sources, strict=True):
        sample_end, global_end, _, _ = bounds[source or ""]
        if identity > max(sample_end, global_end):
            continue
        distinct = np.array(sorted({f for part in paragraph_features(text, features) for f in part}), np.uint64)
        sampled, counted = found.setdefault(source or "", ([], []))
        if identity <= sample_end:
            sampled.append(distinct)
        if identity <= global_end:
            counted.append(distinct[contains(index, distinct)])
    columns: dict[str, list[np.ndarray]] = {"hash": [], "sampled": [], "documents": []}
    names: list[str] = []
    for source, (sampled, counted) in sorted(found.items()):
        kinds = np.concatenate([np.empty(0, np.uint64), *sampled, *counted])
        weights = np.arange(len(kinds)) < sum(map(len, sampled))
        distinct, inverse = np.unique(kinds, return_inverse=True)
        columns["hash"].append(distinct)
        columns["sampled"].append(np.bincount(inverse, weights, len(distinct)))
        columns["documents"].append(np.bincount(inverse, ~weights, len(distinct)))
        names += [source] * len(distinct)
    flat = {name: np.concatenate([np.empty(0, np.uint64), *parts]) for name, parts in columns.items()}
    return pa.RecordBatch.from_arrays(
        [
            pa.array(names, pa.string()),
            pa.array(flat["hash"].astype(np.uint64), pa.uint64()),
            pa.array(flat["sampled"].astype(np.int64), pa.int64()),
            pa.array(flat["documents"].astype(np.int64), pa.int64()),
        ],
        schema=COUNT_SCHEMA,
    )


def _sample_bounds(paths: list[str], rule: DropRule) -> Bounds:
    """Where the samples of each source end, in the order of ids."""
    kept: dict[str, list[str]] = {}
    limit = max(rule.sample_documents, rule.global_documents)
    for path in paths:
        table = pq.read_table(path, columns=["id", "source"])
        for identity, source in zip(table.column("id").to_pylist(), table.column("source").to_pylist(), strict=True):
            kept.setdefault(source or "", []).append(identity)
        kept = {source: sorted(ids)[:limit] for source, ids in kept.items()}
    if not kept:
        raise EmptyCorpusError("the counting of n-grams", seen=0, detail="Are the normalised documents there?")
    sizes = {
        source: (min(rule.sample_documents, len(ids)), min(rule.global_documents, len(ids)))
        for source, ids in kept.items()
    }
    return {source: (kept[source][a - 1], kept[source][b - 1], a, b) for source, (a, b) in sizes.items()}
