"""What a run page shows, as plain data: the drawing knows nothing of stores, and the reading nothing of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AttemptView:
    """One attempt at a step.

    Attributes:
        number: Counts from 1 within the step.
        status: ``success``, ``failed``, ``abandoned``, ...
        category: Why it failed; empty for successes.
        started_at: UTC, ISO-8601.
        seconds: Wall time; None where the attempt never closed.
        peak_bytes: Peak resident memory; None where unknown.
        cpu_seconds: Processor time; None where unknown.
        host: Machine that ran it.
        message: Error message, redacted.
        traceback: Redacted.
        log_tail: Last log lines, redacted.
    """

    number: int
    status: str
    category: str = ""
    started_at: str = ""
    seconds: float | None = None
    peak_bytes: int | None = None
    cpu_seconds: float | None = None
    host: str = ""
    message: str = ""
    traceback: str = ""
    log_tail: str = ""


@dataclass(frozen=True)
class StepView:
    """One step of the run.

    Attributes:
        key: ``name@version``.
        name: Step name without its common prefix.
        version: Concrete version.
        status: ``executed``, ``cached``, ``failed``, ``known_failure``, ``dep_failed``, ...
        reason: Why it ran, was served or failed.
        fingerprint: Of its recipe.
        content_digest: Of its output; empty for failures.
        deps: Keys of the steps it reads.
        result: Declared fields of its artifact.
        attempts: Every attempt, oldest first.
    """

    key: str
    name: str
    version: str
    status: str
    reason: str = ""
    fingerprint: str = ""
    content_digest: str = ""
    deps: Sequence[str] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    attempts: Sequence[AttemptView] = ()


@dataclass(frozen=True)
class Curve:
    """Loss over steps of one arm.

    Attributes:
        label: Name of the arm.
        points: ``(step, training loss in nats per token)``.
        validation: ``(step, validation loss in nats per token)``.
        failed: Whether the arm ended as a failure.
    """

    label: str
    points: Sequence[tuple[float, float]]
    validation: Sequence[tuple[float, float]] = ()
    failed: bool = False


@dataclass(frozen=True)
class LossRow:
    """What one curation stage took in, handed on and lost.

    Attributes:
        stage: Name of the stage.
        documents: Documents it handed on.
        text_bytes: UTF-8 bytes of text it handed on.
        lost: ``(reason, count)`` of what it did not hand on.
    """

    stage: str
    documents: int
    text_bytes: int
    lost: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Sample:
    """Text that the model wrote.

    Attributes:
        prompt: What it was given.
        text: What it added.
    """

    prompt: str
    text: str


@dataclass(frozen=True)
class RunView:
    """Everything on the page.

    Attributes:
        title: Heading.
        started_at: UTC, ISO-8601.
        command: How to run it again.
        figures: ``(label, value, note)`` headline numbers.
        steps: In topological order.
        curves: One an arm.
        data: One row a curation stage.
        samples: Text the model wrote.
        environment: Names and values: interpreter, platform, packages, revision.
    """

    title: str
    started_at: str
    command: str
    figures: Sequence[tuple[str, str, str]] = ()
    steps: Sequence[StepView] = ()
    curves: Sequence[Curve] = ()
    data: Sequence[LossRow] = ()
    samples: Sequence[Sample] = ()
    environment: Sequence[tuple[str, str]] = ()
