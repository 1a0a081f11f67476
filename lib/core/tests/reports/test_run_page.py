"""The page of a run is one file, escapes what it shows, and shows failures beside successes."""

import re

import pytest
from marin.reports._svg import Node, Series, layers_of, line_chart, step_graph, ticks
from marin.reports.run_page import render_run_page
from marin.reports.view import AttemptView, Curve, LossRow, RunView, Sample, StepView


@pytest.fixture
def view():
    failed = AttemptView(
        1, "failed", "diverged", "2026-12-01T00:00:00Z", 1.5, 10, 1.0, "host", "loss <nan> & gone", "Trace", "log"
    )
    good = AttemptView(1, "success", started_at="2026-12-01T00:00:00Z", seconds=65.0)
    return RunView(
        title="A run",
        started_at="2026-12-01T00:00:00Z",
        command="scripts/demo",
        figures=[("held-out", "2.2", "bits per byte")],
        steps=[
            StepView("corpus@1", "corpus", "1", "executed", "no record", "f" * 64, "d" * 64, attempts=[good]),
            StepView("hot@1", "hot", "1", "known_failure", "diverged before", deps=["corpus@1"], attempts=[failed]),
        ],
        curves=[
            Curve("good", [(1, 8.0), (2, 4.0)], [(2, 4.1)]),
            Curve("hot", [(1, 8.0), (2, float("nan"))], failed=True),
        ],
        data=[LossRow("normalise", 10, 1000, [("blank", 2)])],
        samples=[Sample("<def>", " f(): pass")],
        environment=[("python", "3.12")],
    )


def test_the_page_needs_nothing_from_outside(view):
    page = render_run_page(view)
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)


def test_text_from_the_run_is_escaped(view):
    page = render_run_page(view)
    assert "loss &lt;nan&gt; &amp; gone" in page
    assert "&lt;def&gt;" in page


def test_the_failed_arm_stands_on_the_page_with_its_reason_and_its_curve(view):
    page = render_run_page(view)
    assert "What failed, and why" in page
    assert "diverged" in page
    assert 'stroke-dasharray="5 4"' in page


def test_non_finite_values_end_a_curve_instead_of_breaking_the_drawing():
    drawing = line_chart(
        [Series("x", [(0, 1.0), (1, float("inf")), (2, float("nan"))])], x_label="step", y_label="loss"
    )
    assert "nan" not in drawing
    assert "inf" not in drawing
    assert "No points" in line_chart([Series("x", [(0, float("nan"))])], x_label="step", y_label="loss")


def test_a_node_stands_right_of_everything_it_reads():
    nodes = [Node(key, key, "", "good") for key in "dcba"]
    parents = {"b": ["a"], "c": ["a"], "d": ["b", "c", "elsewhere"]}
    assert [[n.key for n in row] for row in layers_of(nodes, parents)] == [["a"], ["c", "b"], ["d"]]
    assert step_graph(nodes, parents).count('class="edge"') == 4


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 7.7), (1e-9, 2e-9), (5, 5), (0, 123456)])
def test_ticks_lie_inside_the_interval_and_grow(low, high):
    found = ticks(low, high)
    assert found == sorted(set(found))
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in found)
