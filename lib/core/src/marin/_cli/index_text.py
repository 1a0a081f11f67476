"""The index of experiments as text: for a terminal, or in the form that a file's name asks for."""

import json
import os

from marin._cli.tables import table
from marin.errors import UsageError
from marin.reports.experiments_index import ExperimentsIndex
from marin.reports.index_page import render_index_html, render_index_markdown

_SUFFIXES = (".html", ".md", ".json")


def index_lines(index: ExperimentsIndex) -> list[str]:
    """Lines for a terminal."""
    lines = [", ".join(f"{count} {state}" for state, count in index.counts.items())]
    for experiment in index.experiments:
        rows = [[row.state.value, row.step, row.when, row.note[:80]] for row in experiment.rows]
        lines += ["", f"{experiment.name}: {experiment.state.value}", table(["state", "result", "when", "note"], rows)]
    if index.claims:
        rows = [[claim.verdict, claim.experiment, claim.rule, claim.value, claim.claim] for claim in index.claims]
        lines += ["", table(["verdict", "experiment", "decided by", "value", "claim"], rows)]
    return lines


def index_text(index: ExperimentsIndex, path: str) -> str:
    """The page in the form of ``path``'s suffix.

    Raises:
        UsageError: The suffix is none of ``.html``, ``.md`` and ``.json``, or jinja2 is not installed.
    """
    suffix = os.path.splitext(path)[1]
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"bad --output {path!r}; expected a name that ends in {', '.join(_SUFFIXES)}.", hint="Rename the file."
        )
    if suffix == ".json":
        return json.dumps(index.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return render_index_html(index) if suffix == ".html" else render_index_markdown(index)
