import logging
import os

import pytest
from rigging.errors import SecretResolutionError
from rigging.secrets import (
    as_secret_spec,
    default_secret_spec,
    is_secret_reference,
    resolve_config_secrets,
    resolve_secret_spec,
)


def test_the_first_present_source_wins(monkeypatch, tmp_path):
    path = tmp_path / "key"
    path.write_text("  from-file\n")
    monkeypatch.delenv("RIGGING_TEST_KEY", raising=False)
    spec = ("env:RIGGING_TEST_KEY", f"file:{path}")
    assert resolve_secret_spec(spec).value == "from-file"
    assert resolve_secret_spec(spec).source == f"file:{path}"
    monkeypatch.setenv("RIGGING_TEST_KEY", "from-env")
    assert resolve_secret_spec(spec).value == "from-env"
    assert resolve_secret_spec(f"file://{path}").value == "from-file"
    assert resolve_secret_spec("env://RIGGING_TEST_KEY").value == "from-env"


def test_absent_moves_on_and_all_absent_names_what_was_tried(monkeypatch, tmp_path):
    monkeypatch.delenv("RIGGING_TEST_KEY", raising=False)
    with pytest.raises(SecretResolutionError, match=r"no source had it; tried=\['env', 'file'\]"):
        resolve_secret_spec(("env:RIGGING_TEST_KEY", f"file:{tmp_path}/none"))


@pytest.mark.parametrize("content", ["", " \n\t"])
def test_an_empty_value_is_refused_and_does_not_fall_through(monkeypatch, tmp_path, content):
    path = tmp_path / "weaker"
    path.write_text("weak")
    monkeypatch.setenv("RIGGING_TEST_KEY", content)
    with pytest.raises(SecretResolutionError, match="empty value"):
        resolve_secret_spec(("env:RIGGING_TEST_KEY", f"file:{path}"))


def test_a_broken_source_stops_and_does_not_fall_through(monkeypatch, tmp_path):
    monkeypatch.setenv("RIGGING_TEST_KEY", "weaker")
    undecodable = tmp_path / "bytes"
    undecodable.write_bytes(b"\xff\xfe")
    for broken in (
        f"file:{tmp_path}",
        f"file:{undecodable}",
        "file:relative",
        "env:",
        "file:",
        "gcp-secret://projects/p",
    ):
        with pytest.raises(SecretResolutionError):
            resolve_secret_spec((broken, "env:RIGGING_TEST_KEY"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_broken(tmp_path):
    path = tmp_path / "key"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(SecretResolutionError, match="PermissionError"):
        resolve_secret_spec(f"file:{path}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ((), "spec is empty"),
        ("vault:x", "unknown scheme 'vault'"),
        ("hunter2", "a literal stands where a reference belongs"),
    ],
)
def test_malformed_specs_are_told_apart(spec, message):
    with pytest.raises(SecretResolutionError, match=message):
        resolve_secret_spec(spec)


def test_neither_errors_logs_nor_repr_show_a_value_or_a_reference_body(monkeypatch, tmp_path, caplog):
    secret, name = "hunter2-value", "VERY_PRIVATE_NAME"
    monkeypatch.setenv(name, secret)
    with caplog.at_level(logging.DEBUG):
        resolved = resolve_secret_spec(f"env:{name}")
        with pytest.raises(SecretResolutionError) as literal:
            resolve_secret_spec(secret)
        monkeypatch.delenv(name)
        with pytest.raises(SecretResolutionError) as absent:
            resolve_secret_spec(f"env:{name}")
    for text in (caplog.text, str(literal.value), str(absent.value)):
        assert secret not in text and name not in text
    assert secret not in repr(resolved)


def test_conventions_and_references():
    assert as_secret_spec(["env:A", "env:B"]) == ("env:A", "env:B")
    assert default_secret_spec("token", env_prefix="P", secrets_dir="/s/") == ("env:P_TOKEN", "file:/s/token")
    assert is_secret_reference("file:/x") and not is_secret_reference("http://x") and not is_secret_reference(3)


def test_a_config_tree_is_resolved_with_a_redacted_twin(monkeypatch):
    monkeypatch.setenv("RIGGING_TEST_KEY", "v")
    tree = {"a": "env:RIGGING_TEST_KEY", "b": ["plain", ("env:RIGGING_TEST_KEY", 1)]}
    resolved, redacted = resolve_config_secrets(tree)
    assert resolved == {"a": "v", "b": ["plain", ("v", 1)]}
    assert redacted == {"a": "[REDACTED]", "b": ["plain", ("[REDACTED]", 1)]}
