"""Commands that write for people: index of experiments, failure cases; rooms imported when they run."""

import click

from marin._cli.common import JSON, PREFIX, echo_json
from marin._cli.problems import reported


@click.command()
@PREFIX
@JSON
@click.option("-o", "--output", metavar="FILE", help="Page to write: .html, .md (for a documentation site) or .json.")
def reports(prefix: str | None, as_json: bool, output: str | None) -> None:
    """Build the index of experiments: running, failed, refuted, succeeded, superseded (pages need the extra `report`).

    \b
    Examples:
      marin reports
      marin reports -o reports.html
      marin reports -o docs/reports/index.md
      marin reports --json
    """
    import time

    from marin._cli.index_text import index_lines, index_text
    from marin.execution.attempts import utc_text
    from marin.ledger.ledger import Ledger
    from marin.reports.experiments_index import experiments_index

    with reported():
        index = experiments_index(Ledger(prefix), now=utc_text(time.time()))
        if output is not None:
            from rigging.filesystem.atomic import write_text_atomic

            write_text_atomic(output, index_text(index, output))
            click.echo(output, err=True)
        if as_json:
            echo_json(index.to_json())
        elif output is None:
            click.echo("\n".join(index_lines(index)))


@click.command()
@PREFIX
@JSON
@click.option(
    "-o", "--folder", default="experiments/failures", show_default=True, metavar="DIR", help="Where to write."
)
@click.option("--stdout", "to_stdout", is_flag=True, help="Print the case instead of writing a file.")
@click.argument("step")
def case(prefix: str | None, as_json: bool, folder: str, to_stdout: bool, step: str) -> None:
    """Open a failure case for NAME@VERSION: error, log tail, kept files and checkpoints, with room for the rest.

    A case that is there already is left alone: what people wrote into it stays.

    \b
    Examples:
      marin case model-hot@auto
      marin case model@2026.12.01 --stdout
    """
    import os

    from rigging.filesystem.atomic import write_text_atomic

    from marin.ledger.ledger import Ledger, split_reference
    from marin.reports.failure_case import failure_case

    with reported():
        found = failure_case(Ledger(prefix), *split_reference(step))
        path = os.path.join(folder, found.file_name)
        existed = os.path.exists(path)
        if not existed and not to_stdout:
            write_text_atomic(path, found.text)
    if as_json:
        echo_json({"title": found.title, "file": None if to_stdout else path, "existed": existed, "text": found.text})
    elif to_stdout:
        click.echo(found.text)
    else:
        click.echo(f"{path}{' (was there already)' if existed else ''}")
