"""What an audit shows, as plain data: the page draws it, ``--json`` prints it, ``audit_schema.json`` describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

AUDIT_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class LineageStep:
    """One step that the audited output is made from, or the output itself.

    Attributes:
        step: ``name@version``.
        name: Step name.
        version: Step version.
        kind: ``build``, ``adopted``, ``pinned`` (data without a record) or ``missing``.
        purpose: What it does with its inputs: ``train``, ``eval``, ... or an empty string.
        inputs: ``name@version`` of what it reads.
        fingerprint: Of its recipe.
        content_digest: Of its output.
        files: Number of files.
        bytes: Their size.
        seconds: Wall time of the attempt that made it.
        made_at: UTC, ISO-8601.
        attempts: Attempts on record.
        policy: The policy that let its plan pass; empty when no gate was asked.
        signature: ``absent``, ``valid``, ``wrong_key``, ``tampered`` or ``unchecked``.
        signed_by: Name of the key.
        problems: What verification found.
        result: Declared fields of its artifact.
    """

    step: str
    name: str
    version: str
    kind: str
    purpose: str = ""
    inputs: Sequence[str] = ()
    fingerprint: str = ""
    content_digest: str = ""
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    made_at: str = ""
    attempts: int = 0
    policy: str = ""
    signature: str = "absent"
    signed_by: str = ""
    problems: Sequence[str] = ()
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MaterialLine:
    """One line of the data bill of materials: a source, its terms, and what was taken from it.

    Attributes:
        source: Label of the source.
        licence: SPDX expression.
        allowed_uses: What the provider allows; None when the licence alone decides.
        eval_suite: Evaluation suite that it belongs to, or an empty string.
        pii_risk: ``none``, ``reviewed`` or ``unknown``.
        evidence: Where the terms can be read.
        read_by: Step that reads it.
        digest: Content digest of what that step kept of it.
        documents: Documents taken; None where the step does not count.
        bytes: Their size.
    """

    source: str
    licence: str
    allowed_uses: Sequence[str] | None
    eval_suite: str
    pii_risk: str
    evidence: str
    read_by: str
    digest: str
    documents: int | None
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class DecontaminationLine:
    """Whether the text of one evaluation suite was removed.

    Attributes:
        suite: The suite.
        required: Whether the policy asks for it.
        done_by: Steps that removed it.
        covered: Whether every way from a source to the output passes such a step.
        counts: Numbers that those steps reported.
    """

    suite: str
    required: bool
    done_by: Sequence[str]
    covered: bool
    counts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LossLine:
    """What one curation stage handed on and lost.

    Attributes:
        step: ``name@version``.
        sources: Labels of the sources that reach it.
        documents: Documents it handed on.
        bytes: UTF-8 bytes of their text.
        lost: Count by reason.
        by_source: Where the output keeps a ``source`` column: ``documents`` handed on and ``lost``, by source.
    """

    step: str
    sources: Sequence[str]
    documents: int
    bytes: int
    lost: Mapping[str, int]
    by_source: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CodeState:
    """The code that some steps of the lineage ran.

    Attributes:
        commit: Base commit; empty when it ran outside of a repository.
        tree: Hash of the working tree, uncommitted changes included.
        dirty: Whether there were any.
        branch: Name of the branch.
        remote: Where the repository comes from.
        built_by: Who started it.
        command: Command line, redacted.
        patch: SHA-256 of the kept patch, or an empty string.
        patch_text: The patch; None when it is not kept.
        patch_redacted: Whether something was taken out of it.
        patch_applies: Whether it still applies to the commit.
        steps: ``name@version`` of the steps.
    """

    commit: str
    tree: str
    dirty: bool
    branch: str
    remote: str
    built_by: str
    command: Sequence[str]
    patch: str
    patch_text: str | None
    patch_redacted: bool
    patch_applies: bool
    steps: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the lineage took, failed attempts included.

    Attributes:
        attempts: Attempts on record.
        failed_attempts: Those without success.
        wall_s: Seconds of all attempts.
        failed_wall_s: Seconds of those without success.
        cpu_s: Processor seconds where they were measured.
        peak_bytes: Largest resident memory of one attempt.
        stored_bytes: Size of the outputs.
        energy_kwh: ``cpu_s`` times ``watts_per_core``; an estimate.
        watts_per_core: Power of one busy core that the estimate assumes.
    """

    attempts: int
    failed_attempts: int
    wall_s: float
    failed_wall_s: float
    cpu_s: float
    peak_bytes: int
    stored_bytes: int
    energy_kwh: float
    watts_per_core: float


@dataclass(frozen=True, kw_only=True)
class AttemptLine:
    """One attempt at one step of the lineage."""

    step: str
    attempt: str
    status: str
    category: str
    started_at: str
    seconds: float | None
    cpu_s: float | None
    peak_bytes: int | None
    host: str
    message: str
    traceback: str
    log_tail: str


@dataclass(frozen=True, kw_only=True)
class MetricLine:
    """A number about the output.

    Attributes:
        step: Step that measured it, ``name@version``.
        metric: Name.
        value: The number.
        relation: ``own`` result, ``lineage``, or ``measured`` by a step that reads the output.
    """

    step: str
    metric: str
    value: float
    relation: str


@dataclass(frozen=True, kw_only=True)
class ClaimLine:
    """A hypothesis about the output, with its verdict."""

    experiment: str
    claim: str
    metric: str
    direction: str
    threshold: float | None
    declared_at: str
    outcome: str
    value: float | None
    post_hoc: bool
    evidence: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class PolicyLine:
    """The judgement of the lineage under a policy.

    Attributes:
        policy: Which.
        judged_for: Day for which waivers had to hold: when the output was made.
        refusals: Rules that the lineage breaks, each with ``rule``, ``reason``, ``path``.
        waivers: Waivers in the records, each with ``expired`` as of today.
        recorded: Policies named by the records.
    """

    policy: str
    judged_for: str
    refusals: Sequence[Mapping[str, Any]] = ()
    waivers: Sequence[Mapping[str, Any]] = ()
    recorded: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class AuditView:
    """Everything on the page.

    Attributes:
        step: What is audited, ``name@version``.
        at: When, UTC.
        deep: Whether every byte was hashed again.
        ok: Whether nothing is unverified.
        problems: What is, one line each.
        notes: What a reader should know although it proves nothing wrong.
        lineage: Steps, inputs first.
        licences: SPDX expressions of everything the output is made from.
        reproduce: Commands, one a line.
    """

    step: str
    at: str
    deep: bool
    ok: bool
    problems: Sequence[str]
    notes: Sequence[str]
    lineage: Sequence[LineageStep]
    materials: Sequence[MaterialLine]
    licences: Sequence[str]
    policy: PolicyLine
    decontamination: Sequence[DecontaminationLine]
    losses: Sequence[LossLine]
    code: Sequence[CodeState]
    environment: Mapping[str, Any]
    cost: Cost
    attempts: Sequence[AttemptLine]
    metrics: Sequence[MetricLine]
    claims: Sequence[ClaimLine]
    reproduce: Sequence[str]
    format: int = AUDIT_FORMAT

    def to_json(self) -> dict[str, Any]:
        """The JSON twin of the page."""
        return dataclasses.asdict(self)
