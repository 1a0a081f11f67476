"""Drivers are really killed: at every boundary of the commit, at random times, and while others want the same steps."""

import collections
import os
import random
import signal
import time

import pytest
from marin.execution.boundaries import Boundary

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
    chance = random.Random(20261201)
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
