"""What dead drivers leave is found and removed; what is in use, unfinished or somebody's own is not."""

import os
import time

import pytest
from marin.execution import Artifact, ArtifactStep, run
from marin.execution.layout import StepLayout
from marin.execution.step_status import Status, StatusRecord, write_status
from marin.ledger import Ledger, verify
from marin.ledger.strays import find_strays
from rigging.filesystem.lease import Lease


def body(out):
    with open(os.path.join(out, "data.txt"), "w") as file:
        file.write("data")
    return Artifact()


@pytest.fixture
def layout(tmp_path):
    """A committed step with the litter of a dead driver, and a file of a person beside the data."""
    step = ArtifactStep("tokens", "2026.12.01", run=body, build_config=lambda ctx: ctx.output_path)
    assert run(step, prefix=str(tmp_path / "store")).ok
    layout = StepLayout(str(tmp_path / "store" / "tokens" / "2026.12.01"))
    os.makedirs(layout.staging(7))
    with open(os.path.join(layout.staging(7), "part.bin"), "wb") as file:
        file.write(b"x" * 1000)
    os.makedirs(os.path.join(layout.control, "trash-0123456789ab"))
    with open(os.path.join(layout.output_path, "my notes.txt"), "w") as file:
        file.write("keep me")
    return layout


def prefix_of(layout):
    return os.path.dirname(os.path.dirname(layout.output_path))


def test_litter_is_listed_then_removed_and_nothing_else_is(layout):
    prefix = prefix_of(layout)
    strays, busy = find_strays(prefix, now=time.time(), older_than_s=0)
    assert [(item.step, item.kind, item.bytes, item.removed) for item in strays] == [
        ("tokens@2026.12.01", "staging", 1000, False),
        ("tokens@2026.12.01", "trash", 0, False),
    ]
    assert busy == [] and os.path.exists(layout.staging(7))
    strays, _ = find_strays(prefix, now=time.time(), older_than_s=0, remove=True)
    assert [item.removed for item in strays] == [True, True]
    assert find_strays(prefix, now=time.time(), older_than_s=0) == ([], [])
    assert sorted(os.listdir(layout.output_path)) == [".artifact.json", ".manifest.jsonl", "data.txt", "my notes.txt"]
    assert Lease(layout.lease).try_acquire() is not None


def test_what_is_young_or_in_use_or_unfinished_stays(layout):
    prefix, now = prefix_of(layout), time.time()
    assert find_strays(prefix, now=now, remove=True) == ([], [])
    assert len(find_strays(prefix, now=now + 25 * 3600)[0]) == 2
    with Lease(layout.lease).hold():
        assert find_strays(prefix, now=now, older_than_s=0, remove=True) == ([], ["tokens@2026.12.01"])
    write_status(layout, StatusRecord(status=Status.RUNNING, epoch=8, attempt="a"))
    assert find_strays(prefix, now=now, older_than_s=0, remove=True) == ([], [])
    assert os.path.exists(layout.staging(7))
    with pytest.raises(ValueError, match="older_than_s=-1"):
        find_strays(prefix, now=now, older_than_s=-1)


def test_a_folder_that_no_driver_worked_in_is_not_looked_at(tmp_path):
    os.makedirs(tmp_path / "mine.staging-3")
    os.makedirs(tmp_path / "mine")
    assert find_strays(str(tmp_path), now=time.time(), older_than_s=0, remove=True) == ([], [])
    assert sorted(os.listdir(tmp_path)) == ["mine", "mine.staging-3"]


def test_the_ledger_is_as_sound_afterwards(layout):
    os.unlink(os.path.join(layout.output_path, "my notes.txt"))
    find_strays(prefix_of(layout), now=time.time(), older_than_s=0, remove=True)
    assert verify(Ledger(prefix_of(layout)), "tokens", deep=True).ok
