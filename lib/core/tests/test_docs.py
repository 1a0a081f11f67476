"""The README, the guide and the docstring examples of the engine, the ledger and the command line run."""

import doctest
import importlib
import os
import pkgutil
import re

import marin.datakit
import marin.execution
import marin.ledger
import marin.policy
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(HERE, "..", "README.md")
GUIDE = os.path.join(HERE, "..", "..", "..", "docs", "packages", "core.md")
MODULES = [
    "marin",
    "marin.errors",
    "marin.execution",
    "marin.ledger",
    "marin.cli",
    "marin.experiment.cli",
    *(item.name for item in pkgutil.walk_packages(marin.execution.__path__, "marin.execution.")),
    *(item.name for item in pkgutil.walk_packages(marin.ledger.__path__, "marin.ledger.")),
    "marin.datakit",
    *(item.name for item in pkgutil.walk_packages(marin.datakit.__path__, "marin.datakit.")),
    "marin.policy",
    *(item.name for item in pkgutil.walk_packages(marin.policy.__path__, "marin.policy.")),
]


@pytest.mark.parametrize("name", [name for name in MODULES if "_adapters" not in name])
def test_docstring_examples_run(name):
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def run_blocks(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    scope = {"__name__": "documentation"}
    for block in blocks:
        exec(compile(block, path, "exec"), scope)
    return text


def test_the_readme_runs_and_is_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    assert len(run_blocks(README).splitlines()) <= 120


def test_the_guide_runs_and_names_every_status_category_and_command(tmp_path, monkeypatch):
    if not os.path.exists(GUIDE):
        pytest.skip("the guide is part of the repository, not of the package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    text = run_blocks(GUIDE)
    from marin.cli import marin as commands
    from marin.execution.failures import FailureCategory
    from marin.execution.outcomes import Outcome

    for name in [*FailureCategory, *Outcome, *(f"marin {command}" for command in commands.commands)]:
        assert f"`{name}" in text, name
