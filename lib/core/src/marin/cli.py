"""``marin``: run experiments and ask the ledger. A room is imported only when its command runs.

Exit codes: 0 everything is there, 1 a step failed, 2 usage or bad input, 3 the plan was refused.
"""

import sys
from typing import Any

import click

from marin._cli.asking.cli import diff, failures, ls, show, why
from marin._cli.common import JSON, ScriptCommand, echo_json
from marin._cli.problems import print_error, reported
from marin._cli.publishing.cli import case, reports
from marin._cli.stores.cli import ledger, replicate, tidy
from marin._cli.trust.cli import audit, hypotheses, keygen, policy, sign, verify


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="marin-core", prog_name="marin")
def marin() -> None:
    """Run experiments whose every step is on record, and ask what happened and why."""


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
    return ScriptCommand(
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


@click.command(cls=ScriptCommand)
@JSON
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
        echo_json({"file": target, "ok": accepted or not changes, "changes": [item.to_json() for item in changes]})
    else:
        what = "written" if accepted else "not written: a fixed version drifted" if update else "compared"
        click.echo("\n".join([*change_lines(changes), f"{target}: {what}, {len(changes)} changed"]))
    sys.exit(0 if accepted or not changes else 1)


for _command in (
    ls, show, why, failures, diff, verify, hypotheses, audit, policy, keygen, sign, reports, case, golden, replicate,
    tidy, ledger,
):  # fmt: skip
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
