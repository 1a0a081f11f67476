"""The same engine over an object store: a real S3 server on loopback, real drivers, really killed."""

import collections
import os
import random
import signal
import time

import pytest
from marin.errors import StoreUnavailableError
from marin.execution import Artifact, ArtifactStep, run
from marin.execution._objects import object_versions, upload_output
from marin.execution.boundaries import Boundary
from marin.ledger.strays import find_strays
from marin.ledger.tables import load_tables
from marin.ledger.verification import verify
from rigging.errors import LeaseLostError
from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.storage_path import StoragePath

# The libraries of others warn about their own futures; that is not ours to fail on.
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]


def successes(store):
    return collections.Counter(a.step.partition("@")[0] for a in store.ledger().attempts() if a.status == "success")


def test_a_bucket_ends_up_with_the_bytes_that_a_local_store_has(object_store, clean_digests):
    code, outcomes = object_store.drive()
    assert code == 0 and {outcome for outcome, _, _ in outcomes.values()} == {"executed"}
    assert object_store.digests() == clean_digests
    assert object_store.leftovers() == []
    code, outcomes = object_store.drive()
    assert code == 0 and {outcome for outcome, _, _ in outcomes.values()} == {"cached"}
    assert len(object_store.bodies()) == 4


def test_the_ledger_of_a_bucket_answers_like_that_of_a_folder(object_store):
    object_store.drive()
    ledger = object_store.ledger()
    assert [entry.label for entry in ledger.steps()] == [
        f"{name}@2026.12.01" for name in ("deep/bottom", "left", "right", "top")
    ]
    assert verify(ledger, "deep/bottom", deep=True).ok
    assert ledger.why("top").paragraph.startswith("top@2026.12.01")
    tables = load_tables(ledger)
    assert len(tables["steps"]) == len(tables["attempts"]) == 4
    assert {event.kind for event in ledger.events()} >= {"started", "finished"}


def test_a_changed_object_is_found_by_a_deep_verification_only(object_store):
    object_store.drive()
    damaged = StoragePath(f"{object_store.prefix}/top/2026.12.01/parts/0.txt")
    text = damaged.read_text()
    damaged.write_text(text.replace("top", "tip"))
    assert verify(object_store.ledger(), "top").ok
    findings = verify(object_store.ledger(), "top", deep=True).findings[0].problems
    assert findings == ("changed content: parts/0.txt",)
    damaged.rm()
    assert "missing: parts/0.txt" in verify(object_store.ledger(), "top").findings[0].problems


@pytest.mark.parametrize(
    "boundary",
    [Boundary.RECORD_WRITTEN, Boundary.OUTPUT_RENAMED, Boundary.STATUS_SUCCESS],
)
def test_a_driver_killed_at_a_boundary_is_recovered_from(object_store, clean_digests, boundary):
    code, _ = object_store.drive(KILL_AT=f"{boundary.value}:left")
    assert code == -signal.SIGKILL
    code, outcomes = object_store.drive()
    assert code == 0 and all(outcome in ("executed", "cached") for outcome, _, _ in outcomes.values())
    assert object_store.digests() == clean_digests
    assert object_store.leftovers() == []
    assert set(successes(object_store).values()) == {1}
    assert object_store.bodies().count("left") == 1


def test_an_object_that_no_manifest_lists_is_found_and_removed(object_store):
    object_store.drive(WANT="top")
    output = f"{object_store.prefix}/top/2026.12.01"
    (StoragePath(output) / "parts/late.txt").write_text("of a loser")
    assert "unlisted: parts/late.txt" in verify(object_store.ledger(), "top").findings[0].problems
    now = time.time()
    assert find_strays(object_store.prefix, now=now) == ([], [])
    (stray,), _ = find_strays(object_store.prefix, now=now + 60, older_than_s=0, remove=True)
    assert (stray.path, stray.kind, stray.bytes, stray.removed) == (f"{output}/parts/late.txt", "object", 10, True)
    assert find_strays(object_store.prefix, now=now + 60, older_than_s=0) == ([], [])
    assert verify(object_store.ledger(), "top", deep=True).ok


PAIRS = [
    (Boundary.RECORD_WRITTEN, Boundary.STATUS_SUCCESS, "same machine"),
    (Boundary.RECORD_WRITTEN, Boundary.OUTPUT_RENAMED, "another machine"),
    (Boundary.STATUS_SUCCESS, Boundary.SCRATCH_REMOVED, "another machine"),
]


@pytest.mark.parametrize(("first", "second", "machine"), PAIRS)
def test_two_drivers_killed_in_a_row_are_recovered_from(object_store, clean_digests, first, second, machine):
    """The second one finishes the first one's commit, repeats it on a machine of its own, or tidies up from there."""
    store = object_store
    assert store.drive(KILL_AT=f"{first.value}:top", WANT="top")[0] == -signal.SIGKILL
    store.litter("top")
    store = store if machine == "same machine" else store.elsewhere()
    assert store.drive(KILL_AT=f"{second.value}:top", WANT="top")[0] == -signal.SIGKILL
    assert store.drive(WANT="top")[0] == 0
    assert store.digests(["top"]) == {"top": clean_digests["top"]}
    assert store.leftovers() == [] and store.untold() == set()
    assert successes(store) == {"top": 1}
    assert all(attempt.closed for attempt in store.ledger().attempts())


