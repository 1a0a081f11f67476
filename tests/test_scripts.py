"""The scripts a newcomer meets: they explain themselves, and their set-up copes with the machines it will meet."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BARE_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BASE_PYTHON = Path(sys._base_executable if hasattr(sys, "_base_executable") else sys.executable)


def bash(root: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in os.environ if "CERT" in name.upper() or name.startswith(("SSL", "LANG"))}
    return subprocess.run(
        ["bash", "-uc", code],
        cwd=root,
        env={"HOME": os.environ.get("HOME", "/"), "PATH": BARE_PATH, **kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def fake(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("script", ["demo", "test", "lint"])
def test_every_script_explains_itself_without_setting_anything_up(root: Path, script: str) -> None:
    done = bash(root, f"scripts/{script} --help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: scripts/{script}")
    assert done.stderr == ""


def test_ci_runs_lint_then_each_package_alone_then_everything(root: Path) -> None:
    lines = [line for line in (root / ".ci/run").read_text().splitlines() if line.startswith("scripts/")]
    assert lines[0] == "scripts/lint" and lines[1].startswith("scripts/test --alone") and lines[-1] == "scripts/test"


def test_an_old_python_and_a_dead_pyenv_shim_are_passed_over(root: Path, tmp_path: Path) -> None:
    for name in ("python3.12", "python3.13", "python3", "python", "python3.14"):
        fake(tmp_path / "bin" / name, "exit 127")
    newer = tmp_path / "pyenv/versions/3.12.99/bin/python3"
    newer.parent.mkdir(parents=True)
    newer.symlink_to(BASE_PYTHON)
    fake(tmp_path / "pyenv/versions/3.11.1/bin/python3", "exit 1")
    done = bash(
        root, ". scripts/_setup.sh; find_python", PATH=f"{tmp_path}/bin:{BARE_PATH}", PYENV_ROOT=f"{tmp_path}/pyenv"
    )
    assert done.stdout.strip() == str(newer)


def test_without_any_python_that_is_new_enough_the_search_says_so(root: Path, tmp_path: Path) -> None:
    for name in ("python3.12", "python3.13", "python3", "python", "python3.14"):
        fake(tmp_path / "bin" / name, "exit 1")
    done = bash(
        root, ". scripts/_setup.sh; find_python", PATH=f"{tmp_path}/bin:{BARE_PATH}", PYENV_ROOT=f"{tmp_path}/none"
    )
    assert done.returncode == 1 and done.stdout == ""


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [("0.13.9", "0.8.0", 0), ("0.8.0", "0.8.0", 0), ("0.7.22", "0.8.0", 1), ("1.0", "0.8.0", 0)],
)
def test_versions_are_compared_as_numbers(root: Path, version: str, wanted: str, expected: int) -> None:
    assert bash(root, f". scripts/_setup.sh; version_at_least {version} {wanted}").returncode == expected


def test_an_old_uv_on_the_path_is_not_used(root: Path, tmp_path: Path) -> None:
    fake(tmp_path / "bin/uv", "echo uv 0.1.0")
    done = bash(root, ". scripts/_setup.sh; uv_is_enough uv", PATH=f"{tmp_path}/bin:{BARE_PATH}")
    assert done.returncode == 1


def test_an_unknown_package_is_answered_with_the_known_ones(root: Path) -> None:
    venv = Path(sys.prefix)
    done = bash(root, "scripts/test nothing", UV_PROJECT_ENVIRONMENT=str(venv), PATH=f"{os.environ['PATH']}")
    assert done.returncode == 1
    assert "no package named nothing" in done.stderr and "rigging" in done.stderr


NEEDED_TOOLS = (
    "awk",
    "basename",
    "bash",
    "cat",
    "dirname",
    "git",
    "head",
    "mkdir",
    "mktemp",
    "mv",
    "python3",
    "rm",
    "sh",
)
NEEDED_TOOLS += ("sort", "tail", "uname", "env", "sed")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fresh_clone_runs_the_main_job_without_uv_rust_or_node_on_the_path(root: Path, tmp_path: Path) -> None:
    """PATH holds a dozen ordinary tools and the system's own Python, whatever its version."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
    (tmp_path / "bin").mkdir()
    for name in NEEDED_TOOLS:
        found = shutil.which(name, path=BARE_PATH)
        if found is not None:
            (tmp_path / "bin" / name).symlink_to(found)
    done = bash(clone, "scripts/demo --scale smoke", PATH=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "installing uv from PyPI" in done.stderr
    assert (clone / "marin_store/reports/tutorial/report.html").is_file()
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert changed.stdout == "", "the set-up or the run left files that git does not ignore"
