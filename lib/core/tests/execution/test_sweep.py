"""Sweeps with real worker processes: racing, killed, failing, and in gangs."""

import collections
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from marin.errors import GangError, InvalidNameError, PlanError, StepFailedError
from marin.execution import Artifact
from marin.execution.attempt_context import step_attempt
from marin.execution.sweep import FolderGang, GangRound, SweepTarget, claim_and_run, sweep_done
from marin.ledger import Ledger
from rigging.job_identity import JobIdentity
from rigging.timing import ManualClock

PROVENANCE = json.dumps({"tree_hash": "t", "base_commit": "c", "dirty": False, "branch": "main", "built_by": "test"})
TARGETS = [SweepTarget(f"lr={lr}", {"lr": lr}) for lr in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]

WORKER = textwrap.dedent(
    """
    import json, os, sys, time
    from marin.execution import Artifact
    from marin.execution.attempt_context import step_attempt
    from marin.execution.settings import RunnerSettings
    from marin.execution.sweep import FolderGang, SweepTarget, claim_and_run
    from rigging.job_identity import JobIdentity

    root, log, seconds, fail_in = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]

    def body(target):
        with open(log, "a") as file:
            file.write(f"{target.target_id} {os.getpid()}\\n")
        time.sleep(seconds)
        if fail_in and target.target_id == fail_in:
            raise RuntimeError("this worker is broken")
        me = JobIdentity.from_environment()
        with open(os.path.join(step_attempt().output_path, f"part-{me.rank}.txt"), "w") as file:
            file.write(target.target_id)

    me = JobIdentity.from_environment()
    gang = FolderGang(os.environ["GANG"], me, timeout_s=60, poll_s=0.02) if me.count > 1 else None
    targets = [SweepTarget(f"lr={lr}", {"lr": lr}) for lr in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
    done = claim_and_run(root, targets, body, coordinator=gang, settings=RunnerSettings(poll_s=0.02))
    print(json.dumps([outcome.outcome.value for outcome in done]))
    """
)


class Workers:
    def __init__(self, folder):
        self.root = str(folder / "sweeps" / "lr")
        self.log = str(folder / "log.txt")
        open(self.log, "w").close()
        self._started = []

    def start(self, *, seconds=0.05, fail_in="", identity=JobIdentity(), gang=""):
        env = {**os.environ, **identity.to_environment(), "GANG": gang, "MARIN_PROVENANCE": PROVENANCE}
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, self.root, self.log, str(seconds), fail_in],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._started.append(process)
        return process

    def ran(self):
        with open(self.log) as file:
            return [line.split()[0] for line in file]

    def close(self):
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def workers(tmp_path):
    workers = Workers(tmp_path)
    yield workers
    workers.close()


def outcomes(process):
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return json.loads(out)


def test_racing_workers_run_every_target_once(workers):
    results = [outcomes(process) for process in [workers.start() for _ in range(3)]]
    assert collections.Counter(workers.ran()) == {target.target_id: 1 for target in TARGETS}
    assert [sorted(column) for column in zip(*results, strict=True)] == [["cached", "cached", "executed"]] * 6
    assert all(sweep_done(workers.root, TARGETS).values())


def test_a_target_whose_worker_was_killed_is_run_by_a_peer(workers):
    victim = workers.start(seconds=30)
    while not workers.ran():
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert outcomes(workers.start()) == ["executed"] * 6
    assert workers.ran().count("lr=0.1") == 2
    statuses = [attempt.status for attempt in Ledger(os.path.dirname(workers.root)).attempts("lr/lr=0.1")]
    assert statuses == ["abandoned", "success"]


def test_a_failing_target_stops_its_worker_and_is_retried_by_a_peer(workers):
    broken = workers.start(fail_in="lr=0.2")
    _, err = broken.communicate(timeout=100)
    assert broken.returncode != 0 and "this worker is broken" in err
    assert "lr=0.3" not in workers.ran()
    assert outcomes(workers.start()) == ["cached", *["executed"] * 5]
    statuses = [attempt.status for attempt in Ledger(os.path.dirname(workers.root)).attempts("lr/lr=0.2")]
    assert statuses == ["failed", "success"]


