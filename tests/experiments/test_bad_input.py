"""What the main job does with input it cannot use: a clear error or a recorded failure, and nothing lost."""

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from marin.ledger import Ledger

ROOT = Path(__file__).parents[2]
SCRIPT = "experiments/tutorials/train_tiny_model_cpu.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(store, *arguments, file_size_limit=None, licence="CC0-1.0"):
    program = [str(Path(sys.executable).with_name("marin")), "run", SCRIPT, "--prefix", str(store), "--"]

    def limit():
        if file_size_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))

    environment = {**os.environ, "MARIN_PROGRESS": "0", "ZEPHYR_MAX_WORKERS": "0"}
    done = subprocess.run(
        [*program, "--scale", "smoke", *(["--licence", licence] if licence else []), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def corpus(folder, lines):
    folder.mkdir(exist_ok=True)
    (folder / "part.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return f"path:{folder}/*.jsonl"


def good_lines(count):
    return [json.dumps({"text": f"document {i} says {i * i} and nothing else"}).encode() for i in range(count)]


@pytest.mark.parametrize(("argument", "message"), [("path:/nowhere/*.jsonl", "no input found"), ("s3", "cannot read")])
def test_a_source_that_is_not_there_is_refused_before_anything_is_written(tmp_path, argument, message):
    done = run(tmp_path / "store", "--data", argument)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "store").exists()


def test_text_whose_licence_nobody_knows_is_not_trained_on(tmp_path):
    source = corpus(tmp_path / "in", good_lines(3))
    done = run(tmp_path / "store", "--data", source, licence=None)
    assert done.returncode == 3
    assert f"the licence of {source} is unknown" in done.stderr and "-> tutorial/model@auto-" in done.stderr
    assert "--licence" in done.stderr.partition("hint:")[2]
    attempts = Ledger(str(tmp_path / "store")).attempts()
    assert {(attempt.status, attempt.category) for attempt in attempts} == {("blocked", "gate")}


def test_an_empty_file_is_a_recorded_failure_of_the_data(tmp_path):
    done = run(tmp_path / "store", "--data", corpus(tmp_path / "in", []))
    assert done.returncode == 1
    (group,) = Ledger(str(tmp_path / "store")).failures()
    assert group.category == "data"
    assert "no documents are left" in done.stderr


@pytest.mark.parametrize("bad", [b'{"text": broken', b'{"text": "caf\xe9"}'], ids=["malformed", "not-utf8"])
def test_a_bad_line_stops_the_run_with_file_and_line(tmp_path, bad):
    done = run(tmp_path / "store", "--data", corpus(tmp_path / "in", [*good_lines(2), bad]))
    assert done.returncode == 1
    assert "part.jsonl" in done.stderr
    assert "3" in done.stderr.partition("part.jsonl")[2][:80]
    (attempt,) = Ledger(str(tmp_path / "store")).attempts("tutorial/documents")
    assert attempt.category == "data"


def test_skipped_lines_are_counted_on_record_and_a_vocabulary_beyond_the_data_is_refused(tmp_path):
    source = corpus(tmp_path / "in", [*good_lines(200), b"{broken"])
    done = run(tmp_path / "store", "--data", source, "--on-bad-line", "skip", "--vocab-size", "50000")
    assert done.returncode == 1
    ledger = Ledger(str(tmp_path / "store"))
    assert ledger.record("tutorial/documents").result["num_bad_lines"] == 1
    (attempt,) = ledger.attempts("tutorial/tokenizer")
    assert attempt.category == "data"
    assert "50000" in attempt.error["message"]
    statuses = {entry.name: entry.state for entry in ledger.steps()}
    assert statuses["tutorial/model"] == "dep_failed"


def test_a_store_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = run(tmp_path / "file" / "store")
    assert done.returncode == 2
    assert "file" in done.stderr


def test_a_store_of_a_newer_format_is_left_alone(tmp_path):
    marker = tmp_path / ".marin_store.json"
    marker.write_text('{"record_format": 999}\n')
    done = run(tmp_path)
    assert done.returncode == 2
    assert "999" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [marker.name]


def test_a_full_disk_is_recorded_and_the_next_run_completes_the_stage(tmp_path):
    store = tmp_path / "store"
    source = corpus(
        tmp_path / "in", [json.dumps({"text": random.Random(i).randbytes(40_000).hex()}).encode() for i in range(30)]
    )
    done = run(store, "--data", source, "--vocab-size", "300", file_size_limit=200_000)
    assert done.returncode != 0
    ledger = Ledger(str(store))
    (attempt,) = ledger.attempts("tutorial/documents")
    assert (attempt.status, attempt.category) == ("failed", "quota")
    assert ledger.records() == []
    run(store, "--data", source, "--vocab-size", "50000")
    assert ledger.record("tutorial/documents").result["num_documents"] == 30
