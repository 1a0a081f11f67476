"""Commands that ask a store: what there is, why, what failed, how outputs differ. Rooms are imported when they run."""

import click

from marin._cli.common import JSON, PREFIX, echo_json
from marin._cli.problems import reported


@click.command()
@PREFIX
@JSON
@click.argument("pattern", required=False)
def ls(prefix: str | None, as_json: bool, pattern: str | None) -> None:
    """List the steps of a store, optionally those whose NAME@VERSION contains PATTERN.

    \b
    Examples:
      marin ls
      marin ls tokens --json
    """
    from marin._cli.tables import step_rows, table
    from marin.ledger.ledger import Ledger

    with reported():
        ledger = Ledger(prefix)
        entries = [entry for entry in ledger.steps() if not pattern or pattern in entry.label]
        if as_json:
            echo_json(
                [
                    {
                        "step": entry.label,
                        "name": entry.name,
                        "version": entry.version,
                        "status": entry.state,
                        "path": entry.path,
                        "at": entry.status.at if entry.status is not None else "",
                        "content_digest": entry.status.content_digest if entry.status is not None else None,
                    }
                    for entry in entries
                ]
            )
        else:
            click.echo(table(["step", "status", "at", "content"], step_rows(entries)))


@click.command()
@PREFIX
@JSON
@click.argument("step")
def show(prefix: str | None, as_json: bool, step: str) -> None:
    """Show one step, NAME@VERSION: its record, its inputs, its files and every attempt.

    \b
    Examples:
      marin show tokens@auto
      marin show model@2026.12.01 --json
    """
    from marin._cli.tables import show_lines
    from marin.ledger.ledger import Ledger, split_reference

    with reported():
        details = Ledger(prefix).show(*split_reference(step))
        if as_json:
            echo_json(details)
        else:
            click.echo("\n".join(show_lines(details)))


@click.command()
@PREFIX
@JSON
@click.argument("step")
def why(prefix: str | None, as_json: bool, step: str) -> None:
    """Say why NAME@VERSION ran, was served, failed or is missing.

    \b
    Examples:
      marin why tokens@auto
      marin why model@2026.12.01 --json
    """
    from marin.ledger.ledger import Ledger, split_reference

    with reported():
        explanation = Ledger(prefix).why(*split_reference(step))
        if as_json:
            echo_json(explanation.to_json())
        else:
            click.echo(explanation.paragraph)


@click.command()
@PREFIX
@JSON
@click.option("--category", metavar="C", help="Only this category, such as diverged or oom.")
@click.option("--traceback", is_flag=True, help="Also print the traceback of the latest of each group.")
def failures(prefix: str | None, as_json: bool, category: str | None, traceback: bool) -> None:
    """List failed attempts, grouped by category and by what failed. Nothing is ever removed from this list.

    \b
    Examples:
      marin failures
      marin failures --category diverged --json
    """
    from marin._cli.tables import failure_lines
    from marin.ledger.ledger import Ledger

    with reported():
        groups = [group for group in Ledger(prefix).failures() if not category or group.category == category]
        if as_json:
            echo_json([group.to_json() for group in groups])
        else:
            click.echo("\n".join(failure_lines(groups, traceback=traceback)))


@click.command()
@PREFIX
@JSON
@click.argument("left")
@click.argument("right")
def diff(prefix: str | None, as_json: bool, left: str, right: str) -> None:
    """Say how two outputs differ: recipe, inputs, bytes and results.

    \b
    Examples:
      marin diff tokens@2026.11.01 tokens@2026.12.01
      marin diff model@small-auto model@large-auto --json
    """
    from marin._cli.tables import diff_lines
    from marin.execution.fingerprint import describe_drift
    from marin.ledger.ledger import Ledger, split_reference
    from marin.ledger.verification import compare_records

    with reported():
        ledger = Ledger(prefix)
        first, second = (ledger.record(*split_reference(item)) for item in (left, right))
        difference = compare_records(
            first, second, describe_drift(first.fingerprint_payload, second.fingerprint_payload)
        )
        if as_json:
            echo_json(difference)
        else:
            click.echo("\n".join(diff_lines(difference)))
