"""Pseudo-random permutations of ``0 .. N-1`` that are evaluated at single points, without a table.

Shuffling by table costs 8 bytes an item and a start-up pass; a permutation given by a formula costs neither, which is
what makes the data stream a pure function of the index. Two kinds:

*Feistel* (default): five rounds on the two halves of the index (Luby & Rackoff 1988), on the smallest power of four
that covers N, walked until the image falls below N (cycle walking: Black & Rogaway 2002, section 4).

*Linear*: ``(a·x + b) mod N``. Kept for streams that were made with it; it preserves so much local structure that sorted
corpora stay visibly sorted, so nothing chooses it by itself.

Both evaluate whole arrays; one index costs microseconds, in an array tens of nanoseconds.
"""

import math
from typing import Protocol, TypeVar, overload

import jax
import numpy as np

from levanter.data._keys import seed_from_key
from levanter.data.errors import DatasetIndexError, PermutationError

FEISTEL_ROUNDS = 5
FEISTEL_MULTIPLIER = np.uint64(2654435761)
MAX_WALK = 1000
MAX_LINEAR_LENGTH = 2**48

_Indices = TypeVar("_Indices", int, np.ndarray)


class Permutation(Protocol):
    """A bijection of ``0 .. length-1``."""

    length: int

    @overload
    def __call__(self, indices: int) -> int: ...
    @overload
    def __call__(self, indices: np.ndarray) -> np.ndarray: ...


def make_permutation(kind: str, length: int, key: jax.Array) -> "FeistelPermutation | LcgPermutation":
    """A permutation of the given kind, seeded by a JAX key.

    Args:
        kind: ``"feistel"`` or ``"linear"``.
        length: How many items, ``>= 1``.
        key: JAX PRNG key; 30 bits of it are used.
    Raises:
        PermutationError: Unknown kind, or an impossible length.
    """
    if kind == "feistel":
        return FeistelPermutation(length, seed_from_key(key))
    if kind == "linear":
        return LcgPermutation(length, seed_from_key(key))
    raise PermutationError(kind, length, "perm_type 'feistel' or 'linear'")


def _checked(indices: int | np.ndarray, length: int) -> np.ndarray:
    array = np.asarray(indices).reshape(-1)
    if array.size and (array.min() < 0 or array.max() >= length):
        worst = int(array.min()) if array.min() < 0 else int(array.max())
        raise DatasetIndexError("permutation", worst, length)
    return array.astype(np.uint64)


class FeistelPermutation:
    """Five-round Feistel network with cycle walking.

    With ``bits = bitlength(N-1)``, ``rb = bits - bits//2`` and ``mask = 2^rb - 1``, one round maps ``(L, R)`` to
    ``(R, L xor ((R·2654435761 + k) & mask))``; input halves are ``x >> rb`` and ``x & mask``, output ``(L << rb) | R``.
    Round keys are uniform below ``2^rb`` from PCG64(seed).

    Args:
        length: How many items, ``>= 1``.
        seed: Any non-negative integer.
    Raises:
        PermutationError: ``length`` is below 1.
    Example:
        >>> permutation = FeistelPermutation(10, seed=0)
        >>> sorted(permutation(np.arange(10)).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

    References:
        Luby & Rackoff, SIAM J. Comput. 17(2), 1988. Black & Rogaway, CT-RSA 2002.
    """

    def __init__(self, length: int, seed: int) -> None:
        if length < 1:
            raise PermutationError("feistel", length, "length >= 1")
        self.length = length
        bits = (length - 1).bit_length()
        self._right_bits = np.uint64(bits - bits // 2)
        self._mask = np.uint64((1 << int(self._right_bits)) - 1)
        generator = np.random.Generator(np.random.PCG64(seed))
        self.round_keys = generator.integers(0, 1 << int(self._right_bits), size=FEISTEL_ROUNDS, dtype=np.uint64)

    @overload
    def __call__(self, indices: int) -> int: ...
    @overload
    def __call__(self, indices: np.ndarray) -> np.ndarray: ...
    def __call__(self, indices: int | np.ndarray) -> int | np.ndarray:
        """Images of one index (an ``int``) or of an array (int64, same shape).

        Raises:
            DatasetIndexError: An index is outside ``0 .. length-1``.
        """
        values = _checked(indices, self.length)
        if self.length > 1:
            values = self._walk(values)
        if isinstance(indices, np.ndarray):
            return values.astype(np.int64).reshape(indices.shape)
        return int(values[0])

    def _walk(self, values: np.ndarray) -> np.ndarray:
        out = self._network(values)
        outside = np.flatnonzero(out >= self.length)
        for _ in range(MAX_WALK):
            if outside.size == 0:
                return out
            moved = self._network(out[outside])
            out[outside] = moved
            outside = outside[moved >= self.length]
        raise RuntimeError(f"cycle walk did not end: length={self.length}, steps={MAX_WALK}. This is a bug; report it.")

    def _network(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._right_bits, values & self._mask
        for key in self.round_keys:
            left, right = right, left ^ ((right * FEISTEL_MULTIPLIER + key) & self._mask)
        return (left << self._right_bits) | right


class LcgPermutation:
    """``(a·x + b) mod N`` with ``gcd(a, N) = 1``, in exact integer arithmetic for every ``N <= 2^48``.

    Args:
        length: How many items, ``1 <= length <= 2**48``.
        seed: Any non-negative integer.
    Raises:
        PermutationError: ``length`` is out of range.
    """

    def __init__(self, length: int, seed: int) -> None:
        if not 1 <= length <= MAX_LINEAR_LENGTH:
            raise PermutationError("linear", length, f"1 <= length <= {MAX_LINEAR_LENGTH}")
        self.length = length
        self.a, self.b = 1, 0
        if length > 1:
            generator = np.random.Generator(np.random.PCG64(seed))
            self.a = int(generator.integers(1, length))
            while math.gcd(self.a, length) != 1:
                self.a = int(generator.integers(1, length))
            self.b = int(generator.integers(0, length))

    @overload
    def __call__(self, indices: int) -> int: ...
    @overload
    def __call__(self, indices: np.ndarray) -> np.ndarray: ...
    def __call__(self, indices: int | np.ndarray) -> int | np.ndarray:
        """Images of one index (an ``int``) or of an array (int64, same shape).

        Raises:
            DatasetIndexError: An index is outside ``0 .. length-1``.
        """
        values = _checked(indices, self.length)
        modulus = np.uint64(self.length)
        total = np.zeros_like(values)
        # Horner over 16-bit limbs of `a`: every product stays below 2^64 while N <= 2^48.
        for shift in (32, 16, 0):
            limb = np.uint64((self.a >> shift) & 0xFFFF)
            total = ((total << np.uint64(16)) % modulus + (values * limb) % modulus) % modulus
        total = (total + np.uint64(self.b)) % modulus
        if isinstance(indices, np.ndarray):
            return total.astype(np.int64).reshape(indices.shape)
        return int(total[0])