@pytest.mark.slow
def test_drivers_killed_at_random_times_end_in_the_bytes_of_a_clean_run(object_store, clean_digests):
    chance = random.Random(int(os.environ.get("MARIN_CHAOS_SEED", "20261201")))
    kills = 0
    while kills < 6:
        driver = object_store.start(BODY_SECONDS="0.05")
        if driver.wait(chance.uniform(0.1, 1.0)) is not None:
            break
        driver.kill()
        kills += driver.wait() == -signal.SIGKILL
    assert kills > 0
    code, _ = object_store.drive()
    assert code == 0
    assert object_store.digests() == clean_digests
    assert object_store.leftovers() == []
    assert set(successes(object_store).values()) == {1}


@pytest.mark.slow
def test_five_racing_drivers_commit_every_step_once_while_some_are_killed(object_store, clean_digests):
    drivers = [object_store.start(BODY_SECONDS="0.5") for _ in range(5)]
    for victim in drivers[:2]:
        assert victim.wait(0.5) is None
        victim.kill()
    outcomes = [driver.finish() for driver in drivers]
    for driver, became in zip(drivers[2:], outcomes[2:], strict=True):
        assert driver.returncode == 0
        assert all(outcome in ("executed", "cached") for outcome, _, _ in became.values())
    assert object_store.digests() == clean_digests
    assert successes(object_store) == {"top": 1, "left": 1, "right": 1, "deep/bottom": 1}
    assert object_store.leftovers() == []


@pytest.mark.slow
def test_a_frozen_driver_loses_its_lease_and_writes_nothing_when_it_wakes(object_store, clean_digests):
    env = {"LEASE_TIMEOUT": "2.0", "HEARTBEAT": "0.5"}
    frozen = object_store.start(BODY_SECONDS="30", **env)
    while "top" not in object_store.bodies():
        time.sleep(0.01)
    frozen.kill(signal.SIGSTOP)
    code, outcomes = object_store.drive(**env)
    assert code == 0 and outcomes["top"][0] == "executed"
    before = object_versions(f"{object_store.prefix}/top/2026.12.01")
    frozen.kill(signal.SIGCONT)
    assert frozen.finish()["top"][0] == "cached"
    assert object_versions(f"{object_store.prefix}/top/2026.12.01") == before
    assert object_store.digests() == clean_digests


def test_an_upload_never_replaces_what_a_successor_wrote_after_this_owner_began(object_store, tmp_path):
    target = f"{object_store.prefix}/x/dev"
    for name in ("data.txt", "record"):
        (tmp_path / name).write_text("loser")
    conditional_object(f"{target}/data.txt").write(b"old", expected_version=None)
    seen = object_versions(target)

    def check():
        # Heartbeats look healthy to a driver that slept; its successor has written meanwhile.
        stored = conditional_object(f"{target}/data.txt")
        if stored.read().data == b"old":
            stored.write(b"winner", expected_version=seen["data.txt"])

    def confirm():
        raise LeaseLostError("lease", 1, "taken")

    with pytest.raises(LeaseLostError):
        upload_output(str(tmp_path), target, ["data.txt"], ["record"], seen, check, confirm)
    assert StoragePath(f"{target}/data.txt").read_bytes() == b"winner"
    assert not StoragePath(f"{target}/record").exists()


class Names(Artifact):
    count: int = 0


def names_step(names, version="dev"):
    def body(out):
        for name in names:
            (StoragePath(out) / name).write_text(name)
        return Names(count=len(names))

    return ArtifactStep("names", version, artifact_type=Names, run=body, build_config=lambda ctx: ctx.output_path)


def test_a_rebuilt_mutable_output_holds_nothing_of_the_one_before(object_store):
    assert run(names_step(["a", "b/c"]), prefix=object_store.prefix).ok
    summary = run(names_step(["a", "d"]), prefix=object_store.prefix)
    assert summary.ok
    path = summary.steps[0].path
    assert sorted(name for name in object_versions(path) if not name.startswith(".")) == ["a", "d"]
    assert Names.load(path) == Names(path=path, count=2)


def test_a_failed_attempt_in_a_bucket_is_on_record_and_is_tried_again(object_store):
    def body(out):
        (StoragePath(out) / "half.txt").write_text("half")
        raise RuntimeError("out of luck")

    bad = ArtifactStep("luck", "2026.12.01", run=body, build_config=lambda ctx: ctx.output_path)
    assert not run(bad, prefix=object_store.prefix).ok
    (attempt,) = object_store.ledger().attempts("luck")
    assert attempt.status == "failed" and "out of luck" in attempt.error["message"]
    assert attempt.partial_outputs == [{"path": "half.txt", "bytes": 4}]
    assert not StoragePath(f"{object_store.prefix}/luck/2026.12.01").exists()


def test_a_store_that_refuses_us_is_refused_before_work_starts(s3_env, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    ran = []
    step = ArtifactStep("x", "2026.12.01", run=ran.append, build_config=lambda ctx: None)
    with pytest.raises(StoreUnavailableError, match="credentials"):
        run(step, prefix="s3://example-bucket/store")
    assert ran == []
