import dataclasses
import json
import os
import signal
import threading

import pytest
from rigging.errors import LeaseFormatError, LeaseHeldError, LeaseLostError
from rigging.filesystem.lease import Lease, LeaseHolder
from rigging.timing import ManualClock

HOLDER = """
import sys, threading
from rigging.errors import LeaseLostError
from rigging.filesystem.lease import Lease
lease = Lease(sys.argv[1], timeout_s=float(sys.argv[2]), heartbeat_s=float(sys.argv[3]))
lost = threading.Event()
with lease.hold(on_lost=lambda error: lost.set()) as held:
    print(held.epoch)
    command = sys.stdin.readline().strip()
    try:
        held.check()
        print("still ours")
    except LeaseLostError as error:
        print("lost", error.epoch)
    lost.wait(5)
    print("told" if held.lost.is_set() else "not told")
"""


def elsewhere(nonce: str = "elsewhere") -> LeaseHolder:
    return LeaseHolder(host="another-host", boot_id="another-boot", pid=1, process_start=1, nonce=nonce)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "job.lease")


def test_one_holder_at_a_time_and_the_epoch_grows_over_release(path):
    first, second = Lease(path), Lease(path)
    epochs = []
    for _ in range(3):
        for mine, other in ((first, second), (second, first)):
            epochs.append(mine.try_acquire())
            assert other.try_acquire() is None
            mine.release()
            mine.release()
    assert epochs == [1, 2, 3, 4, 5, 6]


def test_acquiring_again_while_holding_keeps_the_epoch(path):
    lease = Lease(path)
    assert lease.try_acquire() == 1
    assert lease.try_acquire() == 1
    lease.refresh()
    assert lease.epoch == 1


def test_two_leases_of_one_process_are_two_holders(path):
    assert Lease(path).try_acquire() == 1
    assert Lease(path).try_acquire() is None


def test_the_file_holds_holder_epoch_and_heartbeat(path):
    lease = Lease(path, clock=ManualClock(start=1234.5))
    lease.try_acquire()
    with open(path) as stream:
        raw = json.load(stream)
    assert raw == {"holder": dataclasses.asdict(lease.holder), "epoch": 1, "heartbeat_at": 1234.5}
    lease.release()
    with open(path) as stream:
        assert json.load(stream) == {"holder": None, "epoch": 1, "heartbeat_at": 1234.5}


def test_a_killed_holder_on_this_machine_is_succeeded_at_once(path, python_child):
    child = python_child(HOLDER, path, "3600", "1200")
    assert child.line() == "1"
    lease = Lease(path, timeout_s=3600, heartbeat_s=1200)
    assert lease.try_acquire() is None
    child.signal(signal.SIGKILL)
    child.process.wait()
    state = lease.read()
    assert state is not None and not state.live and "is gone" in state.reason
    assert lease.try_acquire() == 2


def test_a_zombie_holder_counts_as_dead(path, python_child):
    child = python_child(HOLDER, path, "3600", "1200")
    assert child.line() == "1"
    child.signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
    assert Lease(path).try_acquire() == 2


def test_a_stopped_holder_loses_the_lease_and_learns_it_when_it_wakes(path, python_child):
    child = python_child(HOLDER, path, "0.6", "0.1")
    assert child.line() == "1"
    lease = Lease(path, timeout_s=0.6, heartbeat_s=0.1)
    child.signal(signal.SIGSTOP)
    assert lease.try_acquire() is None, "a holder that was seen beating just now must be respected"
    while (epoch := lease.try_acquire()) is None:
        lease.clock.sleep(0.02)
    assert epoch == 2
    child.send("check")
    child.signal(signal.SIGCONT)
    assert child.line() == "lost 1"
    assert child.line() == "told"
    lease.refresh()
    assert lease.epoch == 2, "the old holder's release must not free the new holder's lease"


def test_a_beating_holder_is_never_succeeded(path, python_child):
    child = python_child(HOLDER, path, "0.9", "0.1")
    assert child.line() == "1"
    lease = Lease(path, timeout_s=0.9, heartbeat_s=0.1)
    end = lease.clock.monotonic() + 2.0
    while lease.clock.monotonic() < end:
        assert lease.try_acquire() is None
        lease.clock.sleep(0.05)
    child.send("check")
    assert child.line() == "still ours"


def test_a_holder_elsewhere_is_judged_by_our_own_watching(path):
    clock = ManualClock(start=50)
    theirs = Lease(path, holder=elsewhere(), clock=ManualClock(start=1))
    ours = Lease(path, clock=clock, timeout_s=90)
    theirs.try_acquire()
    assert ours.try_acquire() is None
    clock.advance(89)
    assert ours.try_acquire() is None
    theirs.refresh()
    clock.advance(1)
    assert ours.try_acquire() is None, "a new heartbeat starts the watch again"
    clock.advance(89)
    assert ours.try_acquire() is None
    clock.advance(1)
    assert ours.try_acquire() == 2
    with pytest.raises(LeaseLostError, match="written epoch 2"):
        theirs.refresh()


