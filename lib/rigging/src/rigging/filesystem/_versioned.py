"""Content with the version under which it was read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionedBytes:
    """Content of an object and the version under which it was read; compare versions for equality only."""

    data: bytes
    version: str
