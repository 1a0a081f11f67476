"""What every command shares."""

import json
from typing import Any

import click

PREFIX = click.option("--prefix", metavar="P", help="Root of the store [MARIN_PREFIX or ./marin_store].")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


def echo_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False))


class ScriptCommand(click.Command):
    """Keeps everything after ``--`` for the script, and prints the script's own options with ``-- --help``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at ``--``."""
        own = []
        if "--" in args:
            cut = args.index("--")
            args, own = args[:cut], args[cut + 1 :]
        ctx.obj = own
        return super().parse_args(ctx, args)
