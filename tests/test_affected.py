import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.affected import affected, changed_files, dependants, pytest_folders


def test_a_change_at_the_bottom_reaches_everything_that_stands_on_it(packages: dict) -> None:
    found = affected(["lib/fray/src/fray/__init__.py"], packages)
    assert found[0] == "fray"
    assert {"fray", "zephyr", "core", "tests"} <= set(found)
    assert "haliax" not in found and "rigging" not in found


def test_a_change_at_the_top_reaches_only_itself_and_the_repository_tests(packages: dict) -> None:
    assert affected(["lib/core/tests/test_cli.py"], packages) == ["core", "tests"]


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml", "infra/lint.py", "scripts/test"])
def test_a_change_of_the_house_reaches_everything(packages: dict, name: str) -> None:
    assert affected([name], packages) == [*packages, "tests"]


def test_prose_reaches_the_repository_tests_only(packages: dict) -> None:
    assert affected(["docs/index.md"], packages) == ["tests"]
    assert affected([], packages) == []


def test_a_crate_belongs_to_the_package_of_its_name(packages: dict) -> None:
    assert "dupekit" in affected(["rust/dupekit/src/lib.rs"], packages)


def test_dependants_never_name_the_package_itself(packages: dict) -> None:
    assert all(folder not in above for folder, above in dependants(packages).items())


def test_tracked_and_new_files_of_the_working_tree_count_as_changed(repository: Callable[..., Path]) -> None:
    folder = repository({"a.txt": "1\n", "b.txt": "1\n"})
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, "commit", "--quiet", "-m", "first"], cwd=folder, check=True)
    (folder / "a.txt").write_text("2\n")
    (folder / "name with blank.txt").write_text("3\n")
    assert changed_files(folder, "HEAD", None) == ["a.txt", "name with blank.txt"]


def test_folders_for_pytest_follow_the_names() -> None:
    assert pytest_folders(["fray", "tests"]) == ["lib/fray/tests", "tests"]
