"""Drivers are really killed: at every boundary of the commit, at random times, and while others want the same steps.

``MARIN_CHAOS_KILLS=250`` makes the test of killed crowds kill that many drivers instead of a few, and
``MARIN_CHAOS_SEED`` chooses other moments.
"""

import collections
import glob
import os
import random
import signal
import time

import pytest
from marin.execution.boundaries import Boundary
from marin.ledger import verify

SUCCESS_BOUNDARIES = [boundary for boundary in Boundary if boundary is not Boundary.STATUS_FAILED]


def successes(store):
    return collections.Counter(a.step.partition("@")[0] for a in store.ledger().attempts() if a.status == "success")


@pytest.mark.parametrize("boundary", SUCCESS_BOUNDARIES)
def test_a_driver_killed_at_a_boundary_is_recovered_from(diamond_store, clean_digests, boundary):
    code, _ = diamond_store.drive(KILL_AT=f"{boundary.value}:left")
    assert code == -signal.SIGKILL
    code, outcomes = diamond_store.drive()
    assert code == 0 and all(outcome in ("executed", "cached") for outcome, _, _ in outcomes.values())
    assert diamond_store.digests() == clean_digests
    assert diamond_store.leftovers() == []
    assert set(successes(diamond_store).values()) == {1}
    assert all(attempt.closed for attempt in diamond_store.ledger().attempts())


@pytest.mark.parametrize(
    "boundary", [Boundary.RECORD_WRITTEN, Boundary.OUTPUT_RENAMED, Boundary.STATUS_SUCCESS, Boundary.ATTEMPT_CLOSED]
)
def test_a_complete_record_is_not_computed_again(diamond_store, clean_digests, boundary):
    diamond_store.drive(KILL_AT=f"{boundary.value}:left")
    diamond_store.drive()
    assert diamond_store.bodies().count("left") == 1
    assert diamond_store.digests() == clean_digests


def test_an_attempt_whose_driver_died_is_closed_as_abandoned_by_the_next_owner(diamond_store):
    diamond_store.drive(KILL_AT="staging_created:left")
    diamond_store.drive()
    statuses = [attempt.status for attempt in diamond_store.ledger().attempts("left")]
    assert statuses == ["abandoned", "success"]


@pytest.mark.slow
def test_two_hundred_random_kills_end_in_the_bytes_of_a_clean_run(tmp_path, clean_digests, diamond_store_factory):
    chance = random.Random(int(os.environ.get("MARIN_CHAOS_SEED", "20261201")))
    kills = trials = 0
    while kills < 200:
        trials += 1
        store = diamond_store_factory(tmp_path / str(trials))
        for _ in range(12):
            driver = store.start(BODY_SECONDS="0.01")
            if driver.wait(chance.uniform(0.0, 0.12)) is not None:
                break
            driver.kill()
            kills += driver.wait() == -signal.SIGKILL
        code, _ = store.drive()
        assert code == 0
        assert store.digests() == clean_digests
        assert store.leftovers() == []
        assert set(successes(store).values()) == {1}


@pytest.mark.parametrize("crowd", [2, 5])
def test_crowds_of_drivers_killed_at_random_commit_every_step_once(
    tmp_path, clean_digests, diamond_store_factory, crowd
):
    """Drivers race for one store, some are killed at any moment and replaced, until one gets through unharmed."""
    wanted = int(os.environ.get("MARIN_CHAOS_KILLS", "6"))
    chance = random.Random(int(os.environ.get("MARIN_CHAOS_SEED", "20261201")) + crowd)
    kills = trials = 0
    while kills < wanted:
        trials += 1
        store = diamond_store_factory(tmp_path / str(trials))
        drivers = [store.start(BODY_SECONDS="0.05") for _ in range(crowd)]
        for _ in range(3 * crowd):
            number = chance.randrange(crowd)
            if drivers[number].wait(chance.uniform(0.0, 0.08)) is None:
                drivers[number].kill()
            kills += drivers[number].wait() == -signal.SIGKILL
            drivers[number] = store.start(BODY_SECONDS="0.05")
        for driver in drivers:
            driver.finish()
            assert driver.returncode == 0
        assert store.digests() == clean_digests
        assert store.leftovers() == []
        assert successes(store) == {"top": 1, "left": 1, "right": 1, "deep/bottom": 1}
        assert all(attempt.closed for attempt in store.ledger().attempts())


