import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigging.errors import JobIdentityError
from rigging.filesystem.prefix import marin_prefix, marin_region, region_from_prefix
from rigging.job_identity import JobIdentity
from rigging.memory import available_memory_bytes, current_rss_bytes, peak_rss_bytes, total_memory_bytes


@given(st.integers(1, 1000), st.data())
def test_an_identity_survives_the_environment(count, data):
    rank = data.draw(st.integers(0, count - 1))
    me = JobIdentity(rank, count, "job", "host:1", data.draw(st.integers(0, 9)))
    assert JobIdentity.from_environment(me.to_environment()) == me
    assert me.is_coordinator == (rank == 0)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"MARIN_JOB_RANK": "x"}, "MARIN_JOB_RANK='x'"),
        ({"MARIN_JOB_RANK": "2", "MARIN_JOB_COUNT": "2", "MARIN_JOB_COORDINATOR": "h:1"}, "rank < 2"),
        ({"MARIN_JOB_COUNT": "2"}, "MARIN_JOB_COORDINATOR"),
        ({"MARIN_JOB_COUNT": "0"}, "MARIN_JOB_COUNT"),
        ({"MARIN_JOB_ATTEMPT": "-1"}, "MARIN_JOB_ATTEMPT"),
    ],
)
def test_an_identity_that_cannot_be_is_refused(environ, message):
    with pytest.raises(JobIdentityError, match=message):
        JobIdentity.from_environment(environ)


def test_without_a_scheduler_we_are_alone(monkeypatch):
    for name in ("MARIN_JOB_RANK", "MARIN_JOB_COUNT", "MARIN_JOB_ID", "MARIN_JOB_COORDINATOR", "MARIN_JOB_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    assert JobIdentity.from_environment() == JobIdentity()


def test_memory_figures_are_ordered_and_follow_allocation():
    before = current_rss_bytes()
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    grown = current_rss_bytes() - before
    assert 48 << 20 < grown < 256 << 20
    assert peak_rss_bytes(include_children=False) >= before + (48 << 20)
    assert peak_rss_bytes() >= peak_rss_bytes(include_children=False)
    del block
    assert 0 < available_memory_bytes() <= total_memory_bytes()
    assert current_rss_bytes(2**22 + 1) == 0


def test_a_child_peak_is_seen_after_it_ended(python_child):
    child = python_child("block = bytearray(200 << 20); print(len(block))")
    child.line()
    child.process.wait()
    assert peak_rss_bytes(include_children=True) >= 200 << 20


def test_the_prefix_is_absolute_and_defaults_to_a_local_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARIN_PREFIX", raising=False)
    monkeypatch.delenv("MARIN_REGION", raising=False)
    assert marin_prefix() == os.path.join(os.getcwd(), "marin_store")
    assert marin_region() is None
    monkeypatch.setenv("MARIN_PREFIX", "rel/store")
    assert marin_prefix() == os.path.join(os.getcwd(), "rel/store")
    monkeypatch.setenv("MARIN_PREFIX", "gs://example-us-central2/x/")
    assert marin_prefix() == "gs://example-us-central2/x"
    assert marin_region() == "us-central2"
    monkeypatch.setenv("MARIN_REGION", "eu-west4")
    assert marin_region() == "eu-west4"


@pytest.mark.parametrize(
    ("prefix", "region"),
    [
        ("gs://example-us-central2/x", "us-central2"),
        ("s3://data-us-east-1", "us-east-1"),
        ("gs://europe-west4-data", "europe-west4"),
        ("gs://plain", None),
        ("/a/us-central2", None),
    ],
)
def test_regions_are_read_from_bucket_names(prefix, region):
    assert region_from_prefix(prefix) == region
