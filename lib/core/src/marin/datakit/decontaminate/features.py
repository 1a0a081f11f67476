"""Hashed n-grams of a text. Pure: the index of the suites and the marks of the documents must not disagree.

Text is cut at blank lines; a paragraph of ``n`` or more white-space tokens gives its contiguous n-grams that hold a
letter, a shorter one of at least three tokens gives itself, and a record none of whose paragraphs is long enough gives
its whole token sequence. A feature is the first 8 bytes, big-endian, of the BLAKE2b-512 digest of the tokens joined by
single spaces, so spacing does not matter and case does.

Any change of this module that changes a hash needs another ``marin.datakit.recipe.FEATURE_VERSION``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from marin.datakit.recipe import FeatureRule

PARAGRAPH = "\n\n"
LINE = "\n"


def feature_hash(tokens: Sequence[str]) -> int:
    """The feature of a token sequence.

    Args:
        tokens: White-space tokens.
    Returns:
        An unsigned 64-bit number.
    Example:
        >>> f"{feature_hash(['abc']):016x}"
        'ba80a53f981c4d0d'
    """
    return int.from_bytes(blake2b(" ".join(tokens).encode("utf-8", "surrogatepass")).digest()[:8], "big")


def has_letter(token: str) -> bool:
    """Whether a token holds a letter of any script.

    Example:
        >>> has_letter("3.5e4"), has_letter("...42")
        (True, False)
    """
    return token.isalpha() or any(map(str.isalpha, token))


def ngram_features(tokens: Sequence[str], length: int) -> Iterator[int]:
    """The features of all contiguous n-grams that hold a letter.

    Args:
        tokens: White-space tokens.
        length: Tokens in one n-gram.
    Yields:
        One feature an n-gram, in order; a repeated n-gram repeats.
    Example:
        >>> len(list(ngram_features("1 2 a 3 4 5".split(), 2)))
        2
    """
    last_letter = -1
    for end, token in enumerate(tokens):
        if has_letter(token):
            last_letter = end
        start = end - length + 1
        if 0 <= start <= last_letter:
            yield feature_hash(tokens[start : end + 1])


def paragraph_features(text: str, rule: FeatureRule) -> list[list[int]]:
    """The features of a record, one list for each paragraph that has any.

    Args:
        text: The record.
        rule: Lengths.
    Returns:
        Non-empty lists; no list at all for a text that is too short or holds no letter.
    Example:
        >>> rule = FeatureRule(ngram_length=4)
        >>> [len(part) for part in paragraph_features("one two three four five\\n\\nsix seven eight\\n\\nnine", rule)]
        [2, 1]
        >>> paragraph_features("one\\n\\ntwo\\n\\nthree", rule) == [[feature_hash(["one", "two", "three"])]]
        True
        >>> paragraph_features("1 2 3 4 5", rule)
        []
    """
    found = []
    for paragraph in text.split(LINE if rule.ngram_length is None else PARAGRAPH):
        features = _of_paragraph(paragraph.split(), rule)
        if features:
            found.append(features)
    if not found:
        whole = _exact(text.split(), rule)
        return [whole] if whole else []
    return found


def _of_paragraph(tokens: list[str], rule: FeatureRule) -> list[int]:
    if rule.ngram_length is None or len(tokens) < rule.ngram_length:
        return _exact(tokens, rule)
    return list(ngram_features(tokens, rule.ngram_length))


def _exact(tokens: list[str], rule: FeatureRule) -> list[int]:
    if len(tokens) < rule.min_tokens or not any(map(has_letter, tokens)):
        return []
    return [feature_hash(tokens)]
