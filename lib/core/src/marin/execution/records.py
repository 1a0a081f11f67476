"""Records: the JSON that every output, status and attempt leaves behind, and how older and newer ones are read.

Readers are tolerant (unknown fields are ignored, older forms are understood), writers are strict, and every file
carries a format number. A file from a *newer* format is refused, never guessed at and never overwritten; a file that
does not parse is an error, never taken for an absent one.
"""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any, Self

from marin.errors import CorruptRecordError, RecordFormatError
from marin.execution._objects import is_remote, read_object_text
from marin.execution.layout import LEGACY_INFO_FILE, RECORD_FILE

RECORD_FORMAT = 2
"""Format that this version writes and the newest one that it reads."""


@dataclass(frozen=True, kw_only=True)
class ArtifactRecord:
    """``.artifact.json``: everything known about a committed output.

    Attributes:
        deps: ``name@version`` of each input.
        dep_paths: Where each lay, aligned with ``deps``.
        dep_digests: Content digest of each *as read*, or None where it had no manifest.
        config: The config that ran, canonical, with the final output path in place of the staging one.
        source: Where adopted data lies.
        result: Values of the artifact's declared fields.
        fingerprint_payload: The exact text that was hashed.
        content_digest: SHA-256 over the manifest's non-volatile lines.
        code_digest: Hash of the step function's source; advisory.
        attempt: Id of the attempt that made it.
        epoch: Lease epoch of that attempt.
        purpose: What the step does with its inputs, see ``Artifact.purpose``.
        policy: The policy that let the plan pass; empty when no gate was asked.
        licences: SPDX expressions of everything it was made from, when a gate was asked.
        waivers: Waivers without which the plan would have been refused.
    """

    name: str = ""
    version: str = ""
    fingerprint: str = ""
    fingerprint_payload: str = ""
    result_type: str = ""
    output_path: str = ""
    deps: list[str] = field(default_factory=list)
    dep_paths: list[str] = field(default_factory=list)
    dep_digests: list[str | None] = field(default_factory=list)
    config: Any = None
    source: str | None = None
    result: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    content_digest: str | None = None
    manifest: str | None = None
    files: int = 0
    bytes: int = 0
    code_digest: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    attempt: str = ""
    epoch: int = 0
    created_at: str = ""
    seconds: float = 0.0
    licences: list[str] = field(default_factory=list)
    waivers: list[dict[str, Any]] = field(default_factory=list)
    purpose: str = ""
    policy: str = ""
    replica_of: str = ""
    record_format: int = RECORD_FORMAT

    def to_json(self) -> dict[str, Any]:
        """JSON object of every field."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read any form that this version knows; unknown fields are ignored."""
        known = {item.name for item in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known and value is not None}
        values.setdefault("record_format", 1)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One attempt at one step, from the moment it was opened.

    Attributes:
        attempt: Unique id that sorts by start time.
        epoch: Lease epoch it ran under.
        step: ``name@version``.
        status: ``running``, ``success``, ``failed``, ``lease_lost``, ``interrupted``, ``abandoned`` or ``blocked``.
        category: Failure category, empty while running and on success.
        error: ``{type, message, traceback, signature}`` of a failure.
        log_tail: Last log lines, redacted, at most 64 KiB.
        evidence: Folder of the files kept of a failed attempt, relative to the control folder.
        inputs: ``[{ref, path, digest}]`` as read.
        partial_outputs: ``[{path, bytes}]`` found in the staging folder at failure.
        retry_of: Id of the attempt before it within one lease.
    """

    attempt: str
    epoch: int
    step: str
    output_path: str
    fingerprint: str = ""
    status: str = "running"
    category: str = ""
    started_at: str = ""
    ended_at: str | None = None
    seconds: float | None = None
    worker_id: str = ""
    job_id: str | None = None
    host: str = ""
    region: str | None = None
    pid: int = 0
    error: dict[str, Any] | None = None
    log_tail: str = ""
    evidence: str | None = None
    inputs: list[dict[str, Any]] = field(default_factory=list)
    config_digest: str = ""
    content_digest: str | None = None
    resources: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    partial_outputs: list[dict[str, Any]] = field(default_factory=list)
    retry_of: str | None = None
    record_format: int = RECORD_FORMAT

    @property
    def closed(self) -> bool:
        """Whether the attempt has ended."""
        return self.status != "running"

    def to_json(self) -> dict[str, Any]:
        """JSON object of every field."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read a stored attempt; unknown fields are ignored."""
        known = {item.name for item in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


def parse_object(path: str, text: str) -> dict[str, Any]:
    """Parse the JSON object in a record file.

    Raises:
        CorruptRecordError: Not JSON, or not an object.
        RecordFormatError: Written by a newer version.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CorruptRecordError(path, f"it is not JSON ({error})") from None
    if not isinstance(data, dict):
        raise CorruptRecordError(path, f"it holds a {type(data).__name__}, expected an object")
    written = data.get("record_format", 1)
    if not isinstance(written, int) or written > RECORD_FORMAT:
        raise RecordFormatError(path, f"record_format={written!r}, newest known here is {RECORD_FORMAT}")
    return data


def read_text(path: str) -> str | None:
    """Text of a file or object, or None when it does not exist.

    Raises:
        CorruptRecordError: The file is not UTF-8.
    """
    try:
        if is_remote(path):
            return read_object_text(path)
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise CorruptRecordError(path, f"it is not UTF-8 ({error})") from None


def read_record(output_path: str) -> ArtifactRecord | None:
    """The record of an output, in any form that was ever written, or None.

    Older forms: a record without ``record_format``; a file that holds just the result's fields; a legacy
    ``.executor_info`` (but not the stub that a step runner wrote at schedule time).

    Raises:
        CorruptRecordError: A record exists and does not parse.
        RecordFormatError: It was written by a newer version.
    """
    path = os.path.join(output_path, RECORD_FILE)
    text = read_text(path)
    if text is not None:
        data = parse_object(path, text)
        if not data.keys() & {"name", "version", "fingerprint", "record_format", "result"}:
            return ArtifactRecord(output_path=output_path, result=data, record_format=0)
        return _checked_record(path, data)
    return _legacy_record(output_path)


def _checked_record(path: str, data: dict[str, Any]) -> ArtifactRecord:
    try:
        record = ArtifactRecord.from_json(data)
    except TypeError as error:
        raise CorruptRecordError(path, str(error)) from None
    wrong = [item for item in ("name", "version", "fingerprint") if not isinstance(getattr(record, item), str)]
    if wrong:
        raise CorruptRecordError(path, f"{wrong[0]} is not text")
    return record


def _legacy_record(output_path: str) -> ArtifactRecord | None:
    path = os.path.join(output_path, LEGACY_INFO_FILE)
    text = read_text(path)
    if text is None:
        return None
    data = parse_object(path, text)
    if data.get("executor_version") == "step_runner":
        return None
    return ArtifactRecord(
        name=str(data.get("name", "")),
        output_path=str(data.get("output_path", output_path)),
        deps=[str(dep) for dep in data.get("dependencies", [])],
        dep_paths=[str(dep) for dep in data.get("dependencies", [])],
        config=data.get("config"),
        record_format=0,
    )
