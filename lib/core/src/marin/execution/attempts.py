"""Attempts: one pair of immutable files each, so that no later run can change what an earlier one left.

``<id>.open.json`` is written before the body starts and ``<id>.json`` when it ended, each exactly once. Whoever
closes first
wins: a driver that lost its lease cannot turn an attempt that its successor closed as ``abandoned`` into anything else.
"""

import dataclasses
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime

from marin.errors import CorruptRecordError
from marin.execution._files import create_text, exists, json_text
from marin.execution.layout import StepLayout, list_folder
from marin.execution.records import AttemptRecord, parse_object, read_text

_OPEN = ".open.json"
_CLOSED = ".json"


def utc_text(seconds: float) -> str:
    """A point in time as ISO-8601 in UTC with microseconds.

    Example:
        >>> utc_text(0.5)
        '1970-01-01T00:00:00.500000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_id(seconds: float) -> str:
    """An id that sorts by time and is unique.

    Example:
        >>> new_id(0.0)[:23]
        '19700101T000000.000000Z'
    """
    return f"{datetime.fromtimestamp(seconds, UTC).strftime('%Y%m%dT%H%M%S.%fZ')}-{secrets.token_hex(4)}"


def open_attempt(layout: StepLayout, attempt: AttemptRecord) -> None:
    """Record that an attempt begins; durable on return."""
    create_text(os.path.join(layout.attempts, attempt.attempt + _OPEN), json_text(attempt.to_json()))


def close_attempt(layout: StepLayout, attempt: AttemptRecord) -> bool:
    """Record how an attempt ended.

    Returns:
        Whether this call closed it; False when somebody had before.
    """
    # The end of a success follows from its record and is written again when it got lost; a failure is told only here.
    path = os.path.join(layout.attempts, attempt.attempt + _CLOSED)
    return create_text(path, json_text(attempt.to_json()), durable=attempt.status != "success")


def is_closed(layout: StepLayout, attempt: str) -> bool:
    """Whether an attempt's end is on record."""
    return exists(os.path.join(layout.attempts, attempt + _CLOSED))


def read_attempts(layout: StepLayout) -> list[AttemptRecord]:
    """Every attempt at a step, oldest first; those without an end are ``running``.

    Raises:
        CorruptRecordError: An attempt file does not parse.
        RecordFormatError: Written by a newer version.
    """
    _, names = list_folder(layout.attempts)
    files: dict[str, str] = {}
    for name in names:
        if name.startswith(".") or not name.endswith(_CLOSED):
            continue
        attempt = name.removesuffix(_OPEN) if name.endswith(_OPEN) else name.removesuffix(_CLOSED)
        # The closed form repeats everything that the open one says.
        if not name.endswith(_OPEN) or attempt not in files:
            files[attempt] = name
    found = [_read_attempt(os.path.join(layout.attempts, name)) for _, name in sorted(files.items())]
    return [attempt for attempt in found if attempt is not None]


def _read_attempt(path: str) -> AttemptRecord | None:
    text = read_text(path)
    if text is None:
        return None
    try:
        return AttemptRecord.from_json(parse_object(path, text))
    except TypeError as error:
        raise CorruptRecordError(path, str(error)) from None


def close_orphans(
    layout: StepLayout, *, at: str, note: str, may_close: Callable[[int], bool], except_attempt: str = ""
) -> list[AttemptRecord]:
    """Close every attempt that has no end as ``abandoned``. Only the owner of the lease may call this.

    Args:
        layout: The step.
        at: Time of the end, ISO-8601.
        note: Why, for the record.
        may_close: Told the epoch of an attempt; whether its owner is really gone.
        except_attempt: Attempt that is left alone.
    Returns:
        The attempts that were closed here.
    """
    closed = []
    for attempt in read_attempts(layout):
        if attempt.closed or attempt.attempt == except_attempt or not may_close(attempt.epoch):
            continue
        error = {"type": "Abandoned", "message": note, "traceback": "", "signature": "abandoned"}
        ended = dataclasses.replace(attempt, status="abandoned", category="abandoned", ended_at=at, error=error)
        if close_attempt(layout, ended):
            closed.append(ended)
    return closed
