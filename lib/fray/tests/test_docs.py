"""The examples in the README, the guide and the docstrings run."""

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re

import fray
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(os.path.dirname(HERE), "README.md")
MODULES = ["fray", *sorted(m.name for m in pkgutil.walk_packages(fray.__path__, "fray."))]
if importlib.util.find_spec("ray") is None:
    MODULES = [name for name in MODULES if not name.startswith("fray.ray_backend")]  # needs its extra


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


def test_enough_public_functions_have_an_example():
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_example = sum(len([t for t in finder.find(importlib.import_module(n)) if t.examples]) for n in MODULES)
    assert with_example >= 8


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
    assert len(run_blocks(README).splitlines()) <= 120


def test_guide_blocks_run(tmp_path, monkeypatch):
    guide = os.path.join(HERE, "..", "..", "..", "docs", "packages", "fray.md")
    if not os.path.exists(guide):
        pytest.skip("the guide is part of the repository, not of the package")
    monkeypatch.chdir(tmp_path)
    text = run_blocks(guide)
    assert "max_restarts" in text
