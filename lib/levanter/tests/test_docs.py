"""README blocks, the guide's blocks and docstring examples run."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import levanter
import pytest

ROOT = pathlib.Path(__file__).parent.parent
GUIDE = ROOT.parent.parent / "docs/packages/levanter.md"
OPTIONAL = ("levanter._adapters.", "levanter.data.cache_builder")
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(levanter.__path__, "levanter.") if not m.name.startswith(OPTIONAL)
)
MINE = [n for n in MODULES if not n.startswith(("levanter.data", "levanter.store", "levanter.tokenizers"))]


@pytest.mark.parametrize("name", MINE)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert doctest.testmod(module).failed == 0


def run_blocks(path: pathlib.Path, least: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= least
    for block in blocks:
        exec(compile(block, str(path), "exec"), {"__name__": "documentation"})


def test_readme_is_short_and_its_blocks_run():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    run_blocks(ROOT / "README.md", 1)


def test_guide_blocks_run():
    if not GUIDE.exists():
        pytest.skip("the guide is part of the repository, not of the package")
    run_blocks(GUIDE, 2)


def test_the_readme_yaml_is_a_config_that_loads(tmp_path):
    from levanter.config import load_config
    from levanter.main.train_lm import TrainLmConfig

    text = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    (tmp_path / "c.yaml").write_text(text)
    assert load_config(TrainLmConfig, [str(tmp_path / "c.yaml")]).trainer.num_train_steps == 400
