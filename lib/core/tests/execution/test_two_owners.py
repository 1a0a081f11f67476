"""Two owners of one step, and every pair of moments: killed one after the other, or one asleep while the other works.

A driver that wakes up late is worse than a dead one, since it goes on. Its heartbeats look healthy to itself here, so
what keeps it from harm is only what the protocol fences: names with epochs, and looks at the lease.
"""

import collections
import os
import signal
import threading

import pytest
from marin.execution import Artifact, ArtifactStep, run
from marin.execution.attempts import read_attempts
from marin.execution.boundaries import Boundary
from marin.execution.layout import StepLayout
from marin.execution.manifest import build_manifest, content_digest
from marin.execution.records import read_record
from marin.execution.reporter import QuietReporter
from marin.execution.settings import RunnerSettings
from marin.execution.step_status import Status, read_status
from marin.ledger import Ledger
from rigging.filesystem.lease import Lease
from rigging.timing import ManualClock

KILLED = -signal.SIGKILL
BOUNDARIES = [boundary for boundary in Boundary if boundary is not Boundary.STATUS_FAILED]

# Where a second driver passes, by where the first one died: it repeats the step, finishes its commit, or tidies up.
TIDYING = {Boundary.LEASE_ACQUIRED, Boundary.SCRATCH_REMOVED, Boundary.ATTEMPT_CLOSED, Boundary.EVENT_WRITTEN}
MARKING = TIDYING | {Boundary.STATUS_SUCCESS, Boundary.LEASE_RELEASED}
PASSED = {boundary: set(BOUNDARIES) for boundary in BOUNDARIES[: BOUNDARIES.index(Boundary.RECORD_WRITTEN)]} | {
    Boundary.RECORD_WRITTEN: MARKING | {Boundary.OUTPUT_RENAMED},
    Boundary.OUTPUT_RENAMED: MARKING,
    Boundary.STATUS_SUCCESS: TIDYING,
    Boundary.SCRATCH_REMOVED: TIDYING,
}


def kill_two_then_run(store, clean_digests, first, second, **env):
    """Two drivers that die at their boundaries (with more litter after the first one), and one that may live.

    Returns:
        How the attempts ended, after everything was found in order.
    """
    pair = (first.value, second.value)
    assert store.drive(KILL_AT=f"{first.value}:top", WANT="top", **env)[0] == KILLED, pair
    store.litter("top")
    assert store.drive(KILL_AT=f"{second.value}:top", WANT="top", **env)[0] == KILLED, pair
    code, outcomes = store.drive(WANT="top")
    assert code == 0 and outcomes["top"][0] in ("executed", "cached"), pair
    assert store.digests(["top"]) == {"top": clean_digests["top"]}, pair
    assert store.leftovers() == [], pair
    assert all(attempt.closed for attempt in store.ledger().attempts()), pair
    assert store.untold() == set(), pair
    return collections.Counter(attempt.status for attempt in store.ledger().attempts())


@pytest.mark.slow
@pytest.mark.parametrize("first", PASSED)
def test_two_drivers_killed_at_any_two_boundaries_are_recovered_from(
    diamond_store_factory, tmp_path, clean_digests, first
):
    for second in sorted(PASSED[first]):
        statuses = kill_two_then_run(diamond_store_factory(tmp_path / second), clean_digests, first, second)
        assert statuses["success"] == 1 and statuses.keys() <= {"success", "abandoned"}, (first, second, statuses)


EXCHANGES = [Boundary.STAGING_CREATED, Boundary.RECORD_WRITTEN, Boundary.OUTPUT_RENAMED, Boundary.STATUS_SUCCESS]


