from pathlib import Path

from infra.declared import package_findings, providers, top_level_imports
from infra.workspace import load_workspace

PROJECT = """
[project]
name = "marin-sample"
version = "0.1.0"
dependencies = ["click", "pyyaml", "cloudpickle"]
[project.optional-dependencies]
fast = ["numpy"]
[dependency-groups]
test = ["pytest"]
[tool.marin.unimported]
cloudpickle = "loaded by name at run time"
"""
SOURCE = '''"""A module."""
import json
import click
import numpy as np


def lazy() -> None:
    """Import late."""
    import pyarrow.parquet
'''


def sample(root: Path) -> Path:
    source = root / "lib/sample/src/sample"
    source.mkdir(parents=True)
    (root / "lib/sample/pyproject.toml").write_text(PROJECT)
    (source / "__init__.py").write_text(SOURCE)
    return root


def test_lazy_imports_are_seen_too(tmp_path: Path) -> None:
    sample(tmp_path)
    found = top_level_imports(tmp_path / "lib/sample/src")
    assert set(found) == {"json", "click", "numpy", "pyarrow"}
    assert found["pyarrow"] == "sample/__init__.py:9"


def test_undeclared_and_unused_are_both_found(tmp_path: Path) -> None:
    packages = load_workspace(sample(tmp_path))
    findings = package_findings(packages["sample"], providers(packages))
    assert len(findings) == 2
    assert "undeclared import: pyarrow" in findings[0]
    assert "unused dependency: pyyaml" in findings[1]
