"""Making arrays: constants, ranges, and arrays like another."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from haliax._array.named import NamedArray, intern_names, raw, wrap
from haliax._array.sharding import auto_sharded
from haliax._axis.types import Axis, AxisSelector, AxisSpec, sized_axes


def _names(axes: tuple[Axis, ...]) -> tuple[str, ...]:
    return intern_names(tuple(a.name for a in axes))


def full(shape: AxisSpec, fill_value: Any, dtype: Any = None) -> NamedArray:
    """Return an array of ``fill_value``; the dtype is that of the value unless given.

    Example:
        >>> import haliax as hax
        >>> full({"a": 2}, 7).tolist()
        [7, 7]
    """
    axes = sized_axes(shape, "full")
    return auto_sharded(wrap(jnp.full(tuple(a.size for a in axes), raw(fill_value), dtype), _names(axes)))


def zeros(shape: AxisSpec, dtype: Any = jnp.float32) -> NamedArray:
    """Return an array of zeros, float32 unless told otherwise.

    Example:
        >>> import haliax as hax
        >>> zeros(hax.Axis("a", 2)).tolist()
        [0.0, 0.0]
    """
    return full(shape, 0, jnp.float32 if dtype is None else dtype)


def ones(shape: AxisSpec, dtype: Any = jnp.float32) -> NamedArray:
    """Return an array of ones, float32 unless told otherwise.

    Example:
        >>> import haliax as hax
        >>> ones({"a": 2}, dtype=int).tolist()
        [1, 1]
    """
    return full(shape, 1, jnp.float32 if dtype is None else dtype)


def empty(shape: AxisSpec, dtype: Any = jnp.float32) -> NamedArray:
    """Return an array of zeros (JAX has no uninitialised memory)."""
    return zeros(shape, dtype)


def _like(array: NamedArray, x: Any) -> NamedArray:
    sharding = getattr(array.array, "sharding", None)
    if sharding is not None and not isinstance(array.array, jax.core.Tracer | np.ndarray):
        x = x if isinstance(x, jax.core.Tracer) else jax.device_put(x, sharding)
    return wrap(x, array.names)


def zeros_like(a: Any, dtype: Any = None) -> Any:
    """Return zeros with the axes, dtype and sharding of ``a``.

    Example:
        >>> import haliax as hax
        >>> zeros_like(hax.arange({"a": 2})).tolist()
        [0, 0]
    """
    return (
        _like(a, jnp.zeros_like(a.array, dtype=dtype)) if isinstance(a, NamedArray) else jnp.zeros_like(a, dtype=dtype)
    )


def ones_like(a: Any, dtype: Any = None) -> Any:
    """Return ones with the axes, dtype and sharding of ``a``.

    Example:
        >>> import haliax as hax
        >>> ones_like(hax.arange({"a": 2})).tolist()
        [1, 1]
    """
    return _like(a, jnp.ones_like(a.array, dtype=dtype)) if isinstance(a, NamedArray) else jnp.ones_like(a, dtype=dtype)


def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    """Return ``fill_value`` with the axes, dtype and sharding of ``a``.

    Example:
        >>> import haliax as hax
        >>> full_like(hax.arange({"a": 2}), 5).tolist()
        [5, 5]
    """
    if isinstance(a, NamedArray):
        return _like(a, jnp.full_like(a.array, raw(fill_value), dtype=dtype))
    return jnp.full_like(a, fill_value, dtype=dtype)


def arange(axis: AxisSpec, *, start: Any = 0, step: Any = 1, dtype: Any = None) -> NamedArray:
    """Return ``start, start + step, ...`` along ``axis``; several axes hold one range in storage order.

    Args:
        axis: Axis or axes; they give the number of elements.
        start: First value, may be traced.
        step: Distance, may be traced.
        dtype: Element type; that of ``start`` unless given.

    Example:
        >>> arange(Axis("pos", 3), start=2).tolist()
        [2, 3, 4]
    """
    axes = sized_axes(axis, "arange")
    total = 1
    for a in axes:
        total *= a.size
    start, step = raw(start), raw(step)
    dtype = jnp.result_type(start, step) if dtype is None and not isinstance(start, int) else dtype
    if isinstance(start, int) and isinstance(step, int) and (start, step) == (0, 1):
        x = jnp.arange(total, dtype=dtype)
    elif isinstance(start, int) and isinstance(step, int):
        x = jnp.arange(start, start + step * total, step, dtype=dtype) if total else jnp.zeros((0,), dtype or jnp.int32)
    else:
        x = (jnp.arange(total) * step + start).astype(dtype)
    if len(axes) != 1:
        x = x.reshape(tuple(a.size for a in axes))
    return auto_sharded(wrap(x, _names(axes)))


def _spaced(fn: Any, axis: AxisSelector, start: Any, stop: Any, **kwargs: Any) -> NamedArray:
    axis = Axis(axis, 50) if isinstance(axis, str) else axis
    return wrap(fn(raw(start), raw(stop), axis.size, **kwargs), _names((axis,)))


def linspace(axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, dtype: Any = None) -> NamedArray:
    """Return evenly spaced values (a bare name gives 50 of them).

    Example:
        >>> import haliax as hax
        >>> linspace(hax.Axis("x", 3), start=0, stop=1).tolist()
        [0.0, 0.5, 1.0]
    """
    return _spaced(jnp.linspace, axis, start, stop, endpoint=endpoint, dtype=dtype)


def geomspace(axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, dtype: Any = None) -> NamedArray:
    """Return values spaced evenly on a log scale between two endpoints.

    Example:
        >>> import haliax as hax
        >>> geomspace(hax.Axis("x", 3), start=1, stop=4).round().tolist()
        [1.0, 2.0, 4.0]
    """
    return _spaced(jnp.geomspace, axis, start, stop, endpoint=endpoint, dtype=dtype)


def logspace(
    axis: AxisSelector, *, start: Any, stop: Any, endpoint: bool = True, base: float = 10.0, dtype: Any = None
) -> NamedArray:
    """Return ``base ** linspace(start, stop)``.

    Example:
        >>> import haliax as hax
        >>> logspace(hax.Axis("x", 3), start=0, stop=2).round().tolist()
        [1.0, 10.0, 100.0]
    """
    return _spaced(jnp.logspace, axis, start, stop, endpoint=endpoint, base=base, dtype=dtype)


def eye(axis1: Axis, axis2: Axis, *, k: int = 0, dtype: Any = jnp.float32) -> NamedArray:
    """Return ones where index2 - index1 equals ``k``, zeros elsewhere.

    Example:
        >>> import haliax as hax
        >>> eye(hax.Axis("i", 2), hax.Axis("j", 2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    axes = sized_axes((axis1, axis2), "eye")
    return wrap(jnp.eye(axes[0].size, axes[1].size, k=k, dtype=dtype), _names(axes))
