"""Tokens of a caller: kept in private files, renewed in time, put on requests, shown nowhere."""

import base64
import json
import os
import stat
import threading

import pytest
from rigging.auth import BearerTokenInjector, RefreshingTokenProvider, StaticTokenProvider
from rigging.credential_store import (
    CredentialRecord,
    credential_path,
    credentials_for,
    delete_credentials,
    load_credentials,
    save_credentials,
)
from rigging.errors import CredentialError, TokenError
from rigging.timing import ManualClock


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("MARIN_CLUSTER_TOKEN", raising=False)
    return tmp_path


RECORD = CredentialRecord(
    "staging", "https://example.com", "edge-secret-123", "app-secret-456", {"email": "a@example.com"}
)


def test_a_record_comes_back_from_a_file_that_is_its_owners_alone(home):
    old_mask = os.umask(0)
    try:
        path = save_credentials(RECORD)
    finally:
        os.umask(old_mask)
    assert load_credentials("staging") == RECORD
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    assert os.listdir(os.path.dirname(path)) == ["staging.json"]
    assert "secret" not in repr(RECORD)
    assert delete_credentials("staging") and not delete_credentials("staging") and load_credentials("staging") is None


def test_a_file_that_others_may_read_is_not_trusted():
    path = save_credentials(RECORD)
    os.chmod(path, 0o640)
    with pytest.raises(CredentialError, match="chmod 600") as caught:
        load_credentials("staging")
    assert "secret" not in str(caught.value)


def test_a_link_in_place_of_the_file_is_not_followed(home):
    path = save_credentials(RECORD)
    os.rename(path, home / "elsewhere")
    os.symlink(home / "elsewhere", path)
    with pytest.raises(CredentialError):
        load_credentials("staging")
    save_credentials(RECORD)
    assert not os.path.islink(path) and load_credentials("staging") == RECORD


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"cluster": "staging", "endpoint": "x", "app_token": 7}', "\xff"]
)
def test_a_broken_file_is_an_error_that_shows_none_of_it(text):
    path = save_credentials(RECORD)
    with open(path, "w", encoding="latin-1") as stream:
        stream.write(text)
    with pytest.raises(CredentialError, match="holds no record"):
        load_credentials("staging")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a\0b", "x" * 200])
def test_a_name_cannot_lead_out_of_the_folder(name):
    for call in (credential_path, load_credentials, delete_credentials):
        with pytest.raises(CredentialError):
            call(name)


def test_a_file_of_another_cluster_is_refused():
    os.rename(save_credentials(RECORD), credential_path("prod"))
    with pytest.raises(CredentialError, match="'staging'"):
        load_credentials("prod")


def test_the_variable_comes_before_the_file_and_both_tokens_have_their_header(monkeypatch):
    assert credentials_for("staging").interceptors() == []
    save_credentials(RECORD)
    found = credentials_for("staging", edge=StaticTokenProvider("edge"))
    assert [item.headers() for item in found.interceptors()] == [
        {"proxy-authorization": "Bearer edge"},
        {"authorization": "Bearer app-secret-456"},
    ]
    monkeypatch.setenv("MARIN_CLUSTER_TOKEN", "of-the-variable")
    assert credentials_for("staging").token_provider.get_token() == "of-the-variable"
    assert "of-the-variable" not in repr(credentials_for("staging"))


@pytest.mark.parametrize("token", ["", "  ", "a\nb", "a\r\nX-Evil: 1", "a\0"])
def test_a_token_that_would_break_a_header_is_refused(token):
    with pytest.raises(TokenError):
        StaticTokenProvider(token)


def token_until(end_s: float, **claims) -> str:
    body = {"sub": "ada", "iss": "me", "aud": "x", "exp": end_s, **claims}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(body).encode()).rstrip(b'=').decode()}.c2ln"


def test_a_token_is_renewed_before_its_end_and_kept_when_the_issuer_is_away(home):
    clock = ManualClock()
    start_s = clock.time()
    answers, asked = [], []

    def refresh(old):
        asked.append(old)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    first, second = token_until(start_s + 3600), token_until(start_s + 7200)
    cache = str(home / "deep" / "cache.json")
    provider = RefreshingTokenProvider(first, refresh, cache_path=cache, clock=clock)
    assert provider.get_token() == first and not asked
    clock.advance(3301)
    answers[:] = [OSError("away"), first, second]
    assert provider.get_token() == first and len(asked) == 1, "the issuer is away"
    assert provider.get_token() == first and len(asked) == 1, "not asked again at once"
    clock.advance(30)
    assert provider.get_token() == first and len(asked) == 2, "a renewal that lasts no longer is none"
    clock.advance(30)
    assert provider.get_token() == second and len(asked) == 3
    assert stat.S_IMODE(os.stat(cache).st_mode) == 0o600
    assert RefreshingTokenProvider(first, refresh, cache_path=cache, clock=clock).get_token() == second
    stranger = token_until(start_s + 3700, sub="eve")
    assert RefreshingTokenProvider(stranger, refresh, cache_path=cache, clock=clock).get_token() == stranger
    clock.advance(4000)
    answers[:] = [OSError("away")]
    with pytest.raises(TokenError, match="run out") as caught:
        provider.get_token()
    assert second not in str(caught.value)


def test_the_renewal_thread_ends_when_it_is_told():
    clock = ManualClock()
    first, later = token_until(clock.time() + 310), token_until(clock.time() + 9999)
    renewed, stop = threading.Event(), threading.Event()

    def refresh(old):
        renewed.set()
        return later

    provider = RefreshingTokenProvider(first, refresh, clock=clock)
    thread = threading.Thread(target=provider.run, args=(stop,))
    thread.start()
    clock.advance(30)
    assert renewed.wait(60)
    stop.set()
    clock.advance(30)
    thread.join(60)
    assert not thread.is_alive() and provider.get_token() == later
    with pytest.raises(TokenError):
        RefreshingTokenProvider("no token", refresh)


def test_the_injector_asks_its_provider_for_each_request():
    tokens = iter(["one", "two", None])

    class Provider:
        def get_token(self):
            return next(tokens)

    class Context:
        def __init__(self):
            self.request_headers = {}

    injector, seen = BearerTokenInjector(Provider()), []
    for _ in range(3):
        context = Context()
        injector.on_start_sync(context)
        seen.append(context.request_headers)
    assert seen == [{"authorization": "Bearer one"}, {"authorization": "Bearer two"}, {}]
