"""Documents from files the user already has: jsonl, jsonl.gz, jsonl.zst, parquet, txt.

The problem: foreign records name their fields as they like, and one malformed line among millions must neither stop a
night's work silently nor vanish. The idea: one field holds the text, the rest becomes metadata, and ``on_bad_line``
says what a malformed line means; skipped ones are counted in the record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import fsspec
from rigging.filesystem.atomic import write_json_atomic
from zephyr import Dataset, ShardInfo, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import DocumentCollection
from marin.datakit.documents import Document, make_document, text_of
from marin.datakit.errors import EmptyCorpusError, UndecodableFileError
from marin.datakit.recipe import CollectConfig
from marin.datakit.sources import JSONL_SUFFIXES, PARQUET_SUFFIXES, TEXT_SUFFIXES, list_inputs


def read_text_file(path: str, text_key: str) -> Iterator[dict[str, str]]:
    """A whole text file, decompressed by its suffix, as one record.

    Raises:
        UndecodableFileError: It is not UTF-8; the error names the byte.
    """
    file_system, plain = fsspec.core.url_to_fs(path)
    with file_system.open(plain, "rb", compression="infer") as file:
        data = file.read()
    try:
        yield {text_key: data.decode("utf-8"), "id": os.path.basename(path)}
    except UnicodeDecodeError as error:
        raise UndecodableFileError(path, position=error.start, byte=data[error.start]) from error


def load_records(paths: list[str], config: CollectConfig) -> list[Dataset]:
    """One dataset a kind of file, each of records that have the text field."""
    key = config.text_key
    jsonl, parquet, text = (
        [path for path in paths if path.endswith(suffixes)]
        for suffixes in (JSONL_SUFFIXES, PARQUET_SUFFIXES, TEXT_SUFFIXES)
    )
    datasets = []
    if jsonl:
        datasets.append(Dataset.from_files(jsonl).load_jsonl(on_bad_line=config.on_bad_line))
    if parquet:
        datasets.append(Dataset.from_files(parquet).load_parquet())
    if text and config.text_unit == "line":
        datasets.append(Dataset.from_files(text).load_text().map(lambda row: {key: row["text"]}))
    elif text:
        datasets.append(Dataset.from_list(text).flat_map(lambda path: read_text_file(path, key)))
    return datasets


def to_documents(
    rows: Iterable[dict[str, Any]], shard: ShardInfo, *, kind: int, label: str, text_key: str
) -> Iterator[Document]:
    """Foreign records as documents; a record without an ``id`` is named by its place.

    Args:
        rows: Records of one shard.
        shard: Which one.
        kind: Number of the file kind, part of a record's place.
        label: Label of the source.
        text_key: Field of the text.
    Yields:
        One document a record.
    Raises:
        DocumentFieldError: A record lacks the text field.
    """
    for index, row in enumerate(rows):
        text = text_of(row, text_key, where=f"shard {shard.shard_idx}, record {index}")
        counters.increment("datakit/bytes_in", len(text.encode()))
        own = row.get("id", f"{kind}-{shard.shard_idx:05d}-{index:08d}")
        yield make_document(text, source=label, source_id=str(own))


def collect_files(config: CollectConfig, *, pattern: str | None = None) -> DocumentCollection:
    """Turn the files a glob names into documents.

    Args:
        config: What to read and where to write.
        pattern: Glob of the files where it is not the source's location (downloads).
    Returns:
        The collection.
    Raises:
        SourceNotFoundError: The glob matches nothing readable.
        EmptyCorpusError: The files hold no record.
        DocumentFieldError: A record lacks the text field.
        zephyr.BadRecordError: A malformed line under ``on_bad_line="fail"``.
    """
    paths = list_inputs(pattern or config.source.location)[: config.max_files]
    label = config.source.label
    totals: dict[str, int] = {}
    with pipeline("collect-files") as context:
        for kind, records in enumerate(load_records(paths, config)):
            target = f"{config.output_path}/documents/part-{kind}-{{shard:05d}}-of-{{total:05d}}.jsonl.zst"
            documents = records.map_shard(partial(to_documents, kind=kind, label=label, text_key=config.text_key))
            for name, value in count(context, documents.write_jsonl(target)).items():
                totals[name] = totals.get(name, 0) + value
    found = totals.get("zephyr/records_out", 0)
    if not found:
        raise EmptyCorpusError("collection", seen=0, detail=f"The {len(paths)} files matched hold no record.")
    names = [os.path.basename(path) for path in paths]
    write_json_atomic(
        f"{config.output_path}/source.json", {"label": label, "licence": config.source.licence, "files": names}
    )
    return DocumentCollection(
        source=label,
        licence=config.source.licence,
        num_documents=found,
        num_bytes=totals.get("datakit/bytes_in", 0),
        num_bad_lines=totals.get("zephyr/bad_records", 0),
        counters=totals,
    )
