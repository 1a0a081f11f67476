import tomllib
from pathlib import Path

import pytest

from infra.hygiene import foreign_names, lock_problems

PUBLIC = "https://pypi.org/simple"


@pytest.fixture(scope="module")
def lock(root: Path) -> dict:
    return tomllib.loads((root / "uv.lock").read_text())


def test_every_package_comes_from_the_public_index_or_from_this_repository(lock: dict) -> None:
    for package in lock["package"]:
        source = package["source"]
        kinds = set(source)
        assert kinds <= {"registry", "editable", "virtual", "path", "directory"}, package["name"]
        if "registry" in source:
            assert source["registry"] == PUBLIC, package["name"]
        else:
            (location,) = source.values()
            assert not location.startswith("/"), f"{package['name']} names a path of a machine: {location}"


def test_no_distribution_of_ours_comes_from_an_index(lock: dict) -> None:
    ours = [package for package in lock["package"] if package["name"].startswith("marin-")]
    assert len(ours) >= 8
    assert all("registry" not in package["source"] for package in ours)


def test_every_file_of_an_index_has_a_hash(lock: dict) -> None:
    for package in lock["package"]:
        if "registry" in package["source"]:
            files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            assert files and all(entry["hash"].startswith("sha256:") for entry in files), package["name"]


def test_accelerators_exclude_each_other(lock: dict) -> None:
    pairs = [
        {(entry["package"], entry.get("extra") or entry["group"]) for entry in conflict}
        for conflict in lock["conflicts"]
    ]
    assert {("marin-root", "cpu"), ("marin-root", "gpu"), ("marin-root", "tpu")} in pairs
    assert {("marin-root", "gpu"), ("marin-root", "hf-interop")} in pairs  # torch may not change jax's CUDA libraries
    names = {package["name"] for package in lock["package"]}
    assert {"jaxlib", "jax-cuda13-plugin", "libtpu"} <= names


def test_a_mirror_in_a_lock_is_caught() -> None:
    assert lock_problems("uv.lock", f'registry = "{PUBLIC}"') == []
    assert "mirror.example" in lock_problems("uv.lock", 'registry = "https://mirror.example/simple"')[0]
    assert "mirror.example" in lock_problems("a/package-lock.json", '"https://mirror.example/x.tgz"')[0]
    assert lock_problems("rust/Cargo.lock", 'source = "sparse+https://mirror.example/"') != []


def test_no_tracked_file_names_a_machine_path_or_an_index(root: Path) -> None:
    assert foreign_names(root) == []
