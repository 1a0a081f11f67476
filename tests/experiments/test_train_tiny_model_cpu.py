"""The main job, run for real at its smallest scale: from raw text to a measured model, killed and repeated."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from marin.ledger import Ledger
from rigging.hashing import sha256_file

ROOT = Path(__file__).parents[2]
SCRIPT = "experiments/tutorials/train_tiny_model_cpu.py"
STAGES = {
    f"tutorial/{name}"
    for name in (
        "documents", "normalized", "duplicates", "corpus", "tokenizer", "tokens",
        "model", "export", "bits-per-byte", "samples",
    )
}  # fmt: skip
HOT = "tutorial/model-hot"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def command(store, *arguments, options=()):
    program = [str(Path(sys.executable).with_name("marin")), "run", SCRIPT, "--prefix", str(store), *options, "--"]
    return [*program, "--scale", "smoke", *arguments]


def environment():
    return {**os.environ, "MARIN_PROGRESS": "0", "JAX_PLATFORMS": "cpu"}


def run(store, *arguments, options=(), check=True):
    done = subprocess.run(
        command(store, *arguments, options=options), cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done


def outcomes(store, *arguments):
    steps = json.loads(run(store, *arguments, options=["--json"]).stdout)["steps"]
    return {step["name"]: step for step in steps}


def digests(store):
    return {record.name: record.content_digest for record in Ledger(str(store)).records()}


def files_below(folder):
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): sha256_file(str(path)) for path in paths}


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    """A store in which the job ran once, undisturbed; test workers share it, which the store allows."""
    base = tmp_path_factory.getbasetemp()
    store = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "clean-store"
    run(store)
    return store


def test_every_stage_leaves_a_record_and_the_hot_arm_a_failure(clean):
    ledger = Ledger(str(clean))
    records = {record.name: record for record in ledger.records()}
    assert set(records) == STAGES
    assert all(record.content_digest and record.provenance and record.environment for record in records.values())
    (attempt,) = ledger.attempts(HOT)
    assert (attempt.status, attempt.category) == ("failed", "diverged")
    assert "loss" in attempt.error["message"]
    evidence = Path(ledger.find(HOT).layout.control) / attempt.evidence
    assert (evidence / "metrics.jsonl").stat().st_size > 0
    assert records["tutorial/bits-per-byte"].result["bits_per_byte"] < 8


def test_the_report_is_one_page_with_both_arms_and_every_attempt(clean):
    page = (clean / "reports" / "tutorial" / "report.html").read_text(encoding="utf-8")
    for name in STAGES | {HOT}:
        assert name.removeprefix("tutorial/") in page
    assert page.count("<polyline") >= 2
    assert "What failed, and why" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_the_exported_model_is_in_hugging_face_layout(clean):
    (record,) = [record for record in Ledger(str(clean)).records() if record.name == "tutorial/export"]
    folder = Path(record.output_path) / "model"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


def test_a_second_run_executes_nothing_in_five_seconds(clean):
    started = time.monotonic()
    steps = outcomes(clean)
    assert {step["outcome"] for name, step in steps.items() if name != HOT} == {"cached"}
    assert steps[HOT]["outcome"] == "known_failure"
    assert time.monotonic() - started < 5 * float(os.environ.get("MARIN_TEST_SLACK", "3"))


def test_a_changed_literal_reruns_what_depends_on_it_and_says_why(clean, tmp_path):
    store = shutil.copytree(clean, tmp_path / "store")
    steps = outcomes(store, "--learning-rate", "0.001")
    executed = {name for name, step in steps.items() if step["outcome"] == "executed"}
    assert executed == {f"tutorial/{name}" for name in ("model", "export", "bits-per-byte", "samples")}
    assert "learning_rate: 0.005 -> 0.001" in steps["tutorial/model"]["reasons"][0]["message"]


def test_two_clean_runs_give_equal_artifacts_and_byte_equal_token_caches(clean, tmp_path):
    run(tmp_path / "store")
    first, second = (
        {record.name: record for record in Ledger(str(store)).records()} for store in (clean, tmp_path / "store")
    )
    assert {name: r.content_digest for name, r in first.items()} == {n: r.content_digest for n, r in second.items()}
    caches = [files_below(records["tutorial/tokens"].output_path) for records in (first, second)]
    assert caches[0] == caches[1] != {}
    assert first["tutorial/model"].result["final_loss"] == second["tutorial/model"].result["final_loss"]


def test_killed_at_random_moments_it_ends_with_the_digests_of_an_undisturbed_run(clean, tmp_path):
    store, moments = tmp_path / "store", random.Random(7)
    kills = 0
    while kills < 6:
        job = subprocess.Popen(
            command(store), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            job.wait(timeout=moments.uniform(2, 25))
            break
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGKILL)
            job.wait()
            kills += 1
    run(store)
    assert kills > 0
    assert digests(store) == digests(clean)
    statuses = {attempt.status for attempt in Ledger(str(store)).attempts()}
    assert "abandoned" in statuses


def test_two_drivers_on_one_store_run_each_step_once(tmp_path):
    store = tmp_path / "store"
    jobs = [
        subprocess.Popen(command(store), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    errors = [job.communicate()[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], errors
    attempts = Ledger(str(store)).attempts()
    assert sorted(attempt.step.partition("@")[0] for attempt in attempts) == sorted(STAGES | {HOT})
