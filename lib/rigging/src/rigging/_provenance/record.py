"""The provenance record."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Provenance:
    """Which code ran, and who started it.

    Args:
        tree_hash: Git tree of the working copy, uncommitted changes included; empty when unknown.
        base_commit: Commit that the working copy starts from.
        dirty: Whether the working copy differs from ``base_commit``.
        branch: Branch name; empty when detached.
        built_by: Name of the person or service.
        git_remote: URL of ``origin``, without credentials.
        created_at: ISO time of the capture, UTC.
        command_line: The command that was run.

    Example:
        >>> record = Provenance(tree_hash="t1", base_commit="c1", dirty=True, branch="main", built_by="ada")
        >>> str(record), Provenance.from_json(record.to_json()) == record
        ('t1 (off of c1) (main) (ada)', True)
    """

    tree_hash: str
    base_commit: str
    dirty: bool
    branch: str
    built_by: str
    git_remote: str | None = None
    created_at: str = ""
    command_line: tuple[str, ...] = ()

    @property
    def dedup_key(self) -> str:
        """What makes two captures the same code: the tree hash."""
        return self.tree_hash

    def to_json(self) -> str:
        """Return the record as JSON text with sorted keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a record from JSON text; unknown keys are ignored, so newer launchers can talk to older jobs.

        Raises:
            ValueError: Not JSON, or a required field is missing.
            TypeError: ``built_by`` or another text field is not a string.
        """
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError(
                f"not a provenance record: type={type(raw).__name__}; expected a JSON object. Capture again."
            )
        fields = {f.name: raw[f.name] for f in dataclasses.fields(cls) if f.name in raw}
        missing = {"tree_hash", "base_commit", "dirty", "branch", "built_by"} - fields.keys()
        if missing:
            raise ValueError(
                f"not a provenance record: missing={sorted(missing)}; expected these fields. Capture again."
            )
        for name in ("tree_hash", "base_commit", "branch", "built_by", "created_at"):
            if not isinstance(fields.get(name, ""), str):
                raise TypeError(f"bad provenance record: {name}={fields[name]!r}; expected a string. Capture again.")
        fields["command_line"] = tuple(fields.get("command_line", ()))
        return cls(**fields)

    def __str__(self) -> str:
        if self.dirty:
            return f"{self.tree_hash} (off of {self.base_commit}) ({self.branch}) ({self.built_by})"
        return f"{self.base_commit} ({self.branch}) ({self.built_by})"
