"""One-hot vectors."""

from typing import Any

import jax.nn as jnn
import jax.numpy as jnp

from haliax._array.named import NamedArray, intern_names, wrap
from haliax._array.sharding import auto_sharded
from haliax._axis.types import Axis
from haliax._callable import callable_module
from haliax.errors import AxisCollisionError, AxisSpecError


def one_hot(x: Any, class_axis: Axis, *, dtype: Any = None) -> NamedArray:
    """Return 1 at the index given by ``x`` along ``class_axis`` (the last axis), 0 elsewhere.

    Args:
        x: NamedArray of integers, or a Python int in [-n, n) for n classes. Elements out of range give all zeros.
        class_axis: Axis of the classes.
        dtype: Element type, default float.

    Raises:
        AxisCollisionError: ``x`` has ``class_axis``.
        AxisSpecError: A Python int out of range.

    Example:
        >>> import haliax as hax
        >>> one_hot(hax.named([0, 2], "a"), hax.Axis("class", 3)).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    kind = jnp.float32 if dtype is None else dtype
    if isinstance(x, NamedArray):
        if class_axis.name in x.names:
            raise AxisCollisionError("one_hot", [class_axis.name], (*x.axes, class_axis))
        return wrap(jnn.one_hot(x.array, class_axis.size, dtype=kind), intern_names((*x.names, class_axis.name)))
    if isinstance(x, int):
        if not -class_axis.size <= x < class_axis.size:
            raise AxisSpecError(f"one_hot: x={x}; expected -{class_axis.size} <= x < {class_axis.size} ({class_axis}).")
        x %= class_axis.size
    return auto_sharded(wrap(jnn.one_hot(x, class_axis.size, dtype=kind), intern_names((class_axis.name,))))


callable_module(__name__, one_hot)