def test_five_racing_drivers_commit_every_step_once_while_some_are_killed(diamond_store, clean_digests):
    drivers = [diamond_store.start(BODY_SECONDS="0.15") for _ in range(5)]
    for victim in drivers[:2]:
        assert victim.wait(0.25) is None
        victim.kill()
    outcomes = [driver.finish() for driver in drivers]
    for driver, became in zip(drivers[2:], outcomes[2:], strict=True):
        assert driver.returncode == 0
        assert all(outcome in ("executed", "cached") for outcome, _, _ in became.values())
    assert diamond_store.digests() == clean_digests
    assert successes(diamond_store) == {"top": 1, "left": 1, "right": 1, "deep/bottom": 1}
    assert diamond_store.leftovers() == []


@pytest.mark.parametrize("boundary", [Boundary.STATUS_SUCCESS, Boundary.SCRATCH_REMOVED])
def test_a_driver_that_waited_closes_the_finished_attempt_of_one_killed_before_it_could(diamond_store, boundary):
    dying = diamond_store.start(KILL_AT=f"{boundary.value}:top", BODY_SECONDS="0.5")
    while "top" not in diamond_store.bodies():
        time.sleep(0.005)
    waiting = diamond_store.start()
    assert dying.wait() == -signal.SIGKILL
    assert waiting.finish()["top"][0] == "cached"
    assert diamond_store.bodies().count("top") == 1
    assert [attempt.status for attempt in diamond_store.ledger().attempts("top")] == ["success"]


def test_a_driver_that_saw_a_step_running_is_served_its_result(diamond_store):
    first = diamond_store.start(BODY_SECONDS="0.5")
    while "top" not in diamond_store.bodies():
        time.sleep(0.005)
    second = diamond_store.start()
    assert first.finish() and second.finish()["top"][0] == "cached"
    assert diamond_store.bodies().count("top") == 1


def test_two_drivers_share_the_work_and_each_step_runs_once(diamond_store, clean_digests):
    drivers = [diamond_store.start(BODY_SECONDS="0.2") for _ in range(2)]
    for driver in drivers:
        driver.finish()
    assert [driver.returncode for driver in drivers] == [0, 0]
    assert collections.Counter(diamond_store.bodies()) == {"top": 1, "left": 1, "right": 1, "deep/bottom": 1}
    assert diamond_store.digests() == clean_digests


def test_a_frozen_driver_loses_its_lease_and_writes_nothing_when_it_wakes(diamond_store, clean_digests):
    env = {"LEASE_TIMEOUT": "1.0", "HEARTBEAT": "0.2"}
    frozen = diamond_store.start(BODY_SECONDS="30", **env)
    while "top" not in diamond_store.bodies():
        time.sleep(0.01)
    frozen.kill(signal.SIGSTOP)
    code, outcomes = diamond_store.drive(**env)
    assert code == 0 and outcomes["top"][0] == "executed"
    outputs = [os.path.join(diamond_store.prefix, name, "2026.12.01") for name in ("top", "left")]
    before = [os.stat(path).st_mtime_ns for path in outputs]
    woken = time.monotonic()
    frozen.kill(signal.SIGCONT)
    assert frozen.finish()["top"][0] == "cached" and frozen.returncode == 0
    assert time.monotonic() - woken < 5.0
    assert diamond_store.digests() == clean_digests
    assert [os.stat(path).st_mtime_ns for path in outputs] == before
    assert successes(diamond_store) == {"top": 1, "left": 1, "right": 1, "deep/bottom": 1}


