"""Collect any source: the kind of the source names the function, and only that module is imported."""

from __future__ import annotations

from marin.datakit.artifacts import DocumentCollection
from marin.datakit.recipe import CollectConfig
from marin.datakit.sources import SourceKind
from marin.execution.deferred import Deferred

COLLECTORS = {
    SourceKind.STDLIB: Deferred("marin.datakit.download.python_stdlib:collect_stdlib"),
    SourceKind.PATH: Deferred("marin.datakit.download.local_files:collect_files"),
    SourceKind.HUGGING_FACE: Deferred("marin.datakit.download.huggingface:collect_hub"),
}


def collect(config: CollectConfig) -> DocumentCollection:
    """Turn a source into documents.

    Args:
        config: The source and how to read it.
    Returns:
        The collection.
    Raises:
        DatakitError: The source cannot be read; the subclasses say why.
    """
    return COLLECTORS[config.source.kind](config)
