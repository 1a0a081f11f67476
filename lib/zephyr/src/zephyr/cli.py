"""The command `zephyr`: plan or run the Dataset of a script, or look into a data file.

A script defines `build(args: list[str]) -> Dataset`. Data goes to stdout; everything else, errors included, to stderr.
Exit codes: 0 done, 1 the pipeline failed, 2 the call or the input was wrong.
"""

import argparse
import json
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program name; default those of the process.
    Returns:
        The exit code.
    """
    parser = _parser()
    given = list(sys.argv[1:] if argv is None else argv)
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    options.args = given[cut + 1 :]
    from zephyr.errors import TaskFailedError, WorkersLostError, ZephyrError

    try:
        return options.action(options)
    except (TaskFailedError, WorkersLostError) as error:
        return _report(error, 1)
    except ZephyrError as error:
        return _report(error, 2)
    except BrokenPipeError:
        # Whoever reads the output has seen enough; what is left must not be flushed into the closed pipe at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0


def _report(error: Exception, code: int) -> int:
    failure, _, remedy = str(error).rpartition(". ")
    print(f"error: {failure or remedy}", file=sys.stderr)
    if trace := getattr(error, "trace", ""):
        print(trace, file=sys.stderr)
    if failure:
        print(f"\nhint: {remedy}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zephyr", description="Plan and run sharded data pipelines.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="print the plan of a script's Dataset; reads no data")
    plan.add_argument("script")
    plan.add_argument("--json", action="store_true", help="print one JSON object with the stages")
    plan.set_defaults(action=_plan)
    run = commands.add_parser("run", help="run a script's Dataset and print its results")
    run.add_argument("script")
    run.add_argument("--max-workers", type=int, default=None, metavar="N", help="worker processes; 0 runs inline")
    run.add_argument("--json", action="store_true", help="print one JSON object with results, counters and stages")
    run.add_argument("--page", default=None, metavar="FILE", help="write an HTML page about the run")
    run.add_argument("--quarantine", default=None, metavar="DIR", help="put records on which functions fail here")
    run.add_argument("--max-quarantined", type=int, default=100, metavar="N", help="fail beyond so many (default 100)")
    run.set_defaults(action=_run)
    inspect = commands.add_parser("inspect", help="show schema, size and first records of a data file")
    inspect.add_argument("file")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    inspect.add_argument("--rows", type=int, default=3, metavar="N", help="records to show (default 3)")
    inspect.set_defaults(action=_inspect)
    return parser


def _build(options: argparse.Namespace) -> Any:
    from zephyr.dataset import Dataset
    from zephyr.errors import DatasetError, ZephyrError

    try:
        names = runpy.run_path(options.script, run_name="__zephyr__")
    except OSError as error:
        raise DatasetError(
            f"cannot read a script: path={options.script!r}, reason={error.strerror}; expected a Python file. "
            "Check the path"
        ) from error
    except Exception as error:  # A script is code of the user's, which may raise anything.
        raise _script_error(options.script, error) from error
    build = names.get("build")
    try:
        dataset = build(options.args) if callable(build) else None
    except ZephyrError:
        raise
    except Exception as error:  # The same holds for what it defines.
        raise _script_error(options.script, error) from error
    if not isinstance(dataset, Dataset):
        raise DatasetError(
            f"cannot use a script: path={options.script!r}, build={build!r}; expected a function build(args) "
            "that returns a Dataset. Define it"
        )
    return dataset


def _script_error(script: str, error: Exception) -> Exception:
    from zephyr.errors import DatasetError

    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if f.filename == script), getattr(error, "lineno", None))
    return DatasetError(
        f"cannot use a script: path={script!r}, line={line}, error={type(error).__name__}: {error}; expected a script "
        "that runs. Fix it"
    )


def _plan(options: argparse.Namespace) -> int:
    from zephyr.plan import compute_plan, describe, explain

    plan = compute_plan(_build(options).pipeline)
    print(json.dumps(describe(plan), default=repr) if options.json else explain(plan))
    return 0


def _run(options: argparse.Namespace) -> int:
    from zephyr._quarantine import Quarantine
    from zephyr.context import ZephyrContext

    dataset = _build(options)
    quarantine = None if options.quarantine is None else Quarantine(options.quarantine, options.max_quarantined)
    context = ZephyrContext(max_workers=options.max_workers)
    result = context.execute(dataset, quarantine=quarantine, run_page=options.page)
    if options.json:
        document = {"counters": result.counters, "results": result.results, "stages": result.stages}
        print(json.dumps(document, sort_keys=True, default=repr))
        return 0
    for item in result.results:
        print(item if isinstance(item, str) else json.dumps(item, default=repr))
    for name, value in result.counters.items():
        print(f"{name}: {value:g}", file=sys.stderr)
    return 0


def _inspect(options: argparse.Namespace) -> int:
    import pyarrow as pa

    from zephyr._blocks import num_rows, rows_of
    from zephyr._ops import Load
    from zephyr._schema import unify_all
    from zephyr.readers import read_file

    shown: list[Any] = []
    schemas, count = [], 0
    for block in read_file(options.file, Load("auto")):
        count += num_rows(block)
        if len(shown) < options.rows:
            shown.extend(rows_of(block)[: options.rows - len(shown)])
        if isinstance(block, pa.RecordBatch) and block.schema not in schemas:
            schemas.append(block.schema)
    schema = unify_all(schemas, where=options.file)
    if options.json:
        fields = {field.name: str(field.type) for field in schema}
        document = {"path": options.file, "records": count, "schema": fields, "rows": shown}
        print(json.dumps(document, default=repr, ensure_ascii=False))
        return 0
    print(f"{options.file}: {count} records")
    for field in schema:
        print(f"  {field.name}: {field.type}")
    for row in shown:
        print(json.dumps(row, default=repr, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
