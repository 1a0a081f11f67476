"""The README, the docs page and every docstring example run."""

import doctest
import importlib
import pathlib
import pkgutil
import re
import warnings

import haliax
import pytest

HERE = pathlib.Path(__file__).resolve()
README = HERE.parents[1] / "README.md"
DOCS = README.parent.parent.parent / "docs"
PAGES = [
    "packages/haliax.md",
    *(f"haliax/{n}.md" for n in ("tutorial", "indexing", "sharding", "cheatsheet", "coming-from")),
]


def modules():
    found = ["haliax"]
    for info in pkgutil.walk_packages(haliax.__path__, "haliax."):
        if "._adapters" not in info.name:
            found.append(info.name)
    return found


def run_blocks(path):
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf8"), re.DOTALL)
    assert blocks
    scope = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(path), "exec"), scope)


def test_the_readme_runs_and_is_short():
    run_blocks(README)
    assert len(README.read_text(encoding="utf8").splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_docs_page_runs(page):
    if not (DOCS / "haliax").exists():
        pytest.skip("the docs are not part of the wheel")
    run_blocks(DOCS / page)


def test_every_guide_is_run():
    if not (DOCS / "haliax").exists():
        pytest.skip("the docs are not part of the wheel")
    assert {f"haliax/{p.name}" for p in (DOCS / "haliax").glob("*.md")} == set(PAGES[1:])


@pytest.mark.parametrize("name", modules())
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for test in finder.find(module, name, module=module):
            runner.run(test)
    assert runner.failures == 0
