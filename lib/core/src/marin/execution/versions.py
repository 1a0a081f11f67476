"""Versions: what an author promises about a step's output.

A version is part of the address ``name@version``, and its *kind* says what the engine may do there:

=========== ============================== ====================================================================
kind        written as                     promise
=========== ============================== ====================================================================
fixed       ``2026.12.01``, ``2026.12.01.2`` the output never changes; a changed recipe is reported and the old output
served mutable     ``dev``, ``lr-sweep-dev``      rebuilt on every run; nothing fixed may depend on it derived
``auto``, ``small-auto``       the version *is* the recipe: the fingerprint is appended, so a changed literal
                                           gets a new address, and so does everything that reads it; old results stay
=========== ============================== ====================================================================
"""

import datetime as dt
import re
from enum import StrEnum

from marin.errors import InvalidNameError, InvalidVersionError

_DATED = re.compile(r"(\d{4})\.(\d{2})\.(\d{2})(?:\.(0|[1-9]\d*))?")
_SUFFIXED = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._]*(?:-[A-Za-z0-9._]+)*-)?(dev|auto)")
_DERIVED = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._]*(?:-[A-Za-z0-9._]+)*-)?auto-[0-9a-f]{16}")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=,-]*")
_RESERVED_ROOTS = frozenset({"ledger"})

DERIVED_DIGITS = 16
"""Hex digits of the fingerprint in a derived version: 64 bits."""


class VersionKind(StrEnum):
    """What the engine may do with an output that already exists."""

    FIXED = "fixed"
    MUTABLE = "mutable"
    DERIVED = "derived"


def version_kind(version: str, *, step: str = "") -> VersionKind:
    """The kind of a version, which also checks it.

    Args:
        version: As the author wrote it, or a derived one with its fingerprint.
        step: Name to put in the error.
    Returns:
        The kind.
    Raises:
        InvalidVersionError: Not a real calendar date and none of the named kinds.
    Example:
        >>> version_kind("2026.12.01"), version_kind("dev"), version_kind("auto")
        (<VersionKind.FIXED: 'fixed'>, <VersionKind.MUTABLE: 'mutable'>, <VersionKind.DERIVED: 'derived'>)
    """
    if not isinstance(version, str):
        raise InvalidVersionError(step, repr(version), "is not a string")
    if dated := _DATED.fullmatch(version):
        try:
            dt.date(int(dated[1]), int(dated[2]), int(dated[3]))
        except ValueError as error:
            raise InvalidVersionError(step, version, f"is not a real date ({error})") from None
        return VersionKind.FIXED
    if suffixed := _SUFFIXED.fullmatch(version):
        return VersionKind.MUTABLE if suffixed[1] == "dev" else VersionKind.DERIVED
    if _DERIVED.fullmatch(version):
        return VersionKind.DERIVED
    raise InvalidVersionError(step, version, "is not a version")


def is_mutable(version: str) -> bool:
    """Whether outputs at this version are rebuilt on every run.

    Example:
        >>> is_mutable("sweep-dev"), is_mutable("2026.12.01")
        (True, False)
    """
    return version_kind(version) is VersionKind.MUTABLE


def derive_version(version: str, fingerprint: str) -> str:
    """The concrete version of a step: derived ones get the start of the fingerprint, others stay as they are.

    Example:
        >>> derive_version("auto", "0123456789abcdef" * 4)
        'auto-0123456789abcdef'
    """
    if version_kind(version) is VersionKind.DERIVED and not _DERIVED.fullmatch(version):
        return f"{version}-{fingerprint[:DERIVED_DIGITS]}"
    return version


def validate_name(name: str) -> str:
    """Check that a step's name can become a path, and return it.

    Raises:
        InvalidNameError: Empty, absolute, with a scheme, a parent reference, a dot-prefixed segment or odd characters,
            or under a folder that the store keeps for itself.
    Example:
        >>> validate_name("tokens/fineweb")
        'tokens/fineweb'
    """
    if not isinstance(name, str) or not name:
        raise InvalidNameError(str(name), "is empty")
    if "://" in name or ":" in name:
        raise InvalidNameError(name, "holds a ':'")
    segments = name.split("/")
    for segment in segments:
        if not segment:
            raise InvalidNameError(name, "has an empty segment")
        if not _SEGMENT.fullmatch(segment):
            raise InvalidNameError(name, f"has the segment {segment!r}")
    if segments[0] in _RESERVED_ROOTS:
        raise InvalidNameError(name, f"starts with {segments[0]!r}, which the store keeps for itself")
    return name
