"""The commands about trust: gates, claims, keys, signatures and audits, with their exit codes and bad input."""

import json
import os

import pytest

SCRIPT = """
import click
from marin.execution import Artifact, ArtifactStep
from marin.experiment.cli import experiment_main
from marin.ledger.hypotheses import Direction, Hypothesis

class Model(Artifact):
    purpose = "train"
    loss: float

class Crash(RuntimeError):
    failure_category = "diverged"

def train(config):
    if config["lr"] > 1:
        raise Crash("diverged")
    return Model(loss=config["lr"])

def build(options):
    raw = ArtifactStep(name="raw", run=lambda c: None,
        build_config=lambda ctx: {"source": {"id": "web", "licence": options.licence}})
    return ArtifactStep(name="model", artifact_type=Model, run=train, deps=(raw,),
        build_config=lambda ctx: {"in": ctx.artifact_path(raw), "lr": options.lr})

claim = Hypothesis(experiment="low", claim="the loss is low", metric="METRIC", direction=Direction.BELOW, threshold=0.5,
    step="STEP")
main = experiment_main(build, allow_failed=["model"], hypotheses=[claim], options=[
    click.Option(["--licence"], default="MIT"), click.Option(["--lr"], type=float, default=0.25)])
"""


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A script that trains; the current folder holds no policy."""
    monkeypatch.chdir(tmp_path)

    def make(metric="loss", step="model"):
        path = tmp_path / "trial.py"
        path.write_text(SCRIPT.replace("METRIC", metric).replace("STEP", step))
        return str(path)

    return make


def test_a_refused_plan_exits_with_three_shows_the_path_and_is_on_record(marin, trial, prefix):
    script, own = trial(), ["--", "--licence", "CC-BY-NC-4.0"]
    for option in (["--plan"], ["--dry-run"]):
        code, out, err = marin("run", script, *option, *own)
        assert code == 3 and out == "" and "web -> raw@auto-" in err and "-> model@auto-" in err and "hint:" in err
        assert not os.path.exists(prefix)
    code, out, err = marin("run", script, "--json", *own)
    assert code == 3 and json.loads(out)["refusals"][0]["rule"] == "licence"
    group = json.loads(marin("failures", "--json", "--category", "gate")[1])[0]
    assert group["count"] == 1 and "CC-BY-NC-4.0" in group["message"]
    assert "was not run" in marin("why", "model")[1]
    assert json.loads(marin("ls", "--json")[1])[0]["status"] == "blocked"


def test_a_policy_file_allows_what_the_shipped_one_does_not(marin, trial, prefix, tmp_path):
    script, own = trial(), ["--", "--licence", "CC-BY-NC-4.0"]
    (tmp_path / "lab.toml").write_text('format = 1\n[kinds.train]\nallow = ["CC-BY-NC-4.0"]\n')
    code, out, _ = marin("run", script, "--plan", "--policy", "lab.toml", *own)
    assert code == 0 and "policy: lab.toml (" in out and "made of CC-BY-NC-4.0" in out
    (tmp_path / "policy.toml").write_text('format = 1\n[kinds.train]\nalow = ["MIT"]\n')
    code, out, err = marin("run", script, "--plan", *own)
    assert code == 2 and "did you mean 'allow'" in err and out == ""
    assert marin("run", script, "--plan", "--policy", "gone.toml")[0] == 2
    assert not os.path.exists(prefix)


def test_a_plan_as_json_has_licences_and_the_policy(marin, trial, prefix):
    plan = json.loads(marin("run", trial(), "--plan", "--json")[1])
    assert plan["policy"].startswith("default policy (")
    assert {step["name"]: step["licences"] for step in plan["steps"]} == {"raw": ["MIT"], "model": ["MIT"]}


def test_a_claim_is_declared_before_and_judged_after_the_run(marin, trial, prefix):
    script = trial()
    assert marin("hypotheses")[1] == "no hypotheses on record\n"
    code, _, err = marin("run", script)
    assert code == 0 and "hypothesis low: confirmed (0.25)" in err
    marin("run", script)
    (claim,) = json.loads(marin("hypotheses", "--json")[1])
    assert (claim["state"], claim["post_hoc"], len(claim["verdicts"])) == ("confirmed", False, 1)
    marin("run", script, "--", "--lr", "0.75")
    assert "low         refuted  loss below 0.5  0.75" in marin("hypotheses")[1]
    marin("run", script, "--", "--lr", "7")
    (claim,) = json.loads(marin("hypotheses", "low", "--json")[1])
    assert [verdict["outcome"] for verdict in claim["verdicts"]] == ["confirmed", "refuted", "crashed"]


def test_a_claim_about_what_is_known_already_is_post_hoc(marin, trial, prefix):
    script = trial()
    with open(script) as file:
        text = file.read()
    with open(script, "w") as file:
        file.write(text.replace("hypotheses=[claim], ", ""))
    marin("run", script)
    trial()
    code, _, err = marin("run", script)
    assert code == 0 and "confirmed (0.25, post hoc" in err
    assert "confirmed (post hoc)" in marin("hypotheses")[1]


def test_a_claim_that_was_changed_is_told_and_the_first_one_counts(marin, trial, prefix):
    script = trial()
    marin("run", script)
    with open(script) as file:
        text = file.read()
    with open(script, "w") as file:
        file.write(text.replace("threshold=0.5", "threshold=0.1"))
    _, _, err = marin("run", script, "--", "--lr", "0.3")
    assert "was changed after it was declared" in err and "hypothesis low: confirmed (0.3)" in err


@pytest.mark.parametrize(
    ("metric", "step", "message"),
    [("los", "model", "has no field 'los'; fields: loss"), ("loss", "modle", "Did you mean 'model'?")],
)
def test_a_claim_that_nothing_can_decide_is_bad_input(marin, trial, prefix, metric, step, message):
    code, out, err = marin("run", trial(metric, step), "--plan")
    assert code == 2 and message in err and out == "" and not os.path.exists(prefix)


def test_keys_signatures_and_their_verification(marin, trial, prefix, tmp_path):
    pytest.importorskip("cryptography", reason="signatures need the extra sign")
    marin("run", trial())
    made = json.loads(marin("keygen", "key", "--json")[1])
    assert made["public"] == "key.pub" and len(made["keyid"]) == 64
    assert "signature absent" in marin("verify", "model")[1]
    code, out, _ = marin("verify", "model", "--require-signature", "--keys", "key.pub")
    assert code == 1 and "it is not signed" in out
    assert json.loads(marin("sign", "model", "--key", "key", "--lineage", "--json")[1])["ok"]
    code, out, _ = marin("verify", "model", "--require-signature", "--keys", "key.pub", "--json")
    assert code == 0 and {step["signature"] for step in json.loads(out)["steps"]} == {"valid"}
    assert marin("keygen", "key")[0] == 2
    (tmp_path / "key").chmod(0o640)
    code, out, err = marin("sign", "model", "--key", "key")
    assert code == 2 and "mode=0640" in err and out == ""


def test_an_audit_writes_a_page_prints_its_twin_and_fails_when_something_is_unverified(marin, trial, prefix, tmp_path):
    pytest.importorskip("jinja2", reason="pages need the extra report")
    marin("run", trial())
    code, out, _ = marin("audit", "model", "-o", "report.html")
    assert code == 0 and out.startswith("verified") and "source    web  MIT" in out
    assert "Audit of model@auto-" in (tmp_path / "report.html").read_text()
    view = json.loads(marin("audit", "model", "--json")[1])
    assert view["ok"] and view["claims"][0]["outcome"] == "confirmed"
    path = json.loads(marin("ls", "raw", "--json")[1])[0]["path"]
    with open(os.path.join(path, "extra.txt"), "w") as file:
        file.write("not recorded")
    code, out, _ = marin("audit", "model", "-o", "report.html")
    assert code == 1 and out.startswith("UNVERIFIED") and "unlisted: extra.txt" in out
    assert "Unverified" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "gone"], "no step gone"),
        (["audit", "@dev"], "NAME@VERSION"),
        (["audit", "x", "--policy", "gone.toml"], "cannot be read"),
        (["audit", "x", "--keys", "gone.pub"], "No such file"),
        (["audit", "x", "--watts-per-core", "-1"], "not in the range"),
        (["sign", "x"], "Missing option '--key'"),
        (["sign", "x", "--key", "gone"], "No such file"),
        (["sign", "x", "--key", "env:NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["verify", "x", "--keys", "gone.pub"], "No such file"),
        (["keygen", "no/such/folder/key"], "No such file"),
        (["hypotheses", "gone"], "no hypothesis of 'gone'"),
        (["ledger", "query", "--sql", "DELETE FROM steps"], "can only be read"),
        (["ledger", "query", "--sql", "SELECT 1; SELECT 2"], "expected one SELECT"),
        (["ledger", "query", "--sql", "COPY steps TO 'x.csv'"], "can only be read"),
        (["ledger", "query", "--sql", ""], "got nothing"),
    ],
)
def test_bad_input_is_a_message_with_a_hint_and_exit_code_two(marin, prefix, arguments, message):
    code, out, err = marin(*arguments)
    assert code == 2 and message in err and "hint:" in err and out == ""


def test_the_policy_in_force_is_shown_and_a_file_checked(marin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = marin("policy")
    assert code == 0 and out.startswith("default policy (") and "PSF-2.0" in out and "gsm8k" in out
    (tmp_path / "mine.toml").write_text(
        'format = 1\n[kinds.train]\nallow = ["MIT"]\nrequire = { decon = ["exam"] }\n[[waiver]]\nref = "web"\n'
        'rule = "licence"\nreason = "r"\nby = "Ada"\nexpires = 2020-01-01\n'
    )
    code, out, _ = marin("policy", "mine.toml")
    assert code == 0 and "decontaminated against exam" in out and "by Ada OVER since 2020-01-01" in out
    shown = json.loads(marin("policy", "mine.toml", "--json")[1])
    assert shown["kinds"]["train"]["allow"] == ["MIT"] and shown["waivers"][0]["holds"] is False
    (tmp_path / "mine.toml").write_text("format = 1\n[kind.train]\n")
    code, out, err = marin("policy", "mine.toml")
    assert code == 2 and "did you mean 'kinds'" in err and out == ""


def test_a_waiver_that_nothing_needs_is_told_by_the_plan(marin, trial, prefix, tmp_path):
    (tmp_path / "policy.toml").write_text(
        'format = 1\n[kinds.train]\nallow = ["MIT"]\n[[waiver]]\nref = "old"\nrule = "licence"\nreason = "r"\n'
        'by = "Ada"\nexpires = 2099-01-01\n'
    )
    assert "nothing here needs the waiver of licence for old by Ada" in marin("run", trial(), "--plan")[1]


def test_a_threshold_inside_the_interval_of_a_result_leaves_a_claim_open(marin, trial, prefix):
    script = trial()
    with open(script) as file:
        text = file.read()
    text = text.replace("loss: float\n", "loss: float\n    spread: tuple[float, float]\n")
    text = text.replace('Model(loss=config["lr"])', 'Model(loss=config["lr"], spread=(0.4, 0.6))')
    with open(script, "w") as file:
        file.write(text.replace("threshold=0.5,", 'threshold=0.5, interval="spread",'))
    assert "hypothesis low: inconclusive (0.25)" in marin("run", script)[2]


@pytest.mark.parametrize("command", ["keygen", "sign", "audit", "hypotheses", "policy"])
def test_every_command_has_help_with_examples(marin, command):
    code, out, _ = marin(command, "--help")
    assert code == 0 and "Examples:" in out and "--json" in out


def test_a_page_that_cannot_be_written_is_bad_input(marin, trial, prefix, tmp_path):
    pytest.importorskip("jinja2", reason="pages need the extra report")
    marin("run", trial())
    code, _, err = marin("audit", "model", "-o", str(tmp_path))
    assert code == 2 and "hint:" in err
