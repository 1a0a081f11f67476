"""JAX PRNG keys on the data side.

Shuffles are seeded by JAX keys, but the data path runs in background threads that must touch no accelerator and should
compile nothing. A key of JAX's default kind is therefore taken apart once and worked with in numpy
(:mod:`levanter.data._threefry`, bit-equal to ``jax.random``); keys of other kinds go through JAX on the CPU backend.
"""

import hashlib
from typing import Any

import jax
import numpy as np

from levanter.data import _threefry

SEED_BITS = 30

Key = Any
"""A JAX key, old style or new, or what :func:`split` and :func:`fold_in` here return."""


def _cpu() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]


def _on_cpu(key: Key) -> jax.Array:
    return jax.device_put(key, _cpu())


def _words(key: Key) -> np.ndarray | None:
    """The two words of a default key; ``None`` for a key of another kind."""
    if isinstance(key, np.ndarray):
        return key
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        default = str(jax.random.key_impl(key)) == "threefry2x32"
        key = jax.random.key_data(key)
    else:
        default = jax.config.jax_default_prng_impl == "threefry2x32"
    words = np.asarray(key)
    usable = default and bool(jax.config.jax_threefry_partitionable) and words.shape == (2,)
    return words.astype(np.uint32) if usable else None


def seed_from_key(key: Key) -> int:
    """A numpy seed drawn from a key: ``jax.random.randint(key, (), 0, 2**30)``.

    Example:
        >>> seed_from_key(jax.random.key(0)) == int(jax.random.randint(jax.random.key(0), (), 0, 2**30))
        True
    """
    words = _words(key)
    if words is not None:
        return _threefry.randint_power_of_two(words, SEED_BITS)
    with jax.default_device(_cpu()):
        return int(jax.random.randint(_on_cpu(key), (), 0, 2**SEED_BITS))


def fold_in(key: Key, data: int) -> Key:
    """``jax.random.fold_in``."""
    words = _words(key)
    if words is not None:
        return _threefry.fold_in(words, data)
    with jax.default_device(_cpu()):
        return jax.random.fold_in(_on_cpu(key), data)


def fold_in_for_user(key: jax.Array, data: int) -> jax.Array:
    """``jax.random.fold_in`` for keys that are handed to functions of users: of the kind they gave."""
    with jax.default_device(_cpu()):
        return jax.random.fold_in(_on_cpu(key), data)


def split(key: Key, num: int = 2) -> list[Key]:
    """``jax.random.split``, as a list of keys."""
    words = _words(key)
    if words is not None:
        return list(_threefry.split(words, num))
    with jax.default_device(_cpu()):
        return list(jax.random.split(_on_cpu(key), num))


def fold_in_name(key: Key, name: str) -> Key:
    """A key that depends on a name, not on where the name stands in a list.

    Example:
        >>> a, b = fold_in_name(jax.random.key(0), "web"), fold_in_name(jax.random.key(0), "code")
        >>> bool((a == b).all())
        False
    """
    return fold_in(key, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little"))


def random_order(key: Key, length: int) -> np.ndarray:
    """``jax.random.permutation(key, length)``, int64."""
    words = _words(key)
    if words is not None:
        return _threefry.permutation(words, length)
    with jax.default_device(_cpu()):
        return np.asarray(jax.random.permutation(_on_cpu(key), length))


def key_words(key: Key) -> list[int]:
    """The words of a key of any kind, to identify it."""
    if isinstance(key, np.ndarray):
        return key.tolist()
    return np.asarray(jax.random.key_data(key)).ravel().tolist()
