"""Column expressions: a filter or key that zephyr can look into.

A Python callable is opaque: to run it, rows must become Python objects. An expression is data. The planner reads which
columns it needs, pushes it into the file reader, and evaluates it over whole Arrow columns.

One set of rules holds for rows and for columns (SQL's three values): a missing column is null; comparing with null or
computing with null gives null; `&` and `|` follow Kleene's tables; a filter keeps only true. Numbers compare with
numbers and strings with strings; anything else is an `ExprError`, never a silent false. `/` is float division, and
dividing by zero gives an infinity or NaN as IEEE 754 says.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

from zephyr.errors import ExprError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
ARITHMETIC = ("+", "-", "*", "/")


def kind_of(value: object) -> str:
    """Name the family within which values may be compared: bool, number, string, bytes, or the type's own name."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, bytes):
        return "bytes"
    return type(value).__name__


class Expr(ABC):
    """An expression over the columns of a record; build one with `col` and `lit`.

    Example:
        >>> e = (col("score") > 0.5) & (col("lang") == "en")
        >>> e.evaluate({"score": 0.9, "lang": "en"})
        True
        >>> e.evaluate({"score": None, "lang": "en"}) is None
        True
        >>> sorted(e.columns())
        ['lang', 'score']
    """

    __slots__ = ()

    @abstractmethod
    def columns(self) -> frozenset[str]:
        """Names of the top-level columns that the expression reads."""

    @abstractmethod
    def evaluate(self, row: Mapping[str, Any]) -> Any:
        """Value for one record; null is None.

        Raises:
            ExprError: operands of different kinds, or an integer result beyond 64 bits.
        """

    def _binary(self, op: str, other: object) -> "Expr":
        return Binary(op, self, _lift(other))

    def __eq__(self, other: object) -> "Expr":  # type: ignore[override]
        return self._binary("==", other)

    def __ne__(self, other: object) -> "Expr":  # type: ignore[override]
        return self._binary("!=", other)

    def __lt__(self, other: object) -> "Expr":
        return self._binary("<", other)

    def __le__(self, other: object) -> "Expr":
        return self._binary("<=", other)

    def __gt__(self, other: object) -> "Expr":
        return self._binary(">", other)

    def __ge__(self, other: object) -> "Expr":
        return self._binary(">=", other)

    def __add__(self, other: object) -> "Expr":
        return self._binary("+", other)

    def __radd__(self, other: object) -> "Expr":
        return Binary("+", _lift(other), self)

    def __sub__(self, other: object) -> "Expr":
        return self._binary("-", other)

    def __rsub__(self, other: object) -> "Expr":
        return Binary("-", _lift(other), self)

    def __mul__(self, other: object) -> "Expr":
        return self._binary("*", other)

    def __rmul__(self, other: object) -> "Expr":
        return Binary("*", _lift(other), self)

    def __truediv__(self, other: object) -> "Expr":
        return self._binary("/", other)

    def __rtruediv__(self, other: object) -> "Expr":
        return Binary("/", _lift(other), self)

    def __and__(self, other: object) -> "Expr":
        return Logical("&", self, _lift(other))

    def __or__(self, other: object) -> "Expr":
        return Logical("|", self, _lift(other))

    def __invert__(self) -> "Expr":
        return Not(self)

    def __getitem__(self, field: str) -> "Expr":
        return Field(self, field)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __bool__(self) -> bool:
        raise ExprError(repr(self), "an expression has no truth value of its own; use & | ~ instead of and, or, not")

    def is_null(self) -> "Expr":
        """True where the value is null or the column is missing."""
        return IsNull(self)

    def is_not_null(self) -> "Expr":
        """True where there is a value."""
        return Not(IsNull(self))

    def length(self) -> "Expr":
        """Number of Unicode code points of a string column."""
        return StringFunction("length", self, "")

    def lower(self) -> "Expr":
        """Lower-case copy of a string column."""
        return StringFunction("lower", self, "")

    def contains(self, text: str) -> "Expr":
        """True where a string column contains `text` (a literal, not a pattern)."""
        return StringFunction("contains", self, text)

    def starts_with(self, text: str) -> "Expr":
        """True where a string column starts with `text`."""
        return StringFunction("starts_with", self, text)

    def ends_with(self, text: str) -> "Expr":
        """True where a string column ends with `text`."""
        return StringFunction("ends_with", self, text)

    def is_in(self, values: Collection[Any]) -> "Expr":
        """True where the value equals one of `values`; null stays null."""
        out: Expr = Literal(False)
        for value in values:
            out = Logical("|", out, self._binary("==", value))
        return out


def _lift(value: object) -> Expr:
    return value if isinstance(value, Expr) else lit(value)


@final
@dataclass(frozen=True, eq=False, slots=True)
class Column(Expr):
    """A column by name."""

    name: str

    def columns(self) -> frozenset[str]:
        """The one name."""
        return frozenset((self.name,))

    def evaluate(self, row: Mapping[str, Any]) -> Any:
        """The value under the name, None when missing."""
        return row.get(self.name)

    def __repr__(self) -> str:
        return f"col({self.name!r})"


@final
@dataclass(frozen=True, eq=False, slots=True)
class Literal(Expr):
    """A constant."""

    value: Any

    def columns(self) -> frozenset[str]:
        """A constant reads nothing."""
        return frozenset()

    def evaluate(self, row: Mapping[str, Any]) -> Any:
        """The constant."""
        return self.value

    def __repr__(self) -> str:
        return f"lit({self.value!r})"


