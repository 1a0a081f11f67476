"""Versions given from outside: one default and overrides, in force while an experiment builds its steps.

Library builders leave ``version`` out; the experiment (or the command line) decides once for the whole graph. There
is no silent default: a step without a version built outside a context is an error.
"""

import contextlib
import contextvars
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from rigging.provenance import username_segment

from marin.errors import UnresolvedVersionError
from marin.execution.versions import is_mutable, version_kind


@dataclass(frozen=True)
class VersionCodex:
    """A default version and overrides by step name; every version is checked on creation.

    Attributes:
        default: Version of steps that are not overridden.
        overrides: ``{step name: version}``, matched before a user's name is put in front.
    Example:
        >>> VersionCodex("2026.12.01", {"tokens": "dev"}).version_for("tokens")
        'dev'
    """

    default: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every version.

        Raises:
            InvalidVersionError: The default or an override is not a version.
        """
        version_kind(self.default, step="--version")
        for name, version in self.overrides.items():
            version_kind(version, step=name)

    def version_for(self, name: str) -> str:
        """The version in force for a step's name."""
        if name in self.overrides:
            self._used.add(name)
            return self.overrides[name]
        return self.default

    def unused_overrides(self) -> list[str]:
        """Overrides that no step asked for: a typo, or a version that was hard-coded."""
        return sorted(set(self.overrides) - self._used)


_CODEX: contextvars.ContextVar[VersionCodex | None] = contextvars.ContextVar("marin_version_codex", default=None)


@contextlib.contextmanager
def build_context(versions: VersionCodex) -> Generator[VersionCodex]:
    """Put a codex in force for the body of a ``with``. Nests; restores on exceptions; stays within its thread.

    Example:
        >>> with build_context(VersionCodex("2026.12.01")):
        ...     resolve_version("tokens", None)
        '2026.12.01'
    """
    token = _CODEX.set(versions)
    try:
        yield versions
    finally:
        _CODEX.reset(token)


def current_build_context() -> VersionCodex | None:
    """The codex in force, or None."""
    return _CODEX.get()


def resolve_version(name: str, version: str | None) -> str:
    """An explicit version, or the ambient one for this name.

    Raises:
        UnresolvedVersionError: Neither exists.
    """
    if version is not None:
        return version
    codex = _CODEX.get()
    if codex is None:
        raise UnresolvedVersionError(name)
    return codex.version_for(name)


def user_namespaced_name(name: str, version: str) -> str:
    """Put ``users/<user>/`` in front of names of mutable versions, so that two people's trials do not meet.

    Idempotent. Fixed and derived versions are shared and stay as they are.
    """
    if not is_mutable(version) or name.startswith("users/"):
        return name
    return f"users/{username_segment()}/{name}"
