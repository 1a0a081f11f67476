"""What can go wrong with named axes, as a tree of exceptions.

The message of every error shows the axes (names and sizes) of all operands and a remedy, and never the data of an
array: a traced or a 40 GB array prints as briefly as a scalar.

    HaliaxError
    ├── AxisError (ValueError)               something is wrong with names or sizes of axes
    │   ├── AxisNotFoundError                an axis was asked for that the array does not have
    │   ├── AxisSizeMismatchError (RuntimeError)   one name, two sizes
    │   ├── AxisCollisionError               a name would occur twice in one array
    │   ├── BroadcastError                   neither operand's axes contain the other's
    │   └── AxisSpecError                    the axes argument itself is malformed
    ├── ArrayTypeError (TypeError)           the argument is no array, or the wrong kind of array
    ├── ExpressionError (ValueError)         an einsum or rearrange string does not parse or bind
    ├── ShardingError (ValueError)           names, mesh and mapping do not fit together
    ├── BackendError (NotImplementedError)   an implementation was asked for that this machine does not have
    ├── ScanError (ValueError)               an argument of scan, fold, map or vmap cannot be mapped
    ├── StateDictError (ValueError)          a state dict cannot be written or read
    │   └── StateDictKeyError (KeyError)     a key that the module needs is not in the state dict
    └── ModuleProblems (ValueError)          `haliax.debug` found defects in a module
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class HaliaxError(Exception):
    """Base of every error raised by haliax."""


def format_axes(names: Sequence[str], sizes: Sequence[int | None] | None = None) -> str:
    """Render axes as ``{Batch: 4, Embed: 8}``; a missing size prints as the bare name.

    Example:
        >>> format_axes(("Batch", "Embed"), (4, None))
        '{Batch: 4, Embed}'
    """
    if sizes is None:
        sizes = [None] * len(names)
    return "{" + ", ".join(n if s is None else f"{n}: {s}" for n, s in zip(names, sizes, strict=True)) + "}"


def _as_pairs(axes: Any) -> list[tuple[str, int | None]]:
    if isinstance(axes, Mapping):
        return [(str(k), v) for k, v in axes.items()]
    if isinstance(axes, str):
        return [(axes, None)]
    if hasattr(axes, "name") and hasattr(axes, "size"):
        return [(axes.name, axes.size)]
    return [(a, None) if isinstance(a, str) else (a.name, a.size) for a in axes if a is not Ellipsis]


def show(axes: Any) -> str:
    """Render any axes argument (Axis, str, sequence, mapping) for a message.

    Example:
        >>> show({"batch": 2, "embed": None})
        '{batch: 2, embed}'
    """
    pairs = _as_pairs(axes)
    return format_axes([p[0] for p in pairs], [p[1] for p in pairs])


def suggest(name: str, candidates: Iterable[str]) -> str:
    """Return ``" Did you mean 'embed'?"`` when a candidate is close to ``name``, else an empty string.

    Example:
        >>> suggest("embd", ["batch", "embed"])
        " Did you mean 'embed'?"
    """
    candidates = list(candidates)
    folded = {c.casefold(): c for c in candidates}
    hit = folded.get(name.casefold())
    if hit is None:
        close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
        hit = close[0] if close else None
    return f" Did you mean {hit!r}?" if hit is not None else ""


def axes_table(operands: Sequence[tuple[str, Any]]) -> str:
    """Align the axes of several operands in columns, one row per operand and one column per name.

    Example:
        >>> print(axes_table([("left", {"B": 2, "E": 4}), ("right", {"E": 5})]))
          left   B: 2  E: 4
          right  -     E: 5  <- differs
    """
    rows = [(label, dict(_as_pairs(axes))) for label, axes in operands]
    names: list[str] = []
    for _, row in rows:
        names.extend(n for n in row if n not in names)
    cells = [[("-" if n not in row else n if row[n] is None else f"{n}: {row[n]}") for n in names] for _, row in rows]
    widths = [max(len(c[i]) for c in cells) for i in range(len(names))]
    label_width = max(len(label) for label, _ in rows)
    first: dict[str, int] = {}
    lines = []
    for (label, row), cell in zip(rows, cells, strict=True):
        text = "  ".join(c.ljust(w) for c, w in zip(cell, widths, strict=True))
        clash = any(n in first and s is not None and first[n] != s for n, s in row.items())
        for n, s in row.items():
            if s is not None:
                first.setdefault(n, s)
        lines.append(f"  {label.ljust(label_width)}  {text.rstrip()}" + ("  <- differs" if clash else ""))
    return "\n".join(lines)


class AxisError(HaliaxError, ValueError):
    """Names or sizes of axes do not fit the operation."""


class AxisNotFoundError(AxisError):
    """An axis was named that the array does not have.

    Attributes:
        operation: What was attempted.
        missing: The absent names.
        available: The axes that exist (any axes argument).

    Example:
        >>> print(AxisNotFoundError("sum", ["embd"], {"batch": 2, "embed": 3}))
        sum: axis 'embd' not found; expected one of {batch: 2, embed: 3}. Did you mean 'embed'?
    """

    def __init__(self, operation: str, missing: Sequence[str], available: Any) -> None:
        self.operation = operation
        self.missing = tuple(missing)
        self.available = available
        known = [p[0] for p in _as_pairs(available)]
        hint = "".join(suggest(m, known) for m in self.missing)
        which = ", ".join(repr(m) for m in self.missing)
        super().__init__(f"{operation}: axis {which} not found; expected one of {show(available)}.{hint}")


class AxisSizeMismatchError(AxisError, RuntimeError):
    """One axis name was used with two sizes.

    Attributes:
        operation: What was attempted.
        operands: Pairs of label and axes, in the order shown.

    Example:
        >>> print(AxisSizeMismatchError("add", [("left", {"a": 2}), ("right", {"a": 3})]))
        add: axis sizes differ:
          left   a: 2
          right  a: 3  <- differs
        Rename one of the axes, or slice or pad it to the other's size.
    """

    def __init__(self, operation: str, operands: Sequence[tuple[str, Any]], remedy: str = "") -> None:
        self.operation = operation
        self.operands = tuple(operands)
        remedy = remedy or "Rename one of the axes, or slice or pad it to the other's size."
        super().__init__(f"{operation}: axis sizes differ:\n{axes_table(self.operands)}\n{remedy}")


class AxisCollisionError(AxisError):
    """A name would occur twice among the axes of one array.

    Attributes:
        operation: What was attempted.
        names: The names that collide.
        axes: The axes in question.

    Example:
        >>> print(str(AxisCollisionError("rename", ["a"], ("a", "a"))).partition(". ")[0])
        rename: axes must be unique, but 'a' is specified twice (axes overlap) in {a, a}
    """

    def __init__(self, operation: str, names: Sequence[str], axes: Any) -> None:
        self.operation = operation
        self.names = tuple(names)
        self.axes = axes
        which = ", ".join(repr(n) for n in self.names)
        super().__init__(
            f"{operation}: axes must be unique, but {which} is specified twice (axes overlap) in {show(axes)}. "
            "Rename one of them, for example with rename({old: new}) or Axis.alias(new)."
        )


class BroadcastError(AxisError):
    """Neither operand's axes contain the other's, so there is no order both agree on.

    Attributes:
        operation: What was attempted.
        operands: Pairs of label and axes, in the order shown.

    Example:
        >>> print(BroadcastError("add", [("left", {"a": 2}), ("right", {"b": 3})]))
        add: cannot broadcast, no subset relationship between the axes:
          left   a: 2  -
          right  -     b: 3
        Only left has a; only right has b. Say which one to widen: left.broadcast_axis(b).
    """

    def __init__(self, operation: str, operands: Sequence[tuple[str, Any]]) -> None:
        self.operation = operation
        self.operands = tuple(operands)
        remedy = ""
        if len(self.operands) == 2:
            (left, la), (right, ra) = self.operands
            ln, rn = [p[0] for p in _as_pairs(la)], [p[0] for p in _as_pairs(ra)]
            only_left, only_right = [n for n in ln if n not in rn], [n for n in rn if n not in ln]
            remedy = (
                f"\nOnly {left} has {', '.join(only_left)}; only {right} has {', '.join(only_right)}. "
                f"Say which one to widen: {left}.broadcast_axis({' , '.join(only_right)})."
            )
        super().__init__(
            f"{operation}: cannot broadcast, no subset relationship between the axes:\n"
            f"{axes_table(self.operands)}{remedy}"
        )


class AxisSpecError(AxisError):
    """The axes argument itself is malformed (wrong rank, negative size, not a permutation, ...)."""


class ArrayTypeError(HaliaxError, TypeError):
    """An argument is no array, or the wrong kind of array."""


class ExpressionError(HaliaxError, ValueError):
    """A rearrange or einsum string does not parse or does not bind to its operands.

    Attributes:
        expression: The whole string.
        reason: What is wrong with it.
        span: Character range of the culprit, or None.

    Example:
        >>> print(ExpressionError("Unexpected character '$'", "a $ -> a", (2, 3)))
        Unexpected character '$'
          a $ -> a
            ^
    """

    def __init__(self, reason: str, expression: str, span: tuple[int, int] | None = None) -> None:
        self.expression = expression
        self.reason = reason
        self.span = span
        text = f"{reason}\n  {expression}"
        if span is not None:
            start, stop = span
            text += "\n  " + " " * start + "^" * max(1, stop - start)
        super().__init__(text)


class ShardingError(HaliaxError, ValueError):
    """Axis names, mesh and axis mapping do not fit together."""


class BackendError(HaliaxError, NotImplementedError):
    """An implementation was asked for by name that this package does not have for the present backend."""


class ScanError(HaliaxError, ValueError):
    """An argument of scan, fold, map or vmap cannot be mapped over the axis."""


class StateDictError(HaliaxError, ValueError):
    """A state dict cannot be written or read."""


class StateDictKeyError(StateDictError, KeyError):
    """A key that the module needs is not in the state dict.

    Attributes:
        key: The missing key.
        available: Keys that exist.

    Example:
        >>> "Did you mean 'h.weight'?" in str(StateDictKeyError("h.wieght", ["h.weight", "h.bias"]))
        True
    """

    def __init__(self, key: str, available: Iterable[str]) -> None:
        self.key = key
        self.available = tuple(available)
        self._text = (
            f"load from state dict: key {key!r} not found among {len(self.available)} keys."
            f"{suggest(key, self.available)} Check the prefix and the key map of the module."
        )
        super().__init__(self._text)

    def __str__(self) -> str:
        return self._text


class ModuleProblems(HaliaxError, ValueError):
    """Defects found in a module by `haliax.debug.diagnose_common_issues`.

    Attributes:
        reused_arrays: Pairs of shape text and the paths at which one array object occurs.
        static_arrays: Paths of static fields that hold arrays.
    """

    def __init__(self, reused_arrays: Sequence[tuple[str, Sequence[str]]], static_arrays: Sequence[str]) -> None:
        self.reused_arrays = tuple(reused_arrays)
        self.static_arrays = tuple(static_arrays)
        lines = ["module check failed:"]
        lines += [
            f"  one array ({what}) occurs at {', '.join(paths)}; optimisers will update it twice. "
            "Share the module through a single field instead."
            for what, paths in self.reused_arrays
        ]
        lines += [
            f"  static field {path} holds an array; it is invisible to grad and jit. Drop static=True."
            for path in self.static_arrays
        ]
        super().__init__("\n".join(lines))