@pytest.mark.parametrize("first", EXCHANGES)
def test_two_drivers_killed_while_they_replace_an_output_are_recovered_from(
    diamond_store_factory, tmp_path, clean_digests, first
):
    """An exchange leaves the old output in the staging folder, which must never come back."""
    for second in [*EXCHANGES, Boundary.SCRATCH_REMOVED]:
        store = diamond_store_factory(tmp_path / second)
        assert store.drive(WANT="top")[0] == 0
        statuses = kill_two_then_run(store, clean_digests, first, second, FORCE="top")
        assert statuses["success"] >= 2 and statuses.keys() <= {"success", "abandoned"}, (first, second, statuses)
        status, record = (read(StepLayout(f"{store.prefix}/top/2026.12.01")) for read in (read_status, record_of))
        assert status.status is Status.SUCCESS and status.attempt == record.attempt, (first, second)


@pytest.mark.parametrize("first", [Boundary.ATTEMPT_CLOSED, Boundary.STATUS_FAILED])
def test_two_drivers_killed_while_they_record_a_failure_are_recovered_from(
    diamond_store_factory, tmp_path, clean_digests, first
):
    for second in [Boundary.ATTEMPT_CLOSED, Boundary.STATUS_FAILED]:
        store = diamond_store_factory(tmp_path / second)
        statuses = kill_two_then_run(store, clean_digests, first, second, BODY_FAILS="1")
        assert statuses == {"failed": 2, "success": 1}, (first, second)


# ---- one is asleep, not dead -----------------------------------------------------------------------------------------

BODY_BEGINS, BODY_ENDS = "body begins", "body ends"
ASLEEP_AT = [*BOUNDARIES, BODY_BEGINS, BODY_ENDS]
# Every moment at which two owners differ in what they leave; a rebuild passes all of them.
FINISHING = [BODY_ENDS, Boundary.RECORD_WRITTEN, Boundary.OUTPUT_RENAMED, Boundary.SCRATCH_REMOVED]
OTHER_AT = {
    "rebuilding": [Boundary.LEASE_ACQUIRED, Boundary.ATTEMPT_OPENED, Boundary.STAGING_CREATED, *FINISHING],
    "serving": [Boundary.LEASE_ACQUIRED, *FINISHING],
}


def record_of(layout):
    return read_record(layout.output_path)


class Told(QuietReporter):
    """Sets an event when the run waits for another driver."""

    def __init__(self, event):
        self._event = event

    def step_waiting(self, step, holder):
        self._event.set()


class Run(threading.Thread):
    """One driver in a thread; ``pause_at`` is a boundary or a moment of the body."""

    def __init__(self, name, prefix, pause_at, pause, **options):
        super().__init__(name=name, daemon=True)
        self.prefix, self.options = prefix, options
        self.pause_at, self.pause = pause_at, pause
        self.done_or_waiting = threading.Event()
        self.outcome = self.error = None
        self.paused = False

    def passed(self, boundary, label=""):
        if boundary == self.pause_at and not self.paused:
            self.paused = True
            self.pause()

    def body(self, config):
        with open(os.path.join(config["scratch"], self.name), "w") as file:
            file.write("checkpoint")
        self.passed(BODY_BEGINS)
        os.makedirs(config["out"], exist_ok=True)
        with open(os.path.join(config["out"], "who.txt"), "w") as file:
            file.write(self.name)
        self.passed(BODY_ENDS)
        assert os.path.exists(os.path.join(config["scratch"], self.name))

    def step(self):
        return ArtifactStep(
            name="top",
            version="2026.12.01",
            artifact_type=Artifact,
            run=self.body,
            build_config=lambda ctx: {"out": ctx.output_path, "scratch": ctx.scratch_path},
        )

    def run(self):
        settings = RunnerSettings(hook=self.passed, poll_s=0.01)
        try:
            summary = run(
                self.step(),
                prefix=self.prefix,
                settings=settings,
                reporter=Told(self.done_or_waiting),
                max_concurrent=1,
                **self.options,
            )
            self.outcome = summary.outcome("top")
        except BaseException as error:
            self.error = error
        finally:
            self.done_or_waiting.set()


def steal(layout):
    """Take the lease from a holder that looks dead to one whose clock went on, and give it free."""
    clock = ManualClock()
    thief = Lease(layout.lease, clock=clock)
    assert thief.try_acquire() is None
    clock.advance(thief.timeout_s + 1)
    assert thief.try_acquire() is not None
    thief.release()


