"""Finding the steps of a store by walking its folders, without descending into data."""

import os
from collections.abc import Iterator

from marin.execution._files import exists
from marin.execution.events import LEDGER_FOLDER
from marin.execution.layout import (
    RECORD_FILE,
    STAGING_INFIX,
    STATUS_FILE,
    StepLayout,
    below,
    list_folder,
    split_control,
)

COMPACTED_FOLDER = "compacted"


def step_paths(prefix: str) -> Iterator[str]:
    """Output path of every step that left anything under a prefix, in sorted order.

    A step is known by its control folder or by a record in its output; outputs themselves are not entered.
    """
    found: set[str] = set()
    folders = [prefix]
    while folders:
        folder = folders.pop()
        names, _ = list_folder(folder)
        outputs = {path for name in names if (path := split_control(os.path.join(folder, name))) is not None}
        found |= outputs
        for name in names:
            path = os.path.join(folder, name)
            if path in outputs or name.startswith(".") or STAGING_INFIX in name:
                continue
            if folder == prefix and name == LEDGER_FOLDER:
                continue
            if any(exists(os.path.join(path, mark)) for mark in (RECORD_FILE, STATUS_FILE)):
                found.add(path)
            else:
                folders.append(path)
    yield from sorted(found)


def event_days(prefix: str) -> Iterator[tuple[str, str]]:
    """Each day that holds events as single files, as ``(YYYY-MM-DD, folder)``, oldest first."""
    # Compacted and indexed forms lie beside the years and are not events.
    days = [os.path.join(prefix, LEDGER_FOLDER)]
    for _ in range(3):
        days = [os.path.join(folder, name) for folder in days for name in list_folder(folder)[0] if name.isdigit()]
    for folder in days:
        yield "-".join(folder.split("/")[-3:]), folder


def event_paths(prefix: str) -> Iterator[str]:
    """Path of every event that is a file of its own, oldest day first."""
    for _, folder in event_days(prefix):
        for name in list_folder(folder)[1]:
            if name.endswith(".json") and not name.startswith("."):
                yield os.path.join(folder, name)


def compacted_paths(prefix: str) -> list[str]:
    """Path of every file of compacted events, oldest day first."""
    folder = os.path.join(prefix, LEDGER_FOLDER, COMPACTED_FOLDER)
    return [os.path.join(folder, name) for name in list_folder(folder)[1] if name.endswith(".parquet")]


def address_of(prefix: str, layout: StepLayout) -> tuple[str, str]:
    """Name and version of an output by where it lies: the last path segment is the version."""
    relative = below(layout.output_path, prefix)
    name, _, version = relative.rpartition("/")
    return (name, version) if name else (relative, "")
