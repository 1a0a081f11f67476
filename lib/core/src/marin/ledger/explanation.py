"""Why a step is as it is, in one paragraph for people and as reasons for machines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rigging.filesystem.lease import LeaseState

from marin.execution.decision import Reason, ReasonKind, StepFacts
from marin.execution.failures import KNOWN_FAILURE_CATEGORIES
from marin.execution.records import ArtifactRecord, AttemptRecord
from marin.execution.step_status import Status


@dataclass(frozen=True)
class Explanation:
    """Why a step is as it is.

    Attributes:
        step: ``name@version``.
        state: ``built``, ``failed``, ``known_failure``, ``running``, ``waiting_for_owner``, ``dep_failed``,
            ``blocked`` or ``missing``.
        paragraph: For people.
        reasons: For machines; drift carries its fields.
    """

    step: str
    state: str
    paragraph: str
    reasons: tuple[Reason, ...]
    attempts: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON object for ``--json``."""
        return {
            "step": self.step,
            "state": self.state,
            "paragraph": self.paragraph,
            "reasons": [
                {"kind": reason.kind.value, "message": reason.message, "fields": list(reason.fields)}
                for reason in self.reasons
            ],
            "attempts": self.attempts,
            **self.details,
        }


def explain_step(
    step: str,
    facts: StepFacts,
    record: ArtifactRecord | None,
    attempts: Sequence[AttemptRecord],
    lease: LeaseState | None,
    started_because: Sequence[str],
) -> Explanation:
    """Explain a step from what is on disk; pure.

    Args:
        step: ``name@version``.
        facts: Status, drift against a recipe at hand (if any), nearest sibling.
        record: Record of the output.
        attempts: Every attempt, oldest first.
        lease: State of its lease.
        started_because: Reasons that the latest attempt was started for.
    """
    failed = [item for item in attempts if item.status not in ("success", "running")]
    story = _attempt_story(attempts, failed)
    if lease is not None and lease.live:
        running = attempts[-1] if attempts else None
        since = f" since {running.started_at}" if running is not None else ""
        text = f"{step} is being worked on by {lease.holder} (epoch {lease.epoch}){since}. {story}"
        reason = Reason(ReasonKind.LEFT_RUNNING, f"its lease is held by {lease.holder}: {lease.reason}")
        return Explanation(step, "running", text.strip(), (reason,), len(attempts))
    status = facts.status
    if attempts and attempts[-1].status == "blocked" and record is None:
        return _blocked(step, attempts, story)
    if status is None and record is None:
        return _missing(step, facts, story, len(attempts))
    if status is None or status.status is Status.SUCCESS:
        return _built(step, facts, record, attempts, started_because, story)
    return _unbuilt(step, facts, attempts, story)


def _attempt_story(attempts: Sequence[AttemptRecord], failed: Sequence[AttemptRecord]) -> str:
    if not attempts:
        return ""
    text = f"{len(attempts)} attempt{'s' if len(attempts) > 1 else ''} on record"
    if failed:
        categories: dict[str, int] = {}
        for attempt in failed:
            categories[attempt.category or attempt.status] = categories.get(attempt.category or attempt.status, 0) + 1
        text += f", {len(failed)} without success ({', '.join(f'{n} x {name}' for name, n in categories.items())})"
    return text + "."


def _missing(step: str, facts: StepFacts, story: str, count: int) -> Explanation:
    text = f"{step} has no record in this store: it never ran here, or was removed. {story}"
    reasons = [Reason(ReasonKind.NEVER_RUN, "missing record")]
    if facts.sibling:
        changed = "; ".join(facts.sibling_drift)
        text += f" The most similar output is {facts.sibling}; the recipe changed: {changed}."
        reasons.append(Reason(ReasonKind.RECIPE_CHANGED, f"changed since {facts.sibling}", tuple(facts.sibling_drift)))
    return Explanation(step, "missing", text.strip(), tuple(reasons), count)


def _blocked(step: str, attempts: Sequence[AttemptRecord], story: str) -> Explanation:
    message = str((attempts[-1].error or {}).get("message", ""))
    text = f"{step} was not run: at {attempts[-1].started_at} its plan was {message}. {story}"
    return Explanation(step, "blocked", text.strip(), (Reason(ReasonKind.REFUSED, message),), len(attempts))


def _built(
    step: str,
    facts: StepFacts,
    record: ArtifactRecord | None,
    attempts: Sequence[AttemptRecord],
    started_because: Sequence[str],
    story: str,
) -> Explanation:
    reasons = [Reason(ReasonKind.CACHED, "its output is complete and recorded")]
    text = f"{step} is built and is served from the store"
    if record is not None and record.attempt:
        text += f": attempt {record.attempt} made it at {record.created_at} in {record.seconds:.1f} s"
        text += f" ({record.files} files, {record.bytes} bytes, content {(record.content_digest or '')[:16]})"
    elif record is not None and record.source:
        text += f": adopted from {record.source}"
    text += "."
    if started_because:
        text += f" It ran because {'; '.join(started_because)}."
    if facts.sibling:
        changed = "; ".join(facts.sibling_drift)
        text += f" Compared with {facts.sibling}, the recipe differs: {changed}."
        reasons.append(Reason(ReasonKind.RECIPE_CHANGED, f"differs from {facts.sibling}", tuple(facts.sibling_drift)))
    if facts.drift:
        changed = "; ".join(facts.drift)
        text += f" The recipe at hand differs from the recorded one: {changed}; the old output is served."
        reasons.insert(0, Reason(ReasonKind.DRIFT, "the recipe changed under this version", tuple(facts.drift)))
    text += f" {story}"
    return Explanation(step, "built", text.strip(), tuple(reasons), len(attempts))


def _unbuilt(step: str, facts: StepFacts, attempts: Sequence[AttemptRecord], story: str) -> Explanation:
    status = facts.status
    assert status is not None
    if status.status is Status.DEP_FAILED:
        causes = ", ".join(status.causes)
        text = f"{step} was not run because an input failed: {causes}. It runs as soon as that input is there. {story}"
        reason = Reason(ReasonKind.DEPENDENCY_FAILED, f"input failed: {causes}", tuple(status.causes))
        return Explanation(step, "dep_failed", text.strip(), (reason,), len(attempts))
    if status.status is Status.RUNNING:
        text = f"{step} was started (attempt {status.attempt}) and its driver is gone; the next run takes over. {story}"
        reason = Reason(ReasonKind.LEFT_RUNNING, "an earlier attempt began and did not end")
        return Explanation(step, "abandoned", text.strip(), (reason,), len(attempts))
    if status.category in KNOWN_FAILURE_CATEGORIES:
        text = (
            f"{step} is a known failure: {status.category}: {status.message}. The same recipe would end the same way, "
            f"so it is not run again unless forced or changed. {story}"
        )
        reason = Reason(ReasonKind.KNOWN_FAILURE, f"{status.category}: {status.message}")
        return Explanation(step, "known_failure", text.strip(), (reason,), len(attempts))
    kind = ReasonKind.INTERRUPTED if status.interrupted else ReasonKind.FAILED_BEFORE
    text = f"{step} failed at {status.at}: {status.category}: {status.message}. The next run tries again. {story}"
    reason = Reason(kind, f"{status.category}: {status.message}")
    return Explanation(step, "failed", text.strip(), (reason,), len(attempts))