def test_followers_of_a_gang_run_what_the_leader_claims(workers, tmp_path):
    gang = str(tmp_path / "gang")
    crew = [
        workers.start(identity=JobIdentity(rank=rank, count=2, coordinator="localhost:1"), gang=gang)
        for rank in range(2)
    ]
    assert [outcomes(process) for process in crew] == [["executed"] * 6, []]
    assert collections.Counter(workers.ran()) == {target.target_id: 2 for target in TARGETS}
    record = Ledger(os.path.dirname(workers.root)).record("lr/lr=0.1")
    assert record.files == 2


class Score(Artifact):
    value: float


def test_a_changed_config_gets_a_new_address_and_the_rest_is_served(tmp_path):
    root = str(tmp_path / "sweep")

    def score(target):
        return Score(value=target.config["lr"] * 2)

    first = claim_and_run(root, TARGETS[:2], score, artifact_type=Score)
    changed = [TARGETS[0], SweepTarget("lr=0.2", {"lr": 0.25})]
    second = claim_and_run(root, changed, score, artifact_type=Score)
    assert [item.outcome.value for item in second] == ["cached", "executed"]
    assert first[1].path != second[1].path
    assert Score.load(second[1].path).value == 0.5


def test_the_body_of_a_target_knows_where_to_write(tmp_path):
    def write(target):
        with open(os.path.join(step_attempt().output_path, "x"), "w") as file:
            file.write(target.target_id)

    (done,) = claim_and_run(str(tmp_path / "sweep"), TARGETS[:1], write)
    with open(os.path.join(done.path, "x")) as file:
        assert file.read() == "lr=0.1"


def test_the_error_of_a_failed_target_is_the_cause(tmp_path):
    def fail(target):
        raise ZeroDivisionError("no")

    with pytest.raises(StepFailedError) as caught:
        claim_and_run(str(tmp_path / "sweep"), TARGETS, fail)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_list_that_cannot_be_a_sweep_is_refused_before_anything_runs(tmp_path):
    ran = []
    root = str(tmp_path / "sweep")
    with pytest.raises(PlanError, match=r"two targets have the id 'lr=0\.1'"):
        claim_and_run(root, [TARGETS[0], TARGETS[1], TARGETS[0]], ran.append)
    with pytest.raises(InvalidNameError):
        claim_and_run(root, [TARGETS[0], SweepTarget("../x", {})], ran.append)
    assert ran == [] and not os.path.exists(root)


def test_a_gang_that_loses_a_process_ends_with_the_reason(tmp_path):
    clock = ManualClock()
    folder = str(tmp_path / "gang")
    leader, follower = (
        FolderGang(folder, JobIdentity(rank=rank, count=2, coordinator="localhost:1"), clock=clock, timeout_s=5.0)
        for rank in range(2)
    )
    with pytest.raises(GangError, match="round 0 did not come within 5 s"):
        follower.wait_round(0)
    leader.announce(GangRound(0, "lr=0.1", "/out", "a"))
    assert follower.wait_round(0) == GangRound(0, "lr=0.1", "/out", "a")
    with pytest.raises(GangError, match="announced before"):
        leader.announce(GangRound(0, "lr=0.1"))
    with pytest.raises(GangError, match="the end of round 0 at rank 1"):
        leader.wait_followers(0)
    follower.finish_round(0, "ValueError: no")
    with pytest.raises(GangError, match="rank 1 ended with ValueError: no"):
        leader.wait_followers(0)


def test_a_follower_that_fails_says_so_to_its_leader(tmp_path):
    folder = str(tmp_path / "gang")
    gang = [FolderGang(folder, JobIdentity(rank=rank, count=2, coordinator="localhost:1")) for rank in range(2)]
    gang[0].announce(GangRound(0, "lr=0.1", str(tmp_path), "a"))

    def fail(target):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        claim_and_run(str(tmp_path / "sweep"), TARGETS, fail, coordinator=gang[1])
    with pytest.raises(GangError, match="rank 1 ended with ZeroDivisionError: no"):
        gang[0].wait_followers(0)


def test_a_follower_with_another_list_fails_the_target(tmp_path):
    folder = str(tmp_path / "gang")
    gang = [FolderGang(folder, JobIdentity(rank=rank, count=2, coordinator="localhost:1")) for rank in range(2)]
    gang[0].announce(GangRound(0, "lr=9", str(tmp_path), "a"))
    with pytest.raises(PlanError, match="same targets"):
        claim_and_run(str(tmp_path / "sweep"), TARGETS, lambda target: None, coordinator=gang[1])
    with pytest.raises(GangError, match="rank 1 ended with PlanError"):
        gang[0].wait_followers(0)
