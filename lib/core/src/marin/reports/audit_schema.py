"""The JSON Schema of ``marin audit --json``, derived from the view itself so that the two cannot drift apart."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from typing import Any

from marin.reports.audit_view import AuditView

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def audit_schema() -> dict[str, Any]:
    """The schema, draft 2020-12.

    Example:
        >>> audit_schema()["properties"]["ok"]
        {'type': 'boolean'}
    """
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "marin audit", **_schema(AuditView)}


def _schema(kind: Any) -> dict[str, Any]:
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {item.name: _schema(hints[item.name]) for item in dataclasses.fields(kind)}
        return {"type": "object", "properties": fields, "required": sorted(fields), "additionalProperties": False}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is collections.abc.Sequence:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is collections.abc.Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(item) for item in arguments]}
    raise TypeError(f"no schema for the field type {kind!r}; expected plain values, sequences, mappings, dataclasses.")
