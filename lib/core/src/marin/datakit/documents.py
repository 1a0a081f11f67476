"""The document: the one record that all curation stages speak.

The problem: every corpus has its own field names, and a pipeline that carries them all along carries none reliably.
The idea: four columns and no more. ``metadata`` is JSON text, so that the schema of a shard never depends on its rows.

==========  ======================================================================================
``id``      32 hex digits, xxh3-128 of the UTF-8 text after normalisation; equal text, equal id
``text``    the text itself, never blank
``source``  label of the source (``marin.datakit.sources.Source.label``)
``metadata``  JSON object with ``source_id``, ``group`` and whatever else the source knows
==========  ======================================================================================

``group`` names what must stay together when documents are split (a file and the docstrings inside it); it defaults to
``source_id``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from marin.datakit.errors import DocumentFieldError


class Document(TypedDict):
    """One row of a documents file before normalisation (the id is computed there)."""

    text: str
    source: str
    metadata: str


def make_document(text: str, *, source: str, source_id: str, group: str | None = None, **metadata: Any) -> Document:
    """Build a document whose metadata is JSON with sorted keys.

    Args:
        text: The text; blank texts are dropped by normalisation, not here.
        source: Label of its source.
        source_id: What the source itself calls the record.
        group: What must stay on one side of a split; defaults to ``source_id``.
        **metadata: Anything JSON can hold.
    Returns:
        The document.
    Example:
        >>> make_document("hi", source="path:x", source_id="x#1")["metadata"]
        '{"group": "x#1", "source_id": "x#1"}'
    """
    fields = {**metadata, "source_id": source_id, "group": group or source_id}
    return Document(text=text, source=source, metadata=json.dumps(fields, sort_keys=True, ensure_ascii=False))


def text_of(record: Mapping[str, Any], text_key: str, *, where: str) -> str:
    """Take the text of a foreign record.

    Raises:
        DocumentFieldError: The field is missing or not a string.
    Example:
        >>> text_of({"body": "hello"}, "body", where="x.jsonl")
        'hello'
    """
    value = record.get(text_key)
    if not isinstance(value, str):
        found = f"fields {sorted(map(str, record))}" if text_key not in record else type(value).__name__
        raise DocumentFieldError(text_key, found=found, where=where)
    return value
