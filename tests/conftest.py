"""Fixtures for the tests of the house itself."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.workspace import ROOT, Package, load_workspace


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def packages() -> dict[str, Package]:
    return load_workspace()


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., Path]:
    """Make a git repository with the given files tracked."""

    def make(files: dict[str, str]) -> Path:
        folder = tmp_path / "repository"
        folder.mkdir()
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
        return folder

    return make
