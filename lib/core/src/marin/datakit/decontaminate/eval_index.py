"""The index: which hashed feature belongs to which evaluation document.

An exact sorted table instead of a Bloom filter: there is no false positive but that of the 64-bit hash itself (about
``features / 2**64`` for each n-gram looked up), nothing has to be sized before the suites are known, two indices merge
by concatenation, and a hit names its document. The price is 8 bytes a feature in each worker against about 5.4 of a
filter at 1e-9; ten million features are 80 MB.

Output: ``outputs/main/part-00000-of-00001.parquet`` with columns ``hash, eval_id`` (``suite/document``), sorted, no row
twice, and ``index.json``: features of each suite, and how texts were cut. Equal input gives equal bytes at any number
of workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from glob import glob
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rigging.filesystem.atomic import write_json_atomic
from zephyr import Dataset, ShardInfo, ZephyrContext, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import EvalIndex
from marin.datakit.decontaminate.features import PARAGRAPH, paragraph_features
from marin.datakit.documents import text_of
from marin.datakit.errors import FeatureVersionError, MissingSuiteError, SourceNotFoundError
from marin.datakit.recipe import EvalIndexConfig, EvalSuite, FeatureRule
from marin.datakit.sources import JSONL_SUFFIXES, PARQUET_SUFFIXES, list_inputs

INDEX_SCHEMA = pa.schema(
    [pa.field("hash", pa.uint64(), nullable=False), pa.field("eval_id", pa.string(), nullable=False)]
)
ONE_SHARD = "outputs/main/part-00000-of-00001.parquet"


@dataclass(frozen=True)
class LoadedIndex:
    """An index in memory.

    Attributes:
        hashes: Distinct features, ascending, ``uint64``.
        features: How texts were cut.
        suites: Features of each suite.
    """

    hashes: np.ndarray
    features: FeatureRule
    suites: dict[str, int]


def load_index(path: str, feature_version: int) -> LoadedIndex:
    """Read an index; a second call in the same process costs nothing.

    Args:
        path: Folder of the index.
        feature_version: Version that the reader makes features of.
    Raises:
        FeatureVersionError: The index holds features of another version.
    """
    return _load(path, feature_version, os.stat(f"{path}/index.json").st_mtime_ns)


@lru_cache(maxsize=2)
def _load(path: str, feature_version: int, _changed: int) -> LoadedIndex:
    with open(f"{path}/index.json", encoding="utf-8") as file:
        about = json.load(file)
    if about["feature_version"] != feature_version:
        raise FeatureVersionError(path, found=about["feature_version"], expected=feature_version)
    hashes = np.unique(pq.read_table(f"{path}/{ONE_SHARD}", columns=["hash"]).column("hash").to_numpy())
    return LoadedIndex(hashes, FeatureRule(**about["features"]), about["suites"])


def contains(sorted_set: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which values are in an ascending array of distinct numbers.

    Args:
        sorted_set: The set, any length.
        values: Any shape and order.
    Returns:
        A boolean array of the shape of ``values``.
    Example:
        >>> contains(np.array([2, 5], np.uint64), np.array([5, 3, 9], np.uint64)).tolist()
        [True, False, False]
    """
    if not len(sorted_set):
        return np.zeros(values.shape, bool)
    places = np.minimum(np.searchsorted(sorted_set, values), len(sorted_set) - 1)
    return sorted_set[places] == values


def write_table(table: pa.Table, output_path: str) -> None:
    """Write the one shard of a step."""
    os.makedirs(os.path.dirname(f"{output_path}/{ONE_SHARD}"), exist_ok=True)
    pq.write_table(table, f"{output_path}/{ONE_SHARD}", compression="zstd")


