"""Commands about stores as a whole: copies between them, the ledger as tables. Each imports its room when it runs."""

import click

from marin._cli.common import JSON, PREFIX, echo_json
from marin._cli.problems import reported


@click.command()
@PREFIX
@JSON
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
            echo_json({"copied": record is not None, "path": f"{target}/{address}"})
        elif record is None:
            click.echo(f"{target}/{address} is there already, or is being made")
        else:
            click.echo(f"{record.output_path}: {record.files} files, {record.bytes:,} bytes from {record.replica_of}")


@click.command()
@PREFIX
@JSON
@click.option("--older-than", "hours", default=24.0, show_default=True, metavar="HOURS", help="Leave younger things.")
@click.option("--remove", is_flag=True, help="Remove what is found; without it, list only.")
def tidy(prefix: str | None, as_json: bool, hours: float, remove: bool) -> None:
    """List what dead drivers left in the store and no run will meet again: unlisted objects, staging folders, trash.

    Steps that a driver works on are passed over. Outputs, attempts and files of your own are never touched.

    \b
    Examples:
      marin tidy
      marin tidy --older-than 72 --remove --json
    """
    import time

    from marin._cli.tables import table
    from marin.errors import UsageError
    from marin.ledger.ledger import Ledger
    from marin.ledger.strays import find_strays

    with reported():
        if not hours >= 0:
            raise UsageError(f"bad --older-than {hours}; expected 0 or more hours.", hint="A day is a safe age.")
        root = Ledger(prefix).prefix
        strays, busy = find_strays(root, now=time.time(), older_than_s=hours * 3600, remove=remove)
        if as_json:
            echo_json({"strays": [item.to_json() for item in strays], "busy": busy})
            return
        if strays:
            rows = [
                [item.step, item.kind, f"{item.bytes:,}", f"{item.age_s / 3600:.1f}", item.path]
                + (["yes" if item.removed else "no"] if remove else [])
                for item in strays
            ]
            click.echo(table(["step", "kind", "bytes", "hours", "path", *(["removed"] if remove else [])], rows))
        else:
            click.echo("nothing was left behind")
        for step in busy:
            click.echo(f"passed over, a driver is at work: {step}", err=True)


@click.group()
def ledger() -> None:
    """Query the ledger, or make its index again."""


@ledger.command()
@PREFIX
@JSON
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
            echo_json([dict(zip(names, row, strict=True)) for row in rows])
        else:
            click.echo(table(names, [["" if cell is None else str(cell) for cell in row] for row in rows]))


@ledger.command()
@PREFIX
@JSON
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
            echo_json({name: len(rows) for name, rows in tables.items()})
        else:
            click.echo(", ".join(f"{len(rows)} {name}" for name, rows in tables.items()))


@ledger.command()
@PREFIX
@JSON
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
            echo_json([day.to_json() for day in done])
        elif done:
            rows = [[day.day, str(day.events), str(day.files_removed), f"{day.bytes:,}"] for day in done]
            click.echo(table(["day", "events", "files removed", "bytes"], rows))
        else:
            click.echo("nothing to compact: no day before today has events of its own")
