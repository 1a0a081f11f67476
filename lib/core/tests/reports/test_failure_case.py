"""A failure case holds what the ledger knows and leaves room for what only people know."""

import os

import pytest
from marin.errors import RecordNotFoundError
from marin.execution import Artifact, ArtifactStep, run
from marin.execution.attempt_context import step_attempt
from marin.ledger import Ledger
from marin.reports.failure_case import HEADINGS, failure_case, issue_template


class Model(Artifact):
    evidence = ("logs/**",)


def body(config):
    attempt = step_attempt()
    for path in (
        os.path.join(attempt.output_path, "logs", "loss.txt"),
        os.path.join(attempt.scratch_path, "checkpoints", "step-10", "state"),
        os.path.join(attempt.output_path, "model", "half"),
    ):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("x")
    raise RuntimeError(f"loss is nan\n```\n# not a heading {config}")


@pytest.fixture
def ledger(tmp_path):
    prefix = str(tmp_path / "store")
    step = ArtifactStep("lab/model", "2026.12.01", artifact_type=Model, run=body, build_config=lambda ctx: 7)
    fine = ArtifactStep("lab/fine", "2026.12.01", run=lambda config: None, build_config=lambda ctx: None)
    run(step, fine, prefix=prefix)
    return Ledger(prefix)


def test_a_case_links_the_logs_and_the_checkpoints_of_the_failed_attempt(ledger):
    case = failure_case(ledger, "lab/model")
    (attempt,) = ledger.attempts("lab/model")
    assert case.title == "[failure] lab/model@2026.12.01: user_code"
    assert case.file_name == f"lab-model-2026.12.01-{attempt.attempt}.md"
    for text in (
        "loss is nan",
        "Traceback",
        "loss.txt",
        "checkpoints/step-10/state",
        "model/half",
        attempt.fingerprint,
    ):
        assert text in case.text


def test_a_case_has_every_heading_of_the_template_in_order_and_no_other(ledger):
    case = failure_case(ledger, "lab/model", "2026.12.01")
    fenced, headings = "", []
    for line in case.text.splitlines():
        if line.startswith("```"):
            fenced = "" if line == fenced else fenced or line
        elif line.startswith("## ") and not fenced:
            headings.append(line[3:])
    assert headings == [heading for heading, _ in HEADINGS]
    assert all(f"## {heading}\n" in issue_template() for heading, _ in HEADINGS)


def test_what_failed_cannot_end_its_code_block(ledger):
    text = failure_case(ledger, "lab/model").text
    start = text.index("````\n")
    assert "# not a heading 7" in text[start : text.index("\n````", start + 5)]


def test_a_step_that_never_failed_has_no_case(ledger):
    with pytest.raises(RecordNotFoundError, match=r"no attempt at lab/fine@2026\.12\.01 failed"):
        failure_case(ledger, "lab/fine")
