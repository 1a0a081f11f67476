import builtins
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from marin.ledger import Ledger


def test_a_run_builds_then_serves_and_prints_a_table(marin, script, prefix):
    code, out, err = marin("run", script)
    assert code == 0 and "2 executed, 0 cached, 0 known failures, 0 failed" in err
    assert "hook saw 2 steps of sums" in out
    code, _, err = marin("run", script)
    assert code == 0 and "0 executed, 2 cached" in err and "peak memory" in err


def test_a_changed_option_reruns_what_depends_on_it_and_says_why(marin, script, prefix):
    marin("run", script)
    code, _, err = marin("run", script, "--", "--n", "4")
    assert code == 0 and "numbers[2]: 3 -> 4" in err


def test_a_plan_does_not_touch_the_store(marin, script, prefix, monkeypatch):
    touched = []
    watched = {
        os: ["open", "listdir", "scandir", "stat", "lstat", "mkdir", "makedirs", "rename", "unlink"],
        builtins: ["open"],
        os.path: ["exists", "isdir", "isfile", "lexists"],
    }
    for module, names in watched.items():
        for name in names:
            monkeypatch.setattr(module, name, spy(getattr(module, name), prefix, touched))
    code, out, _ = marin("run", script, "--plan", "--", "--arm")
    assert code == 0 and touched == []
    assert not os.path.exists(prefix)
    marin("run", script, "--dry-run")
    assert touched, "the watch is blind"
    assert "total@auto-" in out and "reads total@auto-" in out and "runs unless its output is in the store" in out


def spy(real, prefix, touched):
    def watched(*arguments, **options):
        if arguments and isinstance(arguments[0], str) and arguments[0].startswith(prefix):
            touched.append(arguments[0])
        return real(*arguments, **options)

    return watched


def test_a_plan_as_json_has_the_graph(marin, script, prefix):
    plan = json.loads(marin("run", script, "--plan", "--json", "--force", "total")[1])
    steps = {step["name"]: step for step in plan["steps"]}
    assert steps["total"]["would"] == "runs (forced)" and steps["double"]["deps"] == [steps["total"]["step"]]
    assert steps["double"]["terminal"] and len(steps["double"]["fingerprint"]) == 32


def test_a_dry_run_reads_statuses_and_writes_nothing(marin, script, prefix):
    code, out, _ = marin("run", script, "--dry-run")
    assert code == 0 and "2 of 2 steps would run" in out and not os.path.exists(prefix)
    marin("run", script)
    assert "0 of 2 steps would run" in marin("run", script, "--dry-run")[1]


def test_an_expected_failure_is_recorded_and_the_run_is_a_success(marin, script, prefix):
    code, _, err = marin("run", script, "--", "--arm")
    assert code == 0 and "FAILED   arm@auto-" in err
    code, _, err = marin("run", script, "--", "--arm")
    assert code == 0 and "1 known failures" in err
    code, out, _ = marin("failures", "--json")
    group = json.loads(out)[0]
    assert (group["category"], group["count"], group["message"]) == ("diverged", 1, "loss is nan")


def test_a_failure_that_is_not_expected_exits_with_one(marin, tmp_path, prefix):
    path = tmp_path / "broken.py"
    path.write_text(
        "from marin.execution import ArtifactStep\nfrom marin.experiment.cli import experiment_main\n"
        "def bad(config):\n    raise ValueError('no')\n"
        "main = experiment_main(lambda options: ArtifactStep(name='a', run=bad, build_config=lambda ctx: 1))\n"
    )
    code, out, err = marin("run", path, "--json")
    assert code == 1 and json.loads(out)["steps"][0]["category"] == "user_code" and err == ""