@final
@dataclass(frozen=True, eq=False, slots=True)
class Field(Expr):
    """A field of a struct value."""

    operand: Expr
    name: str

    def columns(self) -> frozenset[str]:
        """Columns of the struct expression."""
        return self.operand.columns()

    def evaluate(self, row: Mapping[str, Any]) -> Any:
        """The field, None when the struct is null or has no such field."""
        value = self.operand.evaluate(row)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ExprError(repr(self), f"{type(value).__name__} has no fields")
        return value.get(self.name)

    def __repr__(self) -> str:
        return f"{self.operand!r}[{self.name!r}]"


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _divide(a: float, b: float) -> float:
    try:
        return a / b
    except ZeroDivisionError:
        if a == 0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)


_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: _divide(float(a), float(b)),
}


@final
@dataclass(frozen=True, eq=False, slots=True)
class Binary(Expr):
    """A comparison or an arithmetic operation."""

    op: str
    left: Expr
    right: Expr

    def columns(self) -> frozenset[str]:
        """Columns of both sides."""
        return self.left.columns() | self.right.columns()

    def evaluate(self, row: Mapping[str, Any]) -> Any:
        """The result, None when either side is None."""
        a, b = self.left.evaluate(row), self.right.evaluate(row)
        if a is None or b is None:
            return None
        kind, other = kind_of(a), kind_of(b)
        if kind != other:
            raise ExprError(repr(self), f"left is {kind} and right is {other}")
        if self.op in COMPARISONS:
            return _COMPARE[self.op](a, b)
        if kind != "number":
            raise ExprError(repr(self), f"arithmetic on {kind}")
        out = _COMPUTE[self.op](a, b)
        if isinstance(out, int) and not INT64_MIN <= out <= INT64_MAX:
            raise ExprError(repr(self), "integer overflow beyond 64 bits")
        return out

    def __repr__(self) -> str:
        return f"({self.left!r} {self.op} {self.right!r})"


@final
@dataclass(frozen=True, eq=False, slots=True)
class Logical(Expr):
    """`&` or `|` by Kleene's tables."""

    op: str
    left: Expr
    right: Expr

    def columns(self) -> frozenset[str]:
        """Columns of both sides."""
        return self.left.columns() | self.right.columns()

    def evaluate(self, row: Mapping[str, Any]) -> bool | None:
        """True, False or None; both sides are evaluated, so a type error is never hidden by the other side."""
        a, b = self.left.evaluate(row), self.right.evaluate(row)
        for value in (a, b):
            if value is not None and not isinstance(value, bool):
                raise ExprError(repr(self), f"{kind_of(value)} is not a truth value")
        decisive = self.op == "|"
        if a is decisive or b is decisive:
            return decisive
        return None if a is None or b is None else not decisive

    def __repr__(self) -> str:
        return f"({self.left!r} {self.op} {self.right!r})"


@final
@dataclass(frozen=True, eq=False, slots=True)
class Not(Expr):
    """Logical negation."""

    operand: Expr

    def columns(self) -> frozenset[str]:
        """Columns of the operand."""
        return self.operand.columns()

    def evaluate(self, row: Mapping[str, Any]) -> bool | None:
        """The negation; null stays null."""
        value = self.operand.evaluate(row)
        if value is not None and not isinstance(value, bool):
            raise ExprError(repr(self), f"{kind_of(value)} is not a truth value")
        return None if value is None else not value

    def __repr__(self) -> str:
        return f"~{self.operand!r}"


@final
@dataclass(frozen=True, eq=False, slots=True)
class IsNull(Expr):
    """Whether a value is null."""

    operand: Expr

    def columns(self) -> frozenset[str]:
        """Columns of the operand."""
        return self.operand.columns()

    def evaluate(self, row: Mapping[str, Any]) -> bool:
        """True or False, never None."""
        return self.operand.evaluate(row) is None

    def __repr__(self) -> str:
        return f"{self.operand!r}.is_null()"


_STRING: dict[str, Callable[[str, str], Any]] = {
    "length": lambda s, _: len(s),
    "lower": lambda s, _: s.lower(),
    "contains": lambda s, t: t in s,
    "starts_with": lambda s, t: s.startswith(t),
    "ends_with": lambda s, t: s.endswith(t),
}


@final
@dataclass(frozen=True, eq=False, slots=True)
class StringFunction(Expr):
    """A function of one string column, with at most one literal argument."""

    name: str
    operand: Expr
    argument: str

    def columns(self) -> frozenset[str]:
        """Columns of the operand."""
        return self.operand.columns()

    def evaluate(self, row: Mapping[str, Any]) -> Any:
        """The result; null stays null."""
        value = self.operand.evaluate(row)
        if value is None:
            return None
        if not isinstance(value, str):
            raise ExprError(repr(self), f"{kind_of(value)} is not a string")
        return _STRING[self.name](value, self.argument)

    def __repr__(self) -> str:
        argument = repr(self.argument) if self.argument else ""
        return f"{self.operand!r}.{self.name}({argument})"


def col(name: str) -> Expr:
    """Refer to a column.

    Args:
        name: Top-level column name; use `col("meta")["url"]` for a struct field.
    Example:
        >>> col("meta")["url"].evaluate({"meta": {"url": "x"}})
        'x'
    """
    return Column(name)


def lit(value: Any) -> Expr:
    """Make a constant (None, bool, int, float, str, bytes, date or datetime).

    Raises:
        ExprError: an integer beyond 64 bits.
    Example:
        >>> (lit(1) + 2).evaluate({})
        3
    """
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise ExprError(f"lit({value})", "integer beyond 64 bits")
    return Literal(value)


def referenced_columns(expr: Expr) -> frozenset[str]:
    """Names of the columns that `expr` reads (same as `expr.columns()`).

    Example:
        >>> sorted(referenced_columns(col("a") + col("b")))
        ['a', 'b']
    """
    return expr.columns()
