"""A killed run, resumed, is the undisturbed run: same parameters, same loss, same metrics file."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

WORKER = str(pathlib.Path(__file__).parent / "crash_worker.py")
STEPS = 60
KILLS = 1


def start(folder: pathlib.Path) -> subprocess.Popen:
    env = {**os.environ, "MARIN_PROGRESS": "0", "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, WORKER, str(folder), str(STEPS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    return out.strip().splitlines()[-1]


def checkpoints(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoints/run/step-*")}


def signal_during_training(process: subprocess.Popen, folder: pathlib.Path, number: int, delay_s: float) -> bool:
    """Send the signal a moment after the run begins a checkpoint it has not begun before; False if it ended first."""
    before = checkpoints(folder)
    while process.poll() is None:
        if checkpoints(folder) - before:
            time.sleep(delay_s)
            process.send_signal(number)
            process.communicate(timeout=60)
            return True
        time.sleep(0.002)
    process.communicate()
    return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    return finish(start(folder)), folder


def metrics(folder: pathlib.Path) -> str:
    return (folder / "logs/run/metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_preempted_runs_end_as_the_undisturbed_run(undisturbed):
    digest, clean = undisturbed
    folder = clean.parent / "disturbed"
    rng = random.Random(0)
    killed = sum(
        signal_during_training(start(folder), folder, signal.SIGKILL, rng.uniform(0, 0.2)) for _ in range(KILLS)
    )
    assert killed >= 1
    process = start(folder)
    if signal_during_training(process, folder, signal.SIGTERM, 0.0):
        assert process.returncode not in (0, -signal.SIGTERM)
        steps = [json.loads(line)["step"] for line in metrics(folder).splitlines()]
        saved = [json.loads(p.read_text())["step"] for p in folder.glob("checkpoints/run/step-*/metadata.json")]
        assert max(saved) == max(steps) + 1, "the state of the very last logged step was saved"
    assert finish(start(folder)) == digest
    assert metrics(folder) == metrics(clean)
    assert {p.name for p in folder.glob("checkpoints/run/*")} >= {f"step-{n}" for n in range(15, STEPS + 1, 15)}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_finished_run_started_again_changes_nothing(undisturbed):
    digest, clean = undisturbed
    before = metrics(clean)
    assert finish(start(clean)) == digest
    assert metrics(clean) == before
