"""Whether a filter can be true anywhere in a row group, judged by minimum, maximum and null count.

The answer errs on the side of reading: "may match" is always safe. Only comparisons of a column with a constant, null
tests, and their combinations by & and | are judged.
"""

from dataclasses import dataclass
from typing import Any

from zephyr.expr import Binary, Column, Expr, IsNull, Literal, Logical, Not, kind_of

_SWAP = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


@dataclass(frozen=True)
class ColumnStatistics:
    """What a file says about one column of one row group; None where it says nothing."""

    low: Any
    high: Any
    num_nulls: int | None
    num_rows: int


def may_match(expr: Expr, stats: dict[str, ColumnStatistics], names: frozenset[str]) -> bool:
    """False only when no row of the group can make `expr` true.

    Args:
        expr: The filter.
        stats: Statistics by column; columns without any are absent.
        names: All columns of the file; others are null everywhere.
    Example:
        >>> from zephyr.expr import col
        >>> may_match(col("x") > 5, {"x": ColumnStatistics(0, 3, 0, 10)}, frozenset({"x"}))
        False
    """
    match expr:
        case Logical("&", left, right):
            return may_match(left, stats, names) and may_match(right, stats, names)
        case Logical("|", left, right):
            return may_match(left, stats, names) or may_match(right, stats, names)
        case IsNull(Column(name)):
            return name not in stats or stats[name].num_nulls != 0
        case Not(IsNull(Column(name))):
            return name not in stats or stats[name].num_nulls != stats[name].num_rows
        case Binary(op, Column(name), Literal(value)) if op in _SWAP:
            return _compare(op, name, value, stats, names)
        case Binary(op, Literal(value), Column(name)) if op in _SWAP:
            return _compare(_SWAP[op], name, value, stats, names)
    return True


def _compare(op: str, name: str, value: Any, stats: dict[str, ColumnStatistics], names: frozenset[str]) -> bool:
    if value is None or name not in names:
        return False
    known = stats.get(name)
    if known is None:
        return True
    if known.num_nulls is not None and known.num_nulls == known.num_rows:
        return False
    low, high = known.low, known.high
    # Parquet may cut long strings short in statistics, and NaN is in no order: judge numbers, and short strings only.
    kind = kind_of(value)
    if low is None or kind_of(low) != kind or kind not in ("number", "string"):
        return True
    if kind == "string" and (len(low) >= 32 or len(high) >= 32):
        return True
    match op:
        case "==":
            return low <= value <= high
        case "<":
            return low < value
        case "<=":
            return low <= value
        case ">":
            return high > value
        case ">=":
            return high >= value
    return True
