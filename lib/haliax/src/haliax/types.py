"""Type aliases used in signatures."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

PrecisionLike = None | str | jax.lax.Precision | tuple[str, str] | tuple[jax.lax.Precision, jax.lax.Precision]
DTypeLike = str | type[Any] | np.dtype | jnp.dtype
Scalar = float | int | bool | jax.Array
IntScalar = int | jax.Array
GatherScatterModeStr = Literal["promise_in_bounds", "clip", "drop", "fill"]
FilterSpec = bool | Callable[[Any], bool]
FilterTree = Any