@pytest.mark.parametrize("skew_s", [-1e9, -3600, 3600, 1e9])
def test_a_skewed_writer_neither_loses_early_nor_holds_for_ever(path, skew_s):
    clock = ManualClock(start=2e9)
    theirs = Lease(path, holder=elsewhere(), clock=ManualClock(start=2e9 + skew_s))
    ours = Lease(path, clock=clock)
    theirs.try_acquire()
    assert ours.try_acquire() is None
    clock.set_time(clock.time() + 1e6)
    assert ours.try_acquire() is None, "a stepped wall clock must not look like silence"
    clock.advance(ours.timeout_s)
    assert ours.try_acquire() == 2


def test_a_reused_process_number_is_not_the_holder(path):
    me = LeaseHolder.current()
    stale = dataclasses.replace(me, process_start=me.process_start - 1, nonce="old")
    Lease(path, holder=stale).try_acquire()
    assert Lease(path).try_acquire() == 2


def test_a_holder_in_another_process_number_space_is_not_judged_by_number(path):
    me = LeaseHolder.current()
    other = dataclasses.replace(me, boot_id=me.boot_id + "x", pid=2**22 + 1, nonce="container")
    Lease(path, holder=other).try_acquire()
    assert Lease(path).try_acquire() is None


def test_only_one_of_many_takes_over(path, python_child):
    Lease(path, holder=dataclasses.replace(LeaseHolder.current(), process_start=1, nonce="dead")).try_acquire()
    code = """
    import sys
    from rigging.filesystem.lease import Lease
    lease = Lease(sys.argv[1])
    print("ready")
    sys.stdin.readline()
    print(lease.try_acquire())
    sys.stdin.readline()
    """
    children = [python_child(code, path) for _ in range(4)]
    assert [child.line() for child in children] == ["ready"] * 4
    for child in children:
        child.send("go")
    assert sorted(child.line() for child in children) == ["2", "None", "None", "None"]


def test_release_by_a_former_holder_changes_nothing(path):
    clock = ManualClock()
    theirs = Lease(path, holder=elsewhere())
    theirs.try_acquire()
    ours = Lease(path, clock=clock)
    ours.try_acquire()
    clock.advance(90)
    assert ours.try_acquire() == 2
    theirs.release()
    state = Lease(path).read()
    assert state is not None and state.live and state.holder == ours.holder


def test_a_deleted_lease_file_is_a_lost_lease(path):
    lease = Lease(path)
    lease.try_acquire()
    os.remove(path)
    with pytest.raises(LeaseLostError, match="the lease file is gone"):
        lease.refresh()
    with pytest.raises(LeaseLostError, match="not held"):
        lease.refresh()


def test_a_file_that_is_no_lease_is_refused_and_kept(path):
    for text in ("", "[]", '{"holder": null}', '{"holder": {"pid": "x"}, "epoch": 1, "heartbeat_at": 0}'):
        with open(path, "w") as stream:
            stream.write(text)
        with pytest.raises(LeaseFormatError, match="not a lease file"):
            Lease(path).try_acquire()
        with open(path) as stream:
            assert stream.read() == text


def test_hold_beats_in_the_background_and_releases(path):
    clock = ManualClock()
    lease = Lease(path, clock=clock)
    with lease.hold() as held:
        before = os.stat(path).st_mtime_ns
        while os.stat(path).st_mtime_ns == before:
            clock.advance(5)
        held.check()
    state = Lease(path).read()
    assert state is not None and state.holder is None and state.epoch == 1


def test_hold_refuses_a_held_lease_and_waits_when_asked(path):
    clock = ManualClock()
    blocker = Lease(path)
    blocker.try_acquire()
    with pytest.raises(LeaseHeldError) as caught, Lease(path, clock=clock).hold(wait_s=10):
        pass
    assert caught.value.epoch == 1 and str(os.getpid()) in caught.value.holder
    assert clock.monotonic() == pytest.approx(10)


def test_a_holder_whose_store_fails_gives_up_when_others_may_take_over(path):
    from rigging.filesystem.conditional import conditional_object

    class FailingStore:
        """A real store whose disk fills up at the push of a button."""

        def __init__(self):
            self.inner, self.full, self.path = conditional_object(path), False, path

        def read(self):
            return self.inner.read()

        def write(self, data, *, expected_version):
            if self.full:
                raise OSError(28, "No space left on device")
            return self.inner.write(data, expected_version=expected_version)

        def delete(self, *, expected_version):
            self.inner.delete(expected_version=expected_version)

    clock, store, told = ManualClock(), FailingStore(), threading.Event()
    lease = Lease(path, clock=clock, store=store)
    with pytest.raises(OSError, match="No space"), lease.hold(on_lost=lambda error: told.set()) as held:
        store.full = True
        while not told.wait(0.005):
            clock.advance(3)
        with pytest.raises(LeaseLostError, match="no heartbeat could be written"):
            held.check()
    assert clock.monotonic() >= lease.timeout_s


def test_bad_times_are_refused(path):
    with pytest.raises(ValueError, match="heartbeat_s=90"):
        Lease(path, timeout_s=90, heartbeat_s=90)
