"""The examples in the README and in docstrings run as they are printed."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import zephyr

README = Path(__file__).parent.parent / "README.md"
MODULES = sorted(m.name for m in pkgutil.walk_packages(zephyr.__path__, "zephyr.") if not m.name.endswith("__main__"))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "every module says what it is for"
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


def test_readme_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {"__name__": "__main__"})