def test_a_run_as_json_has_every_step(marin, script, prefix):
    result = json.loads(marin("run", script, "--json")[1].split("\n", 1)[1])
    assert result["ok"] and [step["outcome"] for step in result["steps"]] == ["executed", "executed"]
    assert result["peak_memory_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument"),
        (["run", "gone.py"], "no such file"),
        (["run", "{script}", "--bad"], "No such option"),
        (["run", "{script}", "--", "--bad"], "No such option"),
        (["run", "{script}", "--", "--n", "x"], "not a valid integer"),
        (["run", "{script}", "--force", "nope"], "names no step"),
        (["run", "{script}", "--plan", "--force", "nope"], "names no step"),
        (["run", "{script}", "--plan", "--dry-run"], "exclude one another"),
        (["run", "{script}", "--max-concurrent", "0"], "not in the range"),
        (["run", "{script}", "--version", "v1"], "not a version"),
        (["run", "{script}", "--override", "total"], "NAME=VERSION"),
        (["run", "{script}", "--override", "typo=dev"], "typo"),
        (["run", "{script}", "--prefix", "memory://example/x"], "no conditional writes"),
        (["run", "{script}", "--", "--corpus", "missing"], "no corpus"),
        (["run", "{script}", "--", "--corpus", "odd"], "odd corpus"),
        (["show", "nope"], "no step nope"),
        (["why", "@dev"], "NAME@VERSION"),
        (["nonsense"], "No such command"),
        (["ls", "--prefix", "memory://example"], "no conditional writes"),
    ],
)
def test_bad_input_is_a_message_with_a_hint_and_exit_code_two(marin, script, prefix, arguments, message):
    code, out, err = marin(*(argument.format(script=script) for argument in arguments))
    assert code == 2 and message in err and "hint:" in err and out == ""
    assert not os.path.exists(prefix)


def test_a_script_without_an_experiment_or_that_raises_is_bad_input(marin, tmp_path, prefix):
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert "no experiment named 'main'" in marin("run", tmp_path / "empty.py")[2]
    (tmp_path / "raises.py").write_text("import nothing_like_this\n")
    code, _, err = marin("run", tmp_path / "raises.py")
    assert code == 2 and "ModuleNotFoundError" in err and "(line 1)" in err


def test_a_refused_plan_exits_with_three_and_names_step_and_field(marin, tmp_path, prefix):
    path = tmp_path / "refused.py"
    path.write_text(
        "from marin.execution import ArtifactStep\nfrom marin.experiment.cli import experiment_main\n"
        "main = experiment_main(lambda options: ArtifactStep(name='train', run=print, "
        "build_config=lambda ctx: {'model': {'act': len}}))\n"
    )
    code, _, err = marin("run", path)
    assert code == 3 and "step='train', field='model.act'" in err


def test_versions_given_on_the_command_line_reach_the_steps(marin, script, prefix):
    plan = json.loads(
        marin("run", script, "--plan", "--json", "--version", "2026.12.01", "--override", "double=2026.12.02")[1]
    )
    assert [step["step"] for step in plan["steps"]] == ["total@2026.12.01", "double@2026.12.02"]


def test_ls_show_and_why_tell_about_a_step(marin, script, prefix):
    marin("run", script, "--version", "2026.12.01")
    rows = json.loads(marin("ls", "--json")[1])
    assert [(row["step"], row["status"]) for row in rows] == [
        ("double@2026.12.01", "success"),
        ("total@2026.12.01", "success"),
    ]
    assert "total@2026.12.01" in marin("ls", "total")[1] and "double" not in marin("ls", "total")[1]
    shown = marin("show", "double@2026.12.01")[1]
    assert "reads     total@2026.12.01" in shown and "attempts  1" in shown
    assert json.loads(marin("show", "double", "--json")[1])["record"]["result"] == {"total": 2}
    assert "is built and is served" in marin("why", "total")[1]
    assert json.loads(marin("why", "total", "--json")[1])["state"] == "built"
    assert marin("failures")[1] == "no failures on record\n"


def test_verify_exits_with_one_when_bytes_changed(marin, script, prefix):
    marin("run", script, "--version", "2026.12.01")
    code, out, _ = marin("verify", "double@2026.12.01", "--deep")
    assert code == 0 and "2 steps checked" in out
    with open(f"{prefix}/total/2026.12.01/sum.txt", "a") as file:
        file.write("0")
    code, out, _ = marin("verify", "double", "--json")
    problems = [problem for step in json.loads(out)["steps"] for problem in step["problems"]]
    assert code == 1 and problems == ["changed size: sum.txt: 1 -> 2"]