DEAF = {
    "its heartbeat threads hang": {"LEASE_TIMEOUT": "0.5", "HEARTBEAT": "0.1", "FREEZE_HEARTBEATS": "1"},
    "it beats more seldom than others wait": {"LEASE_TIMEOUT": "2000", "HEARTBEAT": "1000"},
}


@pytest.mark.parametrize("how", DEAF)
def test_a_driver_whose_heartbeats_are_frozen_is_fenced_off_and_writes_nothing(diamond_store, clean_digests, how):
    deaf = diamond_store.start(BODY_SECONDS="2.5", **DEAF[how])
    while "top" not in diamond_store.bodies():
        assert deaf.wait(0.01) is None
    code, outcomes = diamond_store.drive(LEASE_TIMEOUT="0.5", HEARTBEAT="0.1")
    assert code == 0 and outcomes["top"][0] == "executed"
    output = os.path.join(diamond_store.prefix, "top", "2026.12.01")
    before = os.stat(output).st_mtime_ns
    # The body ends by itself, meets a staging folder that is gone, and the result of the new owner is served.
    assert deaf.finish()["top"][0] == "cached" and deaf.returncode == 0
    assert os.stat(output).st_mtime_ns == before
    assert diamond_store.digests() == clean_digests
    assert successes(diamond_store) == {"top": 1, "left": 1, "right": 1, "deep/bottom": 1}
    assert diamond_store.leftovers() == []


YEAR = 366 * 86_400


@pytest.mark.parametrize("jump", [YEAR, -YEAR], ids=["forward", "backward"])
def test_a_wall_clock_that_jumps_by_a_year_changes_no_result(diamond_store, clean_digests, jump):
    code, outcomes = diamond_store.drive(CLOCK_JUMP=str(jump), LEASE_TIMEOUT="5", HEARTBEAT="0.05", BODY_SECONDS="0.2")
    assert code == 0 and {outcome for outcome, _, _ in outcomes.values()} == {"executed"}
    assert diamond_store.digests() == clean_digests
    assert all(0 <= attempt.seconds < 60 for attempt in diamond_store.ledger().attempts())
    code, outcomes = diamond_store.drive()
    assert code == 0 and {outcome for outcome, _, _ in outcomes.values()} == {"cached"}


def test_drivers_whose_clocks_are_a_year_apart_do_not_take_each_others_steps(diamond_store, clean_digests):
    offsets = [0, YEAR, -YEAR]
    drivers = [diamond_store.start(CLOCK_OFFSET=str(offset), BODY_SECONDS="0.3") for offset in offsets]
    for driver in drivers:
        driver.finish()
    assert [driver.returncode for driver in drivers] == [0, 0, 0]
    assert collections.Counter(diamond_store.bodies()) == {"top": 1, "left": 1, "right": 1, "deep/bottom": 1}
    assert diamond_store.digests() == clean_digests


METADATA = [".executor_status", "lease.json", "attempts/*.json", "../2026.12.01/.artifact.json",
            "../2026.12.01/.manifest.jsonl"]  # fmt: skip


@pytest.mark.parametrize("pattern", METADATA)
def test_a_torn_file_is_an_error_or_is_made_again_and_never_a_wrong_result(diamond_store, clean_digests, pattern):
    """Half of a file is what a power failure leaves of a write that was not durable."""
    diamond_store.drive()
    control = os.path.join(diamond_store.prefix, "left", ".2026.12.01.step")
    for path in glob.glob(os.path.join(control, pattern)):
        os.truncate(path, os.path.getsize(path) // 2)
    driver = diamond_store.start()
    code = driver.wait()
    assert code in (0, 70)  # 70: an exception reached the driver's own end
    with open(driver.err_path) as file:
        err = file.read()
    assert code == 0 or "CorruptRecordError" in err
    result = verify(diamond_store.ledger(), "deep/bottom", deep=True) if code == 0 else None
    if result is not None and result.ok:
        assert diamond_store.digests() == clean_digests
    elif result is not None:
        assert any("corrupt" in problem or "digest" in problem or "manifest" in problem
                   for finding in result.findings for problem in finding.problems)  # fmt: skip
