"""What a curation stage handed on and what it lost, read from its record.

The problem: a filter that removes half a corpus looks like any other green box. The idea: every stage's artifact counts
what came in and why it did not go out; this module turns those fields into one row of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from marin.datakit.artifacts import ConsolidatedData, DocumentCollection, NormalizedData
from marin.execution.fingerprint import type_name
from marin.execution.records import ArtifactRecord
from marin.reports.view import LossRow


def _collected(stage: str, result: Mapping[str, Any]) -> LossRow:
    lost = [("malformed lines", result["num_bad_lines"])]
    lost.append(("undecodable files", result["counters"].get("datakit/undecodable", 0)))
    return LossRow(stage, result["num_documents"], result["num_bytes"], lost)


def _normalised(stage: str, result: Mapping[str, Any]) -> LossRow:
    lost = [("blank", result["num_blank"]), ("exact repeats", result["num_repeats"])]
    return LossRow(stage, result["num_documents"], result["num_bytes"], lost)


def _consolidated(stage: str, result: Mapping[str, Any]) -> LossRow:
    lost = [("near duplicates", result["num_dropped_duplicates"]), ("bytes of them", result["dropped_bytes"])]
    lost.append(("contaminated", result.get("num_dropped_contaminated", 0)))
    return LossRow(stage, sum(result["num_documents"].values()), sum(result["num_bytes"].values()), lost)


_ROWS: Mapping[str, Callable[[str, Mapping[str, Any]], LossRow]] = {
    type_name(DocumentCollection): _collected,
    type_name(NormalizedData): _normalised,
    type_name(ConsolidatedData): _consolidated,
}


def loss_row(stage: str, record: ArtifactRecord) -> LossRow | None:
    """The row of one curation stage; None for steps of another kind.

    Args:
        stage: Name shown.
        record: The stage's record.
    Returns:
        Documents and bytes handed on, and non-zero losses by reason.
    """
    build = _ROWS.get(record.result_type)
    if build is None:
        return None
    row = build(stage, record.result or {})
    return LossRow(row.stage, row.documents, row.text_bytes, [(reason, count) for reason, count in row.lost if count])
