"""The string language shared by rearrange and einsum.

    expr   := side "->" side
    side   := "{" item* "}" | item*              braces match by name; commas inside them are white space
    item   := "..." | ident | group
    group  := "(" [ident ":"] ident+ ")"
    ident  := [A-Za-z_][A-Za-z0-9_]* | quoted string

Parsing is cached by the callers' plans, so clarity wins over speed here.
"""

import dataclasses
import functools
from types import EllipsisType

from haliax.errors import ExpressionError


@dataclasses.dataclass(frozen=True)
class AxisCapture:
    """One item: a name, or a group ``(binding: axes)``.

    Attributes:
        binding: The name itself, or the group's name (None when it has none).
        axes: The names inside a group; for a plain name that name.
        is_group: Whether it was written in parentheses.
        span: Character range in the source.
    """

    binding: str | None
    axes: tuple[str, ...]
    is_group: bool
    span: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class EllipsisCapture:
    """A ``...``."""

    span: tuple[int, int]


Capture = AxisCapture | EllipsisCapture


@dataclasses.dataclass(frozen=True)
class Expression:
    """One side, or one operand's term.

    Attributes:
        captures: The items in order.
        is_ordered: False for a side in braces.
    """

    captures: tuple[Capture, ...]
    is_ordered: bool

    @property
    def has_ellipsis(self) -> bool:
        """Whether there is a ``...``."""
        return any(isinstance(c, EllipsisCapture) for c in self.captures)


@dataclasses.dataclass(frozen=True)
class _Token:
    kind: str  # one of: name { } ( ) : , ... ->
    text: str
    span: tuple[int, int]


def _tokens(text: str) -> list[_Token]:
    out: list[_Token] = []
    i = 0
    while i < len(text):
        c = text[i]
        if c.isspace():
            i += 1
        elif text.startswith("...", i):
            out.append(_Token("...", "...", (i, i + 3)))
            i += 3
        elif text.startswith("->", i):
            out.append(_Token("->", "->", (i, i + 2)))
            i += 2
        elif c in "{}():,":
            out.append(_Token(c, c, (i, i + 1)))
            i += 1
        elif c in "'\"":
            value, end = _quoted(text, i)
            out.append(_Token("name", value, (i, end)))
            i = end
        elif c.isalpha() or c == "_":
            end = i + 1
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            out.append(_Token("name", text[i:end], (i, end)))
            i = end
        else:
            raise ExpressionError(f"Unexpected character {c!r}", text, (i, i + 1))
    return out


def _quoted(text: str, start: int) -> tuple[str, int]:
    quote, i, value = text[start], start + 1, ""
    while i < len(text) and text[i] != quote:
        if text[i] == "\\":
            i += 1
        if i < len(text):
            value += text[i]
        i += 1
    if i >= len(text):
        raise ExpressionError("Unexpected end of string", text, (start, len(text)))
    if not value:
        raise ExpressionError("Identifier expected: the quoted name is empty", text, (start, i + 1))
    return value, i + 1


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.pos = 0

    def peek(self) -> _Token | None:
        return self.tokens[self.pos] if self.pos < len(self.tokens) else None

    def next(self, *kinds: str) -> _Token:
        token = self.peek()
        if token is None:
            end = len(self.text)
            raise ExpressionError(f"Unexpected end of string; expected {' or '.join(kinds)}", self.text, (end, end + 1))
        if kinds and token.kind not in kinds:
            what = "Identifier expected" if kinds == ("name",) else f"Expected {' or '.join(kinds)}"
            raise ExpressionError(f"{what}, found {token.text!r}", self.text, token.span)
        self.pos += 1
        return token

    def side(self, stop: tuple[str, ...], allow_groups: bool = True) -> Expression:
        token = self.peek()
        if token is not None and token.kind == "{":
            self.pos += 1
            captures = self.items(("}",), allow_groups, skip_commas=True)
            if self.peek() is None:
                end = len(self.text)
                raise ExpressionError("Expected } (Unexpected end of string)", self.text, (end, end + 1))
            self.next("}")
            rest = self.peek()
            if rest is not None and rest.kind not in stop:
                raise ExpressionError(f"Unexpected character {rest.text!r} after }}", self.text, rest.span)
            return Expression(captures, False)
        return Expression(self.items(stop, allow_groups), True)

    def items(self, stop: tuple[str, ...], allow_groups: bool, skip_commas: bool = False) -> tuple[Capture, ...]:
        out: list[Capture] = []
        while (token := self.peek()) is not None and token.kind not in stop:
            if token.kind == "...":
                out.append(EllipsisCapture(token.span))
                self.pos += 1
            elif token.kind == "name":
                out.append(AxisCapture(token.text, (token.text,), False, token.span))
                self.pos += 1
            elif token.kind == "(" and allow_groups:
                out.append(self.group())
            elif token.kind == "(":
                raise ExpressionError("Parenthesised groups are unsupported in einsum", self.text, token.span)
            elif token.kind == "," and skip_commas:
                self.pos += 1
            elif token.kind == "->" and stop == ("}",):
                raise ExpressionError("Expected } before ->", self.text, token.span)
            elif token.kind == "}":
                raise ExpressionError("Unexpected }", self.text, token.span)
            else:
                raise ExpressionError(f"Unexpected character {token.text!r}", self.text, token.span)
        return tuple(out)

    def group(self) -> AxisCapture:
        start = self.next("(").span[0]
        names: list[str] = []
        binding: str | None = None
        while True:
            token = self.peek()
            if token is None:
                raise ExpressionError("Unexpected end of string; expected )", self.text, (start, len(self.text)))
            if token.kind == ")":
                self.pos += 1
                if not names:
                    raise ExpressionError("Identifier expected: the group is empty", self.text, (start, token.span[1]))
                return AxisCapture(binding, tuple(names), True, (start, token.span[1]))
            if token.kind == ":" and len(names) == 1 and binding is None:
                binding, names = names[0], []
                self.pos += 1
            elif token.kind == ",":
                self.pos += 1
            else:
                names.append(self.next("name").text)


@functools.lru_cache(maxsize=1024)
def parse_rearrangement(expression: str) -> tuple[Expression, Expression]:
    """Parse ``"lhs -> rhs"``.

    Raises:
        ExpressionError: It does not follow the grammar; the message marks the place.
    """
    parser = _Parser(expression)
    lhs = parser.side(("->",))
    parser.next("->")
    rhs = parser.side(())
    return lhs, rhs


@functools.lru_cache(maxsize=1024)
def parse_einsum(expression: str) -> tuple[tuple[Expression, ...], Expression]:
    """Parse ``"a b, b c -> a c"``, ``"{a b} -> a"`` or ``"-> a"`` (no terms on the left).

    Raises:
        ExpressionError: It does not follow the grammar; the message marks the place.
    """
    parser = _Parser(expression)
    terms: list[Expression] = []
    first = parser.peek()
    if first is not None and first.kind != "->":
        terms.append(parser.side(("->", ","), allow_groups=False))
        while (token := parser.peek()) is not None and token.kind == ",":
            parser.pos += 1
            terms.append(parser.side(("->", ","), allow_groups=False))
    parser.next("->")
    rhs = parser.side((), allow_groups=False)
    return tuple(terms), rhs


def ellipses(captures: tuple[Capture, ...]) -> list[Capture | EllipsisType]:
    """Return the captures with ``...`` in the place of ellipses."""
    return [... if isinstance(c, EllipsisCapture) else c for c in captures]
