import doctest
import importlib
import re
from pathlib import Path

import dupekit
import pytest

MODULES = ["dupekit", *(f"dupekit.{name}" for name in ("bloom", "hashing", "ngrams", "similarity", "steps", "testing"))]
NATIVE = ["Bloom", "TokenNgrams", "TokenNgramSignature", "TokenNgramFingerprintSignature"]
README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.DocTestFinder(exclude_empty=True).find(module, name)
    examples = [test for test in found if test.examples]
    assert examples
    for test in examples:
        result = doctest.DocTestRunner().run(test)
        assert result.failed == 0, test.name


@pytest.mark.parametrize("name", NATIVE)
def test_the_examples_of_native_classes_run(name: str) -> None:
    text = getattr(dupekit, name).__doc__
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_python_blocks_of_the_readme_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
