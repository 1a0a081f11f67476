import errno
import json
import os
import resource
import subprocess
import sys

import pytest
from marin.errors import RecordFormatError, StoreUnavailableError
from marin.execution import Artifact, ArtifactStep, run
from marin.ledger import Ledger

AS_ROOT = os.geteuid() == 0


def step(body=lambda config: None, name="a", version="2026.12.01"):
    return ArtifactStep(name=name, version=version, run=body, build_config=lambda ctx: {"out": ctx.output_path})


def test_a_file_in_the_place_of_the_store_is_refused_before_work_starts(tmp_path):
    (tmp_path / "store").write_text("not a folder")
    ran = []
    with pytest.raises(StoreUnavailableError):
        run(step(ran.append), prefix=str(tmp_path / "store"))
    assert ran == []


def test_a_store_that_cannot_compare_and_swap_is_refused_with_the_reason():
    ran = []
    with pytest.raises(StoreUnavailableError, match="compare"):
        run(step(ran.append), prefix="memory://example/store")
    assert ran == []


def test_a_read_only_store_is_refused_before_work_starts():
    ran = []
    with pytest.raises(StoreUnavailableError):
        run(step(ran.append), prefix="/proc/marin")
    assert ran == []


def test_a_store_of_a_newer_format_is_left_alone(tmp_path):
    (tmp_path / ".marin_store.json").write_text(json.dumps({"record_format": 99}))
    with pytest.raises(RecordFormatError):
        run(step(), prefix=str(tmp_path))
    assert os.listdir(tmp_path) == [".marin_store.json"]


def test_a_newer_record_is_not_overwritten_even_when_forced(tmp_path):
    run(step(), prefix=str(tmp_path))
    record = tmp_path / "a" / "2026.12.01" / ".artifact.json"
    newer = json.dumps({"record_format": 99, "name": "a"})
    record.write_text(newer)
    summary = run(step(), prefix=str(tmp_path), force=["a"])
    assert not summary.ok and "record_format=99" in summary.outcome("a").message
    assert record.read_text() == newer


def test_a_torn_status_is_an_error_and_not_a_rebuild(tmp_path):
    run(step(), prefix=str(tmp_path))
    status = tmp_path / "a" / ".2026.12.01.step" / ".executor_status"
    status.write_text("SUCC")
    with pytest.raises(ValueError, match="corrupt"):
        run(step(), prefix=str(tmp_path))


def test_a_step_that_hits_a_full_disk_is_recorded_as_quota(tmp_path):
    def full(config):
        raise OSError(errno.ENOSPC, "No space left on device")

    summary = run(step(full), prefix=str(tmp_path))
    assert summary.outcome("a").category == "quota"
    assert Ledger(str(tmp_path)).attempts("a")[0].category == "quota"


SCRIPT = """
import os, resource, signal, sys
from marin.execution import ArtifactStep, run
def big(config):
    with open(os.path.join(config["out"], "big.bin"), "wb") as file:
        for _ in range(64):
            file.write(b"x" * 65536)
step = ArtifactStep(name="a", version="2026.12.01", run=big, build_config=lambda ctx: {"out": ctx.output_path})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    outcome = run(step, prefix=sys.argv[1]).outcome("a")
    print(outcome.outcome, outcome.category)
except Exception as error:
    print(type(error).__name__)
"""


def limited(prefix, limit):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, prefix, str(limit)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_running_out_of_file_size_leaves_a_recorded_failure_and_then_recovers(tmp_path):
    prefix = str(tmp_path / "store")
    assert limited(prefix, 1_000_000) == "failed quota"
    assert not os.path.exists(os.path.join(prefix, "a", "2026.12.01"))
    assert limited(prefix, resource.RLIM_INFINITY) == "executed"
    assert [attempt.status for attempt in Ledger(prefix).attempts("a")] == ["failed", "success"]


def test_no_room_for_records_is_refused_before_work_starts(tmp_path):
    assert limited(str(tmp_path / "store"), 100) == "StoreUnavailableError"


@pytest.mark.skipif(not AS_ROOT or not os.path.exists("/dev/shm"), reason="mounting a small disk needs root")
def test_a_really_full_disk_is_a_recorded_failure_and_nothing_is_lost(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=False).returncode:
        pytest.skip("this machine does not let tests mount")
    try:
        kept = step(lambda config: None, name="kept")
        assert run(kept, prefix=str(mount)).ok

        def fill(config):
            with open(os.path.join(config["out"], "big.bin"), "wb") as file:
                file.write(b"x" * 2**21)

        summary = run(step(fill), kept, prefix=str(mount))
        assert summary.outcome("a").category == "quota" and summary.outcome("kept").outcome == "cached"
        attempt = Ledger(str(mount)).attempts("a")[0]
        assert attempt.status == "failed" and attempt.partial_outputs[0]["path"] == "big.bin"
        assert Artifact.load(os.path.join(mount, "kept", "2026.12.01")).record.name == "kept"
    finally:
        subprocess.run(["umount", str(mount)], check=True)
