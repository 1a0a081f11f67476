"""The gate in the engine: a refused plan runs nothing, says why, and is on record; a waiver is on record too."""

import datetime as dt
import os

import pytest
from marin.errors import PlanRefusedError
from marin.execution import Artifact, ArtifactStep, explain, read_record, run
from marin.ledger import Ledger
from marin.policy import parse_policy, policy_gate
from rigging.timing import ManualClock

POLICY = """format = 1
[kinds.train]
allow = ["MIT"]
[[waiver]]
ref = "web"
rule = "licence"
reason = "agreed with the owner"
by = "Ada"
expires = 2026-12-01
step = "waived"
"""
DAY = 86_400.0
FIRST_OF_DECEMBER = dt.datetime(2026, 12, 1, 12, tzinfo=dt.UTC).timestamp()


class Model(Artifact):
    purpose = "train"


class Ran:
    """Bodies of a graph, counting themselves."""

    def __init__(self):
        self.names = []

    def step(self, name, *deps, config=None, kind=Artifact):
        def body(value):
            self.names.append(name)
            return kind()

        def build(ctx):
            return {"config": config, "in": [ctx.artifact_path(dep) for dep in deps]}

        return ArtifactStep(name, "2026.12.01", artifact_type=kind, run=body, build_config=build, deps=deps)


@pytest.fixture
def ran():
    return Ran()


def gate(at=FIRST_OF_DECEMBER):
    return policy_gate(parse_policy(POLICY, path="policy.toml"), clock=ManualClock(start=at))


def model(ran, name="model", licence="CC-BY-NC-4.0"):
    raw = ran.step("raw", config={"id": "web", "licence": licence})
    return ran.step(name, raw, kind=Model)


def test_a_refused_plan_runs_nothing_and_is_on_record(ran, tmp_path):
    with pytest.raises(PlanRefusedError, match="CC-BY-NC-4.0") as refused:
        run(model(ran), prefix=str(tmp_path), gate=gate())
    assert ran.names == []
    assert refused.value.refusals[0].path == ("web", "raw@2026.12.01", "model@2026.12.01")
    ledger = Ledger(str(tmp_path))
    (attempt,) = ledger.attempts("model")
    assert (attempt.status, attempt.category) == ("blocked", "gate")
    event = next(event for event in ledger.events() if event.kind == "gate")
    assert event.data["refusals"][0]["rule"] == "licence" and event.data["policy"].startswith("policy.toml (")
    assert ledger.failures()[0].category == "gate"
    assert ledger.why("model").state == "blocked" and "raw@2026.12.01 -> model" in ledger.why("model").paragraph
    assert ledger.find("model").state == "blocked"


def test_a_refusal_leaves_an_output_that_exists_alone(ran, tmp_path):
    assert run(model(ran), prefix=str(tmp_path)).ok
    with pytest.raises(PlanRefusedError):
        run(model(ran), prefix=str(tmp_path), gate=gate())
    ledger = Ledger(str(tmp_path))
    assert ledger.find("model").state == "success" and ledger.why("model").state == "built"
    assert [attempt.status for attempt in ledger.attempts("model")] == ["success", "blocked"]


def test_explaining_a_refused_plan_writes_nothing(ran, tmp_path):
    with pytest.raises(PlanRefusedError):
        explain(model(ran), prefix=str(tmp_path / "store"), gate=gate())
    assert not os.path.exists(tmp_path / "store")


def test_a_plan_that_passes_has_licences_and_policy_in_its_records(ran, tmp_path):
    handle = model(ran, licence="MIT")
    summary = run(handle, prefix=str(tmp_path), gate=gate())
    record = read_record(summary.outcome("model").path)
    assert (record.licences, record.purpose) == (["MIT"], "train") and record.policy.startswith("policy.toml (")
    assert read_record(summary.outcome("raw").path).licences == ["MIT"]


def test_a_waiver_is_written_into_the_record_and_the_ledger_and_ends_on_its_day(ran, tmp_path):
    handle = model(ran, "waived")
    summary = run(handle, prefix=str(tmp_path), gate=gate())
    (waiver,) = read_record(summary.outcome("waived").path).waivers
    assert (waiver["by"], waiver["expires"]) == ("Ada", "2026-12-01")
    event = next(event for event in Ledger(str(tmp_path)).events() if event.kind == "waiver")
    assert event.data["steps"] == ["waived@2026.12.01"] and event.data["reason"] == "agreed with the owner"
    with pytest.raises(PlanRefusedError, match="the waiver by Ada expired"):
        run(handle, prefix=str(tmp_path), gate=gate(FIRST_OF_DECEMBER + DAY))


def test_without_a_gate_nothing_is_claimed(ran, tmp_path):
    summary = run(model(ran), prefix=str(tmp_path))
    record = read_record(summary.outcome("model").path)
    assert record.policy == "" and record.licences == []


def test_licences_are_declared_for_data_that_exists_elsewhere(ran, tmp_path):
    (tmp_path / "data").mkdir()

    def graph(config):
        raw = ArtifactStep.adopt("old", "2026.11.01", str(tmp_path / "data"), config=config)
        return ran.step("model", raw, kind=Model)

    with pytest.raises(PlanRefusedError, match="the licence of old is unknown"):
        run(graph(None), prefix=str(tmp_path / "a"), gate=gate())
    assert run(graph({"licence": "MIT"}), prefix=str(tmp_path / "b"), gate=gate()).ok
