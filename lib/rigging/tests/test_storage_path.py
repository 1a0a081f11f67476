import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigging.errors import MissingExtraError, StoragePathError
from rigging.filesystem._glob import brace_expand
from rigging.filesystem.storage_path import (
    StoragePath,
    is_remote_path,
    prefix_join,
    rebase_file_path,
    split_gcs_path,
)

segment = st.text(st.characters(blacklist_characters="/\0:", blacklist_categories=("Cs",)), min_size=1, max_size=8)
segments = st.lists(segment.filter(lambda s: s not in (".", "..")), min_size=1, max_size=5)
roots = st.sampled_from(["", "/", "gs://bucket/", "s3://b-2/", "file:///", "memory://", "mirror://", "http://h:80/"])
paths = st.builds(lambda root, parts: root + "/".join(parts), roots, segments)


@given(paths)
def test_text_of_a_path_parses_back_to_an_equal_path(text):
    path = StoragePath(text)
    assert StoragePath(str(path)) == path
    assert hash(StoragePath(str(path))) == hash(path)
    assert StoragePath(path) == path == StoragePath.parse(text)


@given(paths, segments)
def test_joining_and_relative_to_are_inverse(text, parts):
    base = StoragePath(text)
    joined = base / "/".join(parts)
    assert joined.relative_to(base) == StoragePath("/".join(parts))
    assert joined.name == parts[-1]
    assert joined.parent == (base / "/".join(parts[:-1]) if parts[:-1] else base)
    assert prefix_join(text, "/".join(parts)) == str(joined)


@given(paths)
def test_parents_end_at_a_root_that_is_its_own_parent(text):
    path = StoragePath(text)
    for _ in range(10):
        path = path.parent
    assert path.parent == path


def test_doubled_and_trailing_slashes_collapse():
    assert str(StoragePath("gs://b//x///y/")) == "gs://b/x/y"
    assert str(StoragePath("/a//b/")) == "/a/b"
    assert str(StoragePath("gs://b/")) == str(StoragePath("gs://b")) + "/" or StoragePath("gs://b/") == StoragePath(
        "gs://b"
    )
    assert StoragePath("mirror://a/b").netloc == "" and StoragePath("mirror://a/b").segments == ("a", "b")
    assert StoragePath("file:///x").rooted and StoragePath("file:///x").is_local


@pytest.mark.parametrize("text", ["/abs", "gs://b/x"])
def test_only_relative_text_can_be_joined(text):
    with pytest.raises(StoragePathError, match="relative path"):
        StoragePath("/base") / text


def test_relative_to_compares_structure_not_text():
    with pytest.raises(StoragePathError):
        StoragePath("/a/bc").relative_to("/a/b")
    with pytest.raises(StoragePathError):
        StoragePath("gs://x/a").relative_to("gs://y")
    assert str(StoragePath("/a/b").relative_to("/a/b")) == "."


@pytest.mark.parametrize("text", ["", "gs:///x", "s3://"])
def test_text_that_is_no_path_is_refused(text):
    with pytest.raises(StoragePathError):
        StoragePath(text)


def test_normalize_resolves_dots_but_never_leaves_the_root():
    assert str(StoragePath("/a/../../b/./c").normalize()) == "/b/c"
    assert str(StoragePath("../a/..").normalize()) == ".."
    assert str(StoragePath("gs://b/x/../../y").normalize()) == "gs://b/y"


def exercise(root: str) -> None:
    base = StoragePath(root)
    (base / "a" / "one.txt").write_text("ä1")
    (base / "a" / "two.bin").write_bytes(b"22")
    (base / "b" / "three.txt").write_text("333")
    one = base / "a/one.txt"
    assert one.exists() and one.isfile() and not one.isdir() and (base / "a").isdir()
    assert one.read_text() == "ä1" and one.size() == 3 and one.read_bytes() == "ä1".encode()
    assert one.mtime() > 1.6e9
    assert [entry.name for entry in (base / "a").ls()] == ["one.txt", "two.bin"]
    assert [entry.name for entry in StoragePath(f"{root}/**/*.txt").glob()] == ["one.txt", "three.txt"]
    pattern = StoragePath(f"{root}/{{a/one,b/none}}.txt")
    assert [entry.name for entry in pattern.glob()] == ["one.txt"]
    assert [entry.name for entry in pattern.expand_glob()] == ["one.txt", "none.txt"]
    assert sum(len(files) for _, _, files in base.walk()) == 3
    moved = one.rename(base / "c" / "moved.txt")
    assert moved.read_text() == "ä1" and not one.exists()
    with moved.open() as stream:
        assert stream.read() == "ä1"
    moved.rm()
    assert not moved.exists()
    base.rmtree()
    base.rmtree()
    assert not (base / "b/three.txt").exists()


def test_the_verbs_work_on_the_local_disk(tmp_path):
    exercise(str(tmp_path / "store"))
    exercise(f"file://{tmp_path}/store")


def test_the_verbs_work_on_an_fsspec_store():
    exercise("memory://storage-path-test")


def test_copies_go_both_ways(tmp_path):
    (tmp_path / "src.txt").write_text("x")
    remote = StoragePath("memory://copies/x.txt")
    remote.upload_from(str(tmp_path / "src.txt"))
    remote.download_to(str(tmp_path / "back.txt"))
    assert (tmp_path / "back.txt").read_text() == "x"
    os.makedirs(tmp_path / "tree" / "sub")
    (tmp_path / "tree" / "sub" / "f").write_text("f")
    StoragePath(str(tmp_path / "copy")).upload_from(str(tmp_path / "tree"), recursive=True)
    assert (tmp_path / "copy" / "sub" / "f").read_text() == "f"


def test_a_failing_write_keeps_the_old_content(tmp_path):
    path = StoragePath(str(tmp_path / "x"))
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        path.write_text("\ud800")
    assert path.read_text() == "old"


def test_a_missing_cloud_package_is_named_with_its_extra():
    for url, extra in (("s3://example-bucket/x", "s3"), ("gs://example-bucket/x", "gcs")):
        try:
            __import__({"s3": "s3fs", "gcs": "gcsfs"}[extra])
        except ImportError:
            with pytest.raises(MissingExtraError, match=rf"marin-rigging\[{extra}\]"):
                StoragePath(url).exists()
    with pytest.raises(StoragePathError, match="scheme"):
        StoragePath("no-such-scheme://x/y").exists()


def test_helpers():
    assert is_remote_path("gs://b/x") and not is_remote_path("/x") and not is_remote_path("file:///x")
    assert split_gcs_path("gs://b/x/y.txt")[0] == "b"
    with pytest.raises(StoragePathError):
        split_gcs_path("s3://b/x")
    assert rebase_file_path("gs://b/in", "gs://b/in/x/y.jsonl", "/out") == "/out/x/y.jsonl"
    assert rebase_file_path("/in", "/in/y.jsonl", "/out", ".parquet") == "/out/y.parquet"
    with pytest.raises(StoragePathError, match="ends in"):
        rebase_file_path("/in", "/in/y.txt", "/out", ".parquet", ".jsonl")


def test_braces_expand_nested_and_keep_what_is_no_list():
    assert brace_expand("a{b,c{1..2}}d") == ["abd", "ac1d", "ac2d"]
    assert brace_expand("{08..10}") == ["08", "09", "10"]
    assert brace_expand("x{y}z") == ["x{y}z"]
    assert brace_expand("x{y") == ["x{y"]
    assert brace_expand("{a}{b,c}") == ["{a}b", "{a}c"]
