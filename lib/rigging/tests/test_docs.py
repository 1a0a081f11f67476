"""The examples in the README, the guide and the docstrings run."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys

import pytest
import rigging

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(os.path.dirname(HERE), "README.md")
MODULES = ["rigging", *sorted(m.name for m in pkgutil.walk_packages(rigging.__path__, "rigging."))]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_enough_public_functions_have_an_example():
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_example = sum(len([t for t in finder.find(importlib.import_module(n)) if t.examples]) for n in MODULES)
    assert with_example >= 100


def run_blocks(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        text = stream.read()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 2
    scope: dict[str, object] = {"__name__": "documentation"}
    for block in blocks:
        exec(compile(block, path, "exec"), scope)
    return text


def test_readme_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    assert len(run_blocks(README).splitlines()) <= 120


def test_guide_blocks_run(tmp_path, monkeypatch):
    guide = os.path.join(HERE, "..", "..", "..", "docs", "packages", "rigging.md")
    if not os.path.exists(guide):
        pytest.skip("the guide is part of the repository, not of the package")
    monkeypatch.chdir(tmp_path)
    text = run_blocks(guide)
    from rigging import _env

    for variable in _env.TABLE:
        assert f"| `{variable.name}` | {variable.type} |" in text
    commands = re.findall(r"<!-- run -->\n```bash\n(.*?)```\n<!-- output -->\n```text\n(.*?)```", text, re.DOTALL)
    assert commands
    for command, shown in commands:
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env={**os.environ, "PATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed = iter(done.stdout.splitlines())
        for line in shown.splitlines():
            assert line == "..." or line in printed, f"not printed, or not in this order: {line}\n{done.stdout}"
