"""Draw an audit: one self-contained HTML file that opens anywhere and fetches nothing."""

from __future__ import annotations

from rigging.filesystem.atomic import write_text_atomic

from marin.reports._svg import Node, step_graph
from marin.reports._template import render
from marin.reports.audit_view import AuditView, LineageStep

MAX_PATCH_CHARACTERS = 200_000
"""Of a longer patch the page shows the beginning; the whole lies in the store."""


def _node(step: LineageStep) -> Node:
    bad = step.problems or step.kind in ("pinned", "missing", "unreadable")
    detail = ", ".join(filter(None, [step.purpose or step.kind, "signed" if step.signature == "valid" else ""]))
    return Node(step.step, step.name, f"{detail}, {step.version}" if step.version else detail, "bad" if bad else "good")


def render_audit_page(view: AuditView) -> str:
    """The page as HTML text.

    Args:
        view: What to show.
    Returns:
        A complete document without external references.
    """
    nodes = [_node(step) for step in view.lineage]
    return render(
        "audit.html.j2",
        view=view,
        graph=step_graph(nodes, {step.step: list(step.inputs) for step in view.lineage}),
        patch_limit=MAX_PATCH_CHARACTERS,
    )


def write_audit_page(view: AuditView, path: str) -> None:
    """Draw the page and replace the file at once.

    Raises:
        OSError: The file cannot be written.
    """
    write_text_atomic(path, render_audit_page(view))
