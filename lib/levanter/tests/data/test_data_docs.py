"""The python blocks of the data page run. In a checkout only: the page is not part of the wheel."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[4] / "docs" / "packages" / "levanter-data.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the docs page is not shipped with the package")
def test_examples_on_the_page_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
