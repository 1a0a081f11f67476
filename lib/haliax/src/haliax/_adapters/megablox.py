"""The grouped-matmul kernel that JAX ships for TPU (Pallas), interpreted on other backends."""

from typing import Any

import jax
from jax.experimental.pallas.ops.tpu.megablox import gmm as _gmm


def gmm(lhs: Any, rhs: Any, group_sizes: Any, tiling: tuple[int, int, int], interpret: bool) -> jax.Array:
    """Multiply each group of rows by its own matrix; the number of rows must be a multiple of the first tile size."""
    return _gmm(lhs, rhs, group_sizes, preferred_element_type=lhs.dtype, tiling=tiling, interpret=interpret)
