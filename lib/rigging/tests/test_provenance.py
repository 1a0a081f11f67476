import json
import subprocess
import threading

import pytest
from rigging.errors import ProvenanceError
from rigging.provenance import (
    Provenance,
    capture,
    dirty_patch,
    environment_report,
    from_git,
    launch_provenance,
    username_segment,
)


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.delenv("MARIN_PROVENANCE", raising=False)
    monkeypatch.setenv("USER", "ada")
    for name, value in (("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example.org")):
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(name.replace("AUTHOR", "COMMITTER"), value)
    folder = tmp_path / "repo"
    folder.mkdir()

    def git(*args):
        return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    (folder / "a.txt").write_text("one\n")
    git("add", "a.txt")
    git("commit", "-q", "-m", "first")
    return folder, git


def test_a_clean_tree_is_the_commit_tree(repo):
    folder, git = repo
    record = from_git(str(folder))
    assert record.tree_hash == git("rev-parse", "HEAD^{tree}") and not record.dirty
    assert record.base_commit == git("rev-parse", "HEAD") and record.branch == "main"
    assert record.dedup_key == record.tree_hash
    assert dirty_patch(str(folder)) is None


def test_equal_content_gives_an_equal_hash_whatever_the_history(repo):
    folder, git = repo
    (folder / "a.txt").write_text("two\n")
    dirty = from_git(str(folder))
    assert dirty.dirty
    git("commit", "-q", "-am", "second")
    assert from_git(str(folder)).tree_hash == dirty.tree_hash
    assert not from_git(str(folder)).dirty


def test_the_patch_gives_the_working_copy_back_binary_files_included(repo):
    folder, git = repo
    (folder / "a.txt").write_bytes(b"\x00\xff\n" * 10)
    patch = dirty_patch(str(folder))
    assert patch is not None
    git("checkout", "-q", "a.txt")
    subprocess.run(["git", "apply"], cwd=folder, input=patch, text=True, check=True)
    assert (folder / "a.txt").read_bytes() == b"\x00\xff\n" * 10


def test_looking_changes_neither_the_index_nor_the_stash(repo):
    folder, git = repo
    (folder / "a.txt").write_text("changed\n")
    (folder / "new.txt").write_text("untracked\n")
    before = (git("status", "--porcelain"), git("stash", "list"), (folder / ".git" / "index").read_bytes())
    from_git(str(folder), include_untracked=True)
    assert (git("status", "--porcelain"), git("stash", "list"), (folder / ".git" / "index").read_bytes()) == before


def test_untracked_files_count_when_asked(repo):
    folder, _ = repo
    clean = from_git(str(folder))
    (folder / "new.txt").write_text("x")
    assert from_git(str(folder)).tree_hash == clean.tree_hash
    with_new = from_git(str(folder), include_untracked=True)
    assert with_new.dirty and with_new.tree_hash != clean.tree_hash


def test_many_captures_at_once_agree(repo):
    folder, _ = repo
    (folder / "a.txt").write_text("dirty\n")
    found = []
    threads = [threading.Thread(target=lambda: found.append(from_git(str(folder)).tree_hash)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_capture_never_raises(tmp_path, monkeypatch, repo):
    folder, _ = repo
    monkeypatch.setenv("PATH", str(tmp_path))
    assert capture(str(folder)).tree_hash == ""
    with pytest.raises(ProvenanceError, match="git does not run"):
        from_git(str(folder))
    assert capture(str(tmp_path)).built_by == "ada"


def test_a_handed_over_record_wins_and_a_malformed_one_is_ignored(monkeypatch, repo, caplog):
    folder, _ = repo
    handed = Provenance("t", "c", False, "b", "svc", command_line=("a", "b"))
    monkeypatch.setenv("MARIN_PROVENANCE", handed.to_json())
    assert capture(str(folder)) == handed
    for bad in ("{", "[]", "{}", json.dumps(json.loads(handed.to_json()) | {"built_by": 3})):
        monkeypatch.setenv("MARIN_PROVENANCE", bad)
        assert capture(str(folder)).branch == "main"
    assert "malformed" in caplog.text


def test_records_round_trip_and_check_their_types():
    record = Provenance("t", "c", True, "b", "me", "https://x", "2026-01-01T00:00:00.000Z", ("x",))
    assert Provenance.from_json(record.to_json()) == record
    assert str(record) == "t (off of c) (b) (me)"
    with pytest.raises(TypeError, match="built_by=3"):
        Provenance.from_json(json.dumps(json.loads(record.to_json()) | {"built_by": 3}))


def test_credentials_in_the_remote_are_dropped(repo):
    folder, git = repo
    git("remote", "add", "origin", "https://user:secret@example.org/x.git")
    assert from_git(str(folder)).git_remote == "https://example.org/x.git"


def test_the_launch_is_captured_once(monkeypatch):
    assert launch_provenance() is launch_provenance()


def test_user_names_become_path_segments(monkeypatch):
    assert username_segment("Ada.Lovelace@example.org") == "ada-lovelace"
    assert username_segment("ci bot!") == "ci-bot"
    with pytest.raises(ProvenanceError, match="no usable character"):
        username_segment("@example.org")


def test_the_environment_report_is_json_and_names_what_matters(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uv.lock").write_text("version = 1\n")
    report = environment_report()
    assert json.loads(json.dumps(report)) == report
    packages = report["packages"]
    assert isinstance(packages, dict) and "fsspec" in packages and "pytest" in packages
    assert isinstance(report["cpu_count"], int) and report["cpu_count"] >= 1
    assert isinstance(report["memory_bytes"], int) and report["memory_bytes"] > 1 << 28
    assert isinstance(report["lock_digest"], str) and len(report["lock_digest"]) == 64
