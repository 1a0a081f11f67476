import json
import tomllib
from pathlib import Path

import pytest

from infra.release import ReleaseError, build, main, pin_siblings, verify_files, verify_install
from infra.scoreboard import plain_install
from infra.workspace import ROOT, find_uv

PROJECT = """[project]
name = "marin-core"
version = "0.1.0"
dependencies = ["marin-rigging", "marin-fray>=0.1", "click>=8"]

[project.optional-dependencies]
train = ["marin-levanter[cache]; python_version >= '3.12'", "marin-dupekit-native>=0.1"]

[tool.uv.sources]
marin-rigging = { workspace = true }
marin-other = [
    { path = "x.whl" },
]

[tool.other]
kept = true
"""


def test_siblings_are_pinned_where_they_stand_and_nothing_else_changes() -> None:
    versions = {"marin-rigging": "0.2.0", "marin-fray": "0.2.0", "marin-levanter": "0.3.0", "marin-core": "0.9.0"}
    document = tomllib.loads(pin_siblings(PROJECT, versions))
    assert document["project"]["name"] == "marin-core"
    assert document["project"]["dependencies"] == ["marin-rigging==0.2.0", "marin-fray==0.2.0", "click>=8"]
    extras = document["project"]["optional-dependencies"]["train"]
    assert extras == ["marin-levanter[cache]==0.3.0; python_version >= '3.12'", "marin-dupekit-native>=0.1"]
    assert document["tool"] == {"other": {"kept": True}}


def test_every_pyproject_of_the_workspace_can_be_pinned(packages: dict) -> None:
    versions = {package.distribution: "9.9.9" for package in packages.values()}
    for package in packages.values():
        document = tomllib.loads(pin_siblings((package.path / "pyproject.toml").read_text(), versions))
        assert document["project"]["name"] == package.distribution
        for requirement in document["project"]["dependencies"]:
            if requirement.split("[")[0].split("=")[0] in versions:
                assert requirement.endswith("==9.9.9")


@pytest.mark.slow
def test_a_release_is_reproducible_installs_alone_and_notices_a_changed_file(packages: dict, tmp_path: Path) -> None:
    uv = find_uv()
    one = {"rigging": packages["rigging"]}
    manifest = build(uv, one, tmp_path)
    names = set(manifest["files"])
    assert {"marin_rigging-0.1.0-py3-none-any.whl", "marin_rigging-0.1.0.tar.gz"} <= names
    assert verify_files(tmp_path) == manifest["files"]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert verify_install(uv, one["rigging"], one, tmp_path) == len(plain_install(one["rigging"], lock))
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    with (tmp_path / "files/marin_rigging-0.1.0.tar.gz").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ReleaseError, match=r"marin_rigging-0\.1\.0\.tar\.gz"):
        verify_files(tmp_path)


def test_verifying_what_was_not_built_is_an_error_not_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--out", str(tmp_path / "nothing")]) == 1
    assert "manifest.json" in capsys.readouterr().err
