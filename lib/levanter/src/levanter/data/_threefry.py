"""JAX's default random generator, threefry-2x32, in numpy.

The data path needs a handful of random numbers a block: a seed, a sub-key, an order. Through JAX each shape costs a
compilation of tenths of a second before the first batch, and ties the stream to whatever JAX does next year. The
generator itself is twenty rounds of additions, rotations and exclusive ors (Salmon et al. 2011), so it is written out
here; tests hold it equal to ``jax.random`` (with the partitionable layout, JAX's default) bit for bit.

A key is a uint32 array of shape ``(2,)``.
"""

import math

import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_UINT32_MAX = 2**32 - 1


def threefry_2x32(key: np.ndarray, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt counters: twenty rounds of threefry-2x32.

    Args:
        key: uint32, shape ``(2,)``.
        high: First words of the counters, uint32.
        low: Second words, uint32, same shape.
    Returns:
        Two uint32 arrays of the shape of the counters.

    References:
        Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    with np.errstate(over="ignore"):
        x, y = high + schedule[0], low + schedule[1]
        for group in range(5):
            for rotation in _ROTATIONS[group % 2]:
                x = x + y
                y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
                y = x ^ y
            x = x + schedule[(group + 1) % 3]
            y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def split(key: np.ndarray, num: int) -> np.ndarray:
    """``jax.random.split``: uint32 keys, shape ``(num, 2)``."""
    counters = np.arange(num, dtype=np.uint32)
    return np.stack(threefry_2x32(key, np.zeros_like(counters), counters), axis=1)


def fold_in(key: np.ndarray, data: int) -> np.ndarray:
    """``jax.random.fold_in``: a uint32 key."""
    high, low = threefry_2x32(key, np.zeros(1, np.uint32), np.array([data & _UINT32_MAX], np.uint32))
    return np.concatenate([high, low])


def random_bits(key: np.ndarray, count: int) -> np.ndarray:
    """``jax.random.bits``: uint32, shape ``(count,)``, ``count < 2**32``."""
    counters = np.arange(count, dtype=np.uint32)
    high, low = threefry_2x32(key, np.zeros_like(counters), counters)
    return high ^ low


def randint_power_of_two(key: np.ndarray, bits: int) -> int:
    """``jax.random.randint(key, (), 0, 2**bits)`` for ``bits < 32``: the low bits of one draw."""
    return int(random_bits(split(key, 2)[1], 1)[0]) & ((1 << bits) - 1)


def permutation(key: np.ndarray, length: int) -> np.ndarray:
    """``jax.random.permutation(key, length)``: int64, shape ``(length,)``.

    Sorts by random words, so often that ties (probability about ``length**2 / 2**32`` a round) do not matter.
    """
    order = np.arange(length)
    rounds = math.ceil(3 * math.log(max(1, length)) / math.log(_UINT32_MAX))
    for _ in range(rounds):
        key, subkey = split(key, 2)
        order = order[np.argsort(random_bits(subkey, length), kind="stable")]
    return order
