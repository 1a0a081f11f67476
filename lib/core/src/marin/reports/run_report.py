"""Write the page of a run into its store."""

from __future__ import annotations

from collections.abc import Sequence

from rigging.filesystem.atomic import write_text_atomic

from marin.execution import RunSummary
from marin.reports.run_page import render_run_page
from marin.reports.run_view import run_view


def write_run_report(
    summary: RunSummary, path: str, *, title: str, command: str, figures: Sequence[tuple[str, str, str]] = ()
) -> None:
    """Draw the page and replace the file at once.

    Args:
        summary: What the run did.
        path: HTML file to write.
        title: Heading.
        command: How to run it again.
        figures: Headline numbers, ``(label, value, note)``.
    """
    write_text_atomic(path, render_run_page(run_view(summary, title=title, command=command, figures=figures)))
