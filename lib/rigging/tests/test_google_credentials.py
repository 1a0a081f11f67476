"""Whether there can be Google credentials, told at once, with a metadata server on loopback."""

import pytest
from rigging.errors import MissingCredentials
from rigging.filesystem import _google_credentials
from rigging.filesystem.conditional import conditional_object
from rigging.filesystem.storage_path import StoragePath

from .conftest import have


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A machine without Google credentials, whose metadata server would be at a port where nobody listens."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "FSSPEC_GCS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setattr(_google_credentials, "runs_on_google", lambda: False)
    return tmp_path


@pytest.mark.skipif(not have("gcsfs"), reason="the extra gcs is not installed")
def test_without_google_credentials_a_bucket_is_refused_at_once(nobody):
    for verb in (StoragePath.exists, StoragePath.read_text, StoragePath.ls):
        with pytest.raises(MissingCredentials, match="application-default login") as caught:
            verb(StoragePath("gs://example-bucket/a"))
        assert caught.value.path == "gs://example-bucket/a"
    from rigging.filesystem._adapters.gcs import gcs_client

    gcs_client.cache_clear()
    with pytest.raises(MissingCredentials):
        conditional_object("gs://example-bucket/a")


def test_each_place_of_google_credentials_will_do(nobody, monkeypatch, metadata):
    def refused():
        try:
            _google_credentials.require_google_credentials("gs://x")
        except MissingCredentials:
            return True
        return False

    assert refused()
    for name, value in (("GOOGLE_APPLICATION_CREDENTIALS", "/x.json"), ("STORAGE_EMULATOR_HOST", "http://x")):
        with monkeypatch.context() as here:
            here.setenv(name, value)
            assert not refused()
    with monkeypatch.context() as here:
        here.setattr(_google_credentials, "runs_on_google", lambda: True)
        assert not refused()
    (nobody / "gcloud").mkdir()
    login = nobody / "gcloud/application_default_credentials.json"
    login.write_text("{}")
    assert not refused()
    login.unlink()
    assert refused()
    monkeypatch.setenv("GCE_METADATA_HOST", metadata["host"])
    metadata["flavor"] = None  # somebody else's server, such as a captive portal
    assert refused()
    metadata["flavor"] = "Google"
    assert not refused() and not refused()
    assert metadata["hits"] == 2  # an answer is remembered, its absence is not


@pytest.mark.skipif(not have("gcsfs"), reason="the extra gcs is not installed")
def test_a_token_in_the_users_fsspec_configuration_is_theirs_to_choose(nobody, monkeypatch):
    from fsspec.config import conf
    from rigging.filesystem._adapters import fsspec_store

    monkeypatch.setitem(conf, "gcs", {"token": "anon"})
    assert fsspec_store._token_is_configured()
    assert StoragePath("gs://example-bucket/a")._store is not None
