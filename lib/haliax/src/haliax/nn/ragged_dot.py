"""Grouped matrix multiplication: rows sorted by group, one matrix per group.

Shape legend: T rows (tokens), E groups (experts), I in, O out.
"""

import os
import warnings
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp

from haliax._callable import callable_module
from haliax.errors import ArrayTypeError, AxisSpecError, BackendError

IMPLEMENTATIONS = ("auto", "xla", "megablox")
# Names that configurations written for GPUs use; asking for one is answered, not guessed at.
_ABSENT = {
    "triton": "no Triton kernel is part of this package; XLA compiles jax.lax.ragged_dot for GPUs itself",
    "fp8": "grouped products in FP8 need a GPU or TPU kernel, which is not part of this package",
}
_ROW_MULTIPLE = 512
_MEGABLOX_TILES = (512, 1024, 1024)


def _xla(lhs_TI: jax.Array, rhs_EIO: jax.Array, group_sizes_E: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(lhs_TI, rhs_EIO, group_sizes_E)


def _megablox(lhs_TI: jax.Array, rhs_EIO: jax.Array, group_sizes_E: jax.Array) -> jax.Array:
    gmm = import_module("haliax._adapters.megablox").gmm  # a Pallas TPU kernel, loaded on demand
    rows = lhs_TI.shape[0]
    padding = -rows % _ROW_MULTIPLE
    padded = jnp.pad(lhs_TI, ((0, padding), (0, 0)))
    interpret = jax.default_backend() != "tpu"
    tiles = (min(_MEGABLOX_TILES[0], rows + padding), min(_MEGABLOX_TILES[1], lhs_TI.shape[1]), _MEGABLOX_TILES[2])
    return gmm(padded, rhs_EIO, group_sizes_E, tiles, interpret)[:rows]


def ragged_dot(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, ar: bool = False, implementation: str = "auto"
) -> jax.Array:
    """Multiply each group of rows by its own matrix.

    Args:
        lhs: Rows sorted by group, shape (T, I).
        rhs: One matrix per group, shape (E, I, O).
        group_sizes: Rows per group, shape (E,), int32; the sum is at most T, and rows beyond it give 0.
        ar: Sum the result over the mesh axis "model" (inside `shard_map`).
        implementation: "xla" (`jax.lax.ragged_dot`), "megablox" (TPU kernel; interpreted elsewhere) or "auto": megablox
            on TPU and xla elsewhere, falling back to xla with a RuntimeWarning. The environment variable
            RAGGED_DOT_IMPL overrides "auto".

    Returns:
        Array of shape (T, O).

    Raises:
        ArrayTypeError: An argument has another rank.
        AxisSpecError: Shapes do not fit, or an unknown implementation.
        BackendError: "triton" or "fp8": there are no such kernels here, and no other is run in their place.

    Example:
        >>> import jax.numpy as jnp
        >>> rows, experts = jnp.ones((3, 2)), jnp.stack([jnp.ones((2, 1)), 2 * jnp.ones((2, 1))])
        >>> ragged_dot(rows, experts, jnp.array([1, 2])).tolist()
        [[2.0], [4.0], [4.0]]

    References:
        Gale et al., MegaBlocks, arXiv:2211.15841.
    """
    for name, x, rank in (("lhs", lhs, 2), ("rhs", rhs, 3), ("group_sizes", group_sizes, 1)):
        if getattr(x, "ndim", None) != rank:
            got = getattr(x, "shape", type(x).__name__)
            raise ArrayTypeError(f"ragged_dot: {name} has shape {got}; expected {rank} dimensions.")
    if lhs.shape[1] != rhs.shape[1] or rhs.shape[0] != group_sizes.shape[0]:
        raise AxisSpecError(
            f"ragged_dot: lhs {lhs.shape}, rhs {rhs.shape}, group_sizes {group_sizes.shape}; expected (T, I), "
            f"(E, I, O), (E,)."
        )
    if implementation == "auto":
        implementation = os.environ.get("RAGGED_DOT_IMPL", "auto")
    if implementation in _ABSENT:
        raise BackendError(
            f"ragged_dot: implementation={implementation!r} on backend {jax.default_backend()!r}: "
            f"{_ABSENT[implementation]}. Use one of {IMPLEMENTATIONS}."
        )
    if implementation not in IMPLEMENTATIONS:
        raise AxisSpecError(f"ragged_dot: implementation={implementation!r}; expected one of {IMPLEMENTATIONS}.")
    out = _dispatch(lhs, rhs, group_sizes.astype(jnp.int32), implementation)
    return jax.lax.psum(out, "model") if ar else out


def _dispatch(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, implementation: str) -> Any:
    if implementation == "xla":
        return _xla(lhs, rhs, group_sizes)
    if implementation == "megablox":
        return _megablox(lhs, rhs, group_sizes)
    if jax.default_backend() != "tpu":
        return _xla(lhs, rhs, group_sizes)
    try:
        return _megablox(lhs, rhs, group_sizes)
    except (NotImplementedError, RuntimeError) as error:
        warnings.warn(f"ragged_dot: megablox failed ({error}); using xla.", RuntimeWarning, stacklevel=3)
        return _xla(lhs, rhs, group_sizes)


callable_module(__name__, ragged_dot)
