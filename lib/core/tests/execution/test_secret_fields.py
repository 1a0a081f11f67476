"""Secrets are refused at plan time, by field, and the value is in no message."""

import dataclasses
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import SecretInConfigError
from marin.execution import Artifact, ArtifactStep, StepSpec, run
from marin.execution.fingerprint import canonical_payload
from marin.execution.secret_fields import find_secret

HF = "hf_" + "Ab3dEf6hIj9lMn2pQr5t"


@dataclasses.dataclass(frozen=True)
class Tracker:
    api_key: str = "hunter2"


def step(config, **options):
    def build(ctx):
        return {**config, **{key: ctx.runtime_arg(key) for key in options.get("runtime_args", {})}}

    return ArtifactStep(name="train", version="auto", run=lambda value: None, build_config=build, **options)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"tracker": Tracker()}, "tracker.api_key"),
        ({"db": {"password": "hunter2"}}, "db.password"),
        ({"x": [1, {"client_secret": "abc"}]}, "x[1].client_secret"),
        ({"model": HF}, "model"),
        ({"urls": ("https://bob:hunter2@example.org/x",)}, "urls[0]"),
        ({"pem": "-----BEGIN PRIVATE KEY-----\nabc"}, "pem"),
        ({"hf_token": "Zx81kfPq02LmNv73"}, "hf_token"),
        ({"env": {"$WANDB": HF}}, "env['$WANDB']"),
        ({"passwords": ["a"]}, "passwords[0]"),
    ],
)
def test_a_secret_is_refused_with_its_field_and_without_its_value(tmp_path, config, field):
    with pytest.raises(SecretInConfigError, match="env:NAME") as refused:
        run(step(config), prefix=str(tmp_path / "store"))
    assert refused.value.field == field
    for secret in ("hunter2", HF, "Zx81kfPq02LmNv73"):
        assert secret not in str(refused.value)
    assert not os.path.exists(tmp_path / "store")


@pytest.mark.parametrize(
    "config",
    [
        {"api_key": "env:WANDB_API_KEY", "password": "file:/run/secrets/db"},
        {"eos_token": "<|endoftext|>", "special_tokens": ["<pad>", "<s>"], "max_tokens": 4096, "tokenizer": "bpe"},
        {"revision": "b08601e04326c79dfdd32d625aee71d232d685c3", "input_digest": "ab" * 32},
        {"session": "morning", "auth": "none", "signature": "def f(x)", "author": "Ada", "key": "text"},
        {"prompt": "password = input('password: ')", "password": "", "token": None, "secret_count": 3},
        {"api_key": "<placeholder>"},
        {
            "secret_name": "wandb",
            "credentials_path": "/run/secrets/x",
            "tokens_digest": "9f86d081884c7d659a2feaa0c55ad015",
        },
    ],
)
def test_what_only_looks_like_one_is_left_alone(config):
    assert find_secret(canonical_payload(config)) is None


def test_hand_written_steps_and_runtime_arguments_are_checked_too(tmp_path):
    with pytest.raises(SecretInConfigError, match=r"attrs\.api_key"):
        run(StepSpec(name="a", fn=print, hash_attrs={"api_key": "x"}), prefix=str(tmp_path))
    with pytest.raises(SecretInConfigError, match="field='password'"):
        run(step({}, runtime_args={"password": "hunter2"}), prefix=str(tmp_path))


def test_a_config_that_gets_its_secret_only_while_running_fails_and_records_nothing_of_it(tmp_path):
    def build(ctx):
        return {"password": "<later>" if ctx.is_fingerprint else "hunter2"}

    handle = ArtifactStep(name="train", version="auto", run=lambda value: None, build_config=build)
    outcome = run(handle, prefix=str(tmp_path)).outcome("train")
    assert outcome.outcome == "failed" and "field='password'" in outcome.message
    assert_nowhere(tmp_path, "hunter2")


def test_a_result_that_holds_a_secret_is_not_recorded(tmp_path):
    class Login(Artifact):
        password: str

    handle = ArtifactStep(
        name="login", version="auto", artifact_type=Login, run=lambda value: Login(password="hunter2"),
        build_config=lambda ctx: 1,
    )  # fmt: skip
    outcome = run(handle, prefix=str(tmp_path)).outcome("login")
    assert outcome.outcome == "failed" and "may not be recorded" in outcome.message
    assert_nowhere(tmp_path, "password='hunter2'")


def assert_nowhere(root, text):
    for folder, _, files in os.walk(root):
        for name in files:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                assert text not in file.read(), os.path.join(folder, name)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
    )
)
def test_no_config_makes_the_search_fail_and_a_planted_secret_is_always_found(config):
    find_secret(canonical_payload(config))
    assert find_secret(canonical_payload([config, {"password": "hunter2"}])) is not None
