"""The index says of every result what became of it, from the ledger alone, and shows hostile names as text."""

import html.parser
import os

import pytest
from marin.execution import Artifact, ArtifactStep, run
from marin.ledger import Ledger
from marin.ledger.hypotheses import Direction, Hypothesis, conclude, declare
from marin.reports.experiments_index import ResultState, experiments_index
from rigging.filesystem.lease import Lease

pytest.importorskip("jinja2", reason="the extra report is not installed")
from marin.reports.index_page import render_index_html, render_index_markdown

NOW = "2026-12-01T12:00:00.000000Z"


class Measured(Artifact):
    bits: float
    count: int = 7


def measure(config):
    if config < 0:
        raise ValueError("a <b>negative</b> | number")
    return Measured(bits=float(config))


def step(name, value, version="2026.12.01", deps=()):
    return ArtifactStep(
        name, version, artifact_type=Measured, run=measure, build_config=lambda ctx: value, deps=tuple(deps)
    )


def claim(experiment, threshold):
    return Hypothesis(
        experiment=experiment, claim=f"{experiment} is small", metric="bits", direction=Direction.BELOW,
        threshold=threshold,
    )  # fmt: skip


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "store")


def rows(prefix):
    index = experiments_index(Ledger(prefix), now=NOW)
    return {row.step: row for experiment in index.experiments for row in experiment.rows}


def test_only_what_nobody_reads_is_a_result(prefix):
    data = step("a/data", 1)
    run(step("a/model", 2, deps=[data]), prefix=prefix)
    found = rows(prefix)
    assert set(found) == {"a/model@2026.12.01"}
    assert found["a/model@2026.12.01"].state is ResultState.SUCCEEDED
    assert found["a/model@2026.12.01"].note == "bits 2, count 7"


def test_failures_and_what_they_stopped_are_results_with_their_reason(prefix):
    bad = step("a/data", -1)
    run(step("a/model", 2, deps=[bad]), prefix=prefix)
    found = rows(prefix)
    assert {row.state for row in found.values()} == {ResultState.FAILED}
    assert "user_code" in found["a/data@2026.12.01"].note and "negative" in found["a/data@2026.12.01"].note
    assert found["a/model@2026.12.01"].note == "an input has no output: a/data@2026.12.01"


def test_a_newer_version_supersedes_the_older_one(prefix):
    run(step("a/model", 2), prefix=prefix)
    run(step("a/model", 3, version="2026.12.02"), prefix=prefix)
    found = rows(prefix)
    assert found["a/model@2026.12.01"].state is ResultState.SUPERSEDED
    assert found["a/model@2026.12.01"].note == "by a/model@2026.12.02"
    assert found["a/model@2026.12.02"].state is ResultState.SUCCEEDED


def test_a_refuted_claim_marks_the_result_that_refuted_it(prefix):
    run(step("a/model", 2), step("b/model", 2), prefix=prefix)
    ledger = Ledger(prefix)
    for name, threshold in (("a", 1.0), ("b", 3.0)):
        declare(ledger, claim(name, threshold))
        conclude(ledger, name, 2.0, evidence=[f"{name}/model@2026.12.01"])
    declare(ledger, claim("c", 1.0))
    index = experiments_index(ledger, now=NOW)
    states = {experiment.name: experiment.state for experiment in index.experiments}
    assert states == {"a": ResultState.REFUTED, "b": ResultState.SUCCEEDED}
    assert [(row.experiment, row.verdict) for row in index.claims] == [
        ("a", "refuted"), ("b", "confirmed"), ("c", "open"),
    ]  # fmt: skip
    assert index.counts == {"running": 0, "failed": 0, "refuted": 1, "succeeded": 1, "superseded": 0}


def test_a_step_whose_lease_is_held_runs_and_one_whose_driver_died_has_failed(prefix):
    run(step("a/model", 2), prefix=prefix)
    lease = Lease(os.path.join(prefix, "a", "model", ".2026.12.01.step", "lease.json"))
    lease.try_acquire()
    assert rows(prefix)["a/model@2026.12.01"].state is ResultState.RUNNING
    lease.release()
    assert rows(prefix)["a/model@2026.12.01"].state is ResultState.SUCCEEDED


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)


def test_both_pages_show_what_the_store_holds_as_text(prefix):
    run(step("a/model", -1), prefix=prefix)
    declare(Ledger(prefix), claim("<script>alert(1)</script>", 1.0))
    index = experiments_index(Ledger(prefix), now=NOW)
    page = render_index_html(index)
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.found and "b" in tags.found
    assert "&lt;b&gt;negative&lt;/b&gt;" in page and "a/model@2026.12.01" in page
    text = render_index_markdown(index)
    assert "<script>" not in text and "<b>" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("| failed")]
    assert line.replace("\\|", "").count("|") == 6


def test_an_empty_store_gives_an_empty_index(prefix):
    index = experiments_index(Ledger(prefix), now=NOW)
    assert index.experiments == () and sum(index.counts.values()) == 0
    assert "0 failed" in render_index_markdown(index) and "Experiments" in render_index_html(index)
