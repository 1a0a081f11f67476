"""One place that says how this room runs zephyr: a pool for one stage, shared by all its executions.

``ZEPHYR_MAX_WORKERS`` sizes the pool; 0 runs the pipeline in the calling process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zephyr import Dataset, ZephyrContext


@contextmanager
def pipeline(name: str) -> Iterator[ZephyrContext]:
    """A worker pool that lives for one stage.

    Args:
        name: Names the executions in logs and progress lines.
    Yields:
        The started context.
    """
    with ZephyrContext(name=name) as context:
        yield context


def count(context: ZephyrContext, dataset: Dataset) -> dict[str, int]:
    """Run a pipeline for its output files and return what it counted.

    Args:
        context: Where to run.
        dataset: What to run.
    Returns:
        Counters by name; all counters of this room are whole numbers.
    """
    return {name: int(value) for name, value in context.execute(dataset).counters.items()}
