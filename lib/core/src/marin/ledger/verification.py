"""Is what is there what was recorded? Checks an output, and everything that it was made from.

Shallow: status, record, manifest, names and sizes of files, and whether each input still has the digest that was
read. Deep: every byte is hashed again.
"""

import os
from dataclasses import dataclass
from typing import Any

from marin.errors import CorruptRecordError, RecordFormatError
from marin.execution._files import exists
from marin.execution.layout import MANIFEST_FILE, StepLayout
from marin.execution.manifest import compare_manifest, content_digest, read_manifest
from marin.execution.records import ArtifactRecord, read_record
from marin.execution.step_status import read_status
from marin.ledger.ledger import Ledger
from marin.ledger.signatures import SignatureCheck, SignatureState, check_signature
from marin.ledger.trusted_keys import TrustedKeys


@dataclass(frozen=True)
class Finding:
    """What is wrong with one step.

    Attributes:
        step: ``name@version``.
        path: Its output.
        problems: One line each; empty when all is well.
        signature: State of its signature.
        signed_by: Name of the key of a valid one.
    """

    step: str
    path: str
    problems: tuple[str, ...]
    signature: SignatureState = SignatureState.ABSENT
    signed_by: str = ""


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        findings: Every step that was looked at, the wanted one first.
        deep: Whether bytes were hashed again.
    """

    findings: tuple[Finding, ...]
    deep: bool

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not any(finding.problems for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """JSON object for ``--json``."""
        return {
            "ok": self.ok,
            "deep": self.deep,
            "steps": [
                {
                    "step": item.step,
                    "path": item.path,
                    "problems": list(item.problems),
                    "signature": item.signature.value,
                    "signed_by": item.signed_by,
                }
                for item in self.findings
            ],
        }


def verify(
    ledger: Ledger,
    name: str,
    version: str = "",
    *,
    deep: bool = False,
    keys: TrustedKeys | None = None,
    require_signature: bool = False,
) -> Verification:
    """Check an output and its lineage.

    Args:
        ledger: The store.
        name: Step name.
        version: Step version; the latest without.
        deep: Hash every file again.
        keys: Keys whose signatures count; None only says whether there are signatures.
        require_signature: Whether an output without a valid signature is a problem.
    Returns:
        What was found for each step.
    Raises:
        RecordNotFoundError: There is no such step.
    """
    entry = ledger.find(name, version)
    findings: list[Finding] = []
    queue: list[tuple[str, str]] = [(entry.label, entry.path)]
    seen: set[str] = set()
    while queue:
        label, path = queue.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            read_status(StepLayout(path))
            record = read_record(path)
        except (CorruptRecordError, RecordFormatError) as error:
            findings.append(Finding(label, path, (str(error),)))
            continue
        problems = _check_output(path, record, deep=deep)
        signature = SignatureCheck(SignatureState.ABSENT)
        if record is not None:
            problems += _check_inputs(record)
            queue.extend(zip(record.deps, record.dep_paths, strict=False))
            signature = check_signature(StepLayout(path), record, keys)
        problems += signature.problems
        if require_signature and signature.state in (SignatureState.ABSENT, SignatureState.UNCHECKED):
            problems.append("it is not signed" if keys is not None else "its signature cannot be checked without keys")
        findings.append(Finding(label, path, tuple(problems), signature.state, signature.signed_by))
    return Verification(tuple(findings), deep)


def _check_output(path: str, record: ArtifactRecord | None, *, deep: bool) -> list[str]:
    if record is None:
        return ["there is nothing" if not exists(path) else "there is data without a record"]
    if record.source:
        return [] if exists(record.source) else [f"its source is gone: {record.source}"]
    if record.manifest is None:
        return ["its record names no manifest (an older format)"]
    try:
        entries = read_manifest(os.path.join(path, MANIFEST_FILE))
    except CorruptRecordError as error:
        return [str(error)]
    if entries is None:
        return ["its manifest is gone"]
    problems = compare_manifest(path, entries, deep=deep)
    if content_digest(entries) != record.content_digest:
        problems.append("its manifest does not have the recorded digest")
    return problems


def _check_inputs(record: ArtifactRecord) -> list[str]:
    problems = []
    for ref, path, digest in zip(record.deps, record.dep_paths, record.dep_digests, strict=False):
        if digest is None:
            continue
        try:
            current = read_record(path)
        except (CorruptRecordError, RecordFormatError):
            continue  # reported at that input itself
        if current is not None and current.content_digest != digest:
            now = (current.content_digest or "none")[:16]
            problems.append(f"it was made from other bytes of {ref}: read {digest[:16]}, now {now}")
    return problems


def compare_records(left: ArtifactRecord, right: ArtifactRecord, recipe_changes: list[str]) -> dict[str, Any]:
    """How two outputs differ: recipe, inputs, bytes, results.

    Args:
        left: One record.
        right: The other.
        recipe_changes: Lines of ``describe_drift`` between them.
    """
    fields = ("result", "content_digest", "code_digest", "files", "bytes", "seconds")
    changed = {
        name: [getattr(left, name), getattr(right, name)]
        for name in fields
        if getattr(left, name) != getattr(right, name)
    }
    inputs_left = dict(zip(left.deps, left.dep_digests, strict=False))
    inputs_right = dict(zip(right.deps, right.dep_digests, strict=False))
    inputs = {
        ref: [inputs_left.get(ref), inputs_right.get(ref)]
        for ref in sorted(inputs_left.keys() | inputs_right.keys())
        if inputs_left.get(ref) != inputs_right.get(ref)
    }
    return {
        "left": f"{left.name}@{left.version}",
        "right": f"{right.name}@{right.version}",
        "recipe": recipe_changes,
        "inputs": inputs,
        "changed": changed,
        "same_content": left.content_digest == right.content_digest,
    }
