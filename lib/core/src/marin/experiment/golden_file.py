"""The golden plan of a script as a file beside it: compare it with the plan that the script makes, or write it."""

import os
from collections.abc import Sequence

from rigging.filesystem.atomic import write_text_atomic

from marin.errors import UsageError
from marin.execution.entry import lower_mixed
from marin.execution.golden import ChangeKind, GoldenPlan, PlanChange, compare_plans, golden_plan, parse_golden
from marin.execution.graph import plan_graph
from marin.execution.records import read_text
from marin.experiment.cli import RunRequest, load_experiment

_WORDS = {
    ChangeKind.DRIFTED: "changed under a fixed version; give it a new version",
    ChangeKind.CHANGED: "changed",
    ChangeKind.ADDED: "is new",
    ChangeKind.REMOVED: "is gone",
}


def golden_path(script: str) -> str:
    """Where the golden plan of a script lies: in ``golden/`` beside it.

    Example:
        >>> golden_path("experiments/tutorials/tiny.py")
        'experiments/tutorials/golden/tiny.json'
    """
    folder, file = os.path.split(script)
    return os.path.join(folder, "golden", os.path.splitext(file)[0] + ".json")


def read_golden(path: str) -> GoldenPlan | None:
    """The golden plan on file, or None.

    Raises:
        CorruptRecordError: The file is not one.
    """
    text = read_text(path)
    return None if text is None else parse_golden(path, text)


def current_plan(script: str, arguments: Sequence[str]) -> GoldenPlan:
    """The plan that a script makes.

    Raises:
        MarinError: The script or its options cannot be used.
    """
    experiment = load_experiment(script)
    options, _ = experiment.parse(arguments, with_run_options=False)
    handles = experiment.handles(options, RunRequest())
    lowered = lower_mixed(handles)
    # The prefix is not part of a recipe; any will do.
    graph = plan_graph([lowered[handle] for handle in handles], "/")
    return golden_plan(graph.steps, arguments)


def check_golden(script: str, path: str, arguments: Sequence[str], *, update: bool) -> list[PlanChange]:
    """Compare, and with ``update`` write the file unless a fixed version drifted.

    Args:
        script: The experiment.
        path: Its golden plan.
        arguments: The experiment's own options; those on file when there are none.
        update: Accept what changed.
    Returns:
        What differs (from the old file, with ``update``).
    Raises:
        UsageError: There is no file and ``update`` was not asked for.
    """
    golden = read_golden(path)
    if golden is None and not update:
        raise UsageError(f"no golden plan: {path!r} does not exist.", hint="Write it with --update and commit it.")
    current = current_plan(script, arguments or (golden.arguments if golden is not None else ()))
    changes = compare_plans(golden, current) if golden is not None else []
    if update and not any(change.kind is ChangeKind.DRIFTED for change in changes):
        write_text_atomic(path, current.text())
    return changes


def change_lines(changes: Sequence[PlanChange]) -> list[str]:
    """Differences as lines."""
    lines = []
    for change in changes:
        lines.append(f"{change.step} {_WORDS[change.kind]}")
        lines += [f"    {line}" for line in change.lines]
    return lines
