"""Consolidate: drop what the attributes condemn, and split what is left.

The problem: held-out text must be unseen text. The idea: duplicates go first, over the whole corpus; then the split is
a pure function of each document's ``group`` (a file and its docstrings share one), so it survives re-runs, new
documents and any number of shards.

Output: ``outputs/{train,validation,test}/part-NNNNN-of-MMMMM.parquet`` with the columns of the normalised documents,
sorted by ``id``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.parquet as pq
import xxhash
from zephyr import Dataset, ShardInfo, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import ConsolidatedData
from marin.datakit.errors import EmptyCorpusError
from marin.datakit.normalize import NORMALISED_SCHEMA
from marin.datakit.recipe import ConsolidateConfig, SplitRule

SPLITS = ("train", "validation", "test")


def split_of(group: str, rule: SplitRule) -> str:
    """The split that a group of documents belongs to.

    Args:
        group: What must stay together.
        rule: Shares and salt.
    Returns:
        ``train``, ``validation`` or ``test``.
    Example:
        >>> {split_of(f"module_{i}.py", SplitRule()) for i in range(200)} == {"train", "validation", "test"}
        True
    """
    percent = xxhash.xxh3_64_intdigest(f"{rule.salt}\x00{group}".encode("utf-8", "surrogatepass")) / 2**64 * 100
    if percent < rule.test_percent:
        return "test"
    return "validation" if percent < rule.test_percent + rule.validation_percent else "train"


def consolidate(config: ConsolidateConfig) -> ConsolidatedData:
    """Drop duplicates and write the splits.

    Args:
        config: Inputs, rules and outputs.
    Returns:
        The artifact, with documents and bytes of every split and of what was dropped.
    Raises:
        EmptyCorpusError: A split would be empty.
    """
    documents: dict[str, int] = {}
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    with pipeline("consolidate") as context:
        for split in SPLITS:
            counts = count(context, _split_dataset(config, split))
            documents[split] = counts.get("zephyr/records_out", 0)
            sizes[split] = counts.get(f"datakit/bytes_{split}", 0)
            if not documents[split]:
                seen = counts.get("zephyr/records_in", 0)
                raise EmptyCorpusError(
                    f"the {split} split",
                    seen=seen,
                    detail="Give more documents, or larger shares to the held-out splits.",
                )
    return ConsolidatedData(
        num_documents=documents,
        num_bytes=sizes,
        num_dropped_duplicates=counts.get("datakit/dropped_duplicates", 0),
        dropped_bytes=counts.get("datakit/dropped_bytes", 0),
    )


def _split_dataset(config: ConsolidateConfig, split: str) -> Dataset:
    rule = config.split
    duplicates = f"{config.duplicates_path}/outputs/main"

    def select(rows: Iterable[dict[str, Any]], shard: ShardInfo) -> Iterator[dict[str, Any]]:
        name = f"part-{shard.shard_idx:05d}-of-{shard.total_shards:05d}.parquet"
        condemned = set(pq.read_table(f"{duplicates}/{name}", columns=["id"]).column("id").to_pylist())
        for row in rows:
            size = len(row["text"].encode())
            if row["id"] in condemned:
                counters.increment("datakit/dropped_duplicates")
                counters.increment("datakit/dropped_bytes", size)
            elif split_of(json.loads(row["metadata"])["group"], rule) == split:
                counters.increment(f"datakit/bytes_{split}", size)
                yield row

    target = f"{config.output_path}/outputs/{split}/part-{{shard:05d}}-of-{{total:05d}}.parquet"
    return (
        Dataset.from_files(f"{config.documents_path}/outputs/main/part-*.parquet")
        .load_parquet()
        .map_shard(select)
        .write_parquet(target, schema=NORMALISED_SCHEMA)
    )
