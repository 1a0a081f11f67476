import json
import os

import pytest
from marin.errors import CorruptRecordError, RecordNotFoundError, UsageError
from marin.execution import Artifact, ArtifactStep, run
from marin.ledger import Ledger, verify
from marin.ledger.ledger import split_reference


class Diverged(RuntimeError):
    failure_category = "diverged"


def good(config):
    with open(os.path.join(config["out"], "x"), "w") as file:
        file.write(str(config["n"]))


def diverges(config):
    raise Diverged(f"loss {config['n']} is nan")


def breaks(config):
    raise ValueError(f"bad record {config['n']} in '/data/{config['n']}'")


def step(name, body, n=1, deps=(), version="auto"):
    return ArtifactStep(
        name=name,
        version=version,
        run=body,
        build_config=lambda ctx: {"n": n, "out": ctx.output_path, "in": [ctx.artifact_path(dep) for dep in deps]},
        deps=deps,
    )


@pytest.fixture
def store(tmp_path):
    prefix = str(tmp_path / "store")
    raw = step("raw/web", good)
    tokens = step("tokens", good, deps=(raw,), version="2026.12.01")
    run(tokens, step("arm", diverges), step("bad", breaks, 1), prefix=prefix)
    run(step("raw/web", good, 2), step("bad", breaks, 2), prefix=prefix)
    return prefix


def test_steps_are_found_without_entering_outputs(store):
    os.makedirs(os.path.join(store, "tokens", "2026.12.01", "looks", "like", ".v.step"))
    names = [(entry.name, entry.state) for entry in Ledger(store).steps()]
    assert names == [
        ("arm", "failed"), ("bad", "failed"), ("bad", "failed"), ("raw/web", "success"), ("raw/web", "success"),
        ("tokens", "success"),
    ]  # fmt: skip


def test_a_store_that_does_not_exist_is_empty(tmp_path):
    ledger = Ledger(str(tmp_path / "none"))
    assert ledger.steps() == ledger.records() == ledger.attempts() == ledger.events() == ledger.failures() == []
    assert not (tmp_path / "none").exists()


def test_records_of_committed_outputs_only(store):
    assert [record.name for record in Ledger(store).records()] == ["raw/web", "raw/web", "tokens"]


def test_a_version_may_be_left_out_or_be_the_start_of_a_derived_one(store):
    ledger = Ledger(store)
    latest = ledger.find("raw/web")
    assert latest == ledger.find("raw/web", "auto") == ledger.find("raw/web", latest.version)
    assert ledger.find("raw/web", latest.version[:12]) == latest
    assert ledger.record("raw/web").config["n"] == 2


def test_an_unknown_step_is_an_error_that_names_the_versions(store):
    with pytest.raises(RecordNotFoundError, match="no step nope"):
        Ledger(store).find("nope")
    with pytest.raises(RecordNotFoundError, match=r"versions: 2026\.12\.01"):
        Ledger(store).find("tokens", "2025.01.01")
    with pytest.raises(RecordNotFoundError, match="has no output"):
        Ledger(store).record("arm")


def test_failures_are_grouped_by_what_failed_and_not_by_values(store):
    groups = {group.category: group for group in Ledger(store).failures()}
    assert groups["user_code"].attempts.__len__() == 2 and len(groups["user_code"].steps) == 2
    assert groups["diverged"].error_type.endswith("Diverged")
    assert groups["diverged"].to_json()["count"] == 1


def test_why_tells_a_known_failure(store):
    explanation = Ledger(store).why("arm")
    assert explanation.state == "known_failure" and "loss 1 is nan" in explanation.paragraph
    assert explanation.reasons[0].kind == "known_failure"


def test_why_tells_a_failure_that_will_be_tried_again(store):
    explanation = Ledger(store).why("bad")
    assert explanation.state == "failed" and "tries again" in explanation.paragraph


def test_why_tells_what_changed_since_the_output_before(store):
    explanation = Ledger(store).why("raw/web")
    assert explanation.state == "built" and "n: 1 -> 2" in explanation.paragraph
    assert any(reason.fields == ("n: 1 -> 2",) for reason in explanation.reasons)


def test_why_compares_with_a_recipe_at_hand(store):
    changed = step("tokens", good, n=5, version="2026.12.01")
    explanation = Ledger(store).why("tokens", payload=changed.fingerprint_payload())
    assert explanation.reasons[0].kind == "drift" and "n: 1 -> 5" in explanation.reasons[0].fields


def test_why_tells_a_missing_version(store):
    assert Ledger(store).why("tokens", "2026.12.02").state == "missing"
    with pytest.raises(RecordNotFoundError):
        Ledger(store).why("nope", "2026.12.02")


def test_why_tells_dependents_of_a_failure_their_root_cause(store):
    run(step("end", good, deps=(step("mid", good, deps=(step("bad", breaks, 3),)),)), prefix=store)
    explanation = Ledger(store).why("end")
    assert explanation.state == "dep_failed" and explanation.reasons[0].fields[0].startswith("bad@auto-")


def test_an_attempt_without_an_end_is_shown_as_what_it_became(store):
    ledger = Ledger(store)
    layout = ledger.find("tokens").layout
    name = next(name for name in os.listdir(layout.attempts) if not name.endswith(".open.json"))
    os.unlink(os.path.join(layout.attempts, name))
    assert [attempt.status for attempt in ledger.attempts("tokens")] == ["success"]
    layout = ledger.find("bad").layout
    name = next(name for name in os.listdir(layout.attempts) if not name.endswith(".open.json"))
    os.unlink(os.path.join(layout.attempts, name))
    assert [attempt.status for attempt in ledger.attempts("bad")] == ["abandoned"]


def test_show_is_json_of_record_and_attempts(store):
    details = json.loads(json.dumps(Ledger(store).show("tokens")))
    assert details["record"]["deps"][0].startswith("raw/web@auto-") and len(details["attempts"]) == 1


def test_events_are_in_order_of_time(store):
    events = Ledger(store).events()
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert {event.kind for event in events} >= {"started", "finished", "failed"}


@pytest.mark.parametrize(("text", "parts"), [("a@b", ("a", "b")), ("a/b", ("a/b", ""))])
def test_references_have_two_parts(text, parts):
    assert split_reference(text) == parts


def test_a_reference_needs_a_name():
    with pytest.raises(UsageError):
        split_reference("@dev")


def test_plain_artifacts_of_old_stores_are_listed(tmp_path):
    (tmp_path / "old" / "v1").mkdir(parents=True)
    (tmp_path / "old" / "v1" / ".executor_status").write_text("SUCCESS")
    (tmp_path / "old" / "v1" / ".artifact.json").write_text('{"tokens": 3}')
    ledger = Ledger(str(tmp_path))
    assert ledger.find("old", "v1").state == "success"
    assert ledger.record("old").result == {"tokens": 3}
    assert Artifact.load(str(tmp_path / "old" / "v1")).record.result == {"tokens": 3}


def test_one_torn_status_does_not_hide_the_rest_of_a_store(tmp_path):
    for name in ("good", "torn"):
        (tmp_path / name / ".dev.step").mkdir(parents=True)
        (tmp_path / name / ".dev.step" / ".executor_status").write_text("SUCCESS" if name == "good" else "SUCC")
    ledger = Ledger(str(tmp_path))
    assert {entry.name: entry.state for entry in ledger.steps()} == {"good": "success", "torn": "corrupt"}
    with pytest.raises(CorruptRecordError):
        ledger.why("torn", "dev")
    (finding,) = verify(ledger, "torn", "dev").findings
    assert "corrupt" in finding.problems[0]
