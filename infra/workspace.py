"""The workspace as data: which packages there are, what each one asks for, who stands on whom.

Every tool of this folder needs the same three facts, and none should parse pyproject files its own way: the packages
under ``lib/``, their requirements by section (hard, extra, dependency group), and the closure over siblings. Only the
standard library is used, so that these tools run before anything is installed.
"""

import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIBLING_PREFIX = "marin-"

_REQUIREMENT = re.compile(r"^\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?(?P<rest>.*)$")


class WorkspaceError(ValueError):
    """The workspace's own files contradict each other or name something that is not there."""


def normalise(name: str) -> str:
    """The canonical form of a distribution name (PEP 503).

    >>> normalise("Marin_Core")
    'marin-core'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Requirement:
    """One requirement string, taken apart as far as the workspace needs."""

    name: str
    extras: frozenset[str]
    text: str

    @classmethod
    def parse(cls, text: str) -> "Requirement":
        """Parse a PEP 508 string.

        >>> sorted(Requirement.parse("marin-levanter[cache,cpu]>=0.1").extras)
        ['cache', 'cpu']
        """
        match = _REQUIREMENT.match(text)
        if match is None:
            raise WorkspaceError(f"cannot read requirement: text={text!r}; expected a PEP 508 string.")
        extras = frozenset(part.strip() for part in (match["extras"] or "").split(",") if part.strip())
        return cls(normalise(match["name"]), extras, text)

    @property
    def is_sibling(self) -> bool:
        """Whether the name is one of this repository's distributions (native wheels included)."""
        return self.name.startswith(SIBLING_PREFIX)


@dataclass(frozen=True)
class Package:
    """One member of the workspace, read from its pyproject file."""

    folder: str
    path: Path
    distribution: str
    import_name: str
    version: str
    dependencies: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[Requirement, ...]] = field(default_factory=dict)

    def requirements(self, *, extras: Iterable[str] = (), groups: Iterable[str] = ()) -> tuple[Requirement, ...]:
        """Hard requirements plus those of the named extras and groups; extras of this package itself are expanded."""
        found: list[Requirement] = list(self.dependencies)
        for group in groups:
            found.extend(self.groups[group])
        wanted = set(extras)
        seen: set[str] = set()
        while True:
            wanted |= {extra for r in found if r.name == self.distribution for extra in r.extras}
            todo = wanted - seen
            if not todo:
                break
            for extra in sorted(todo):
                if extra not in self.extras:
                    raise WorkspaceError(
                        f"{self.distribution} has no extra: extra={extra!r}; expected {sorted(self.extras)}."
                    )
                found.extend(self.extras[extra])
            seen |= todo
        return tuple(found)

    def own_extras(self, groups: Iterable[str]) -> frozenset[str]:
        """Extras of this package that its own dependency groups ask for (``marin-core[datakit]`` in ``test``)."""
        return frozenset(
            e for group in groups for r in self.groups[group] if r.name == self.distribution for e in r.extras
        )


def _groups(table: Mapping[str, list[Any]]) -> dict[str, tuple[Requirement, ...]]:
    def expand(name: str, trail: tuple[str, ...]) -> Iterator[Requirement]:
        if name in trail:
            raise WorkspaceError(f"dependency groups include each other: trail={' -> '.join((*trail, name))}.")
        for entry in table[name]:
            if isinstance(entry, str):
                yield Requirement.parse(entry)
            else:
                yield from expand(entry["include-group"], (*trail, name))

    return {name: tuple(expand(name, ())) for name in table}


def read_package(path: Path) -> Package:
    """Read ``path/pyproject.toml``.

    Raises:
        WorkspaceError: The project has no package under ``src``.
    """
    document = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    imports = sorted(p.parent.name for p in path.glob("src/*/__init__.py"))
    if len(imports) != 1:
        raise WorkspaceError(f"{path.name}: import packages under src={imports}; expected exactly one.")
    return Package(
        folder=path.name,
        path=path,
        distribution=normalise(project["name"]),
        import_name=imports[0],
        version=project["version"],
        dependencies=tuple(Requirement.parse(text) for text in project.get("dependencies", ())),
        extras={
            name: tuple(Requirement.parse(text) for text in texts)
            for name, texts in project.get("optional-dependencies", {}).items()
        },
        groups=_groups(document.get("dependency-groups", {})),
    )


def load_workspace(root: Path = ROOT) -> dict[str, Package]:
    """All packages by folder name, dependencies before dependants."""
    packages = {path.parent.name: read_package(path.parent) for path in sorted(root.glob("lib/*/pyproject.toml"))}
    by_distribution = {package.distribution: package for package in packages.values()}
    ordered: dict[str, Package] = {}

    def place(package: Package, trail: tuple[str, ...]) -> None:
        if package.folder in ordered:
            return
        if package.folder in trail:
            raise WorkspaceError(f"packages depend on each other: trail={' -> '.join((*trail, package.folder))}.")
        for requirement in package.requirements(extras=package.extras):
            sibling = by_distribution.get(requirement.name)
            if sibling is not None and sibling is not package:
                place(sibling, (*trail, package.folder))
        ordered[package.folder] = package

    for package in packages.values():
        place(package, ())
    return ordered


def sibling_closure(
    package: Package, packages: Mapping[str, Package], *, groups: Iterable[str] = ()
) -> dict[str, frozenset[str]]:
    """Distributions of this repository that installing ``package`` with ``groups`` needs, itself included.

    Returns:
        Distribution name to the extras asked of it. Native wheels, which are no workspace members, are in it too.
    """
    by_distribution = {p.distribution: p for p in packages.values()}
    found: dict[str, set[str]] = {package.distribution: set(package.own_extras(groups))}
    queue = [r for r in package.requirements(groups=groups) if r.is_sibling]
    while queue:
        requirement = queue.pop()
        known = found.get(requirement.name)
        if known is not None and requirement.extras <= known:
            continue
        found.setdefault(requirement.name, set()).update(requirement.extras)
        sibling = by_distribution.get(requirement.name)
        if sibling is not None:
            queue.extend(r for r in sibling.requirements(extras=found[requirement.name]) if r.is_sibling)
    return {name: frozenset(extras) for name, extras in sorted(found.items())}


def find_uv() -> str:
    """Path of uv: what the set-up scripts exported, else the one on PATH, else the repository's own.

    Raises:
        WorkspaceError: There is none.
    """
    own = ROOT / ".tools" / "uv" / "bin" / "uv"
    found = os.environ.get("UV") or shutil.which("uv") or (str(own) if own.is_file() else None)
    if found is None:
        raise WorkspaceError("uv is neither on PATH nor in .tools. Run this through its script, which installs it.")
    return found


def import_names(packages: Mapping[str, Package]) -> tuple[str, ...]:
    """Top-level import names of all packages, sorted."""
    return tuple(sorted(package.import_name for package in packages.values()))
