"""Draw the page of a run: one self-contained HTML file."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from marin.reports._svg import Node, Series, line_chart, step_graph
from marin.reports.view import Curve, RunView, StepView

GOOD = frozenset({"executed", "cached"})
LOSS_CEILING_FACTOR = 1.6
"""The loss axis ends at this multiple of the healthiest arm's first loss; diverged arms leave through the top."""


def format_bytes(count: float | None) -> str:
    """Bytes in decimal units.

    Example:
        >>> format_bytes(11_210_611)
        '11.2 MB'
    """
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_seconds(seconds: float | None) -> str:
    """Wall time, in the unit a person would use.

    Example:
        >>> format_seconds(3.14159), format_seconds(125.0)
        ('3.1 s', '2 min 05 s')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


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
    environment = Environment(
        loader=PackageLoader("marin.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = format_bytes
    environment.filters["seconds"] = format_seconds
    return environment.get_template("run.html.j2").render(
        view=view,
        graph=step_graph([_node(step) for step in view.steps], {step.key: list(step.deps) for step in view.steps}),
        chart=loss_chart(tuple(view.curves)),
        failures=[step for step in view.steps if step.status not in GOOD],
        attempts=[(step, attempt) for step in view.steps for attempt in step.attempts],
    )
