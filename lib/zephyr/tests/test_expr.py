"""Expressions: one meaning for rows and for columns."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zephyr._eval import evaluate_batch, filter_batch
from zephyr._jsonl import row_mask
from zephyr._prune import ColumnStatistics, may_match
from zephyr.errors import ExprError
from zephyr.expr import Expr, Literal, Logical, col, lit, referenced_columns

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.one_of(st.none(), st.integers(-5, 5)),
            "f": st.one_of(st.none(), st.floats(-4, 4), st.sampled_from([math.nan, math.inf])),
            "s": st.one_of(st.none(), st.sampled_from(["", "a", "ab", "B", "é"])),
            "b": st.one_of(st.none(), st.booleans()),
        }
    ),
    min_size=1,
    max_size=12,
)
SCHEMA = pa.schema({"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_()})


def numbers() -> st.SearchStrategy[Expr]:
    leaf = st.one_of(
        st.sampled_from([col("i"), col("f"), col("missing"), col("s").length()]),
        st.integers(-5, 5).map(lit),
        st.floats(-4, 4).map(lit),
    )
    return st.recursive(
        leaf,
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda t: {"+": t[0] + t[2], "-": t[0] - t[2], "*": t[0] * t[2], "/": t[0] / t[2]}[t[1]]
        ),
        max_leaves=4,
    )


def texts() -> st.SearchStrategy[Expr]:
    return st.sampled_from([col("s"), col("s").lower(), lit("a"), col("missing")])


def truths() -> st.SearchStrategy[Expr]:
    compare = {
        "==": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    pairs = st.one_of(st.tuples(numbers(), numbers()), st.tuples(texts(), texts()))
    leaf = st.one_of(
        st.just(col("b")),
        st.tuples(pairs, st.sampled_from(sorted(compare))).map(lambda t: compare[t[1]](*t[0])),
        st.sampled_from(
            [col("i").is_null(), col("s").is_not_null(), col("s").contains("a"), col("s").starts_with("a")]
        ),
        st.just(col("i").is_in([1, 2])),
        st.just(col("s").ends_with("b")),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            inner.map(lambda e: ~e),
            st.tuples(inner, st.sampled_from("&|"), inner).map(lambda t: t[0] & t[2] if t[1] == "&" else t[0] | t[2]),
        ),
        max_leaves=5,
    )


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-15)
    return a == b


@given(ROWS, st.one_of(truths(), numbers()))
def test_rows_and_columns_agree(rows: list[dict], expr: Expr) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    by_column = evaluate_batch(expr, batch).to_pylist()
    by_row = [expr.evaluate(row) for row in rows]
    assert all(map(same, by_column, by_row)), (expr, by_column, by_row)


@given(ROWS, truths())
def test_filters_keep_only_what_is_true(rows: list[dict], expr: Expr) -> None:
    def shown(kept: list[dict]) -> list[str]:
        return [repr(sorted(row.items())) for row in kept]

    expected = shown([row for row in rows if expr.evaluate(row) is True])
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    assert shown(filter_batch(batch, expr).to_pylist()) == expected
    kept = [row for row, keep in zip(rows, row_mask(rows, expr), strict=True) if keep]
    assert shown(kept) == expected


@given(ROWS, truths())
def test_pruning_never_drops_a_group_with_a_match(rows: list[dict], expr: Expr) -> None:
    stats = {}
    for name in ("i", "f", "s"):
        values = [row[name] for row in rows if row[name] is not None and row[name] == row[name]]
        nulls = sum(row[name] is None for row in rows)
        stats[name] = ColumnStatistics(min(values, default=None), max(values, default=None), nulls, len(rows))
    if any(expr.evaluate(row) is True for row in rows):
        assert may_match(expr, stats, frozenset(SCHEMA.names))


@pytest.mark.parametrize("op,table", [("&", [None, False, None]), ("|", [True, None, None])])
def test_null_follows_kleenes_tables(op: str, table: list[bool | None]) -> None:
    for other, expected in zip((True, False, None), table, strict=True):
        expr = Logical(op, Literal(None), Literal(other))
        assert expr.evaluate({}) is expected


def test_comparing_kinds_that_do_not_compare_is_an_error_both_ways() -> None:
    row = {"i": 1, "s": "x"}
    expr = col("i") < col("s")
    with pytest.raises(ExprError, match="left is number and right is string"):
        expr.evaluate(row)
    with pytest.raises(ExprError, match="left is number and right is string"):
        evaluate_batch(expr, pa.RecordBatch.from_pylist([row]))


def test_integer_overflow_is_an_error_both_ways() -> None:
    expr = col("i") * 2**62
    with pytest.raises(ExprError, match="overflow"):
        expr.evaluate({"i": 4})
    with pytest.raises(ExprError, match="overflow"):
        evaluate_batch(expr, pa.RecordBatch.from_pylist([{"i": 4}]))


def test_division_by_zero_gives_what_ieee_says() -> None:
    assert (col("i") / 0).evaluate({"i": -1}) == -math.inf
    assert math.isnan((col("i") / 0).evaluate({"i": 0}))


def test_struct_fields_are_reached_both_ways() -> None:
    rows = [{"m": {"u": "x"}}, {"m": None}]
    expr = col("m")["u"]
    assert [expr.evaluate(row) for row in rows] == ["x", None]
    assert evaluate_batch(expr, pa.RecordBatch.from_pylist(rows)).to_pylist() == ["x", None]
    assert evaluate_batch(col("m")["none"], pa.RecordBatch.from_pylist(rows)).to_pylist() == [None, None]


def test_python_and_or_are_refused() -> None:
    with pytest.raises(ExprError, match="use & "):
        bool(col("a") == 1)


def test_a_filter_must_be_a_truth_value() -> None:
    with pytest.raises(ExprError, match="true or false"):
        filter_batch(pa.RecordBatch.from_pylist([{"i": 1}]), col("i") + 1)


def test_expressions_print_as_they_are_written() -> None:
    expr = (col("a") + 1 > lit(2)) & ~col("t").contains("x")
    assert repr(expr) == "(((col('a') + lit(1)) > lit(2)) & ~col('t').contains('x'))"
    assert referenced_columns(expr) == {"a", "t"}


def test_a_literal_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ExprError, match="64 bits"):
        lit(2**63)
