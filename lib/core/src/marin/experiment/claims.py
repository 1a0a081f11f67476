"""Hypotheses of an experiment script: written down before its run, judged by its results.

``experiment_main(build, hypotheses=[...])`` calls these. A hypothesis names the step and the field of its result that
decides, so nobody picks the number afterwards.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from marin.errors import UsageError
from marin.execution.outcomes import Outcome, RunSummary
from marin.execution.records import read_record
from marin.execution.step_spec import StepSpec
from marin.ledger.hypotheses import Claim, Hypothesis, Verdict, claims, conclude, declare
from marin.ledger.ledger import Ledger


def check_hypotheses(hypotheses: Sequence[Hypothesis], specs: Iterable[StepSpec]) -> None:
    """Refuse hypotheses that no run of this graph could decide.

    Args:
        hypotheses: What the script claims.
        specs: Every step of the graph.
    Raises:
        UsageError: One names no step, a step that is not there, or a field that its result does not have.
    """
    types = {spec.name: spec.artifact_type for spec in specs}
    for hypothesis in hypotheses:
        where = f"bad hypothesis of {hypothesis.experiment!r}:"
        if hypothesis.step not in types:
            close = difflib.get_close_matches(hypothesis.step, types, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Steps: {', '.join(sorted(types)[:12])}."
            raise UsageError(f"{where} step={hypothesis.step!r} is no step of this graph.", hint=hint)
        fields = [item.name for item in dataclasses.fields(types[hypothesis.step]) if item.name != "path"]  # pyrefly: ignore[bad-argument-type]
        for metric in filter(None, (hypothesis.metric, hypothesis.interval)):
            if metric.partition(".")[0] not in fields:
                shown = ", ".join(fields) or "none"
                raise UsageError(
                    f"{where} the result of {hypothesis.step!r} has no field {metric!r}; fields: {shown}.",
                    hint="Name a number among the declared fields of the step's artifact class.",
                )


def declare_hypotheses(prefix: str, hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Write down what has not been written down yet.

    Args:
        prefix: Root of the store.
        hypotheses: What the script claims.
    Returns:
        One line for every hypothesis that differs from the one on record, which stands.
    """
    if not hypotheses:
        return []
    ledger = Ledger(prefix)
    known: dict[str, Claim] = {claim.experiment: claim for claim in claims(ledger)}
    notes = []
    for hypothesis in hypotheses:
        claim = known.get(hypothesis.experiment)
        if claim is None:
            declare(ledger, hypothesis)
        elif claim.hypothesis is not None and claim.hypothesis != hypothesis:
            notes.append(
                f"the hypothesis of {hypothesis.experiment!r} was changed after it was declared at "
                f"{claim.declared_at}; the first one counts (give a new one a new name)"
            )
    return notes


def conclude_hypotheses(prefix: str, hypotheses: Sequence[Hypothesis], summary: RunSummary) -> list[Verdict]:
    """Judge every hypothesis by the results of a run; the same evidence is judged once.

    Args:
        prefix: Root of the store.
        hypotheses: What the script claims.
        summary: What the run did.
    Returns:
        The verdict of each that can be judged; of a step that was not run there is none.
    """
    if not hypotheses:
        return []
    ledger = Ledger(prefix)
    known: dict[str, Claim] = {claim.experiment: claim for claim in claims(ledger)}
    verdicts = []
    for hypothesis in hypotheses:
        outcome = summary.outcome(hypothesis.step)
        if outcome.outcome is Outcome.NOT_RUN:
            continue
        evidence = (outcome.step,)
        earlier = known[hypothesis.experiment].verdicts if hypothesis.experiment in known else ()
        value = _number(_field(outcome.path, hypothesis.metric)) if outcome.ok else None
        same = [verdict for verdict in earlier if verdict.evidence == evidence and verdict.value == value]
        if same:
            verdicts.append(same[-1])
        else:
            interval = _interval(outcome.path, hypothesis.interval) if outcome.ok else None
            verdict = conclude(
                ledger, hypothesis.experiment, value, interval=interval, evidence=evidence, fallback=hypothesis
            )
            verdicts.append(verdict)
    return verdicts


def _field(path: str, name: str) -> Any:
    """A field in the result of an output."""
    record = read_record(path)
    value: Any = record.result if record is not None else None
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _interval(path: str, name: str) -> tuple[float, float] | None:
    """The confidence interval in the result of an output, where the hypothesis names one."""
    value = _field(path, name) if name else None
    numbers = [_number(item) for item in value] if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return numbers[0], numbers[1]
