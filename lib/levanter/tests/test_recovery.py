"""The supervisor: what a code means, when to start again, what is recorded, how it stops."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from levanter.errors import ConfigError
from levanter.main import supervise
from levanter.recovery.exits import Attempt, ExitKind, classify_exit, verdict
from levanter.recovery.heartbeat import Heartbeat, read_heartbeat
from levanter.recovery.supervisor import Supervisor, SupervisorConfig
from rigging.timing import ManualClock

# A fake trainer: its n-th life does the n-th thing; the number of updates done survives in a file, like a checkpoint.
FAKE = """
import os, signal, sys, time
folder, *lives = sys.argv[1:]
def read(name):
    try:
        return int(open(f"{folder}/{name}").read())
    except FileNotFoundError:
        return 0
life = read("life")
open(f"{folder}/life", "w").write(str(life + 1))
step = read("step") + 1
what = lives[min(life, len(lives) - 1)]
if what != "idle":
    open(f"{folder}/step", "w").write(str(step))
    open(os.environ["LEVANTER_HEARTBEAT"], "w").write(str(step))
if what == "hang":
    time.sleep(600)
if what in ("kill", "idle"):
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(what))
"""


@pytest.fixture
def supervised(tmp_path):
    def run(*lives, **changes):
        (tmp_path / "fake.py").write_text(FAKE)
        settings = {"backoff": timedelta(0), "grace": timedelta(seconds=1), "record": str(tmp_path / "record.jsonl")}
        config = SupervisorConfig(**(settings | changes))
        command = [sys.executable, str(tmp_path / "fake.py"), str(tmp_path), *lives]
        return Supervisor(config, command, str(tmp_path / "beat"))

    return run


def record(tmp_path):
    return [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("code", "kind"),
    [(0, "done"), (1, "failed"), (2, "config"), (3, "diverged"), (75, "preempted"), (124, "stalled"), (125, "device"),
     (-9, "crashed"), (-11, "crashed"), (139, "crashed"), (17, "failed"), (255, "failed")],
)  # fmt: skip
def test_codes_have_meanings(code, kind):
    assert classify_exit(code) == kind


def test_a_run_is_given_up_when_its_restarts_or_its_progress_are_used_up():
    crash = Attempt(-9, ExitKind.CRASHED, 0, 1)
    idle = Attempt(-9, ExitKind.CRASHED, 1, 1)
    limits = {"max_restarts": 3, "max_without_progress": 2}
    assert verdict([crash] * 3, **limits) is None
    assert "used up" in (verdict([crash] * 4, **limits) or "")
    assert verdict([idle, crash, idle], **limits) is None
    assert "no progress" in (verdict([idle, idle], **limits) or "")
    assert verdict([Attempt(3, ExitKind.DIVERGED, 0, 9)], **limits) == "diverged"


def test_crashes_and_preemptions_are_started_again_until_it_is_done(supervised, tmp_path):
    assert supervised("kill", "75", "125", "0").run() == 0
    rows = record(tmp_path)
    assert [row["kind"] for row in rows] == ["crashed", "preempted", "device", "done"]
    assert [row["last_step"] for row in rows] == [1, 2, 3, 4] and rows[-1]["ended"] == "done"


@pytest.mark.parametrize(("life", "code"), [("2", 2), ("3", 3), ("1", 1)])
def test_what_a_restart_cannot_cure_ends_at_once_with_the_same_code(supervised, tmp_path, life, code):
    assert supervised(life).run() == code
    assert len(record(tmp_path)) == 1


def test_a_child_without_heartbeat_is_ended_and_started_again(supervised, tmp_path):
    assert supervised("hang", "0", heartbeat_timeout=timedelta(seconds=1)).run() == 0
    assert [row["kind"] for row in record(tmp_path)] == ["stalled", "done"]


def test_a_child_that_never_gets_anywhere_is_given_up(supervised, tmp_path):
    assert supervised("idle", max_without_progress=2).run() == 137
    assert "no progress" in record(tmp_path)[-1]["ended"]


def test_an_unhealthy_machine_gets_no_second_attempt(supervised, tmp_path):
    assert supervised("kill", "0", health_command=["false"]).run() == 137
    assert record(tmp_path)[-1]["ended"] == "the machine is not healthy"


def test_a_stop_reaches_the_child_and_ends_the_loop(supervised, tmp_path):
    supervisor = supervised("hang", "0")
    thread = threading.Thread(target=lambda: (_wait_for(tmp_path / "beat"), supervisor.stop()))
    thread.start()
    assert supervisor.run() == 128 + signal.SIGTERM
    thread.join()
    assert record(tmp_path)[-1]["ended"] == "stopped" and len(record(tmp_path)) == 1


def _wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_the_heartbeat_is_written_at_most_once_a_second(tmp_path):
    clock = ManualClock()
    heart = Heartbeat(str(tmp_path / "beat"), clock=clock)
    for step in range(1, 4):
        heart.beat(step)
        clock.advance(0.6)
    assert read_heartbeat(str(tmp_path / "beat")) is not None
    assert read_heartbeat(str(tmp_path / "beat"))[0] == 3
    assert os.listdir(tmp_path) == ["beat"]
    assert read_heartbeat(str(tmp_path / "none")) is None


def test_the_command_runs_and_leaves_with_the_childs_code(tmp_path):
    words = ["--record", str(tmp_path / "r.jsonl"), "--backoff", "0s", "--"]
    child = [sys.executable, "-c", "import sys; sys.exit(3)"]
    done = subprocess.run([sys.executable, "-m", "levanter.main.supervise", *words, *child], capture_output=True)
    assert done.returncode == 3
    assert record_of(tmp_path / "r.jsonl")[0]["kind"] == "diverged"


def record_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "words", [[], ["--"], ["--max_restart", "3", "--", "true"], ["--", "no-such-program-anywhere"]], ids=str
)
def test_bad_words_exit_2_and_say_why(words, capsys):
    with pytest.raises(SystemExit) as caught:
        supervise.main(words)
    assert caught.value.code == 2 and capsys.readouterr().err.startswith("error: ")


def test_impossible_limits_are_refused():
    with pytest.raises(ConfigError):
        SupervisorConfig(max_restarts=-1)
