"""The command line: data on stdout, errors with a hint on stderr, exit codes."""

import json
from pathlib import Path

import pytest
from zephyr.cli import main

SCRIPT = """
from zephyr import Dataset, col

def build(args):
    pattern, out = args
    return Dataset.from_files(pattern).load_jsonl().filter(col("a") > 1).write_jsonl(out + "/{basename}.out.jsonl")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    return tmp_path / "job.py"


def test_plan_prints_the_plan_and_touches_nothing(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(script), "--", str(tmp_path / "*.jsonl"), str(tmp_path)]) == 0
    assert "pushed down" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.out.jsonl"))


def test_run_prints_results_and_counters(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["run", str(script), "--max-workers", "0"]
    assert main([*call, "--", str(tmp_path / "x.jsonl"), str(tmp_path)]) == 0
    out = capsys.readouterr()
    assert out.out == f"{tmp_path}/x.out.jsonl\n"
    assert "zephyr/records_out: 1" in out.err
    assert main([*call, "--json", "--", str(tmp_path / "x.jsonl"), str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["counters"]["zephyr/records_in"] == 2


def test_inspect_shows_schema_and_records(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "x.jsonl"), "--rows", "1"]) == 0
    assert capsys.readouterr().out == f'{tmp_path}/x.jsonl: 2 records\n  a: int64\n{{"a": 1}}\n'


@pytest.mark.parametrize(
    "call,words",
    [
        (["run", "none.py"], "none.py"),
        (["run", "{script}", "--max-workers", "0", "--", "none/*.jsonl", "out"], "matched nothing"),
        (["inspect", "none.jsonl"], "does not exist"),
        (["inspect", "{script}"], "no known suffix"),
        (["run", "{script}", "--max-workers", "-1", "--", "{data}", "out"], "max_workers=-1"),
    ],
)
def test_wrong_input_is_exit_2_with_a_hint(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], call: list[str], words: str
) -> None:
    filled = [part.format(script=script, data=tmp_path / "x.jsonl") for part in call]
    assert main(filled) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert words in out.err
    assert "\nhint: " in out.err


def test_a_script_without_build_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.py").write_text("x = 1\n")
    assert main(["plan", str(tmp_path / "job.py")]) == 2
    assert "build(args)" in capsys.readouterr().err


def test_a_failing_pipeline_is_exit_1_with_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.py").write_text(
        "from zephyr import Dataset\n\ndef build(args):\n    return Dataset.from_list([0]).map(lambda x: 1 / x)\n"
    )
    assert main(["run", str(tmp_path / "job.py"), "--max-workers", "0"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_every_command_speaks_json(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "x.jsonl")
    assert main(["plan", str(script), "--json", "--", data, str(tmp_path)]) == 0
    [stage] = json.loads(capsys.readouterr().out)
    assert (stage["tasks"], stage["branches"][0]["shards"]) == (1, 1)
    assert main(["inspect", data, "--json"]) == 0
    expected = {"path": data, "records": 2, "schema": {"a": "int64"}, "rows": [{"a": 1}, {"a": 2}]}
    assert json.loads(capsys.readouterr().out) == expected
    assert main(["run", str(script), "--max-workers", "0", "--json", "--", data, str(tmp_path)]) == 0
    [stage] = json.loads(capsys.readouterr().out)["stages"]
    assert (stage["records_in"], stage["records_out"], stage["tasks"]) == (2, 1, 1)
    assert stage["bytes_in"] == 18


def test_a_run_writes_its_page_and_its_quarantine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.py").write_text(
        "from zephyr import Dataset\n\ndef build(args):\n    return Dataset.from_list([0, 2, 0]).map(lambda x: 1 / x)\n"
    )
    page, bad = tmp_path / "run.html", tmp_path / "bad"
    call = ["run", str(tmp_path / "job.py"), "--max-workers", "0", "--page", str(page), "--quarantine", str(bad)]
    assert main(call) == 0
    assert capsys.readouterr().out == "0.5\n"
    assert len(list(bad.glob("*.jsonl"))) == 2
    text = page.read_text()
    assert "<span class=done>done</span>" in text
    assert "http" not in text and "<script" not in text
    assert main([*call, "--max-quarantined", "1"]) == 2
    assert "max_records=1" in capsys.readouterr().err
    text = page.read_text()
    assert "<span class=failed>failed</span>" in text
    assert "QuarantineFullError" in text


@pytest.mark.parametrize(
    "text,words",
    [
        ("def build(args:\n", "line=1, error=SyntaxError"),
        ("import nothing_here\n", "line=1, error=ModuleNotFoundError"),
    ],
)
def test_a_script_that_does_not_run_is_exit_2_with_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (tmp_path / "job.py").write_text(text)
    assert main(["plan", str(tmp_path / "job.py")]) == 2
    assert words in capsys.readouterr().err
    (tmp_path / "job.py").write_text("def build(args):\n    return args[0]\n")
    assert main(["plan", str(tmp_path / "job.py")]) == 2
    assert "line=2, error=IndexError" in capsys.readouterr().err
