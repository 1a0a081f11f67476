"""scripts/rust_mode.py on a copy of the parts of this repository that it reads."""

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts/rust_mode.py"
Run = Callable[..., "Done"]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository in user mode, without an environment."""
    for folder in ("rust", "lib/dupekit/rust"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("target"))
    for file in ("pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


@dataclass(frozen=True)
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    # An empty PATH: the commands under test need neither cargo nor uv. In this process, as there are many.
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("UV_PROJECT_ENVIRONMENT", raising=False)
    spec = importlib.util.spec_from_file_location("rust_mode", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rust_mode", module)
    spec.loader.exec_module(module)

    def call(*arguments: str) -> Done:
        try:
            code = module.main([*arguments, "--root", str(repo)])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


def wheel_of(repo: Path) -> Path:
    (wheel,) = (repo / "rust/wheels").glob("*.whl")
    return wheel


def test_this_repository_has_wheels_that_match_their_sources() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "verify"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_verify_passes_on_an_untouched_copy_without_cargo(run: Run) -> None:
    done = run("verify", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["problems"] == []


def test_dev_and_user_are_inverse_and_idempotent(repo: Path, run: Run) -> None:
    before = (repo / "pyproject.toml").read_bytes()
    assert json.loads(run("dev", "--json").stdout)["changed"] is True
    text = (repo / "pyproject.toml").read_text()
    assert 'marin-dupekit-native = { path = "lib/dupekit/rust" }' in text
    assert ".whl" not in text
    assert json.loads(run("dev", "--json").stdout)["changed"] is False
    assert json.loads(run("user", "--json").stdout)["changed"] is True
    assert (repo / "pyproject.toml").read_bytes() == before
    assert json.loads(run("prebuilt", "--json").stdout)["changed"] is False


def test_status_warns_of_a_mixed_state(run: Run) -> None:
    clean = json.loads(run("status", "--json").stdout)
    assert clean["mode"] == "user"
    assert clean["warnings"] == []
    assert run("status", "--check").returncode == 0
    run("dev")
    mixed = run("status", "--json")
    assert mixed.returncode == 0
    assert any("uv.lock in user mode" in warning for warning in json.loads(mixed.stdout)["warnings"])
    assert run("status", "--check").returncode == 1


def test_verify_refuses_dev_mode(run: Run) -> None:
    run("dev")
    done = run("verify")
    assert done.returncode == 1
    assert "not in user mode" in done.stderr


@pytest.mark.parametrize(
    "file",
    [
        "rust/dupekit/src/bloom.rs",
        "rust/dupekit/Cargo.toml",
        "lib/dupekit/rust/src/lib.rs",
        "lib/dupekit/rust/dupekit_native.pyi",
        "lib/dupekit/rust/pyproject.toml",
    ],
)
def test_a_changed_source_makes_the_wheel_stale(repo: Path, run: Run, file: str) -> None:
    path = repo / file
    path.write_text(path.read_text() + "\n# changed\n")
    done = run("verify")
    assert done.returncode == 1
    assert "marin-dupekit-native: wheel is stale" in done.stderr


def test_a_new_source_file_makes_the_wheel_stale(repo: Path, run: Run) -> None:
    (repo / "rust/dupekit/src/extra.rs").write_text("//! More.\n")
    assert "wheel is stale" in run("verify").stderr


def test_a_changed_profile_or_dependency_makes_the_wheel_stale(repo: Path, run: Run) -> None:
    manifest = repo / "rust/Cargo.toml"
    original = manifest.read_text()
    manifest.write_text(original.replace("opt-level = 3", "opt-level = 1"))
    assert "wheel is stale" in run("verify").stderr
    manifest.write_text(original)
    lock = repo / "rust/Cargo.lock"
    lock.write_text(lock.read_text().replace('name = "pyo3"\nversion = "0.', 'name = "pyo3"\nversion = "1.'))
    assert "wheel is stale" in run("verify").stderr


def test_prose_benchmarks_and_other_crates_do_not_make_the_wheel_stale(repo: Path, run: Run) -> None:
    (repo / "rust/README.md").write_text("other words\n")
    (repo / "rust/dupekit/benches/more.rs").write_text("fn main() {}\n")
    manifest = repo / "rust/Cargo.toml"
    manifest.write_text(manifest.read_text().replace('members = ["dupekit",', 'members = ["dupekit", "another",'))
    lock = repo / "rust/Cargo.lock"
    lock.write_text(lock.read_text() + '\n[[package]]\nname = "another"\nversion = "0.1.0"\n')
    done = run("verify")
    assert done.returncode == 0, done.stderr


def test_line_ends_of_a_checkout_do_not_matter(repo: Path, run: Run) -> None:
    path = repo / "rust/dupekit/src/bloom.rs"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert run("verify").returncode == 0


def test_a_damaged_or_missing_wheel_is_found(repo: Path, run: Run) -> None:
    wheel = wheel_of(repo)
    data = wheel.read_bytes()
    wheel.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "wheel differs from its manifest entry" in run("verify").stderr
    wheel.unlink()
    done = run("verify")
    assert done.returncode == 1
    assert "wheel missing" in done.stderr


def test_a_wheel_that_nobody_recorded_is_found(repo: Path, run: Run) -> None:
    shutil.copy(wheel_of(repo), repo / "rust/wheels/stray-1-py3-none-any.whl")
    assert "wheel without a manifest entry: path=rust/wheels/stray" in run("verify").stderr


def test_a_lock_with_another_wheel_is_found(repo: Path, run: Run) -> None:
    digest = json.loads((repo / "rust/wheels/manifest.json").read_text())["wheels"]["marin-dupekit-native"]["sha256"]
    lock = repo / "uv.lock"
    lock.write_text(lock.read_text().replace(digest, "0" * 64))
    assert "uv.lock does not hold this wheel" in run("verify").stderr


@pytest.mark.parametrize("command", ["dev", "user", "status", "verify"])
def test_missing_markers_are_an_error_that_names_them(repo: Path, run: Run, command: str) -> None:
    path = repo / "pyproject.toml"
    path.write_text(path.read_text().replace("# ### END RUST-DEV SOURCES ###\n", ""))
    done = run(command)
    assert done.returncode == 1
    assert "END RUST-DEV SOURCES" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_edited_block_is_neither_mode(repo: Path, run: Run) -> None:
    path = repo / "pyproject.toml"
    path.write_text(path.read_text().replace("marin-dupekit-native = [", "marin-dupekit-native = [ # edited"))
    report = json.loads(run("status", "--json").stdout)
    assert report["mode"] == "other"
    assert report["warnings"]


def test_building_without_the_tools_names_the_fix(run: Run) -> None:
    done = run("build")
    assert done.returncode == 1
    assert "cannot build: program=uv not found" in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["release"], ["dev", "--fast"], ["dev", "--check"]])
def test_wrong_usage_is_exit_status_2(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_help_shows_examples(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "scripts/rust_mode.py dev && uv sync" in done.stdout


def test_the_wheel_is_small_and_names_no_machine(repo: Path) -> None:
    wheel = wheel_of(repo)
    assert wheel.stat().st_size < 3_000_000
    manifest = (repo / "rust/wheels/manifest.json").read_text()
    assert '"/' not in manifest and " /" not in manifest
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            for folder in ("root", "home", "work", "tmp", "Users"):
                assert f"/{folder}/".encode() not in data, (name, folder)
