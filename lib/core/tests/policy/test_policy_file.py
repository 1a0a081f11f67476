"""A policy file is read strictly: what is not understood is refused with the nearest thing that is."""

import datetime as dt

import pytest
from marin.errors import PolicyError
from marin.policy import load_policy, parse_policy

HEAD = "format = 1\n[kinds.train]\nallow = ['MIT']\n"
WAIVER = "[[waiver]]\nref = 'web'\nrule = 'licence'\nreason = 'r'\nby = 'Ada'\nexpires = 2027-01-31\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format = 1\n[kind.train]\nallow = []", "did you mean 'kinds'"),
        ("format = 1\n[kinds.train]\nallows = []", "did you mean 'allow'"),
        ("format = 1\n[kinds.train]\ndeny = []", "'kinds.train.allow': is missing"),
        ("format = 1\n[kinds.train]\nallow = ['Apche-2.0']", "no SPDX identifier"),
        (
            "format = 1\n[licences]\np = ['Apache-2.0']\n[kinds.train]\nallow = ['Apche-2.0']",
            "did you mean 'Apache-2.0'",
        ),
        ("format = 1\n[licences]\nfree = ['MIT']\n[kinds.train]\nallow = ['@fre']", "did you mean '@free'"),
        ("format = 1\n[kinds.train]\nallow = 'MIT'", "expected a list of texts"),
        ("format = 1\n[kinds.train]\nallow = []\nprotect_eval = 1", "expected true or false"),
        ("format = 1\n[kinds.train]\nallow = []\nrequire = {decn = []}", "did you mean 'decon'"),
        ("format = 1\n[kinds.train]\nallow = []\nrequire = {pii = 'yes'}", "expected 'reviewed'"),
        ("format = 2\n[kinds.train]\nallow = []", "expected 1"),
        ("[kinds.train]\nallow = []", "expected 1"),
        ("format = 1", "'kinds': is missing or empty"),
        ("format = 1\nkinds = 3", "expected a table"),
        ("format = ", "it is not TOML"),
        (HEAD + WAIVER.replace("expires", "expire"), "did you mean 'expires'"),
        (HEAD + WAIVER.replace("2027-01-31", "'2027-01-31'"), "expected a date"),
        (HEAD + WAIVER.replace("expires = 2027-01-31\n", ""), "is missing, expected a date"),
        (HEAD + WAIVER.replace("'r'", "' '"), "expected text"),
        (HEAD + WAIVER.replace("by = 'Ada'\n", ""), "'waiver[1].by'"),
        (HEAD + WAIVER.replace("'licence'", "'license'"), "did you mean 'licence'"),
        (HEAD + "[[source]]\nref = 'x'\nlicence = 'MIT ORR ISC'", "no SPDX expression"),
        (HEAD + "[[source]]\nref = 'x'\nlicence = 'MIT'\nallowed_uses = ['trian']", "did you mean 'train'"),
        (
            HEAD + "[[source]]\nref = 'x'\nlicence = 'MIT'\npii_risk = 'some'",
            "Expected one of: none, reviewed, unknown",
        ),
        (HEAD + "[eval_sets]\ngsm8k = 'hf:openai/gsm8k'", "expected a list of texts"),
    ],
)
def test_what_is_not_understood_is_refused_with_file_key_and_remedy(text, message):
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, path="policy.toml")
    assert message in str(caught.value) and "policy='policy.toml'" in str(caught.value)
    assert caught.value.hint and str(caught.value).endswith(caught.value.hint)


def test_a_whole_policy_is_read():
    policy = parse_policy(
        HEAD + "deny = ['GPL-3.0-only']\nprotect_eval = true\nrequire = {decon = ['gsm8k'], pii = 'reviewed'}\n"
        "[eval_sets]\ngsm8k = ['hf:openai/gsm8k']\n"
        "[[source]]\nref = 'hf:acme/web'\nlicence = 'MIT OR ISC'\nallowed_uses = ['eval']\n" + WAIVER,
        path="a/policy.toml",
    )
    rules = policy.rules_for("train")
    assert (rules.decon, rules.pii, rules.protect_eval) == (("gsm8k",), "reviewed", True)
    assert policy.waivers[0].expires == dt.date(2027, 1, 31)
    assert policy.sources["hf:acme/web"].allowed_uses == ("eval",)
    assert policy.label.startswith("policy.toml (") and policy.rules_for("") is None


def test_kinds_that_are_not_listed_take_the_default_where_there_is_one():
    assert parse_policy(HEAD, path="p").rules_for("distil") is None
    policy = parse_policy(HEAD + "[kinds.default]\nallow = ['ISC']\n", path="p")
    assert policy.rules_for("distil").allow == {"ISC"}


def test_the_shipped_policy_lets_the_standard_library_train_and_unknown_text_not():
    rules = load_policy(default=True).rules_for("train")
    assert rules.accepts("PSF-2.0") and not rules.accepts("LicenseRef-unknown")
    assert rules.protect_eval


def test_a_policy_in_the_current_folder_is_in_force(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = load_policy().label
    (tmp_path / "policy.toml").write_text(HEAD)
    assert load_policy().label.startswith("policy.toml (")
    assert load_policy(default=True).label == shipped


@pytest.mark.parametrize("name", ["gone.toml", "."])
def test_a_file_that_cannot_be_read_is_bad_input(tmp_path, name):
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(str(tmp_path / name))
