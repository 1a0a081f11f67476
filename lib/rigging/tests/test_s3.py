"""S3 by a real server on loopback: compare-and-swap, leases, and the verbs of StoragePath."""

import importlib.util
import threading

import pytest
from rigging.errors import ConditionalWriteError, MissingExtraError
from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.lease import Lease
from rigging.timing import ManualClock

HAVE_S3 = importlib.util.find_spec("botocore") is not None
HAVE_SERVER = HAVE_S3 and importlib.util.find_spec("moto") is not None and importlib.util.find_spec("flask") is not None
needs_server = pytest.mark.skipif(not HAVE_SERVER, reason="the group interop is not installed")
# The libraries of others warn about their own futures; that is not ours to fail on.
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]


@pytest.fixture
def bucket(s3_bucket):
    return s3_bucket


@pytest.mark.skipif(HAVE_S3, reason="the extra s3 is installed")
def test_without_the_extra_the_error_names_it():
    with pytest.raises(MissingExtraError, match=r"marin-rigging\[s3\]"):
        conditional_object("s3://example-bucket/x")


@needs_server
def test_threads_that_share_a_client_lose_no_increment(bucket):
    conditional_object(f"{bucket}/counter").write(b"0", expected_version=None)
    lost = []

    def count():
        counter = conditional_object(f"{bucket}/counter")
        done = 0
        while done < 25:
            stored = counter.read()
            assert stored is not None
            try:
                counter.write(str(int(stored.data) + 1).encode(), expected_version=stored.version)
                done += 1
            except ConditionalWriteError:
                lost.append(1)

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = conditional_object(f"{bucket}/counter").read()
    assert stored is not None and stored.data == b"75"


@needs_server
def test_a_write_whose_answer_was_lost_is_recognised_as_our_own(bucket):
    class LosesOneAnswer:
        """The real object; one write succeeds at the server and its retry is refused."""

        def __init__(self, path):
            self.inner, self.path, self.lose = conditional_object(path), path, False

        def read(self):
            return self.inner.read()

        def write(self, data, *, expected_version):
            version = self.inner.write(data, expected_version=expected_version)
            if self.lose:
                self.lose = False
                raise ConditionalWriteError(self.path, expected_version, version)
            return version

        def delete(self, *, expected_version):
            self.inner.delete(expected_version=expected_version)

    store = LosesOneAnswer(f"{bucket}/lease")
    lease = Lease(f"{bucket}/lease", clock=ManualClock(), store=store)
    store.lose = True
    assert lease.try_acquire() == 1
    store.lose = True
    lease.refresh()
    lease.refresh()
    assert lease.epoch == 1


@needs_server
def test_a_store_that_does_not_answer_is_an_os_error(bucket, monkeypatch):
    from rigging.filesystem._adapters.s3 import s3_client

    s3_client.cache_clear()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    thing = conditional_object(f"{bucket}/a/x")
    with pytest.raises(OSError, match="cannot read .*credentials"):
        thing.read()
    with pytest.raises(OSError, match="cannot write .*credentials"):
        thing.write(b"1", expected_version=None)
