"""The ledger as flat tables: steps, attempts, inputs and events.

The tables are a pure function of the files in the store. ``index`` keeps them in one file beside the events, so that
a large store is parsed once; it is a cache: delete it, and the next reader writes the same bytes again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from marin.execution._files import json_text, replace_text
from marin.execution._objects import is_remote
from marin.execution.events import LEDGER_FOLDER
from marin.execution.layout import RECORD_FILE, below
from marin.execution.records import read_record, read_text
from marin.ledger.ledger import Ledger
from marin.ledger.scan import compacted_paths, event_paths

COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "steps": (
        ("name", "VARCHAR"), ("version", "VARCHAR"), ("status", "VARCHAR"), ("category", "VARCHAR"), ("at", "VARCHAR"),
        ("fingerprint", "VARCHAR"), ("content_digest", "VARCHAR"), ("files", "BIGINT"), ("bytes", "BIGINT"),
        ("seconds", "DOUBLE"), ("cpu_s", "DOUBLE"), ("ram_peak", "BIGINT"), ("result", "VARCHAR"),
        ("config", "VARCHAR"),
        ("commit", "VARCHAR"), ("built_by", "VARCHAR"), ("attempt", "VARCHAR"), ("path", "VARCHAR"),
    ),
    "attempts": (
        ("attempt", "VARCHAR"), ("step", "VARCHAR"), ("epoch", "BIGINT"), ("status", "VARCHAR"),
        ("category", "VARCHAR"),
        ("started_at", "VARCHAR"), ("ended_at", "VARCHAR"), ("seconds", "DOUBLE"), ("host", "VARCHAR"),
        ("pid", "BIGINT"),
        ("error_type", "VARCHAR"), ("message", "VARCHAR"), ("signature", "VARCHAR"), ("fingerprint", "VARCHAR"),
        ("retry_of", "VARCHAR"),
    ),
    "inputs": (
        ("step", "VARCHAR"), ("input", "VARCHAR"), ("digest", "VARCHAR"), ("path", "VARCHAR"),
    ),
    "events": (
        ("id", "VARCHAR"), ("at", "VARCHAR"), ("kind", "VARCHAR"), ("step", "VARCHAR"), ("version", "VARCHAR"),
        ("attempt", "VARCHAR"), ("actor", "VARCHAR"), ("commit", "VARCHAR"), ("data", "VARCHAR"),
    ),
}  # fmt: skip
"""Columns of each table, with their SQL types."""

Rows = dict[str, list[list[Any]]]


def build_tables(ledger: Ledger) -> Rows:
    """Every table, from the files in the store; rows in a fixed order."""
    return {
        "steps": list(_step_rows(ledger)),
        "attempts": list(_attempt_rows(ledger)),
        "inputs": list(_input_rows(ledger)),
        "events": [
            [event.id, event.at, event.kind, event.step, event.version, event.attempt, event.actor, event.commit,
             json.dumps(event.data, sort_keys=True)]
            for event in ledger.events()
        ],
    }  # fmt: skip


def _step_rows(ledger: Ledger) -> Iterator[list[Any]]:
    for entry in ledger.steps():
        record = read_record(entry.path)
        status = entry.status
        used = (record.resources or {}).get("used") or {} if record is not None else {}
        made: list[Any] = [None] * 12
        if record is not None:
            provenance = record.provenance
            made = [
                record.fingerprint, record.content_digest, record.files, record.bytes, record.seconds,
                used.get("cpu_s"), used.get("ram_peak"),
                json.dumps(record.result, sort_keys=True), json.dumps(record.config, sort_keys=True),
                provenance.get("base_commit"), provenance.get("built_by"), record.attempt,
            ]  # fmt: skip
        category = status.category if status is not None else ""
        at = status.at if status is not None else ""
        yield [entry.name, entry.version, entry.state, category, at, *made, below(entry.path, ledger.prefix)]


def _attempt_rows(ledger: Ledger) -> Iterator[list[Any]]:
    for item in ledger.attempts():
        error = item.error or {}
        yield [
            item.attempt, item.step, item.epoch, item.status, item.category, item.started_at, item.ended_at,
            item.seconds,
            item.host, item.pid, error.get("type"), error.get("message"), error.get("signature"), item.fingerprint,
            item.retry_of,
        ]  # fmt: skip


def _input_rows(ledger: Ledger) -> Iterator[list[Any]]:
    for record in ledger.records():
        for ref, path, digest in zip(record.deps, record.dep_paths, record.dep_digests, strict=False):
            yield [f"{record.name}@{record.version}", ref, digest, below(path, ledger.prefix)]


def index_path(prefix: str) -> str:
    """Where the index lies."""
    return os.path.join(prefix, LEDGER_FOLDER, "index.json")


def source_digest(ledger: Ledger) -> str:
    """Hash over name, size and time of every file that the tables are made from."""
    digest = hashlib.sha256()

    def add(path: str) -> None:
        try:
            info = os.stat(path)
        except FileNotFoundError:
            return
        digest.update(f"{os.path.relpath(path, ledger.prefix)} {info.st_size} {info.st_mtime_ns}\n".encode())

    for entry in ledger.steps():
        for path in (entry.layout.status, entry.layout.lease, os.path.join(entry.path, RECORD_FILE)):
            add(path)
        if os.path.isdir(entry.layout.attempts):
            for name in sorted(os.listdir(entry.layout.attempts)):
                add(os.path.join(entry.layout.attempts, name))
    for path in (*event_paths(ledger.prefix), *compacted_paths(ledger.prefix)):
        add(path)
    return digest.hexdigest()


def load_tables(ledger: Ledger, *, on_rebuild: Callable[[], None] = lambda: None) -> Rows:
    """Every table, from the index when it is fresh, else from the store (and the index is written again).

    Args:
        ledger: The store.
        on_rebuild: Called when the index had to be made.

    A store of objects has no index: to tell whether one is fresh would cost as many requests as to do without.
    """
    if is_remote(ledger.prefix):
        on_rebuild()
        return build_tables(ledger)
    digest = source_digest(ledger)
    path = index_path(ledger.prefix)
    text = read_text(path)
    if text is not None:
        try:
            stored = json.loads(text)
            if stored.get("source") == digest and stored.get("columns") == _column_names():
                return stored["tables"]
        except (ValueError, AttributeError, KeyError):
            pass  # a torn or foreign index is only a cache that has to be made again
    tables = build_tables(ledger)
    on_rebuild()
    if os.path.isdir(os.path.dirname(path)):
        try:
            replace_text(
                path, json_text({"source": digest, "columns": _column_names(), "tables": tables}), durable=False
            )
        except OSError:
            return tables  # a store that may only be read has no index, and needs none
    return tables


def _column_names() -> dict[str, list[str]]:
    return {table: [name for name, _ in columns] for table, columns in COLUMNS.items()}
