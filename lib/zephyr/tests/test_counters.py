"""Counters: aggregations within a task and over tasks, stages, and what is no task."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zephyr import Dataset, ZephyrContext, counters
from zephyr._pulse import Pulse, read_beat
from zephyr.counters import Aggregation, CounterScope, collecting, merge, totals
from zephyr.errors import DatasetError


def measure(n: int) -> int:
    for how in Aggregation:
        counters.pipeline.set_aggregation(how.name, how)
        counters.pipeline.update_counter(how.name, n)
    return n


@pytest.mark.parametrize("shards", [1, 3])
def test_each_aggregation_folds_within_tasks_and_over_them(ctx: ZephyrContext, shards: int) -> None:
    # Shards of 3, 3 and 4 numbers: the average of their averages would be another number.
    numbers = [7, 1, 5, 3, 40, 2, 2, -6, 9, 0]
    out = ctx.execute(Dataset.from_list(numbers, shards=shards).map(measure))
    assert out.counters == {"AVERAGE": 6.3, "MAX": 40, "MIN": -6, "SUM": 63}


@given(st.lists(st.lists(st.integers(-99, 99), max_size=4), max_size=5))
def test_merging_tasks_in_any_grouping_is_one_task(parts: list[list[int]]) -> None:
    def counted(values: list[int]) -> counters.CounterValues:
        with collecting() as out:
            for value in values:
                measure(value)
            counters.pipeline.set_aggregation("MAX", "max")  # known without an observation, too
        return out

    whole = counted([value for part in parts for value in part])
    folded = merge(map(counted, parts))
    assert totals(folded) == totals(merge((merge(map(counted, parts[:2])), *map(counted, parts[2:])))) == totals(whole)
    assert ("MAX" in totals(whole)) == any(parts)


def test_set_counter_replaces_what_this_task_observed(ctx: ZephyrContext) -> None:
    def last(n: int) -> int:
        counters.pipeline.set_counter("last", n)
        counters.pipeline.set_aggregation("largest", "MAX")
        counters.pipeline.set_counter("largest", -n)
        return n

    out = ctx.execute(Dataset.from_list([1, 2, 3, 4], shards=2).map(last))
    assert out.counters == {"last": 2 + 4, "largest": -2}


def test_stages_have_counters_of_their_own(ctx: ZephyrContext) -> None:
    labels = []

    def seen(n: int) -> int:
        here = counters.current_stage()
        labels.append(here.label)
        here.update_counter("seen")
        counters.stage("other").update_counter("seen", 10)
        return n

    ds = Dataset.from_list([1, 2, 2], shards=2).map(seen).deduplicate(abs, num_output_shards=1).map(seen)
    out = ctx.execute(ds)
    first, second = dict.fromkeys(labels)
    assert (first, second) == ("stage0-map-shuffle", "stage1-keep_first-map")
    assert out.counters == {"other/seen": 50, f"{first}/seen": 3, f"{second}/seen": 2}


def test_outside_a_task_nothing_is_counted_and_nothing_raised() -> None:
    here = counters.current_stage()
    assert here == counters.pipeline == CounterScope()
    for scope in (here, counters.stage("x")):
        scope.update_counter("a")
        scope.set_counter("a", 2)
        scope.set_aggregation("a", "AVERAGE")
    with collecting() as values:
        pass
    here.update_counter("a")
    assert values == {}


def test_two_aggregations_drop_the_counter_with_a_warning(ctx: ZephyrContext, caplog: pytest.LogCaptureFixture) -> None:
    def within(n: int) -> int:
        counters.increment("within")
        counters.pipeline.set_aggregation("within", "MAX")
        counters.pipeline.set_counter("within", n)
        counters.increment("within")
        counters.increment("good")
        return n

    def between(n: int) -> int:
        counters.pipeline.set_aggregation("between", "MAX" if n else "MIN")
        counters.pipeline.update_counter("between", n)
        return n

    with caplog.at_level(logging.WARNING):
        out = ctx.execute(Dataset.from_list([0, 1, 2], shards=3).map(within).map(between))
    assert out.counters == {"good": 3}
    [record] = [r for r in caplog.records if r.name == "zephyr.counters"]
    assert "['between', 'within'] are left out" in record.getMessage()


def test_values_that_are_no_numbers_are_refused_where_they_are_counted() -> None:
    with collecting() as values:
        for bad in ("3", None, 1j):
            with pytest.raises(DatasetError, match="cannot count: name='s/a'"):
                counters.stage("s").update_counter("a", bad)  # type: ignore[arg-type]
            with pytest.raises(DatasetError, match="cannot count: name='a'"):
                counters.pipeline.set_counter("a", bad)  # type: ignore[arg-type]
        with pytest.raises(DatasetError, match="how='median'; expected SUM, AVERAGE, MIN or MAX"):
            counters.pipeline.set_aggregation("a", "median")
        assert values == {}
        counters.increment("int", np.int64(3))  # type: ignore[arg-type]
        counters.pipeline.update_counter("float", np.float32(0.5))  # type: ignore[arg-type]
    assert json.dumps(totals(values)) == '{"float": 0.5, "int": 3}'


def test_live_counters_go_through_the_sign_of_life_whole(tmp_path: Path) -> None:
    with collecting() as values:
        measure(2)
        measure(5)
        counters.increment("MAX")
        counters.record_min("MAX", 1)  # dropped
    with Pulse(str(tmp_path), "0-0-1", values, at_once=True, limit_bytes=None):
        beat = read_beat(str(tmp_path), "0-0-1")
    assert beat is not None
    assert beat[2] == values
    assert totals(merge([beat[2], values]))["AVERAGE"] == 3.5
