"""Read the curves that a training run left in ``metrics.jsonl``. No jax."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

TRAIN_LOSS = "train/loss"
VALIDATION_LOSS = "eval/corpus/loss"


def read_metrics(path: str) -> Iterator[dict[str, Any]]:
    """Lines of a metrics file, in order.

    Args:
        path: A ``metrics.jsonl``.
    Yields:
        One object a line, with ``step``.
    """
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def curve(path: str, metric: str) -> list[tuple[float, float]]:
    """Points ``(step, value)`` of one metric; steps without it are left out."""
    return [(row["step"], float(row[metric])) for row in read_metrics(path) if metric in row]


def last_value(path: str, metric: str) -> float | None:
    """The last value of a metric, or None when it was never logged."""
    points = curve(path, metric)
    return points[-1][1] if points else None
