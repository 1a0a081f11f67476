"""Every experiment has a golden plan, and makes it: a recipe that changes says so in the same commit."""

import pathlib

import pytest
from marin.experiment.golden_file import change_lines, check_golden, golden_path
from marin.reports.failure_case import issue_template

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "experiments").rglob("*.py")
    if "experiment_main(" in path.read_text(encoding="utf-8")
)


def test_there_are_experiments():
    assert "experiments/tutorials/train_tiny_model_cpu.py" in SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_experiment_makes_the_plan_that_is_on_file(script, monkeypatch):
    monkeypatch.chdir(ROOT)
    changes = check_golden(script, golden_path(script), (), update=False)
    assert changes == [], "\n".join([*change_lines(changes), f"accept it: marin golden {script} --update"])


def test_the_issue_template_is_the_empty_case():
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "failed-step.md").read_text(encoding="utf-8")
    assert text == issue_template(), "write what marin.reports.failure_case.issue_template() returns"
