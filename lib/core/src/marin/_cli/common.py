"""What every command shares."""

import json
from typing import Any

import click

PREFIX = click.option("--prefix", metavar="P", help="Root of the store [MARIN_PREFIX or ./marin_store].")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")


def echo_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False))
