"""``marin``: run experiments and ask the ledger. A room is imported only when its command runs.

Exit codes: 0 everything is there, 1 a step failed, 2 usage or bad input, 3 the plan was refused.
"""

import sys
from typing import Any

import click

from marin._cli.common import JSON as _JSON
from marin._cli.common import PREFIX as _PREFIX
from marin._cli.common import echo_json as _echo_json
from marin._cli.problems import print_error, reported
from marin._cli.trust.cli import audit, hypotheses, keygen, sign


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="marin-core", prog_name="marin")
def marin() -> None:
    """Run experiments whose every step is on record, and ask what happened and why."""


class _ScriptCommand(click.Command):
    """Keeps everything after ``--`` for the script, and prints the script's own options with ``-- --help``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at ``--``."""
        own = []
        if "--" in args:
            cut = args.index("--")
            args, own = args[:cut], args[cut + 1 :]
        ctx.obj = own
        return super().parse_args(ctx, args)


def _run_command() -> click.Command:
    """Made on demand: its options live in a module that loads the engine."""
    from marin.experiment.cli import run_options

    params: list[click.Parameter] = [click.Argument(["script"]), *run_options()]
    help_text = """Bring the steps of SCRIPT up to date.

    SCRIPT is a Python file with `main = experiment_main(build)`. Options of the script itself go after `--`.

    \b
    Examples:
      marin run experiments/tutorials/train_tiny_model_cpu.py
      marin run train.py --plan
      marin run train.py --force tokens --max-concurrent 2
      marin run train.py --json -- --data path:corpus/*.jsonl
    """
    return _ScriptCommand(
        "run", params=params, callback=_run, help=help_text, short_help="Bring a script's steps up to date."
    )


def _run(script: str, **values: Any) -> None:
    from marin.experiment.cli import load_experiment, request_from

    own = click.get_current_context().obj or []
    with reported():
        request = request_from(values)
        experiment = load_experiment(script)
        options, _ = experiment.parse(own, with_run_options=False)
        code = experiment.execute(options, request)
    sys.exit(code)


@marin.command(cls=_ScriptCommand)
@_JSON
@click.option("--update", is_flag=True, help="Accept what changed, unless a recipe changed under a fixed version.")
@click.option("--file", "path", metavar="FILE", help="The golden plan [golden/<script>.json beside the script].")
@click.argument("script")
def golden(as_json: bool, update: bool, path: str | None, script: str) -> None:
    """Compare the recipes of SCRIPT with those on file; exits with 1 and shows the fields when they differ.

    Options of the script go after `--`; without any, those on file are used again.

    \b
    Examples:
      marin golden experiments/tutorials/train_tiny_model_cpu.py
      marin golden train.py --update -- --data hf:example/corpus@1a2b3c
    """
    from marin.execution.golden import ChangeKind
    from marin.experiment.golden_file import change_lines, check_golden, golden_path

    own = click.get_current_context().obj or []
    with reported():
        target = path or golden_path(script)
        changes = check_golden(script, target, own, update=update)
    drifted = any(change.kind is ChangeKind.DRIFTED for change in changes)
    accepted = update and not drifted
    if as_json:
        _echo_json({"file": target, "ok": accepted or not changes, "changes": [item.to_json() for item in changes]})
    else:
        what = "written" if accepted else "not written: a fixed version drifted" if update else "compared"
        click.echo("\n".join([*change_lines(changes), f"{target}: {what}, {len(changes)} changed"]))
    sys.exit(0 if accepted or not changes else 1)


