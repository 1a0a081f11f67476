"""Declared dependencies against imports: nothing undeclared, nothing unused.

A package that works only because a sibling happens to bring its dependency breaks on the first machine where it is
installed alone. So every top-level import under ``lib/<pkg>/src`` must be in the standard library, the package itself,
or a distribution that its pyproject names (hard or in an extra), and every hard dependency must be imported somewhere.

Hard dependencies that are used without being imported (a plug-in found by name, a native half loaded by another module)
are listed with their reason in ``[tool.marin.unimported]`` of the package's pyproject.
"""

import ast
import importlib.metadata
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from infra.workspace import Package, normalise


def top_level_imports(source: Path) -> dict[str, str]:
    """Top-level names imported anywhere under ``source`` (lazy and TYPE_CHECKING imports too), each with one place."""
    found: dict[str, str] = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [node.module]
            else:
                continue
            for name in names:
                found.setdefault(name.partition(".")[0], f"{path.relative_to(source)}:{node.lineno}")
    return found


def providers(packages: Mapping[str, Package]) -> dict[str, set[str]]:
    """Top-level import name to the distributions that provide it in this environment."""
    table: dict[str, set[str]] = defaultdict(set)
    for name, distributions in importlib.metadata.packages_distributions().items():
        table[name].update(normalise(d) for d in distributions)
    for package in packages.values():
        table[package.import_name] = {package.distribution}
    return table


def package_findings(package: Package, table: Mapping[str, set[str]]) -> list[str]:
    """Undeclared imports and unused hard dependencies of one package."""
    imports = top_level_imports(package.path / "src")
    declared = {r.name for r in package.requirements(extras=package.extras)}
    document = tomllib.loads((package.path / "pyproject.toml").read_text(encoding="utf-8"))
    excused = {normalise(name) for name in document.get("tool", {}).get("marin", {}).get("unimported", {})}
    found: list[str] = []
    used: set[str] = set()
    for name, place in sorted(imports.items()):
        if name in sys.stdlib_module_names or name == package.import_name:
            continue
        candidates = table.get(name) or {normalise(name)}
        used |= candidates
        if not candidates & declared:
            found.append(
                f"lib/{package.folder}: undeclared import: {name} at {place}; expected "
                f"{' or '.join(sorted(candidates))} in dependencies or an extra."
            )
    hard = {r.name for r in package.dependencies}
    found.extend(
        f"lib/{package.folder}: unused dependency: {name}; nothing under src imports it. Drop it, or give the reason "
        "in [tool.marin.unimported]."
        for name in sorted(hard - used - excused)
    )
    return found


def findings(packages: Mapping[str, Package]) -> list[str]:
    """Findings of every package."""
    table = providers(packages)
    return [sentence for package in packages.values() for sentence in package_findings(package, table)]
