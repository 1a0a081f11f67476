"""Hypotheses that are written down before the run, and verdicts that are computed after it.

A claim with a metric, a direction and a threshold is an event in the ledger; so is its verdict. A verdict follows
from the numbers alone, and one without an earlier hypothesis is marked as post hoc. Neither is ever removed: refuted
claims stay.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from marin.errors import RecordNotFoundError, UsageError
from marin.execution._files import check_store
from marin.execution.events import LedgerEvent, new_event, write_event
from marin.ledger.ledger import Ledger, split_reference


class Direction(StrEnum):
    """Which side of the threshold the claim is about."""

    BELOW = "below"
    ABOVE = "above"


class VerdictOutcome(StrEnum):
    """What became of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    CRASHED = "crashed"


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """What an experiment claims before it runs.

    Attributes:
        experiment: Name that ties claim and verdict together.
        claim: One sentence.
        metric: Name of the number that decides.
        direction: ``below`` or ``above`` the threshold.
        threshold: In the metric's unit.
        baseline: Step that it is compared with, as ``name@version``.
        budget: What it may cost, in words.
        stop_rule: When it ends, in words.
        step: Name of the step whose result holds the metric as a field (``a.b`` reaches into one); empty when the
            caller of ``conclude`` brings the number.
        interval: Field of that result with the confidence interval of the metric, two numbers; empty when there is
            none, and then no verdict is inconclusive.
    """

    experiment: str
    claim: str
    metric: str
    direction: Direction
    threshold: float
    baseline: str = ""
    budget: str = ""
    stop_rule: str = ""
    step: str = ""
    interval: str = ""

    def __post_init__(self) -> None:
        """Check that the claim can be decided.

        Raises:
            UsageError: A field is empty, or the threshold is not a number.
        """
        for name in ("experiment", "claim", "metric"):
            if not getattr(self, name):
                raise UsageError(f"bad hypothesis: {name} is empty; expected text.", hint=f"Fill in {name}.")
        if not math.isfinite(self.threshold):
            raise UsageError(f"bad hypothesis: threshold={self.threshold}; expected a number.", hint="Set a threshold.")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim.

    Attributes:
        experiment: Name of the experiment.
        outcome: Confirmed, refuted, inconclusive or crashed.
        value: The metric, or None when there is none.
        interval: Confidence interval of the value, where known.
        evidence: Steps that the value comes from, as ``name@version``.
        post_hoc: Whether no hypothesis was written down before the evidence was made.
        at: When it was computed, UTC.
    """

    experiment: str
    outcome: VerdictOutcome
    value: float | None
    interval: tuple[float, float] | None = None
    evidence: tuple[str, ...] = ()
    post_hoc: bool = False
    at: str = ""


@dataclass(frozen=True)
class Claim:
    """An experiment with its hypothesis and its verdicts.

    Attributes:
        experiment: Name of the experiment.
        hypothesis: The first one that was written down; None when there was a verdict before.
        verdicts: Oldest first.
        declared_at: When the hypothesis was written down, UTC.
    """

    experiment: str
    hypothesis: Hypothesis | None
    verdicts: tuple[Verdict, ...] = field(default=())
    declared_at: str = ""

    @property
    def state(self) -> str:
        """Outcome of the latest verdict, or ``open``."""
        return self.verdicts[-1].outcome.value if self.verdicts else "open"

    def to_json(self) -> dict[str, Any]:
        """JSON object for ``--json`` and pages."""
        return {
            "experiment": self.experiment,
            "state": self.state,
            "post_hoc": bool(self.verdicts) and self.verdicts[-1].post_hoc,
            "declared_at": self.declared_at,
            "hypothesis": dataclasses.asdict(self.hypothesis) if self.hypothesis is not None else None,
            "verdicts": [dataclasses.asdict(verdict) for verdict in self.verdicts],
        }


def judge(hypothesis: Hypothesis, value: float | None, interval: tuple[float, float] | None = None) -> VerdictOutcome:
    """The verdict that follows from the numbers.

    Args:
        hypothesis: The claim.
        value: The metric; None or not finite means that the run crashed.
        interval: Confidence interval; a threshold inside it leaves the claim open.
    Returns:
        The outcome.
    Example:
        >>> claim = Hypothesis(experiment="e", claim="c", metric="bpb", direction=Direction.BELOW, threshold=2.0)
        >>> judge(claim, 1.9).value, judge(claim, 1.9, (1.7, 2.1)).value, judge(claim, None).value
        ('confirmed', 'inconclusive', 'crashed')
    """
    if value is None or not math.isfinite(value):
        return VerdictOutcome.CRASHED
    if interval is not None and interval[0] <= hypothesis.threshold <= interval[1]:
        return VerdictOutcome.INCONCLUSIVE
    below = value < hypothesis.threshold
    holds = below if hypothesis.direction is Direction.BELOW else value > hypothesis.threshold
    return VerdictOutcome.CONFIRMED if holds else VerdictOutcome.REFUTED


def declare(ledger: Ledger, hypothesis: Hypothesis) -> LedgerEvent:
    """Write a hypothesis down. Do it before the run: the time counts.

    Raises:
        StoreUnavailableError: The store cannot be written.
    """
    return _write(ledger, "hypothesis", hypothesis.experiment, dataclasses.asdict(hypothesis))


def conclude(
    ledger: Ledger,
    experiment: str,
    value: float | None,
    *,
    interval: tuple[float, float] | None = None,
    evidence: Sequence[str] = (),
    fallback: Hypothesis | None = None,
) -> Verdict:
    """Compute and keep the verdict of an experiment.

    It is post hoc when there was no hypothesis, or when a step of the evidence was made before the hypothesis was
    written down: whoever knows the number can no longer predict it.

    Args:
        ledger: The store.
        experiment: Name of the experiment.
        value: The metric, or None when the run crashed.
        interval: Its confidence interval.
        evidence: Steps that it comes from.
        fallback: Claim to judge by when none was declared before; the verdict is then post hoc.
    Raises:
        UsageError: There is no hypothesis, and no fallback.
    """
    claim = next((claim for claim in claims(ledger) if claim.experiment == experiment), Claim(experiment, None))
    hypothesis = claim.hypothesis or fallback
    if hypothesis is None:
        raise UsageError(f"no hypothesis for experiment={experiment!r}.", hint="Declare it first, or pass fallback=...")
    verdict = Verdict(
        experiment=experiment,
        outcome=judge(hypothesis, value, interval),
        value=value if value is not None and math.isfinite(value) else None,
        interval=interval,
        evidence=tuple(evidence),
        post_hoc=claim.hypothesis is None or any(_made_before(ledger, ref, claim.declared_at) for ref in evidence),
    )
    event = _write(ledger, "verdict", experiment, dataclasses.asdict(verdict))
    return dataclasses.replace(verdict, at=event.at)


def claims(ledger: Ledger) -> list[Claim]:
    """Every experiment with a hypothesis or a verdict, in order of first mention."""
    found: dict[str, Claim] = {}
    for event in ledger.events():
        if event.kind not in ("hypothesis", "verdict"):
            continue
        claim = found.get(event.step, Claim(event.step, None))
        if event.kind == "hypothesis" and claim.hypothesis is None and not claim.verdicts:
            known = {item.name for item in dataclasses.fields(Hypothesis)}
            values: dict[str, Any] = {key: value for key, value in event.data.items() if key in known}
            values["direction"] = Direction(values["direction"])
            claim = dataclasses.replace(claim, hypothesis=Hypothesis(**values), declared_at=event.at)
        elif event.kind == "verdict":
            claim = dataclasses.replace(claim, verdicts=(*claim.verdicts, _verdict(event)))
        found[event.step] = claim
    return list(found.values())


def _made_before(ledger: Ledger, reference: str, at: str) -> bool:
    try:
        made = ledger.record(*split_reference(reference)).created_at
    except (RecordNotFoundError, UsageError):
        return False  # a failed step leaves no record, and evidence may be a text
    return bool(made) and made < at


def _verdict(event: LedgerEvent) -> Verdict:
    data = dict(event.data)
    interval = data.get("interval")
    return Verdict(
        experiment=data["experiment"],
        outcome=VerdictOutcome(data["outcome"]),
        value=data["value"],
        interval=(interval[0], interval[1]) if interval else None,
        evidence=tuple(data["evidence"]),
        post_hoc=data["post_hoc"],
        at=event.at,
    )


def _write(ledger: Ledger, kind: str, experiment: str, data: dict[str, Any]) -> LedgerEvent:
    check_store(ledger.prefix)
    event = new_event(kind, time.time(), step=experiment, data=data)
    write_event(ledger.prefix, event)
    return event
