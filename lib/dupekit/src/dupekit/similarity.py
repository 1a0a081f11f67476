"""What signatures say about documents: the estimate, its error, and the chance that LSH finds a pair.

References:
    A. Broder, *On the resemblance and containment of documents*, 1997. Leskovec, Rajaraman, Ullman, *Mining of Massive
    Datasets*, sections 3.3 and 3.4.
"""

import math
from collections.abc import Sequence

from dupekit.errors import ParameterError


def estimate_jaccard(a: Sequence[int], b: Sequence[int]) -> float:
    """Estimate the Jaccard similarity of two documents from their signatures: the share of equal slots.

    Args:
        a: A signature.
        b: A signature made with the same parameters.

    Raises:
        ParameterError: When the signatures are empty or differ in length.

    Example:
        >>> estimate_jaccard([1, 2, 3, 4], [1, 2, 9, 4])
        0.75
    """
    if not a or len(a) != len(b):
        raise ParameterError(name="b", value=f"{len(b)} slots", expected=f"a signature of {len(a)} slots, at least 1")
    return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def jaccard_standard_error(jaccard: float, num_perms: int) -> float:
    """The standard error of `estimate_jaccard`: `sqrt(J (1 - J) / num_perms)`.

    Args:
        jaccard: True similarity, 0 to 1.
        num_perms: Slots in a signature.

    Raises:
        ParameterError: When an argument is out of range.

    Example:
        >>> round(jaccard_standard_error(0.8, 256), 4)
        0.025
    """
    _check(jaccard, num_perms)
    return math.sqrt(jaccard * (1 - jaccard) / num_perms)


def lsh_match_probability(jaccard: float, *, num_perms: int, num_bands: int) -> float:
    """The chance that two documents share at least one bucket: `1 - (1 - J^r)^b` with `r = num_perms / num_bands`.

    Args:
        jaccard: True similarity, 0 to 1.
        num_perms: Slots in a signature.
        num_bands: Bands; must divide `num_perms`.

    Raises:
        ParameterError: When an argument is out of range.

    Example:
        >>> [round(lsh_match_probability(j, num_perms=286, num_bands=26), 3) for j in (0.5, 0.75, 0.9)]
        [0.013, 0.674, 1.0]
    """
    _check(jaccard, num_perms)
    if num_bands < 1 or num_perms % num_bands:
        raise ParameterError(name="num_bands", value=str(num_bands), expected=f"a positive divisor of {num_perms}")
    return 1 - (1 - jaccard ** (num_perms // num_bands)) ** num_bands


def _check(jaccard: float, num_perms: int) -> None:
    if not 0 <= jaccard <= 1:
        raise ParameterError(name="jaccard", value=str(jaccard), expected="0 to 1")
    if num_perms < 1:
        raise ParameterError(name="num_perms", value=str(num_perms), expected="at least 1")