@marin.command()
@_PREFIX
@_JSON
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
            _echo_json(
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


@marin.command()
@_PREFIX
@_JSON
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
            _echo_json(details)
        else:
            click.echo("\n".join(show_lines(details)))


@marin.command()
@_PREFIX
@_JSON
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
            _echo_json(explanation.to_json())
        else:
            click.echo(explanation.paragraph)


@marin.command()
@_PREFIX
@_JSON
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
            _echo_json([group.to_json() for group in groups])
        else:
            click.echo("\n".join(failure_lines(groups, traceback=traceback)))


@marin.command()
@_PREFIX
@_JSON
@click.option("--deep", is_flag=True, help="Hash every file again.")
@click.option("--keys", "keys_file", metavar="FILE", help="Keys whose signatures count: a .pub file or a .toml list.")
@click.option("--require-signature", is_flag=True, help="Fail when an output of the lineage has no valid signature.")
@click.argument("step")
def verify(
    prefix: str | None, as_json: bool, deep: bool, keys_file: str | None, require_signature: bool, step: str
) -> None:
    """Check that NAME@VERSION, and everything it was made from, is what was recorded. Exits with 1 when it is not.

    \b
    Examples:
      marin verify model@2026.12.01
      marin verify model@auto --deep --json
      marin verify model@auto --keys release.pub --require-signature
    """
    from marin._cli.tables import verification_lines
    from marin.ledger.ledger import Ledger, split_reference
    from marin.ledger.trusted_keys import load_trusted_keys
    from marin.ledger.verification import verify as check

    with reported():
        keys = load_trusted_keys(keys_file) if keys_file else None
        result = check(
            Ledger(prefix), *split_reference(step), deep=deep, keys=keys, require_signature=require_signature
        )
        if as_json:
            _echo_json(result.to_json())
        else:
            click.echo("\n".join(verification_lines(result)))
    sys.exit(0 if result.ok else 1)


@marin.command()
@_PREFIX
@_JSON
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
            _echo_json(difference)
        else:
            click.echo("\n".join(diff_lines(difference)))


@marin.command()
@_PREFIX
@_JSON
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
            _echo_json(index.to_json())
        elif output is None:
            click.echo("\n".join(index_lines(index)))


@marin.command()
@_PREFIX
@_JSON
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
        _echo_json({"title": found.title, "file": None if to_stdout else path, "existed": existed, "text": found.text})
    elif to_stdout:
        click.echo(found.text)
    else:
        click.echo(f"{path}{' (was there already)' if existed else ''}")


@marin.command()
@_PREFIX
@_JSON
@click.option("--from", "sources", required=True, multiple=True, metavar="P", help="Store to copy from (repeatable).")
@click.argument("step")
def replicate(prefix: str | None, as_json: bool, sources: tuple[str, ...], step: str) -> None:
    """Copy NAME@VERSION from another store, hashed against its manifest before it is committed.

    \b
    Examples:
      marin replicate tokens@2026.12.01 --from s3://example-eu/store
    """
    from rigging.progress import Progress

    from marin.execution._files import check_prefix, check_store
    from marin.execution.replicate import replicate as copy_output
    from marin.ledger.ledger import Ledger, split_reference

    with reported():
        name, version = split_reference(step)
        roots = [check_prefix(source) for source in sources]
        if not version or version.endswith("auto"):
            version = Ledger(roots[0]).find(name, version).version
        address = f"{name}/{version}"
        target = Ledger(prefix).prefix
        check_store(target)
        with Progress(None, unit="B", description=f"copy {step}") as progress:

            def tell(done: int, total: int) -> None:
                progress.total = total
                progress.update(done)

            record = copy_output(address, target, roots, progress=tell)
        if as_json:
            _echo_json({"copied": record is not None, "path": f"{target}/{address}"})
        elif record is None:
            click.echo(f"{target}/{address} is there already, or is being made")
        else:
            click.echo(f"{record.output_path}: {record.files} files, {record.bytes:,} bytes from {record.replica_of}")


@marin.group()
def ledger() -> None:
    """Query the ledger, or make its index again."""


@ledger.command()
@_PREFIX
@_JSON
@click.option("--sql", required=True, metavar="SQL", help="One query over steps, attempts, inputs and events.")
def query(prefix: str | None, as_json: bool, sql: str) -> None:
    """Run SQL over the tables `steps`, `attempts`, `inputs` and `events` (needs the extra `ledger`).

    \b
    Examples:
      marin ledger query --sql "SELECT category, count(*) FROM attempts GROUP BY 1"
      marin ledger query --sql "SELECT name, version, seconds FROM steps ORDER BY seconds DESC LIMIT 5" --json
    """
    from marin._cli.tables import table
    from marin.ledger._adapters.duckdb_query import run_query
    from marin.ledger.ledger import Ledger
    from marin.ledger.tables import COLUMNS, load_tables

    with reported():
        names, rows = run_query(COLUMNS, load_tables(Ledger(prefix)), sql)
        if as_json:
            _echo_json([dict(zip(names, row, strict=True)) for row in rows])
        else:
            click.echo(table(names, [["" if cell is None else str(cell) for cell in row] for row in rows]))


@ledger.command()
@_PREFIX
@_JSON
def rebuild(prefix: str | None, as_json: bool) -> None:
    """Make the index again from records, attempts and events. It is a cache; nothing depends on it.

    \b
    Examples:
      marin ledger rebuild
      marin ledger rebuild --json
    """
    import os

    from marin.ledger.ledger import Ledger
    from marin.ledger.tables import index_path, load_tables

    with reported():
        store = Ledger(prefix)
        if os.path.exists(index_path(store.prefix)):
            os.unlink(index_path(store.prefix))
        tables = load_tables(store)
        if as_json:
            _echo_json({name: len(rows) for name, rows in tables.items()})
        else:
            click.echo(", ".join(f"{len(rows)} {name}" for name, rows in tables.items()))


@ledger.command()
@_PREFIX
@_JSON
@click.option("--keep-days", default=1, show_default=True, metavar="N", help="Days, today included, left as they are.")
def compact(prefix: str | None, as_json: bool, keep_days: int) -> None:
    """Move the events of past days into one Parquet file a day (needs the extra `ledger`). Safe at any time.

    \b
    Examples:
      marin ledger compact
      marin ledger compact --keep-days 7 --json
    """
    import time

    from marin._cli.tables import table
    from marin.errors import UsageError
    from marin.execution._files import check_store
    from marin.execution.attempts import utc_text
    from marin.ledger.compaction import compact as compact_days
    from marin.ledger.ledger import Ledger

    with reported():
        if keep_days < 0:
            raise UsageError(f"bad --keep-days {keep_days}; expected 0 or more.", hint="0 compacts today's events too.")
        store = Ledger(prefix)
        check_store(store.prefix)
        done = compact_days(store.prefix, today=utc_text(time.time())[:10], keep_days=keep_days)
        if as_json:
            _echo_json([day.to_json() for day in done])
        elif done:
            rows = [[day.day, str(day.events), str(day.files_removed), f"{day.bytes:,}"] for day in done]
            click.echo(table(["day", "events", "files removed", "bytes"], rows))
        else:
            click.echo("nothing to compact: no day before today has events of its own")


for _command in (hypotheses, keygen, sign, audit):
    marin.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``marin`` command.

    Raises:
        SystemExit: With 0, 1, 2 or 3.
    """
    marin.add_command(_run_command())
    try:
        marin.main(args=arguments, prog_name="marin", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        print_error(error.format_message(), f"Try '{_usage_help(error)}'.")
        sys.exit(2)


def _usage_help(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context is not None else "marin --help"


if __name__ == "__main__":
    main()
