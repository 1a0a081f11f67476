"""Draw the page of a run: one self-contained HTML file."""

from __future__ import annotations

from marin.reports._format import format_seconds
from marin.reports._svg import Node, Series, line_chart, step_graph
from marin.reports._template import render
from marin.reports.view import Curve, RunView, StepView

GOOD = frozenset({"executed", "cached"})
LOSS_CEILING_FACTOR = 1.6
"""The loss axis ends at this multiple of the healthiest arm's first loss; diverged arms leave through the top."""


def _node(step: StepView) -> Node:
    seconds = sum(attempt.seconds or 0.0 for attempt in step.attempts if attempt.status == "success")
    detail = f"{step.status.replace('_', ' ')}, {format_seconds(seconds)}" if seconds else step.status.replace("_", " ")
    return Node(step.key, step.name, detail, "good" if step.status in GOOD else "bad")


def loss_chart(curves: tuple[Curve, ...]) -> str:
    """Training loss of every arm and validation loss where there is one, in nats per token."""
    series = []
    for slot, curve in enumerate(curves, start=1):
        series.append(Series(curve.label, curve.points, slot=slot, dashed=curve.failed))
        if curve.validation:
            series.append(Series(f"{curve.label}, validation", curve.validation, slot=slot + len(curves)))
    healthy = [curve.points[0][1] for curve in curves if curve.points and not curve.failed]
    limit = max(healthy) * LOSS_CEILING_FACTOR if healthy else None
    return line_chart(series, x_label="step", y_label="loss in nats per token", y_limit=limit)


def render_run_page(view: RunView) -> str:
    """The page as HTML text.

    Args:
        view: What to show.
    Returns:
        A complete document without external references.
    """
    return render(
        "run.html.j2",
        view=view,
        graph=step_graph([_node(step) for step in view.steps], {step.key: list(step.deps) for step in view.steps}),
        chart=loss_chart(tuple(view.curves)),
        failures=[step for step in view.steps if step.status not in GOOD],
        attempts=[(step, attempt) for step in view.steps for attempt in step.attempts],
    )