def test_diff_tells_recipe_inputs_and_results(marin, script, prefix):
    marin("run", script, "--version", "2026.12.01")
    marin("run", script, "--version", "2026.12.02", "--", "--n", "4")
    difference = json.loads(marin("diff", "total@2026.12.01", "total@2026.12.02", "--json")[1])
    assert difference["recipe"] == ["numbers[2]: 3 -> 4"] and difference["changed"]["result"] == [
        {"total": 6},
        {"total": 7},
    ]
    assert "numbers[2]: 3 -> 4" in marin("diff", "total@2026.12.01", "total@2026.12.02")[1]


def test_sql_over_the_ledger(marin, script, prefix):
    pytest.importorskip("duckdb")
    marin("run", script, "--version", "2026.12.01")
    assert marin("ledger", "rebuild")[1] == "2 steps, 2 attempts, 1 inputs, 4 events\n"
    rows = json.loads(marin("ledger", "query", "--sql", "SELECT name, files FROM steps ORDER BY name", "--json")[1])
    assert rows == [{"name": "double", "files": 1}, {"name": "total", "files": 1}]
    code, _, err = marin("ledger", "query", "--sql", "SELECT x FROM y")
    assert code == 2 and "Tables: steps" in err


HELPED = [
    [],
    ["run"],
    ["ls"],
    ["show"],
    ["why"],
    ["failures"],
    ["verify"],
    ["diff"],
    ["ledger", "query"],
    ["ledger", "rebuild"],
]


@pytest.mark.parametrize("command", HELPED)
def test_every_command_has_help_with_examples(marin, command):
    code, out, _ = marin(*command, "--help")
    assert code == 0 and (not command or "Examples:" in out)


