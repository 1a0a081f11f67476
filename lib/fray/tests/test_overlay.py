"""Packages of an environment: installed with uv once, seen by jobs and commands, not by anybody else."""

import os
import shutil
import sys
import zipfile

import pytest
from fray import (
    Entrypoint,
    EnvironmentConfig,
    EnvironmentSetupError,
    JobRequest,
    JobRequestError,
    LocalClient,
    connect_backend,
    create_environment,
)
from fray._overlay import overlay, requirements_of

needs_uv = pytest.mark.skipif(
    not (os.environ.get("UV") or shutil.which("uv")), reason="needs uv, which installs the packages"
)


def wheel(folder, answer):
    path = os.path.join(folder, "tiny_pkg-1.0-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_pkg.py", f"ANSWER = {answer}\n")
        archive.writestr("tiny_pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-pkg\nVersion: 1.0\n")
        archive.writestr(
            "tiny_pkg-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_pkg-1.0.dist-info/RECORD", "")
    return path


def ask():
    import tiny_pkg  # pyrefly: ignore[missing-import]

    return tiny_pkg.ANSWER


@needs_uv
def test_a_job_and_a_command_have_the_packages_that_they_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    environment = create_environment(pip_packages=[wheel(tmp_path, 42)])
    with LocalClient(max_workers=1) as client:
        job = client.submit(JobRequest("ask", Entrypoint.from_callable(ask), environment=environment))
        assert job.result(60) == 42
        entry = Entrypoint.from_binary(sys.executable, ["-c", "import tiny_pkg; print(tiny_pkg.ANSWER)"])
        command = client.submit(JobRequest("cmd", entry, environment=environment))
        command.wait(60)
        assert command.logs() == ["42"]
        other = client.submit(JobRequest("other", Entrypoint.from_callable(ask)))
        assert other.wait(60, raise_on_failure=False) == "failed", "nobody else has them"


@needs_uv
def test_packages_are_installed_once(tmp_path):
    made = overlay([wheel(tmp_path, 1)], str(tmp_path / "base"))
    os.remove(tmp_path / "tiny_pkg-1.0-py3-none-any.whl")
    assert overlay([str(tmp_path / "tiny_pkg-1.0-py3-none-any.whl")], str(tmp_path / "base")) == made


@needs_uv
def test_what_cannot_be_installed_is_said_with_the_words_of_uv(tmp_path):
    with pytest.raises(EnvironmentSetupError, match=r"missing.whl.*expected uv") as caught:
        overlay([str(tmp_path / "missing.whl")], str(tmp_path / "base"))
    assert caught.value.requirements == [str(tmp_path / "missing.whl")]
    assert os.listdir(tmp_path / "base") == []


def test_without_uv_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(EnvironmentSetupError, match="uv is not on PATH"):
        overlay(["anything"], str(tmp_path / "base"))


def test_extras_are_those_of_the_workspace(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[project.optional-dependencies]\ngpu = ["a>=1"]\n')
    assert requirements_of(EnvironmentConfig(str(tmp_path), pip_packages=["b"], extras=["gpu"])) == ["b", "a>=1"]
    with pytest.raises(JobRequestError, match=r"\['gpu'\]"):
        requirements_of(EnvironmentConfig(str(tmp_path), extras=["tpu"]))


@needs_uv
def test_a_task_of_ray_has_the_packages_that_it_names(ray_instance, tmp_path):
    environment = create_environment(pip_packages=[wheel(tmp_path, 43)])
    client = connect_backend("ray")
    assert client.submit(JobRequest("ask", Entrypoint.from_callable(ask), environment=environment)).result(60) == 43
    client.shutdown()
