"""SPDX licence expressions: is there a way to accept one when only some licences are acceptable?

``A OR B`` is acceptable when either is, ``A AND B`` when both are, ``A WITH X`` when that pair or ``A`` alone is (an
exception only grants more). Operators bind as SPDX says: ``WITH`` before ``AND`` before ``OR``. Identifiers compare
without case.

References:
    SPDX specification 2.3, annex D: SPDX licence expressions.
"""

import re
from collections.abc import Callable

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

UNKNOWN_LICENCE = "LicenseRef-unknown"
"""What a source says whose terms nobody has looked up."""

_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")


def is_licence_id(text: str) -> bool:
    """Whether a text is an identifier of the SPDX list, or a ``LicenseRef-…``.

    Example:
        >>> is_licence_id("MIT"), is_licence_id("LicenseRef-acme"), is_licence_id("MTI"), is_licence_id("MIT OR ISC")
        (True, True, False, False)
    """
    try:
        return " " not in text.strip() and bool(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        return False


def accepts(expression: str, acceptable: Callable[[str], bool]) -> bool:
    """Whether an expression can be satisfied with acceptable licences alone.

    Args:
        expression: SPDX expression.
        acceptable: Says whether one licence, or one ``licence WITH exception``, is.
    Returns:
        False also for a text that is not an expression: terms that cannot be read are not accepted.
    Example:
        >>> permissive = {"mit", "apache-2.0"}.__contains__
        >>> [accepts(e, permissive) for e in ("MIT OR ISC", "MIT AND ISC", "(MIT", "Apache-2.0 WITH LLVM-exception")]
        [True, False, False, True]
    """
    tokens = _TOKEN.findall(expression)
    parser = _Parser(tokens, acceptable)
    try:
        result = parser.either()
    except _NotAnExpression:
        return False
    return result and parser.at_end()


class _NotAnExpression(Exception):
    """The text does not parse; stays inside this module."""


class _Parser:
    """Recursive descent over the tokens, computing acceptance as it goes."""

    def __init__(self, tokens: list[str], acceptable: Callable[[str], bool]) -> None:
        self._tokens = tokens
        self._acceptable = acceptable
        self._next = 0

    def at_end(self) -> bool:
        return self._next == len(self._tokens)

    def either(self) -> bool:
        result = self._both()
        while self._takes("OR"):
            result = self._both() or result
        return result

    def _both(self) -> bool:
        result = self._one()
        while self._takes("AND"):
            result = self._one() and result
        return result

    def _one(self) -> bool:
        token = self._take()
        if token == "(":
            result = self.either()
            if self._take() != ")":
                raise _NotAnExpression
            return result
        if token == ")" or token.upper() in ("AND", "OR", "WITH"):
            raise _NotAnExpression
        licence = token.lower()
        if self._takes("WITH"):
            return self._acceptable(f"{licence} with {self._take().lower()}") or self._acceptable(licence)
        return self._acceptable(licence)

    def _take(self) -> str:
        if self.at_end():
            raise _NotAnExpression
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, word: str) -> bool:
        found = not self.at_end() and self._tokens[self._next].upper() == word
        self._next += found
        return found
