import os
import signal
import tempfile

import pytest
from rigging.errors import ConditionalWriteError, UnsupportedConditionalWrite
from rigging.filesystem.conditional import conditional_object

INCREMENT = """
import sys
from rigging.errors import ConditionalWriteError
from rigging.filesystem.conditional import conditional_object
counter = conditional_object(sys.argv[1])
print("ready")
sys.stdin.readline()
done = lost = 0
while done < int(sys.argv[2]):
    stored = counter.read()
    try:
        counter.write(str(int(stored.data) + 1).encode(), expected_version=stored.version)
        done += 1
    except ConditionalWriteError:
        lost += 1
print(lost)
"""


def test_create_succeeds_once(tmp_path):
    thing = conditional_object(str(tmp_path / "x"))
    assert thing.read() is None
    version = thing.write(b"1", expected_version=None)
    stored = thing.read()
    assert stored is not None and (stored.data, stored.version) == (b"1", version)
    with pytest.raises(ConditionalWriteError) as caught:
        thing.write(b"2", expected_version=None)
    assert caught.value.actual_version == version


def test_a_change_back_to_the_old_content_is_a_new_version(tmp_path):
    thing = conditional_object(str(tmp_path / "x"))
    first = thing.write(b"A", expected_version=None)
    second = thing.write(b"B", expected_version=first)
    third = thing.write(b"A", expected_version=second)
    assert len({first, second, third}) == 3
    with pytest.raises(ConditionalWriteError):
        thing.write(b"C", expected_version=first)


def test_delete_asks_for_the_version_and_forgets_nothing_else(tmp_path):
    thing = conditional_object(str(tmp_path / "x"))
    version = thing.write(b"1", expected_version=None)
    with pytest.raises(ConditionalWriteError):
        thing.delete(expected_version="other")
    thing.delete(expected_version=version)
    assert thing.read() is None
    with pytest.raises(ConditionalWriteError):
        thing.delete(expected_version=version)
    with pytest.raises(ConditionalWriteError):
        conditional_object(str(tmp_path / "no" / "x")).delete(expected_version=version)
    assert not (tmp_path / "no").exists()


def test_a_store_without_compare_and_swap_is_refused():
    with pytest.raises(UnsupportedConditionalWrite, match="scheme='memory'"):
        conditional_object("memory://bucket/x")


@pytest.fixture
def memory_folder():
    """A folder on a file system without slow flushes, so that a race of thousands of writes takes a second."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield folder


def test_two_processes_lose_no_increment(memory_folder, python_child):
    path = os.path.join(memory_folder, "counter")
    conditional_object(path).write(b"0", expected_version=None)
    children = [python_child(INCREMENT, path, "600") for _ in range(2)]
    assert [child.line() for child in children] == ["ready", "ready"]
    for child in children:
        child.send("go")
    losses = [int(child.line()) for child in children]
    stored = conditional_object(path).read()
    assert stored is not None and stored.data == b"1200"
    assert sum(losses) > 0, "the two processes never met, so the race was not tested"
    assert sorted(os.listdir(memory_folder)) == [".counter.lock", "counter"]


def test_a_killed_writer_leaves_no_lock_behind(tmp_path, python_child):
    path = str(tmp_path / "counter")
    conditional_object(path).write(b"0", expected_version=None)
    child = python_child(INCREMENT, path, "1000000")
    assert child.line() == "ready"
    child.send("go")
    thing = conditional_object(path)
    while (stored := thing.read()) is not None and int(stored.data) < 20:
        pass
    child.signal(signal.SIGKILL)
    child.process.wait()
    stored = thing.read()
    assert stored is not None
    thing.write(b"done", expected_version=stored.version)
    assert thing.read() is not None


def test_a_removed_folder_comes_back_and_guards_again(tmp_path):
    import shutil

    thing = conditional_object(str(tmp_path / "d" / "x"))
    version = thing.write(b"1", expected_version=None)
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(ConditionalWriteError):
        thing.write(b"2", expected_version=version)
    assert thing.write(b"2", expected_version=None) != version
