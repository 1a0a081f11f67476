"""Consolidate: drop what the attributes condemn, and split what is left.

The problem: held-out text must be unseen text. The idea: duplicates go first, over the whole corpus; then the split is
a pure function of each document's ``group`` (a file and its docstrings share one), so it survives re-runs, new
documents and any number of shards.

Output: ``outputs/{train,validation,test}/part-NNNNN-of-MMMMM.parquet`` with the columns of the normalised documents,
sorted by ``id``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from glob import glob
from typing import Any

import pyarrow.parquet as pq
import xxhash
from zephyr import Dataset, ShardInfo, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit._split_sink import SPLIT_COLUMN, SplitSink
from marin.datakit.artifacts import ConsolidatedData
from marin.datakit.errors import EmptyCorpusError, ShardMismatchError
from marin.datakit.normalize import NORMALISED_SCHEMA
from marin.datakit.recipe import CleanConsolidateConfig, ConsolidateConfig, SplitRule

SPLITS = ("train", "validation", "test")
_DEALT = ".dealt"


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
    """Drop duplicates, and contaminated documents where their marks are given, and write the splits.

    Args:
        config: Inputs, rules and outputs.
    Returns:
        The artifact, with documents and bytes of every split and of what was dropped.
    Raises:
        EmptyCorpusError: A split would be empty.
        ShardMismatchError: Contamination attributes were made for other documents.
    """
    if isinstance(config, CleanConsolidateConfig):
        _same_shards(config.contamination_path, config.documents_path)
    with pipeline("consolidate") as context:
        counts = count(context, _dealt_dataset(config))
    documents = {split: counts.get(f"datakit/documents_{split}", 0) for split in SPLITS}
    for split in SPLITS:
        if not documents[split]:
            raise EmptyCorpusError(
                f"the {split} split",
                seen=counts.get("zephyr/records_in", 0),
                detail="Give more documents, or larger shares to the held-out splits.",
            )
    _move_to_splits(f"{config.output_path}/outputs")
    return ConsolidatedData(
        num_documents=documents,
        num_bytes={split: counts.get(f"datakit/bytes_{split}", 0) for split in SPLITS},
        num_dropped_duplicates=counts.get("datakit/dropped_duplicates", 0),
        dropped_bytes=counts.get("datakit/dropped_bytes", 0),
        num_dropped_contaminated=counts.get("datakit/dropped_contaminated", 0),
        dropped_contaminated_bytes=counts.get("datakit/dropped_contaminated_bytes", 0),
    )


def _contaminated(marks: str, name: str) -> set[str]:
    """Ids that one shard of contamination attributes condemns."""
    path = f"{marks}/outputs/main/{name}"
    return set(pq.read_table(path, columns=["id"], filters=[("contaminated", "=", True)]).column("id").to_pylist())


def _same_shards(attributes: str, documents: str) -> None:
    """Refuse attributes whose shards are not named like those of the documents."""
    found, expected = (
        sorted(os.path.basename(path) for path in glob(f"{folder}/outputs/main/part-*.parquet"))
        for folder in (attributes, documents)
    )
    if found != expected:
        raise ShardMismatchError(
            attributes, documents, detail=f"attribute_shards={len(found)}, document_shards={len(expected)}"
        )


def _move_to_splits(outputs: str) -> None:
    """Bring ``.dealt/<shard>/<split>.parquet`` to ``<split>/<shard>.parquet``."""
    dealt = os.path.join(outputs, _DEALT)
    for split in SPLITS:
        os.makedirs(os.path.join(outputs, split), exist_ok=True)
        for shard in sorted(glob(f"{dealt}/part-*")):
            os.rename(f"{shard}/{split}.parquet", os.path.join(outputs, split, f"{os.path.basename(shard)}.parquet"))
    shutil.rmtree(dealt)


def _dealt_dataset(config: ConsolidateConfig) -> Dataset:
    rule = config.split
    duplicates = f"{config.duplicates_path}/outputs/main"
    marks = config.contamination_path if isinstance(config, CleanConsolidateConfig) else ""
    documents = config.documents_path

    def select(rows: Iterable[dict[str, Any]], shard: ShardInfo) -> Iterator[dict[str, Any]]:
        name = f"part-{shard.shard_idx:05d}-of-{shard.total_shards:05d}.parquet"
        condemned = set(pq.read_table(f"{duplicates}/{name}", columns=["id"]).column("id").to_pylist())
        leaks = _contaminated(marks, name) if marks else set()
        unseen = set(leaks)
        for row in rows:
            unseen.discard(row["id"])
            size = len(row["text"].encode())
            if row["id"] in condemned:
                counters.increment("datakit/dropped_duplicates")
                counters.increment("datakit/dropped_bytes", size)
            elif row["id"] in leaks:
                counters.increment("datakit/dropped_contaminated")
                counters.increment("datakit/dropped_contaminated_bytes", size)
            else:
                split = split_of(json.loads(row["metadata"])["group"], rule)
                counters.increment(f"datakit/documents_{split}")
                counters.increment(f"datakit/bytes_{split}", size)
                yield {**row, SPLIT_COLUMN: split}
        if unseen:
            raise ShardMismatchError(marks, documents, detail=f"shard {name} condemns unknown ids {sorted(unseen)[:3]}")

    target = f"{config.output_path}/outputs/{_DEALT}/part-{{shard:05d}}-of-{{total:05d}}"
    return (
        Dataset.from_files(f"{config.documents_path}/outputs/main/part-*.parquet")
        .load_parquet()
        .map_shard(select)
        .write_to(SplitSink(SPLITS, NORMALISED_SCHEMA), target)
    )
