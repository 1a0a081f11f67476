"""The status of a step: one token that any tool can read, and a line of JSON that says which attempt wrote it.

``RUNNING`` alone says nothing about life: whether somebody works on the step is the lease's business. ``SUCCESS`` is
the last word of a commit; a reader that sees it may rely on data, manifest and record, and a reader that does not
must not.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from marin.errors import CorruptRecordError
from marin.execution._files import replace_text
from marin.execution._objects import replace_object_text
from marin.execution.layout import STATUS_FILE, StepLayout
from marin.execution.records import RECORD_FORMAT, parse_object, read_text


class Status(StrEnum):
    """States of a step's address."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    DEP_FAILED = "DEP_FAILED"


@dataclass(frozen=True, kw_only=True)
class StatusRecord:
    """What the status file says.

    Attributes:
        epoch: Lease epoch of the writer; 0 in old files.
        attempt: Attempt that wrote it.
        fingerprint: Recipe of that attempt.
        content_digest: Digest of the output, for ``SUCCESS``.
        category: Failure category, for ``FAILED``.
        message: First line of the error, for ``FAILED``.
        causes: Root causes, for ``DEP_FAILED``.
    """

    status: Status
    epoch: int = 0
    attempt: str = ""
    at: str = ""
    fingerprint: str = ""
    content_digest: str | None = None
    category: str = ""
    message: str = ""
    interrupted: bool = False
    causes: list[str] = field(default_factory=list)
    record_format: int = RECORD_FORMAT


def parse_status(path: str, text: str) -> StatusRecord:
    """Read any form of the status file.

    Forms: a token, then optionally one line of JSON; the old log of JSON lines, whose last ``status`` counts;
        otherwise the
    last line that is not empty.

    Raises:
        CorruptRecordError: None of these.
        RecordFormatError: Written by a newer version.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        raise CorruptRecordError(path, "it is empty")
    if lines[0] in Status.__members__:
        details: dict[str, Any] = parse_object(path, lines[1]) if len(lines) > 1 and lines[1].startswith("{") else {}
        known = {item.name for item in dataclasses.fields(StatusRecord)} - {"status"}
        values = {key: value for key, value in details.items() if key in known and value is not None}
        return StatusRecord(status=Status(lines[0]), **values)
    if lines[0].startswith("{"):
        states = [parse_object(path, line).get("status") for line in lines if line.startswith("{")]
        last = next((state for state in reversed(states) if state in Status.__members__), None)
        if last is not None:
            return StatusRecord(status=Status(last))
    if lines[-1] in Status.__members__:
        return StatusRecord(status=Status(lines[-1]))
    raise CorruptRecordError(path, f"unknown status {lines[0][:40]!r}")


def read_status(layout: StepLayout) -> StatusRecord | None:
    """Current status of a step, or None. Falls back to a status file inside the output, as older stores have it."""
    text = read_text(layout.status)
    path = layout.status
    if text is None:
        path = os.path.join(layout.output_path, STATUS_FILE)
        text = read_text(path)
    return None if text is None else parse_status(path, text)


def write_status(layout: StepLayout, record: StatusRecord, *, confirm: Callable[[], None] = lambda: None) -> None:
    """Replace the status; durable on return, but for ``RUNNING``, which a power failure may undo without harm.

    Args:
        layout: The step.
        record: What it should say.
        confirm: Called when a later epoch has written the status: raises when the lease is lost. It is not where the
            lease file was deleted and counts from the start again.
    Raises:
        LeaseLostError: A later owner has written the status.
    """
    details = {
        key: value
        for key, value in dataclasses.asdict(record).items()
        if key != "status" and value not in ("", None, [])
    }
    line = json.dumps(details, sort_keys=True, ensure_ascii=False)
    text = f"{record.status.value}\n{line}\n"

    def keep_newer(stored: str) -> None:
        if parse_status(layout.status, stored).epoch > record.epoch:
            confirm()

    if layout.remote:
        replace_object_text(layout.status, text, allowed=keep_newer)
        return
    stored = read_text(layout.status)
    if stored is not None:
        keep_newer(stored)
    replace_text(layout.status, text, durable=record.status is not Status.RUNNING)


def settled_epoch(status: StatusRecord | None) -> int:
    """The last epoch whose success was already known when a status was read.

    An epoch that was seen running (or failed, with retries left) may still succeed: its success is news.
    """
    if status is None:
        return 0
    return status.epoch if status.status is Status.SUCCESS else status.epoch - 1
