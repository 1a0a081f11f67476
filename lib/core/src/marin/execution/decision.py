"""Run it, serve it, or leave it: one pure function decides, and says why.

The runner acts on the decision and ``marin why`` prints it, so the explanation cannot differ from the deed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from marin.execution.failures import KNOWN_FAILURE_CATEGORIES
from marin.execution.step_spec import StepKind, StepSpec
from marin.execution.step_status import Status, StatusRecord
from marin.execution.versions import VersionKind


class Action(StrEnum):
    """What to do with a step."""

    RUN = "run"
    SERVE = "serve"
    KNOWN_FAILURE = "known_failure"
    REFUSE = "refuse"


class ReasonKind(StrEnum):
    """Why; stable names for machines."""

    FORCED = "forced"
    NEVER_RUN = "never_run"
    RECIPE_CHANGED = "recipe_changed"
    MUTABLE = "mutable"
    FAILED_BEFORE = "failed_before"
    INTERRUPTED = "interrupted"
    LEFT_RUNNING = "left_running"
    DEPENDENCY_FAILED_BEFORE = "dependency_failed_before"
    VANISHED = "vanished"
    INPUTS_CHANGED = "inputs_changed"
    CACHED = "cached"
    DRIFT = "drift"
    KNOWN_FAILURE = "known_failure"
    PINNED = "pinned"
    NOT_NEEDED = "not_needed"
    BUILT_BY_OTHER = "built_by_other"
    DEPENDENCY_FAILED = "dependency_failed"
    STOPPED = "stopped"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True)
class Reason:
    """One reason, for people and for machines.

    Attributes:
        kind: Stable name.
        message: One sentence without a full stop.
        fields: Fields concerned, such as the lines of a drift.
    """

    kind: ReasonKind
    message: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What to do and why.

    Attributes:
        action: What to do.
        reasons: At least one; the first is the decisive one.
    """

    action: Action
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class StepFacts:
    """What the store says about a step.

    Attributes:
        status: Its status file, or None.
        output_exists: Whether the committed folder is there.
        drift: Lines of ``describe_drift`` when the recipe differs from the record's; empty when equal; None when
            unknown.
        recorded_fingerprint: Recipe of the committed output.
        moved_inputs: Inputs whose digest differs from the one that was read.
        sibling: Version of the most similar output of the same step, for a derived version without an output.
        sibling_drift: How its recipe differs from the one at hand.
    """

    status: StatusRecord | None
    output_exists: bool
    drift: Sequence[str] = ()
    recorded_fingerprint: str = ""
    moved_inputs: Sequence[str] = ()
    sibling: str = ""
    sibling_drift: Sequence[str] = ()


def decide(spec: StepSpec, facts: StepFacts, *, forced: bool = False, retry_failed: bool = True) -> Decision:
    """Decide what to do with a step.

    Args:
        spec: The step.
        facts: What the store says.
        forced: The user wants it rebuilt.
        retry_failed: Whether an earlier failure is tried again.
    Returns:
        The action with its reasons.
    """
    if spec.kind is StepKind.PIN:
        return _serve(ReasonKind.PINNED, f"pinned to {spec.source}")
    if forced:
        return _run(ReasonKind.FORCED, "forced by the caller")
    status = facts.status
    if status is None and facts.sibling:
        changed = "; ".join(facts.sibling_drift)
        message = f"the recipe changed since {facts.sibling}: {changed}"
        return _run(ReasonKind.RECIPE_CHANGED, message, tuple(facts.sibling_drift))
    if status is None:
        return _run(ReasonKind.NEVER_RUN, "no record: it never ran under this store")
    if status.status is Status.SUCCESS:
        return _decide_success(spec, facts)
    return _decide_unfinished(spec, status, retry_failed)


def _decide_success(spec: StepSpec, facts: StepFacts) -> Decision:
    if spec.version_kind is VersionKind.MUTABLE:
        return _run(ReasonKind.MUTABLE, f"version {spec.version!r} is mutable: it is rebuilt on every run")
    if not facts.output_exists:
        return _run(ReasonKind.VANISHED, "its status says SUCCESS but the output is gone")
    if facts.moved_inputs:
        names = tuple(facts.moved_inputs)
        if spec.version_kind is VersionKind.DERIVED:
            return _run(ReasonKind.INPUTS_CHANGED, f"inputs changed since it was built: {', '.join(names)}", names)
        message = f"inputs changed since it was built ({', '.join(names)}); the fixed version is served as it is"
        return _serve(ReasonKind.DRIFT, message, names)
    if facts.drift:
        changed = "; ".join(facts.drift)
        message = f"the recipe changed under a fixed version ({changed}); the old output is served, bump the version"
        return _serve(ReasonKind.DRIFT, message, tuple(facts.drift))
    return _serve(ReasonKind.CACHED, "built before with the same recipe")


def _decide_unfinished(spec: StepSpec, status: StatusRecord, retry_failed: bool) -> Decision:
    if status.status is Status.RUNNING:
        return _run(ReasonKind.LEFT_RUNNING, "an earlier attempt began and did not end")
    if status.status is Status.DEP_FAILED:
        return _run(
            ReasonKind.DEPENDENCY_FAILED_BEFORE,
            f"an input had failed: {', '.join(status.causes)}",
            tuple(status.causes),
        )
    if status.interrupted:
        return _run(ReasonKind.INTERRUPTED, "an earlier attempt was interrupted")
    story = f"{status.category}: {status.message}" if status.message else status.category
    if status.category in KNOWN_FAILURE_CATEGORIES and status.fingerprint == spec.fingerprint:
        message = f"the same recipe failed before ({story}); change it or force it"
        return Decision(Action.KNOWN_FAILURE, (Reason(ReasonKind.KNOWN_FAILURE, message),))
    if not retry_failed:
        return Decision(
            Action.REFUSE, (Reason(ReasonKind.FAILED_BEFORE, f"failed before ({story}) and retries are off"),)
        )
    return _run(ReasonKind.FAILED_BEFORE, f"failed before ({story}); tried again")


def _run(kind: ReasonKind, message: str, fields: tuple[str, ...] = ()) -> Decision:
    return Decision(Action.RUN, (Reason(kind, message, fields),))


def _serve(kind: ReasonKind, message: str, fields: tuple[str, ...] = ()) -> Decision:
    return Decision(Action.SERVE, (Reason(kind, message, fields),))
