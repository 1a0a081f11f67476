from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.workspace import Requirement, WorkspaceError, load_workspace, normalise, sibling_closure

PROJECT = """
[project]
name = "marin-{name}"
version = "0.1.0"
dependencies = {dependencies}
[project.optional-dependencies]
{extras}
[dependency-groups]
test = {test}
"""


def write_package(
    root: Path, name: str, dependencies: list[str], extras: str = "", test: list[str] | None = None
) -> None:
    folder = root / "lib" / name
    (folder / "src" / name).mkdir(parents=True)
    (folder / "src" / name / "__init__.py").write_text('"""A package."""\n')
    text = PROJECT.format(name=name, dependencies=dependencies, extras=extras, test=test or ["pytest"])
    (folder / "pyproject.toml").write_text(text)


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,20}[A-Za-z0-9]", fullmatch=True))
def test_normalising_a_name_twice_changes_nothing_more(name: str) -> None:
    assert normalise(normalise(name)) == normalise(name)


@pytest.mark.parametrize(
    ("text", "name", "extras"),
    [
        ("numpy>=2", "numpy", set()),
        ("Marin_Levanter[cache, cpu] >=0.1; python_version >= '3.12'", "marin-levanter", {"cache", "cpu"}),
        ("jax[cuda13]>=0.9; sys_platform == 'linux'", "jax", {"cuda13"}),
    ],
)
def test_a_requirement_is_read_with_its_extras(text: str, name: str, extras: set[str]) -> None:
    requirement = Requirement.parse(text)
    assert (requirement.name, set(requirement.extras)) == (name, extras)


def test_a_text_that_is_no_requirement_is_refused_with_the_text() -> None:
    with pytest.raises(WorkspaceError, match=r">=1"):
        Requirement.parse(">=1")


def test_packages_come_after_what_they_stand_on(packages: dict) -> None:
    order = list(packages)
    by_distribution = {package.distribution: folder for folder, package in packages.items()}
    for folder, package in packages.items():
        for requirement in package.requirements(extras=package.extras):
            below = by_distribution.get(requirement.name, folder)
            assert order.index(below) <= order.index(folder)


def test_the_closure_follows_extras_of_siblings_and_of_the_test_group(tmp_path: Path) -> None:
    write_package(tmp_path, "low", [])
    write_package(tmp_path, "side", [])
    write_package(tmp_path, "mid", ["marin-low"], extras='wide = ["marin-side"]')
    write_package(tmp_path, "top", ["marin-low"], extras='all = ["marin-mid[wide]"]', test=["pytest", "marin-top[all]"])
    packages = load_workspace(tmp_path)
    assert set(sibling_closure(packages["top"], packages)) == {"marin-top", "marin-low"}
    with_tests = sibling_closure(packages["top"], packages, groups=("test",))
    assert with_tests == {
        "marin-low": frozenset(),
        "marin-mid": frozenset({"wide"}),
        "marin-side": frozenset(),
        "marin-top": frozenset({"all"}),
    }


def test_packages_that_depend_on_each_other_are_refused_with_the_trail(tmp_path: Path) -> None:
    write_package(tmp_path, "one", ["marin-two"])
    write_package(tmp_path, "two", ["marin-one"])
    with pytest.raises(WorkspaceError, match="one -> two -> one"):
        load_workspace(tmp_path)


def test_an_unknown_extra_is_named(tmp_path: Path) -> None:
    write_package(tmp_path, "one", [])
    package = load_workspace(tmp_path)["one"]
    with pytest.raises(WorkspaceError, match="extra='gone'"):
        package.requirements(extras=["gone"])
