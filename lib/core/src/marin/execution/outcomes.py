"""What became of each step of a run."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from marin.errors import StepFailedError, UnknownStepError
from marin.execution.artifact import Artifact
from marin.execution.decision import Reason
from marin.execution.lazy import ArtifactStep
from marin.execution.step_spec import StepSpec

T = TypeVar("T", bound=Artifact)


class Outcome(StrEnum):
    """What became of a step."""

    EXECUTED = "executed"
    CACHED = "cached"
    FAILED = "failed"
    KNOWN_FAILURE = "known_failure"
    DEP_FAILED = "dep_failed"
    NOT_RUN = "not_run"


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What became of one step.

    Attributes:
        step: ``name@version``.
        name: Step name.
        version: Concrete version, or the hash of a hand-written spec.
        outcome: What became of it.
        reasons: Why it ran or did not.
        path: Where the output is, or would be.
        seconds: Time of its last attempt; 0 when it was not run.
        category: Failure category.
        error: What the body raised, when it was raised in this run.
        message: One line about the failure.
        content_digest: Digest of the output where known.
        attempt: Id of the attempt.
        resources: ``{cpu_s, ram_peak, scope}``.
        allowed: Whether the caller said that this failure is acceptable.
    """

    step: str
    name: str
    version: str
    outcome: Outcome
    reasons: tuple[Reason, ...] = ()
    path: str = ""
    seconds: float = 0.0
    category: str = ""
    error: BaseException | None = None
    message: str = ""
    content_digest: str | None = None
    attempt: str = ""
    resources: dict[str, Any] = field(default_factory=dict)
    allowed: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is an output."""
        return self.outcome in (Outcome.EXECUTED, Outcome.CACHED)

    @property
    def reason(self) -> str:
        """The decisive reason, as text."""
        return self.reasons[0].message if self.reasons else ""

    def to_json(self) -> dict[str, Any]:
        """JSON object for ``--json``."""
        return {
            "step": self.step,
            "name": self.name,
            "version": self.version,
            "outcome": self.outcome.value,
            "reasons": [
                {"kind": item.kind.value, "message": item.message, "fields": list(item.fields)} for item in self.reasons
            ],
            "path": self.path,
            "seconds": round(self.seconds, 3),
            "category": self.category,
            "message": self.message,
            "content_digest": self.content_digest,
            "attempt": self.attempt,
            "resources": self.resources,
            "allowed": self.allowed,
        }


@dataclass(frozen=True)
class RunSummary:
    """What a run did.

    Attributes:
        prefix: Root of the store.
        steps: Every step of the graph, inputs first.
        seconds: Wall time of the run.
        peak_memory_bytes: Highest resident memory of the driver and of any finished child.
        specs: The lowered step of each handle that was passed.
    """

    prefix: str
    steps: tuple[StepOutcome, ...]
    seconds: float
    peak_memory_bytes: int
    specs: dict[Any, StepSpec] = field(default_factory=dict, repr=False)

    def count(self, outcome: Outcome) -> int:
        """How many steps ended this way."""
        return sum(step.outcome == outcome for step in self.steps)

    @property
    def ok(self) -> bool:
        """Whether every step has an output, or a failure that was allowed (with what depends on it)."""
        return all(step.ok or step.allowed for step in self.steps)

    def outcome(self, step: "str | ArtifactStep[Any] | StepSpec") -> StepOutcome:
        """The outcome of one step, by handle, by ``name@version`` or by name.

        Raises:
            UnknownStepError: The run had no such step.
        """
        wanted = step if isinstance(step, str) else (self.specs[step] if step in self.specs else step).label
        for item in self.steps:
            if wanted in (item.step, item.name):
                return item
        raise UnknownStepError(wanted, [item.step for item in self.steps], option="outcome")

    def artifact(self, handle: ArtifactStep[T]) -> T:
        """The artifact that a handle stands for.

        Raises:
            StepFailedError: It has none; the original exception is the cause.
        """
        item = self.outcome(handle)
        if not item.ok:
            error = StepFailedError(item.step, item.category or item.outcome.value, item.message or item.reason)
            raise error from item.error
        return handle.artifact_type.load(item.path)

    def raise_if_failed(self) -> None:
        """Raise for the first failure that was not allowed.

        Raises:
            StepFailedError: With the original exception as its cause.
        """
        for item in sorted(self.steps, key=lambda step: step.outcome is not Outcome.FAILED):
            if not item.ok and not item.allowed:
                error = StepFailedError(item.step, item.category or item.outcome.value, item.message or item.reason)
                raise error from item.error
