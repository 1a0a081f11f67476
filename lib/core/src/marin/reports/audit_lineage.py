"""The lineage of an output, read back from records alone, and its judgement under a policy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from marin.errors import CorruptRecordError, RecordFormatError
from marin.execution._files import exists
from marin.execution.graph import post_order
from marin.execution.records import ArtifactRecord, read_record
from marin.ledger import Ledger
from marin.policy.judgement import Judgement, PolicyNode, judge
from marin.policy.rules import Policy
from marin.policy.terms import declared_sources, declared_suites


@dataclass(frozen=True)
class Ancestor:
    """One step of a lineage.

    Attributes:
        label: ``name@version``.
        path: Where its output lies.
        record: Its record; None for a pin, and where it cannot be read.
        kind: ``build``, ``adopted``, ``pinned``, ``missing`` or ``unreadable``.
    """

    label: str
    path: str
    record: ArtifactRecord | None
    kind: str

    @property
    def name(self) -> str:
        """Step name."""
        return self.label.rpartition("@")[0] or self.label

    @property
    def version(self) -> str:
        """Step version; empty for what was never a step."""
        return self.label.rpartition("@")[2] if "@" in self.label else ""

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """``(label, path)`` of what it reads."""
        return [] if self.record is None else list(zip(self.record.deps, self.record.dep_paths, strict=False))


def read_ancestor(label: str, path: str) -> Ancestor:
    """One step of a lineage, whatever state its record is in."""
    try:
        record = read_record(path)
    except (CorruptRecordError, RecordFormatError):
        return Ancestor(label, path, None, "unreadable")
    if record is None:
        return Ancestor(label, path, None, "pinned" if exists(path) else "missing")
    return Ancestor(label, path, record, "adopted" if record.source else "build")


def lineage_of(ledger: Ledger, name: str, version: str = "") -> list[Ancestor]:
    """An output and everything that it was made from, inputs first, the output last.

    Raises:
        RecordNotFoundError: There is no such step.
    """
    entry = ledger.find(name, version)
    known: dict[str, Ancestor] = {entry.path: read_ancestor(entry.label, entry.path)}

    def inputs(path: str) -> list[str]:
        found = []
        for label, above in known[path].inputs:
            known.setdefault(above, read_ancestor(label, above))
            found.append(above)
        return found

    return [known[path] for path in post_order([entry.path], inputs, lambda path: known[path].label)]


def policy_nodes(lineage: Sequence[Ancestor]) -> list[PolicyNode]:
    """What a policy needs to know about a lineage."""
    nodes = []
    for step in lineage:
        payload = step.record.fingerprint_payload if step.record is not None else ""
        nodes.append(
            PolicyNode(
                label=step.label,
                name=step.name,
                deps=tuple(label for label, _ in step.inputs),
                purpose=step.record.purpose if step.record is not None else "",
                sources=tuple(declared_sources(payload, step=step.name)),
                decontaminates=declared_suites(payload),
                external=step.kind in ("adopted", "pinned"),
            )
        )
    return nodes


def judge_lineage(policy: Policy, lineage: Sequence[Ancestor], day: dt.date) -> Judgement:
    """The lineage under a policy, with waivers that had to hold on a day."""
    return judge(policy, policy_nodes(lineage), day)


def descendants(ledger: Ledger, path: str) -> list[ArtifactRecord]:
    """Records of every output of the store that was made from what lies at ``path``; unreadable ones are left out."""
    known = {entry.path: read_ancestor(entry.label, entry.path) for entry in ledger.steps()}
    below: dict[str, list[str]] = {}
    for step in known.values():
        for _, above in step.inputs:
            below.setdefault(above, []).append(step.path)
    found: dict[str, None] = {}
    stack = [path]
    while stack:
        for lower in below.get(stack.pop(), ()):
            if lower not in found:
                found[lower] = None
                stack.append(lower)
    records = [known[lower].record for lower in sorted(found)]
    return [record for record in records if record is not None]
