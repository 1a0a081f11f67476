import hashlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import CorruptRecordError, UnsupportedFileError
from marin.execution.manifest import (
    ManifestEntry,
    build_manifest,
    compare_manifest,
    content_digest,
    manifest_text,
    matches,
    read_manifest,
)


@pytest.fixture
def output(tmp_path):
    root = tmp_path / "out"
    (root / "logs").mkdir(parents=True)
    (root / "a.txt").write_text("alpha")
    (root / "sub").mkdir()
    (root / "sub" / "b.bin").write_bytes(bytes(range(256)) * 100)
    (root / "logs" / "time.txt").write_text("12:00")
    (root / ".artifact.json").write_text("{}")
    return root


def test_a_manifest_lists_every_file_with_its_sha256(output):
    entries = build_manifest(str(output), volatile=("logs/**",))
    assert [(entry.path, entry.volatile) for entry in entries] == [
        ("a.txt", False),
        ("logs/time.txt", True),
        ("sub/b.bin", False),
    ]
    assert entries[0].sha256 == hashlib.sha256(b"alpha").hexdigest()
    assert entries[2].size == 25_600


def test_the_content_digest_can_be_checked_with_sha256sum_alone(output):
    entries = [entry for entry in build_manifest(str(output), volatile=("logs/**",)) if not entry.volatile]
    text = "".join(f"{entry.sha256}  {entry.size}  {entry.path}\n" for entry in entries)
    assert (
        content_digest(build_manifest(str(output), volatile=("logs/**",))) == hashlib.sha256(text.encode()).hexdigest()
    )


def test_volatile_files_do_not_change_the_digest_and_others_do(output):
    before = content_digest(build_manifest(str(output), volatile=("logs/**",)))
    (output / "logs" / "time.txt").write_text("13:00")
    assert content_digest(build_manifest(str(output), volatile=("logs/**",))) == before
    (output / "a.txt").write_text("beta!")
    assert content_digest(build_manifest(str(output), volatile=("logs/**",))) != before


@given(
    st.lists(
        st.builds(
            ManifestEntry,
            path=st.text(st.characters(codec="utf-8"), min_size=1),
            size=st.integers(0, 10**12),
            sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
            volatile=st.booleans(),
        ),
        unique_by=lambda entry: entry.path,
    )
)
def test_a_manifest_survives_the_trip(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("m") / ".manifest.jsonl"
    path.write_text(manifest_text(entries), encoding="utf-8")
    assert read_manifest(str(path)) == sorted(entries, key=lambda entry: entry.path)


def test_a_torn_manifest_is_an_error(tmp_path):
    (tmp_path / "m").write_text('{"path": "a", "size": 1, "sha2')
    with pytest.raises(CorruptRecordError, match="line 1"):
        read_manifest(str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda root: (root / "a.txt").unlink(), "missing: a.txt"),
        (lambda root: (root / "a.txt").write_text("longer than it was"), "changed size: a.txt: 5 -> 18"),
        (lambda root: (root / "a.txt").write_text("alphA"), "changed content: a.txt"),
        (lambda root: (root / "new.txt").write_text(""), "unlisted: new.txt"),
    ],
)
def test_a_deep_comparison_finds_every_kind_of_change(output, harm, expected):
    entries = build_manifest(str(output))
    assert compare_manifest(str(output), entries, deep=True) == []
    harm(output)
    assert compare_manifest(str(output), entries, deep=True) == [expected]


def test_links_inside_the_output_are_kept_and_others_refused(output):
    (output / "sub" / "link").symlink_to("../a.txt")
    entry = next(entry for entry in build_manifest(str(output)) if entry.path == "sub/link")
    assert entry.link == "../a.txt"
    (output / "sub" / "out").symlink_to("../../elsewhere")
    with pytest.raises(UnsupportedFileError, match="outside"):
        build_manifest(str(output))


def test_a_socket_cannot_be_committed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(UnsupportedFileError):
            build_manifest(str(tmp_path))


def test_patterns_tell_folders_apart():
    assert matches("metrics-1.jsonl", ["metrics*.jsonl"]) and not matches("a/metrics.jsonl", ["metrics*.jsonl"])
    assert matches("a/b/c", ["a/**"]) and not matches("a", ["a/**"]) and not matches("abc", ["a?"])
