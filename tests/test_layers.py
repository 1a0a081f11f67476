"""The import contracts hold, and each kind of violation is really caught."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def lint_imports(folder: Path, search: list[Path]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, search)), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Path:
    """All sources side by side in a folder of their own, with the contracts."""
    shutil.copyfile(root / ".importlinter", tmp_path / ".importlinter")
    for source in [*root.glob("lib/*/src/*"), root / "experiments"]:
        if source.is_dir() and (source / "__init__.py").is_file():
            shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_contracts_hold(root: Path) -> None:
    done = lint_imports(root, [])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("rigging/planted.py", "import fray", "Packages lean downwards only"),
        ("haliax/planted.py", "import rigging", "Packages lean downwards only"),
        ("zephyr/planted.py", "import experiments", "Packages lean downwards only"),
        ("zephyr/planted.py", "def late():\n    import jax", "no numerics framework"),
        ("levanter/planted.py", "import zephyr", "only in its cache builder"),
        ("levanter/planted.py", "import wandb", "named after them"),
        ("fray/planted.py", "import kubernetes", "know no cluster"),
        ("marin/execution/planted.py", "import levanter", "import no jax and no trainer"),
        ("marin/execution/planted.py", "import marin.ledger", "only rooms above it"),
        ("marin/datakit/planted.py", "import haliax", "data curation imports no jax"),
        (
            "rigging/planted.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rigging.timing\n",
            None,
        ),
    ],
)
def test_a_planted_violation_is_caught(copied: Path, module: str, line: str, contract: str | None) -> None:
    (copied / module).write_text(f'"""Planted."""\n{line}\n')
    done = lint_imports(copied, [copied])
    if contract is None:
        assert done.returncode == 0, done.stdout
    else:
        assert done.returncode == 1, done.stdout
        broken = [row for row in done.stdout.splitlines() if "BROKEN" in row]
        assert any(contract in row for row in broken), broken


def test_a_planted_cycle_is_caught_even_when_only_type_checkers_see_it(copied: Path) -> None:
    (copied / "zephyr/planted_a.py").write_text("import zephyr.planted_b\n")
    (copied / "zephyr/planted_b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import zephyr.planted_a\n"
    )
    done = lint_imports(copied, [copied])
    assert done.returncode == 1
    assert any("BROKEN" in row and "cycles" in row for row in done.stdout.splitlines()), done.stdout
