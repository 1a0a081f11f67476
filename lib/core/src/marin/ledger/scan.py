"""Finding the steps of a store by walking its folders, without descending into data."""

import os
from collections.abc import Iterator

from marin.execution.events import LEDGER_FOLDER
from marin.execution.layout import RECORD_FILE, STAGING_INFIX, STATUS_FILE, StepLayout, split_control


def step_paths(prefix: str) -> Iterator[str]:
    """Output path of every step that left anything under a prefix, in sorted order.

    A step is known by its control folder or by a record in its output; outputs themselves are not entered.
    """
    found: set[str] = set()
    folders = [prefix]
    while folders:
        folder = folders.pop()
        try:
            entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        outputs = {path for entry in entries if (path := split_control(entry.path)) is not None}
        found |= outputs
        for entry in entries:
            if entry.path in outputs or entry.name.startswith(".") or STAGING_INFIX in entry.name:
                continue
            if folder == prefix and entry.name == LEDGER_FOLDER:
                continue
            if any(os.path.exists(os.path.join(entry.path, name)) for name in (RECORD_FILE, STATUS_FILE)):
                found.add(entry.path)
            else:
                folders.append(entry.path)
    yield from sorted(found)


def event_paths(prefix: str) -> Iterator[str]:
    """Path of every event, oldest day first."""
    root = os.path.join(prefix, LEDGER_FOLDER)
    for folder, folders, files in os.walk(root):
        folders.sort()
        # Compacted and indexed forms lie beside the days and are not events.
        if os.path.relpath(folder, root).count(os.sep) != 2:
            continue
        for name in sorted(files):
            if name.endswith(".json") and not name.startswith("."):
                yield os.path.join(folder, name)


def address_of(prefix: str, layout: StepLayout) -> tuple[str, str]:
    """Name and version of an output by where it lies: the last path segment is the version."""
    relative = os.path.relpath(layout.output_path, prefix)
    name, _, version = relative.rpartition(os.sep)
    return (name, version) if name else (relative, "")
