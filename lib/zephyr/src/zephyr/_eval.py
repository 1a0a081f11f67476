"""Expressions over Arrow columns, by the same rules as `Expr.evaluate` has for one record."""

from typing import Any

import numpy as np
import pyarrow as pa

from zephyr._arrow import pc
from zephyr.errors import ExprError
from zephyr.expr import (
    COMPARISONS,
    Binary,
    Column,
    Expr,
    Field,
    IsNull,
    Literal,
    Logical,
    Not,
    StringFunction,
)

_COMPARE = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_COMPUTE = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


def evaluate_batch(expr: Expr, batch: pa.RecordBatch) -> pa.Array:
    """Evaluate `expr` over all rows of `batch`.

    Args:
        expr: The expression.
        batch: Any record batch; columns that it lacks are null.
    Returns:
        One value per row.
    Raises:
        ExprError: operands of different kinds, or integer overflow.
    """
    out = _evaluate(expr, batch)
    if isinstance(out, pa.Scalar):
        return pa.repeat(out, batch.num_rows)
    return out


def batch_mask(batch: pa.RecordBatch, predicate: Expr) -> pa.Array:
    """Whether `predicate` is true, by row; null is not.

    Raises:
        ExprError: the expression is no truth value.
    """
    mask = evaluate_batch(predicate, batch)
    if pa.types.is_null(mask.type):
        return pa.repeat(pa.scalar(False), batch.num_rows)
    if not pa.types.is_boolean(mask.type):
        raise ExprError(repr(predicate), f"a filter must be true or false, this is {mask.type}")
    return pc.fill_null(mask, False) if mask.null_count else mask


def filter_batch(batch: pa.RecordBatch, predicate: Expr) -> pa.RecordBatch:
    """Keep the rows where `predicate` is true (null drops the row)."""
    return batch.filter(batch_mask(batch, predicate))


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return str(kind)


def _evaluate(expr: Expr, batch: pa.RecordBatch) -> Any:
    match expr:
        case Column(name):
            index = batch.schema.get_field_index(name)
            return batch.column(index) if index >= 0 else pa.nulls(batch.num_rows)
        case Literal(value):
            return pa.scalar(value)
        case Field(operand, name):
            return _field(expr, _evaluate(operand, batch), name)
        case IsNull(operand):
            return pc.is_null(_evaluate(operand, batch))
        case Not(operand):
            return pc.invert(_truth(expr, _evaluate(operand, batch)))
        case Logical(op, left, right):
            a, b = _truth(expr, _evaluate(left, batch)), _truth(expr, _evaluate(right, batch))
            return pc.and_kleene(a, b) if op == "&" else pc.or_kleene(a, b)
        case StringFunction(name, operand, argument):
            return _string(expr, name, _evaluate(operand, batch), argument)
        case Binary():
            return _binary(expr, batch)
    raise ExprError(repr(expr), "unknown expression node")


def _truth(expr: Expr, value: Any) -> Any:
    if pa.types.is_null(value.type):
        return value.cast(pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise ExprError(repr(expr), f"{_kind(value.type)} is not a truth value")
    return value


def _field(expr: Expr, value: Any, name: str) -> Any:
    if pa.types.is_null(value.type):
        return value
    if not pa.types.is_struct(value.type):
        raise ExprError(repr(expr), f"{value.type} has no fields")
    if value.type.get_field_index(name) < 0:
        return pa.nulls(len(value))
    return pc.struct_field(value, name)


def _string(expr: Expr, name: str, value: Any, argument: str) -> Any:
    if pa.types.is_null(value.type):
        value = value.cast(pa.string())
    if _kind(value.type) != "string":
        raise ExprError(repr(expr), f"{_kind(value.type)} is not a string")
    match name:
        case "length":
            return pc.utf8_length(value).cast(pa.int64())
        case "lower":
            # Python's lower() handles final sigma and dotted I, Arrow's does not: one rule for rows and columns.
            if isinstance(value, pa.Scalar):
                text = value.as_py()
                return pa.scalar(None if text is None else text.lower(), pa.string())
            return pa.array([None if s is None else s.lower() for s in value.to_pylist()], pa.string())
        case "contains":
            return pc.match_substring(value, argument)
        case "starts_with":
            return pc.starts_with(value, argument)
        case "ends_with":
            return pc.ends_with(value, argument)
    raise ExprError(repr(expr), f"unknown string function {name}")


def _number(value: Any) -> Any:
    """Widen to int64 or float64, the two number types that records have."""
    kind = value.type
    if pa.types.is_floating(kind):
        return value if kind == pa.float64() else value.cast(pa.float64())
    return value if kind == pa.int64() else value.cast(pa.int64())


def _binary(expr: Binary, batch: pa.RecordBatch) -> Any:
    a, b = _evaluate(expr.left, batch), _evaluate(expr.right, batch)
    comparing = expr.op in COMPARISONS
    if pa.types.is_null(a.type) or pa.types.is_null(b.type):
        size = len(a) if isinstance(a, pa.Array) else len(b) if isinstance(b, pa.Array) else batch.num_rows
        return pa.nulls(size, pa.bool_() if comparing else pa.null())
    left, right = _kind(a.type), _kind(b.type)
    if left != right:
        _mixed(expr, a, b, left, right)
        return pa.nulls(batch.num_rows, pa.bool_() if comparing else pa.null())
    try:
        if comparing:
            return _COMPARE[expr.op](a, b)
        if left != "number":
            raise ExprError(repr(expr), f"arithmetic on {left}")
        a, b = _number(a), _number(b)
        if expr.op == "/":
            with np.errstate(all="ignore"):
                return pc.divide(a.cast(pa.float64(), safe=False), b.cast(pa.float64(), safe=False))
        return _COMPUTE[expr.op](a, b)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = "integer overflow beyond 64 bits" if "overflow" in str(error) else str(error)
        raise ExprError(repr(expr), reason) from error


def _mixed(expr: Binary, a: Any, b: Any, left: str, right: str) -> None:
    """Different kinds are an error as soon as one row has both values; rows with a null on a side are just null."""
    both = pc.and_(pc.is_valid(a), pc.is_valid(b))
    met = both.as_py() if isinstance(both, pa.Scalar) else pc.any(both).as_py()
    if met:
        raise ExprError(repr(expr), f"left is {left} and right is {right}")
