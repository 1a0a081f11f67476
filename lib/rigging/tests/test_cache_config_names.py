"""The disk cache, configuration files by name, and names that others chose."""

import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigging.cache import PersistentKvCache
from rigging.config_discovery import (
    cluster_folders,
    find_configs,
    find_project_root,
    list_cluster_configs,
    load_config,
    resolve_cluster_config,
)
from rigging.errors import ConfigError, ConfigNotFoundError, UnsafePathError
from rigging.path_validation import validate_relative_path, validate_relative_paths
from rigging.timing import ManualClock

FILL = """
import os, sys
from rigging.cache import PersistentKvCache
cache = PersistentKvCache(sys.argv[1], limit_bytes=int(sys.argv[2]))
print("ready")
sys.stdin.readline()
bad = 0
for n in range(int(sys.argv[3])):
    key = f"key-{n % 40}"
    cache.store(key, key.encode() * 100)
    got = cache.load(f"key-{(n * 7) % 40}")
    bad += got is not None and got != f"key-{(n * 7) % 40}".encode() * 100
print(bad)
"""


def sizes(folder):
    return sum(os.path.getsize(os.path.join(base, name)) for base, _, names in os.walk(folder) for name in names)


def test_what_was_stored_is_loaded_also_by_another_object(tmp_path):
    cache = PersistentKvCache(str(tmp_path / "c"), ".bin")
    assert cache.load("k") is None
    cache.store("k", b"1")
    cache.store("k", b"2")
    cache.store("", b"")
    assert PersistentKvCache(str(tmp_path / "c"), ".bin").load("k") == b"2" and cache.load("") == b""
    cache.remove("k")
    cache.remove("k")
    assert cache.load("k") is None and cache.statistics() == {"hits": 1, "misses": 2, "evicted": 0}


def test_what_was_used_longest_ago_goes_first(tmp_path):
    clock = ManualClock()
    cache = PersistentKvCache(str(tmp_path), limit_bytes=10 * 116, clock=clock)
    for n in range(10):
        clock.advance(1)
        cache.store(str(n), b"x" * 100)
    clock.advance(1)
    assert cache.load("0") is not None
    cache.store("new", b"x" * 100)
    assert cache.load("0") and cache.load("new") and cache.load("1") is None and cache.load("2") is None
    assert sizes(tmp_path) <= 10 * 116
    cache.store("huge", b"x" * 5000)
    assert cache.load("huge") is None
    for limit in (0, -1):
        with pytest.raises(ValueError, match="limit_bytes"):
            PersistentKvCache(str(tmp_path), limit_bytes=limit)


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_entry_is_a_miss_and_is_removed(tmp_path, damage):
    cache = PersistentKvCache(str(tmp_path))
    cache.store("k", b"value")
    (path,) = [os.path.join(base, name) for base, _, names in os.walk(tmp_path) for name in names]
    with open(path, "r+b") as stream:
        if damage is None:
            stream.seek(-1, os.SEEK_END)
            stream.write(b"!")
        else:
            stream.truncate(0)
            stream.write(damage)
    assert cache.load("k") is None and not os.path.exists(path)


def test_processes_share_a_cache_within_its_limit(tmp_path, python_child):
    children = [python_child(FILL, str(tmp_path), "8000", "300") for _ in range(3)]
    assert [child.line() for child in children] == ["ready"] * 3
    for child in children:
        child.send("go")
    assert [child.line() for child in children] == ["0"] * 3
    PersistentKvCache(str(tmp_path), limit_bytes=8000).store("last", b"x")
    assert sizes(tmp_path) <= 8000


def test_a_killed_writer_leaves_nothing_wrong(tmp_path, python_child):
    child = python_child(FILL, str(tmp_path), "8000", "100000000")
    assert child.line() == "ready"
    child.send("go")
    probe = PersistentKvCache(str(tmp_path), limit_bytes=8000)
    while not all(probe.load(f"key-{n}") for n in range(3)):
        pass
    child.signal(signal.SIGKILL)
    child.process.wait()
    for n in range(40):
        assert probe.load(f"key-{n}") in (None, f"key-{n}".encode() * 100)
    stale = tmp_path / "ab" / "x.tmp.0123"
    stale.parent.mkdir(exist_ok=True)
    stale.write_bytes(b"left over")
    os.utime(stale, (0, 0))
    for n in range(40):
        probe.store(f"key-{n}", b"y" * 500)
    assert not stale.exists()


def test_the_nearest_workspace_above_is_the_project(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.uv.workspace]\nmembers = []\n")
    inner = tmp_path / "lib" / "x"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert find_project_root(inner) == tmp_path.resolve()
    (inner / "pyproject.toml").write_text("broken [")
    assert find_project_root(inner) == tmp_path.resolve()


def test_the_users_own_configuration_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "pyproject.toml").write_text("[tool.uv.workspace]\n")
    mine, theirs = tmp_path / "home" / "marin" / "clusters", tmp_path / "config"
    for folder in (mine, theirs):
        folder.mkdir(parents=True)
        (folder / "lab.yaml").write_text(f"where: {folder.name}\n")
    (theirs / "other.yml").write_text("a: 1\n")
    (theirs / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    assert cluster_folders() == [mine, theirs.resolve()]
    assert resolve_cluster_config("lab") == mine / "lab.yaml" and sorted(list_cluster_configs()) == ["lab", "other"]
    assert load_config(resolve_cluster_config("lab")) == {"where": "clusters"}
    assert resolve_cluster_config(str(theirs / "lab.yaml")) == theirs / "lab.yaml"
    assert find_configs([theirs], "other").keys() == {"other"}
    with pytest.raises(ConfigNotFoundError, match=r"\['lab', 'other'\]"):
        resolve_cluster_config("labb")
    with pytest.raises(ConfigNotFoundError):
        resolve_cluster_config("config/none.yaml")


@pytest.mark.parametrize("text", ["- a\n", "just text", "a: [", "a: 1\n---\nb: 2\n", "\xff\xfe"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"x\.yaml"):
        load_config(path)
    path.write_text("")
    assert load_config(path) == {}


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/", "./a", "a/./b", "..", "a/../b", "a\0b"])
def test_a_name_that_is_not_plain_is_refused(name):
    with pytest.raises(UnsafePathError):
        validate_relative_path(name)


@pytest.mark.parametrize("name", ["a", "a/b", "..a", "a..", "C:\\x", "a:b", "A", ".hidden", "ä/ö"])
def test_plain_names_stay_as_they_are(name):
    assert validate_relative_path(name) == name


@given(st.lists(st.text(alphabet="ab./\0", max_size=6), max_size=5))
def test_accepted_names_never_leave_the_folder_nor_clash(names):
    try:
        accepted = validate_relative_paths(names)
    except UnsafePathError:
        return
    for name in accepted:
        inside = os.path.normpath(os.path.join("/base", name))
        assert inside.startswith("/base/") and inside == f"/base/{name}"
    folders = {name[:at] for name in accepted for at in range(len(name)) if name[at] == "/"}
    assert not folders & set(accepted) and len(set(accepted)) == len(accepted)
