"""One suite over every store that can compare and swap: local disk, S3 (moto), Google Cloud Storage (fake-gcs-server).

Known of the servers: fake-gcs ignores the condition of a delete (the client compares first, which is what is tested
here), and honours that of an upload only in the multipart form, which is what the client sends.
"""

import importlib.util
import signal
import subprocess
import sys
import threading

import pytest
from rigging.errors import (
    ConditionalWriteError,
    LeaseHeldError,
    LeaseLostError,
    MissingExtraError,
    StoragePathError,
)
from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.lease import Lease
from rigging.filesystem.storage_path import StoragePath
from rigging.timing import ManualClock

# The libraries of others warn about their own futures; that is not ours to fail on.
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]

INCREMENT = """
import sys
from rigging.errors import ConditionalWriteError
from rigging.filesystem.conditional import conditional_object
counter = conditional_object(sys.argv[1])
counter.read()
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

CREATE = """
import sys
from rigging.errors import ConditionalWriteError
from rigging.filesystem.conditional import conditional_object
base = sys.argv[1]
conditional_object(base + "/warm").read()
print("ready")
sys.stdin.readline()
won = []
for n in range(int(sys.argv[2])):
    try:
        conditional_object(f"{base}/{n}").write(sys.argv[3].encode(), expected_version=None)
        won.append(n)
    except ConditionalWriteError:
        pass
print(*won)
"""

WRITE = """
import sys
from rigging.filesystem.storage_path import StoragePath
StoragePath(sys.argv[1]).write_text("2")
print("ok")
"""

HOLD = """
import sys, time
from rigging.filesystem.lease import Lease
with Lease(sys.argv[1]).hold() as held:
    print(held.epoch)
    time.sleep(600)
"""


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="the extra gcs is installed")
def test_without_the_extra_the_error_names_it():
    with pytest.raises(MissingExtraError, match=r"marin-rigging\[gcs\]"):
        conditional_object("gs://example-bucket/x")
    with pytest.raises(MissingExtraError, match=r"marin-rigging\[gcs\]"):
        StoragePath("gs://example-bucket/x").exists()


@pytest.mark.parametrize("url", ["gs://", "gs://bucket", "gs://bucket/", "s3://", "s3:///x"])
def test_a_url_without_bucket_or_key_is_refused(url):
    with pytest.raises(StoragePathError):
        conditional_object(url)


def test_create_replace_and_delete_ask_for_the_version(store_url):
    thing = conditional_object(f"{store_url}/a/x")
    assert thing.read() is None
    first = thing.write(b"1", expected_version=None)
    with pytest.raises(ConditionalWriteError) as caught:
        thing.write(b"2", expected_version=None)
    assert caught.value.actual_version == first
    second = thing.write(b"2", expected_version=first)
    for stale in (first, "no such version"):
        with pytest.raises(ConditionalWriteError):
            thing.write(b"3", expected_version=stale)
        with pytest.raises(ConditionalWriteError):
            thing.delete(expected_version=stale)
    stored = thing.read()
    assert stored is not None and (stored.data, stored.version) == (b"2", second)
    thing.delete(expected_version=second)
    assert thing.read() is None
    with pytest.raises(ConditionalWriteError):
        thing.delete(expected_version=second)
    with pytest.raises(ConditionalWriteError):
        thing.write(b"4", expected_version=second)
    assert thing.write(b"", expected_version=None) and thing.read().data == b""


def test_a_file_is_written_under_the_same_condition_and_its_version_needs_no_content(store_url, tmp_path):
    target = conditional_object(f"{store_url}/file")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1" * 1_000_000)
    second.write_bytes(b"")
    assert target.version() is None
    version = target.write_file(str(first), expected_version=None)
    assert target.version() == version == target.read().version
    for stale in (None, "0", "never"):
        with pytest.raises(ConditionalWriteError):
            target.write_file(str(second), expected_version=stale)
    assert target.read().data == first.read_bytes()
    assert target.write_file(str(second), expected_version=version) == target.version() != version
    assert target.read().data == b""
    with pytest.raises(FileNotFoundError):
        target.write_file(str(tmp_path / "none"), expected_version=target.version())


UPLOAD = """
import resource, sys
from rigging.filesystem.conditional import conditional_object
target = conditional_object(sys.argv[1])
target.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print("ready")
sys.stdin.readline()
target.write_file(sys.argv[2], expected_version=None)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_large_file_goes_up_without_being_held_in_memory(s3_bucket, tmp_path, python_child):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(128 * 2**20)
    child = python_child(UPLOAD, f"{s3_bucket}/large", str(tmp_path / "large"))
    assert child.line() == "ready"
    child.send("go")
    assert int(child.line()) < 48  # MiB, of 128


def test_a_missing_bucket_is_an_error_and_not_an_absent_object(s3_bucket, gcs_bucket):
    for url in ("s3://example-no-such-bucket/x", "gs://example-no-such-bucket/x"):
        with pytest.raises(OSError, match="cannot write"):
            conditional_object(url).write(b"1", expected_version=None)


def test_two_processes_lose_no_increment(store_url, python_child):
    path, count = f"{store_url}/counter", 300 if "://" not in store_url else 25
    conditional_object(path).write(b"0", expected_version=None)
    children = [python_child(INCREMENT, path, str(count)) for _ in range(2)]
    assert [child.line() for child in children] == ["ready", "ready"]
    for child in children:
        child.send("go")
    losses = [int(child.line()) for child in children]
    stored = conditional_object(path).read()
    assert stored is not None and stored.data == str(2 * count).encode(), losses


