"""The page of dupekit holds: its Python blocks run."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/packages/dupekit.md"


def test_the_python_blocks_of_the_page_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