def test_the_script_runs_by_itself_with_the_same_options(script, prefix):
    done = subprocess.run(
        [sys.executable, script, "--plan", "--json", "--n", "7"], capture_output=True, text=True, check=True
    )
    by_itself = {step["step"] for step in json.loads(done.stdout)["steps"]}
    done = subprocess.run(
        [sys.executable, "-m", "marin.cli", "run", script, "--plan", "--json", "--", "--n", "7"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {step["step"] for step in json.loads(done.stdout)["steps"]} == by_itself


INTERRUPTIBLE = """
import os, time
from marin.execution import ArtifactStep
from marin.experiment.cli import experiment_main
def slow(config):
    open(os.environ["MARKER"], "w").close()
    while True:
        time.sleep(0.01)
main = experiment_main(lambda options: ArtifactStep(name="slow", run=slow, build_config=lambda ctx: 1))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_records_the_attempt_and_exits_with_130(tmp_path, prefix, number):
    path, marker = tmp_path / "slow.py", tmp_path / "marker"
    path.write_text(INTERRUPTIBLE)
    process = subprocess.Popen(
        [sys.executable, "-m", "marin.cli", "run", str(path)],
        env={**os.environ, "MARKER": str(marker)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not marker.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in err and "error: interrupted" in err
    attempt = Ledger(prefix).attempts("slow")[0]
    assert (attempt.status, attempt.category) == ("interrupted", "interrupted")


@pytest.mark.parametrize("suffix", ["html", "md", "json"])
def test_reports_writes_the_index_in_the_form_of_the_file_name(marin, script, prefix, tmp_path, suffix):
    marin("run", script)
    path = tmp_path / f"index.{suffix}"
    code, out, err = marin("reports", "-o", str(path))
    assert code == 0 and out == "" and str(path) in err
    text = path.read_text()
    assert "succeeded" in text and ("<html" in text) == (suffix == "html")
    code, out, _ = marin("reports", "--json")
    assert code == 0 and json.loads(out)["counts"]["failed"] == 0


def test_reports_refuses_a_form_it_does_not_know(marin, script, tmp_path):
    code, out, err = marin("reports", "-o", str(tmp_path / "index.pdf"))
    assert code == 2 and out == "" and ".html, .md, .json" in err and "hint:" in err


def test_compaction_from_the_command_line_keeps_every_event(marin, script, prefix):
    marin("run", script)
    before = Ledger(prefix).events()
    code, out, _ = marin("ledger", "compact", "--keep-days", "0", "--json")
    assert code == 0 and json.loads(out)[0]["events"] == len(before)
    assert Ledger(prefix).events() == before
    code, out, err = marin("ledger", "compact", "--keep-days", "-1")
    assert code == 2 and "expected 0 or more" in err


def test_tidy_lists_litter_and_removes_it_when_told_to(marin, script, prefix):
    marin("run", script)
    assert marin("tidy")[1] == "nothing was left behind\n"
    (version,) = [entry.version for entry in Ledger(prefix).steps() if entry.name == "total"]
    litter = os.path.join(prefix, "total", f"{version}.staging-9")
    os.makedirs(litter)
    code, out, _ = marin("tidy", "--older-than", "0")
    assert code == 0 and litter in out and os.path.exists(litter)
    code, out, _ = marin("tidy", "--older-than", "0", "--remove", "--json")
    assert code == 0 and json.loads(out)["strays"][0]["removed"] and not os.path.exists(litter)
    for bad in ("-1", "nan", "soon"):
        code, out, err = marin("tidy", "--older-than", bad)
        assert code == 2 and out == "" and "older-than" in err


def test_a_failed_step_gets_a_case_that_is_written_once(marin, script, tmp_path):
    marin("run", script, "--", "--arm")
    folder = str(tmp_path / "failures")
    code, out, _ = marin("case", "arm", "-o", folder, "--json")
    found = json.loads(out)
    assert code == 0 and "loss is nan" in found["text"] and not found["existed"]
    with open(found["file"], "a") as file:
        file.write("what a person found out\n")
    code, out, _ = marin("case", "arm", "-o", folder)
    assert code == 0 and "was there already" in out
    with open(found["file"]) as file:
        assert file.read().endswith("what a person found out\n")
    code, _, err = marin("case", "total", "-o", folder)
    assert code == 2 and "no attempt at total" in err and "hint:" in err


def test_a_golden_plan_is_written_then_holds_until_a_recipe_changes(marin, script, tmp_path):
    path = str(tmp_path / "golden.json")
    code, _, err = marin("golden", script, "--file", path)
    assert code == 2 and "--update" in err
    assert marin("golden", script, "--file", path, "--update", "--", "--n", "4")[0] == 0
    assert marin("golden", script, "--file", path)[0] == 0
    code, out, _ = marin("golden", script, "--file", path, "--", "--n", "5")
    assert code == 1 and "numbers[2]: 4 -> 5" in out
    code, out, _ = marin("golden", script, "--file", path, "--json", "--", "--arm", "--n", "4")
    changes = json.loads(out)["changes"]
    assert code == 1 and [(item["step"].partition("@")[0], item["kind"]) for item in changes] == [("arm", "added")]


def test_update_does_not_accept_a_change_under_a_fixed_version(marin, script, tmp_path):
    path, fixed = tmp_path / "golden.json", tmp_path / "fixed.py"
    text = pathlib.Path(script).read_text()
    fixed.write_text(text.replace('ArtifactStep(name="total",', 'ArtifactStep(name="total", version="2026.12.01",'))
    assert marin("golden", str(fixed), "--file", str(path), "--update")[0] == 0
    before = path.read_text()
    code, out, _ = marin("golden", str(fixed), "--file", str(path), "--update", "--", "--n", "5")
    assert code == 1 and "give it a new version" in out and "not written" in out
    assert path.read_text() == before


def test_an_output_is_copied_from_another_store(marin, script, prefix, tmp_path):
    marin("run", script)
    other = str(tmp_path / "other")
    code, out, _ = marin("replicate", "total@auto", "--from", prefix, "--prefix", other)
    assert code == 0 and "1 files" in out
    code, out, _ = marin("replicate", "total@auto", "--from", prefix, "--prefix", other, "--json")
    assert code == 0 and json.loads(out)["copied"] is False
    assert Ledger(other).record("total").content_digest == Ledger(prefix).record("total").content_digest
    code, out, err = marin("replicate", "nope@dev", "--from", prefix, "--prefix", other)
    assert code == 2 and "no complete output" in err and out == ""