def test_of_two_processes_that_create_exactly_one_wins(store_url, python_child):
    children = [python_child(CREATE, f"{store_url}/c", "20", who) for who in "ab"]
    assert [child.line() for child in children] == ["ready", "ready"]
    for child in children:
        child.send("go")
    won = [[int(n) for n in child.line().split()] for child in children]
    assert sorted(won[0] + won[1]) == list(range(20))
    for numbers, who in zip(won, "ab", strict=True):
        assert all(conditional_object(f"{store_url}/c/{n}").read().data == who.encode() for n in numbers)


def test_a_killed_writer_leaves_a_whole_object_and_no_lock(store_url, python_child):
    path = f"{store_url}/counter"
    thing = conditional_object(path)
    thing.write(b"0", expected_version=None)
    child = python_child(INCREMENT, path, "1000000")
    assert child.line() == "ready"
    child.send("go")
    while int(thing.read().data) < 10:
        pass
    child.signal(signal.SIGKILL)
    child.process.wait()
    stored = thing.read()
    assert int(stored.data) >= 10
    thing.write(b"done", expected_version=stored.version)
    assert thing.read().data == b"done"


def test_epochs_grow_across_holders_and_releases(store_url):
    clock = ManualClock()
    first, second = (Lease(f"{store_url}/lease", clock=clock) for _ in range(2))
    assert first.try_acquire() == 1 and second.try_acquire() is None
    first.refresh()
    first.release()
    assert second.try_acquire() == 2
    with pytest.raises(LeaseLostError):
        first.refresh()
    assert first.try_acquire() is None
    clock.advance(90)
    assert first.try_acquire() == 3
    with pytest.raises(LeaseLostError, match="written epoch 3"):
        second.refresh()
    second.release()
    assert first.epoch == 3 and first.read().epoch == 3


def test_the_lease_of_a_killed_process_is_free_at_once(store_url, python_child):
    path = f"{store_url}/lease"
    child = python_child(HOLD, path)
    assert child.line() == "1"
    mine = Lease(path)
    with pytest.raises(LeaseHeldError), mine.hold():
        pass
    child.signal(signal.SIGKILL)
    child.process.wait()
    with mine.hold() as held:
        assert held.epoch == 2


@pytest.mark.parametrize("skew_s", [-86_400.0, 86_400.0])
def test_a_clock_that_is_a_day_off_neither_keeps_nor_loses_a_lease(store_url, skew_s):
    clock, skewed = ManualClock(), ManualClock()
    skewed.advance(86_400.0) if skew_s > 0 else clock.advance(86_400.0)
    holder, judge = Lease(f"{store_url}/lease", clock=skewed), Lease(f"{store_url}/lease", clock=clock)
    assert holder.try_acquire() == 1
    for _ in range(4):  # a beating holder stays, whatever its clock says
        assert judge.try_acquire() is None
        clock.advance(60)
        skewed.advance(60)
        holder.refresh()
    assert judge.try_acquire() is None
    clock.advance(89)
    assert judge.try_acquire() is None
    clock.advance(2)
    assert judge.try_acquire() == 2


def test_a_holder_that_was_replaced_stops_at_its_next_heartbeat(store_url):
    clock = ManualClock()
    lease, thief = Lease(f"{store_url}/lease", clock=clock), Lease(f"{store_url}/lease", clock=clock)
    lost = threading.Event()
    with lease.hold(on_lost=lambda error: lost.set()) as held:
        held.check()
        stored = conditional_object(f"{store_url}/lease").read()
        conditional_object(f"{store_url}/lease").delete(expected_version=stored.version)
        assert thief.try_acquire() == 1
        clock.advance(31)
        assert lost.wait(60)
        with pytest.raises(LeaseLostError):
            held.check()
    assert thief.read().live and thief.epoch == 1, "the loser's release must change nothing"


def test_the_storage_verbs_are_the_same_everywhere(store_url):
    base = StoragePath(store_url) / "store"
    (base / "a" / "one.txt").write_text("ä1")
    (base / "a" / "two.txt").write_text("2")
    assert (base / "a/one.txt").read_text() == "ä1" and (base / "a/one.txt").size() == 3
    assert [entry.name for entry in StoragePath(f"{base}/a/*.txt").glob()] == ["one.txt", "two.txt"]
    assert [entry.name for entry in (base / "a").ls()] == ["one.txt", "two.txt"]
    assert (base / "a/one.txt").mtime() > 1e9
    (base / "a/one.txt").rename(base / "b/one.txt")
    assert not (base / "a/one.txt").exists() and (base / "b/one.txt").read_text() == "ä1"
    base.rmtree()
    assert not (base / "b/one.txt").exists()


def test_a_listing_shows_what_others_have_written_meanwhile(store_url, python_child):
    folder = StoragePath(f"{store_url}/shared")
    (folder / "one").write_text("1")
    assert [entry.name for entry in folder.ls()] == ["one"]
    assert python_child(WRITE, f"{folder}/two").line() == "ok"
    assert [entry.name for entry in folder.ls()] == ["one", "two"]


def test_what_the_user_configured_for_a_store_stands():
    code = """
from fsspec.config import conf
conf["s3"] = {"listings_expiry_time": 60, "config_kwargs": {"read_timeout": 7}}
from rigging.filesystem.storage_path import StoragePath
try:
    StoragePath("s3://example/x")._store
except ImportError:
    pass
times = conf["s3"]["config_kwargs"]
print(conf["s3"].get("use_listings_cache"), times["read_timeout"], times["connect_timeout"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "7", "30"]
