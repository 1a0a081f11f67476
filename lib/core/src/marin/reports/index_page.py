"""Draw the index of experiments: as one HTML file, or as Markdown for the documentation site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marin.reports._format import format_seconds
from marin.reports._template import render
from marin.reports.experiments_index import ExperimentsIndex


def render_index_html(index: ExperimentsIndex) -> str:
    """The page as HTML text, a complete document without external references."""
    return render("index.html.j2", index=index)


def render_index_markdown(index: ExperimentsIndex) -> str:
    """The page as Markdown; whatever comes from the store is escaped.

    Example:
        >>> from marin.reports.experiments_index import ExperimentsIndex
        >>> print(render_index_markdown(ExperimentsIndex("2026-12-01 00:00:00", (), (), {"failed": 0})).splitlines()[0])
        # Experiments
    """
    counts = ", ".join(f"{count} {state}" for state, count in index.counts.items())
    parts = [
        "# Experiments",
        "",
        f"Drawn from the ledger at {index.drawn_at} UTC with `marin reports`: {counts}.",
        "Failures and refuted claims stay on this page.",
    ]
    if index.claims:
        rows = [
            (claim.experiment, claim.claim, claim.rule, claim.value, claim.verdict + ", post hoc" * claim.post_hoc)
            for claim in index.claims
        ]
        parts += ["", "## Claims", "", *_table(("experiment", "claim", "decided by", "value", "verdict"), rows)]
    for experiment in index.experiments:
        rows = [(row.state.value, row.step, row.when, format_seconds(row.seconds), row.note) for row in experiment.rows]
        header = ("state", "result", "when", "took", "what it gave, or why not")
        parts += ["", f"## {_escape(experiment.name)}: {experiment.state.value}", "", *_table(header, rows)]
    return "\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(_escape(cell) for cell in row)} |" for row in rows]


def _escape(text: str) -> str:
    """Text that means itself in a Markdown table."""
    flat = " ".join(text.split())
    for mark, plain in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        flat = flat.replace(mark, plain)
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]#|~" else letter for letter in flat)
