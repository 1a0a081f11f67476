"""JAX PRNG keys on the data side.

Shuffles are seeded by JAX keys, but the data path runs in background threads that must not touch accelerators. Every
key operation here therefore happens on the CPU backend, on a CPU copy of the key.
"""

import hashlib

import jax
import numpy as np

SEED_BOUND = 2**30


def _cpu() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]


def on_cpu(key: jax.Array) -> jax.Array:
    """A copy of the key on the first local CPU device."""
    return jax.device_put(key, _cpu())


def seed_from_key(key: jax.Array) -> int:
    """A numpy seed drawn from a key: uniform in ``[0, 2**30)``.

    Example:
        >>> seed_from_key(jax.random.key(0)) == seed_from_key(jax.random.key(0))
        True
    """
    with jax.default_device(_cpu()):
        return int(jax.random.randint(on_cpu(key), (), 0, SEED_BOUND))


def fold_in(key: jax.Array, data: int) -> jax.Array:
    """``jax.random.fold_in`` on the CPU."""
    with jax.default_device(_cpu()):
        return jax.random.fold_in(on_cpu(key), data)


def split(key: jax.Array, num: int = 2) -> list[jax.Array]:
    """``jax.random.split`` on the CPU, as a list of keys."""
    with jax.default_device(_cpu()):
        return list(jax.random.split(on_cpu(key), num))


def fold_in_name(key: jax.Array, name: str) -> jax.Array:
    """A key that depends on a name, not on where the name stands in a list.

    Example:
        >>> a, b = fold_in_name(jax.random.key(0), "web"), fold_in_name(jax.random.key(0), "code")
        >>> bool((jax.random.key_data(a) == jax.random.key_data(b)).all())
        False
    """
    return fold_in(key, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little"))


def random_order(key: jax.Array, length: int) -> np.ndarray:
    """``jax.random.permutation`` of ``0 .. length-1`` on the CPU, as a numpy array."""
    with jax.default_device(_cpu()):
        return np.asarray(jax.random.permutation(on_cpu(key), length))