def build_eval_index(config: EvalIndexConfig) -> EvalIndex:
    """Index evaluation suites.

    Args:
        config: Suites, rules and output.
    Returns:
        The artifact, with the features of every suite.
    Raises:
        MissingSuiteError: A required suite has no documents, or none that gives a feature; all such suites are named.
        DocumentFieldError: A record has none of the text fields.
    """
    suites: dict[str, int] = {}
    totals: dict[str, int] = {}
    tables = []
    with pipeline("evaluation-index") as context:
        for number, item in enumerate(config.suites):
            table, counts = _suite_features(context, item, config, f"{config.scratch_path}/suite-{number:03d}")
            for name, value in counts.items():
                totals[name] = totals.get(name, 0) + value
            if table.num_rows:
                suites[item.suite] = len(np.unique(table.column("hash").to_numpy()))
                tables.append(table)
    lost = [item.suite for item in config.suites if item.suite not in suites]
    required = [suite for suite in lost if suite in config.required]
    if required or not suites:
        raise MissingSuiteError(
            required or lost,
            known=list(suites),
            detail="No document was found, or none is long enough for a feature.",
        )
    index = pa.concat_tables(tables).sort_by([("hash", "ascending"), ("eval_id", "ascending")])
    write_table(index, config.output_path)
    about = {"feature_version": config.feature_version, "features": asdict(config.features), "suites": suites}
    write_json_atomic(f"{config.output_path}/index.json", about)
    return EvalIndex(
        suites=suites,
        missing=tuple(lost),
        num_documents=totals.get("datakit/eval_documents", 0),
        num_features=len(np.unique(index.column("hash").to_numpy())),
        counters=totals,
    )


def _suite_features(
    context: ZephyrContext, item: EvalSuite, config: EvalIndexConfig, scratch: str
) -> tuple[pa.Table, dict[str, int]]:
    """Features of one suite, one row a feature and document; an empty table when it has no documents."""
    rule = config.features

    def named(rows: Iterable[dict[str, Any]], shard: ShardInfo, kind: int) -> Iterator[dict[str, str]]:
        for place, row in enumerate(rows):
            name, text = _named_text(item, row, f"{kind}-{shard.shard_idx:05d}-{place:08d}")
            yield {"name": name, "text": text}

    def featured(batch: pa.RecordBatch) -> pa.RecordBatch:
        hashes: list[int] = []
        names: list[str] = []
        for name, text in zip(batch.column("name").to_pylist(), batch.column("text").to_pylist(), strict=True):
            features = {feature for part in paragraph_features(text, rule) for feature in part}
            counters.increment("datakit/eval_documents")
            counters.increment("datakit/eval_documents_without_features", int(not features))
            hashes += sorted(features)
            names += [f"{item.suite}/{name}"] * len(features)
        columns = [pa.array(hashes, pa.uint64()), pa.array(names, pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=INDEX_SCHEMA)

    totals: dict[str, int] = {}
    tables = [INDEX_SCHEMA.empty_table()]
    for number, records in enumerate(_records(item)):
        folder = f"{scratch}/{number}"
        target = f"{folder}/part-{{shard:05d}}-of-{{total:05d}}.parquet"
        features = records.map_shard(partial(named, kind=number)).map_batches(featured)
        counts = count(context, features.write_parquet(target, schema=INDEX_SCHEMA))
        tables += [pq.read_table(path, schema=INDEX_SCHEMA) for path in sorted(glob(f"{folder}/part-*.parquet"))]
        for name, value in counts.items():
            totals[name] = totals.get(name, 0) + value
    return pa.concat_tables(tables).group_by(["hash", "eval_id"]).aggregate([]).cast(INDEX_SCHEMA), totals


def _records(item: EvalSuite) -> list[Dataset]:
    """One data set a kind of file of a suite; none when nothing is there."""
    if item.files is None:
        collected = sorted(glob(f"{item.documents_path}/documents/part-*.jsonl.zst"))
        normalised = sorted(glob(f"{item.documents_path}/outputs/main/part-*.parquet"))
    else:
        try:
            paths = list_inputs(item.files.source.location)
        except SourceNotFoundError:
            return []
        collected = [path for path in paths if path.endswith(JSONL_SUFFIXES)]
        normalised = [path for path in paths if path.endswith(PARQUET_SUFFIXES)]
    found = []
    if collected:
        found.append(Dataset.from_files(collected).load_jsonl())
    if normalised:
        found.append(Dataset.from_files(normalised).load_parquet())
    return found


def _named_text(item: EvalSuite, row: dict[str, Any], place: str) -> tuple[str, str]:
    """What an evaluation document is called, and its text."""
    if item.files is None:
        name = row["id"] if "id" in row else json.loads(row["metadata"])["source_id"]
        return name, row["text"]
    keys = item.files.text_keys
    where = f"{item.files.source.location}, suite {item.suite}, record {place}"
    present = [key for key in keys if row.get(key) is not None] or keys[:1]
    return str(row.get("id", place)), PARAGRAPH.join(text_of(row, key, where=where) for key in present)
