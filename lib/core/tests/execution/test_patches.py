"""What was not committed when a step ran is kept beside the ledger, once, without secrets."""

import os
import shutil
import subprocess
import sys

import pytest
from marin.execution.patches import patch_path
from marin.execution.records import read_record

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="patches need git")

SCRIPT = """
from marin.execution import ArtifactStep, run
def nothing(config):
    return None
NUMBER = 1
summary = run(ArtifactStep("a", "2026.12.01", run=nothing, build_config=lambda ctx: NUMBER), prefix=PREFIX)
print(summary.outcome("a").path)
"""


def git(folder, *arguments):
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "run.py").write_text(SCRIPT.replace("PREFIX", repr(str(tmp_path / "store"))))
    git(folder, "add", "run.py")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def provenance(folder):
    env = {key: value for key, value in os.environ.items() if key != "MARIN_PROVENANCE"}
    done = subprocess.run([sys.executable, "run.py"], cwd=folder, env=env, check=True, capture_output=True, text=True)
    return read_record(done.stdout.strip()).provenance


def test_a_clean_working_copy_has_no_patch(repository):
    data = provenance(repository)
    assert not data["dirty"] and "patch" not in data and data["command_line"][-1] == "run.py"


def test_the_patch_of_a_dirty_one_gives_the_code_back(repository, tmp_path):
    text = (repository / "run.py").read_text().replace("NUMBER = 1", "NUMBER = 2")
    (repository / "run.py").write_text(text)
    data = provenance(repository)
    assert data["dirty"] and data["patch_redacted"] is False
    path = patch_path(str(tmp_path / "store"), data["patch"])
    git(repository, "checkout", "-q", data["base_commit"], "--", "run.py")
    git(repository, "apply", path)
    assert (repository / "run.py").read_text() == text


def test_a_secret_in_uncommitted_code_is_not_kept(repository, tmp_path):
    key = "hf_" + "Ab3dEf6hIj9lMn2pQr5t"
    with open(repository / "run.py", "a") as file:
        file.write(f"TOKEN = {key!r}\n")
    data = provenance(repository)
    with open(patch_path(str(tmp_path / "store"), data["patch"])) as file:
        kept = file.read()
    assert data["patch_redacted"] is True and key not in kept and "[REDACTED]" in kept
