"""A changed recipe is never silent: the golden plan shows it, and one under a fixed version is not accepted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import CorruptRecordError
from marin.execution import ArtifactStep
from marin.execution.golden import ChangeKind, compare_plans, golden_plan, parse_golden
from marin.execution.graph import plan_graph
from marin.execution.lazy import lower


def step(name, version, value, *deps):
    return ArtifactStep(
        name,
        version,
        run=print,
        build_config=lambda ctx: {"lr": value, "in": [ctx.artifact_path(dep) for dep in deps]},
        deps=deps,
    )


def plan(*steps):
    return golden_plan(plan_graph([lower(item) for item in steps], "/store").steps, ["--x"])


def chain(value, version="auto"):
    return plan(step("c", version, 3, step("b", version, 2, step("a", version, value))))


def test_a_changed_literal_is_one_change_however_much_is_made_from_it():
    (change,) = compare_plans(chain(1), chain(9))
    assert (change.step, change.kind, change.lines) == ("a@auto", ChangeKind.CHANGED, ("lr: 1 -> 9",))


def test_a_change_under_a_fixed_version_is_a_drift_and_comes_first():
    old = plan(step("b", "auto", 1), step("a", "2026.12.01", 1))
    new = plan(step("b", "auto", 2), step("a", "2026.12.01", 2))
    assert [(change.step, change.kind) for change in compare_plans(old, new)] == [
        ("a@2026.12.01", ChangeKind.DRIFTED),
        ("b@auto", ChangeKind.CHANGED),
    ]


def test_a_new_version_is_no_drift():
    changes = compare_plans(plan(step("a", "2026.12.01", 1)), plan(step("a", "2026.12.02", 2)))
    assert {change.kind for change in changes} == {ChangeKind.ADDED, ChangeKind.REMOVED}


def test_a_plan_survives_its_file_and_holds_no_hash():
    golden = chain(1)
    text = golden.text()
    assert parse_golden("x.json", text) == golden
    assert compare_plans(parse_golden("x.json", text), chain(1)) == []
    assert "auto-" not in text


@given(st.integers(), st.integers())
def test_plans_are_equal_exactly_when_recipes_are(first, second):
    assert (compare_plans(chain(first), chain(second)) == []) == (first == second)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", json.dumps({"golden_format": 9, "arguments": [], "steps": {}}),
             json.dumps({"golden_format": 1, "arguments": [1], "steps": {}})],
)  # fmt: skip
def test_a_file_that_is_no_golden_plan_is_an_error_with_its_path(text):
    with pytest.raises(CorruptRecordError, match=r"plan\.json"):
        parse_golden("plan.json", text)
