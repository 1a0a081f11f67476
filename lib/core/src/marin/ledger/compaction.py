"""Compaction: the events of past days move from one small file each into one Parquet file a day.

Nothing is lost and nothing is counted twice, whoever dies in between: the Parquet file is durable before the single
files are deleted, readers drop events that they have seen by id, and a later compaction of the same day writes a new
file, which holds the old one's events too, before it deletes that.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from marin.execution._files import create_bytes, remove_file
from marin.execution.events import LEDGER_FOLDER, LedgerEvent, read_event
from marin.execution.layout import list_folder
from marin.ledger._adapters.parquet_events import read_parquet, to_parquet
from marin.ledger.scan import COMPACTED_FOLDER, compacted_paths, event_days


@dataclass(frozen=True)
class CompactedDay:
    """What was done about one day.

    Attributes:
        day: ``YYYY-MM-DD``, UTC.
        events: Events of that day, now in one file.
        files_removed: Files that are gone.
        path: The file.
        bytes: Its size.
    """

    day: str
    events: int
    files_removed: int
    path: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """JSON object of every field."""
        return asdict(self)


def compacted_events(prefix: str) -> list[LedgerEvent]:
    """Every event that lies in a Parquet file, once each, by id."""
    found: dict[str, LedgerEvent] = {}
    for path in compacted_paths(prefix):
        try:
            found.update((event.id, event) for event in read_parquet(path))
        except FileNotFoundError:
            # A compaction that runs now has put its events into a newer file; start over with what there is.
            return compacted_events(prefix)
    return [found[key] for key in sorted(found)]


def compact(
    prefix: str, *, today: str, keep_days: int = 1, on_step: Callable[[str], None] = lambda what: None
) -> list[CompactedDay]:
    """Compact every day that is over.

    Args:
        prefix: Root of the store.
        today: ``YYYY-MM-DD``, UTC.
        keep_days: Days up to and including today whose events stay single files; 1 keeps today's.
        on_step: Told about every durable step, for crash drills.
    Returns:
        What was done, oldest day first.
    Raises:
        UsageError: pyarrow is not installed.
        ValueError: ``keep_days`` is negative.
    Example:
        >>> import tempfile
        >>> compact(tempfile.mkdtemp(), today="2026-12-01")
        []
    """
    if keep_days < 0:
        raise ValueError(f"bad keep_days={keep_days}; expected 0 or more days. 0 compacts today's events too.")
    days = [(day, folder) for day, folder in event_days(prefix) if _days_between(day, today) >= keep_days]
    done = [_compact_day(prefix, day, folder, on_step) for day, folder in days]
    return [item for item in done if item is not None]


def _days_between(day: str, today: str) -> int:
    return (date.fromisoformat(today) - date.fromisoformat(day)).days


def _compact_day(prefix: str, day: str, folder: str, on_step: Callable[[str], None]) -> CompactedDay | None:
    singles = [os.path.join(folder, name) for name in list_folder(folder)[1] if name.endswith(".json")]
    if not singles:
        return None
    older = [path for path in compacted_paths(prefix) if os.path.basename(path).startswith(f"{day}-")]
    events = {event.id: event for path in older for event in read_parquet(path)}
    events.update((event.id, event) for path in singles if (event := read_event(path)) is not None)
    data = to_parquet(list(events.values()))
    name = f"{day}-{hashlib.sha256(data).hexdigest()[:16]}.parquet"
    target = os.path.join(prefix, LEDGER_FOLDER, COMPACTED_FOLDER, name)
    create_bytes(target, data)
    on_step("written")
    gone = [path for path in [*singles, *older] if path != target]
    for path in gone:
        remove_file(path)
        on_step("removed")
    return CompactedDay(day, len(events), len(gone), target, len(data))
