import pytest
from marin.errors import InvalidVersionError, UnresolvedVersionError
from marin.execution import ArtifactStep, VersionCodex
from marin.execution.build_context import build_context, current_build_context, resolve_version, user_namespaced_name


def test_an_explicit_version_beats_the_codex():
    with build_context(VersionCodex("2026.01.01")):
        assert resolve_version("x", "2025.05.05") == "2025.05.05"


def test_without_a_context_a_missing_version_is_an_error():
    with pytest.raises(UnresolvedVersionError, match="x"):
        resolve_version("x", None)


def test_a_step_without_version_takes_the_ambient_one():
    with build_context(VersionCodex("2026.01.01", {"a": "dev"})):
        steps = [ArtifactStep(name=name, override_path="/data") for name in ("a", "b")]
    assert [step.version for step in steps] == ["dev", "2026.01.01"]


def test_contexts_nest_and_are_restored_after_an_exception():
    with build_context(VersionCodex("2026.01.01")):
        with pytest.raises(RuntimeError), build_context(VersionCodex("dev")):
            assert resolve_version("x", None) == "dev"
            raise RuntimeError
        assert resolve_version("x", None) == "2026.01.01"
    assert current_build_context() is None


def test_unused_overrides_are_told():
    codex = VersionCodex("dev", {"a": "dev", "typo": "dev"})
    codex.version_for("a")
    assert codex.unused_overrides() == ["typo"]


def test_versions_of_a_codex_are_checked_on_creation():
    with pytest.raises(InvalidVersionError):
        VersionCodex("2026.01.01", {"a": "v1"})


def test_only_mutable_versions_get_a_users_name_and_only_once(monkeypatch):
    monkeypatch.setenv("LOGNAME", "Ada@example.org")
    name = user_namespaced_name("model", "dev")
    assert name == "users/ada/model"
    assert user_namespaced_name(name, "dev") == name
    assert user_namespaced_name("model", "2026.01.01") == "model"