def sleep_through_another(prefix, asleep_at, other_at, *, force):
    """Driver ``a`` sleeps at one moment, ``b`` takes the step over and sleeps at another, ``a`` goes on first."""
    layout = StepLayout(os.path.join(prefix, "top", "2026.12.01"))
    reached, go_on = threading.Event(), threading.Event()

    def pause_b():
        reached.set()
        assert go_on.wait(60)

    other = Run("b", prefix, other_at, pause_b, force=["top"] if force else ())

    def pause_a():
        if asleep_at != Boundary.LEASE_RELEASED:
            steal(layout)
        other.start()
        while not reached.wait(0.002) and other.is_alive():
            pass

    sleeper = Run("a", prefix, asleep_at, pause_a)
    sleeper.start()
    assert sleeper.done_or_waiting.wait(60)
    go_on.set()
    for driver in (sleeper, other):
        driver.join(60)
        assert driver.error is None and driver.outcome.ok, (driver.name, driver.error, driver.outcome)
    return layout


def check_settled(layout, pair):
    """What the status says is what lies there, every attempt has one end, and nothing else is left.

    Returns:
        Who wrote the output, and the attempts that succeeded.
    """
    status, record = read_status(layout), record_of(layout)
    assert status.status is Status.SUCCESS and status.attempt == record.attempt, pair
    digest = content_digest(build_manifest(layout.output_path))
    assert status.content_digest == record.content_digest == digest, pair
    closed = {attempt.attempt: attempt.status for attempt in read_attempts(layout)}
    assert closed[record.attempt] == "success", (pair, closed)
    ledger = Ledger(os.path.dirname(os.path.dirname(layout.output_path)))
    attempts = ledger.attempts()
    assert all(attempt.closed for attempt in attempts), pair
    succeeded = {attempt.attempt for attempt in attempts if attempt.status == "success"}
    assert {event.attempt for event in ledger.events() if event.kind == "finished"} == succeeded, pair
    assert not os.path.exists(os.path.join(layout.work, "scratch")), pair
    assert not layout.staging_epochs(), pair
    assert not [name for name in os.listdir(layout.work) if name.startswith("trash")], pair
    with open(os.path.join(layout.output_path, "who.txt")) as file:
        return file.read(), succeeded


@pytest.mark.parametrize("kind", OTHER_AT)
@pytest.mark.parametrize("asleep_at", ASLEEP_AT)
def test_a_driver_that_sleeps_through_a_new_owner_harms_nothing(tmp_path, asleep_at, kind):
    for other_at in OTHER_AT[kind]:
        pair = (asleep_at, other_at)
        layout = sleep_through_another(str(tmp_path / other_at), asleep_at, other_at, force=kind == "rebuilding")
        who, succeeded = check_settled(layout, pair)
        # Whatever the sleeper had committed, the one that was told to rebuild has the last word; only before it has
        # looked at anything may it find news that are as good.
        assert who == "b" or kind == "serving" or other_at == Boundary.LEASE_ACQUIRED, pair
        assert len(succeeded) == 1 or kind == "rebuilding", pair


@pytest.mark.parametrize("asleep_at", sorted(PASSED[Boundary.RECORD_WRITTEN]))
def test_a_driver_that_sleeps_while_it_finishes_a_dead_one_s_commit_harms_nothing(
    diamond_store_factory, tmp_path, asleep_at
):
    for other_at in (Boundary.STAGING_CREATED, BODY_ENDS, Boundary.OUTPUT_RENAMED):
        store = diamond_store_factory(tmp_path / other_at)
        store.drive(KILL_AT="record_written:top", WANT="top")
        store.litter("top")
        layout = sleep_through_another(store.prefix, Boundary(asleep_at), other_at, force=True)
        who, succeeded = check_settled(layout, (asleep_at, other_at))
        assert who == "b" and len(succeeded) == 2, (asleep_at, other_at)
