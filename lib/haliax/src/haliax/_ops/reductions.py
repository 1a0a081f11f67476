"""Reductions and running reductions over named axes."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from haliax._array.lift import lift_axiswise, lift_reduction, reduced
from haliax._array.named import NamedArray, bind, position, require_named, wrap
from haliax._axis.types import AxisSelection, AxisSelector


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.bool_):
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min
    return -np.inf


def _highest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.bool_):
        return True
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).max
    return np.inf


def _ptp(a: Any, axis: Any = None, where: Any = None) -> Any:
    if where is None:
        return jnp.ptp(a, axis=axis)
    dtype = jnp.asarray(a).dtype
    high = jnp.max(a, axis=axis, where=where, initial=_lowest(dtype))
    return high - jnp.min(a, axis=axis, where=where, initial=_highest(dtype))


_ptp.__name__ = "ptp"

all = lift_reduction(jnp.all)  # noqa: A001
any = lift_reduction(jnp.any)  # noqa: A001
amax = lift_reduction(jnp.amax, default_initial=_lowest)
amin = lift_reduction(jnp.amin, default_initial=_highest)
count_nonzero = lift_reduction(jnp.count_nonzero)
max = lift_reduction(jnp.max, default_initial=_lowest)  # noqa: A001
mean = lift_reduction(jnp.mean)
median = lift_reduction(jnp.median)
min = lift_reduction(jnp.min, default_initial=_highest)  # noqa: A001
nanmax = lift_reduction(jnp.nanmax, default_initial=_lowest)
nanmean = lift_reduction(jnp.nanmean)
nanmedian = lift_reduction(jnp.nanmedian)
nanmin = lift_reduction(jnp.nanmin, default_initial=_highest)
nanprod = lift_reduction(jnp.nanprod)
nanstd = lift_reduction(jnp.nanstd)
nansum = lift_reduction(jnp.nansum)
nanvar = lift_reduction(jnp.nanvar)
prod = lift_reduction(jnp.prod)
product = prod
ptp = lift_reduction(_ptp)
std = lift_reduction(jnp.std)
sum = lift_reduction(jnp.sum)  # noqa: A001
var = lift_reduction(jnp.var)

cumsum = lift_axiswise(jnp.cumsum)
cumprod = lift_axiswise(jnp.cumprod)
nancumsum = lift_axiswise(jnp.nancumsum)
nancumprod = lift_axiswise(jnp.nancumprod)
sort = lift_axiswise(jnp.sort)


def argsort(a: Any, axis: AxisSelector | None = None, *, stable: bool = False) -> Any:
    """Return the indices that sort ``a`` along ``axis``; with axis=None the raw indices of the flattened array.

    Example:
        >>> import haliax as hax
        >>> argsort(hax.named([3, 1, 2], "a"), "a").tolist()
        [1, 2, 0]
    """
    if not isinstance(a, NamedArray):
        return jnp.argsort(a, axis=axis, stable=stable)  # type: ignore[arg-type]
    if axis is None:
        return jnp.argsort(a.array, axis=None, stable=stable)
    return wrap(jnp.argsort(a.array, axis=position("argsort", a, axis), stable=stable), a.names)


def _arg_reduction(name: str, fn: Any) -> Any:
    def wrapped(array: Any, axis: AxisSelector | None = None) -> Any:
        if not isinstance(array, NamedArray):
            return fn(array, axis=axis)
        if axis is None:
            return wrap(fn(array.array), ())
        index = position(name, array, axis)
        return wrap(fn(array.array, axis=index), array.names[:index] + array.names[index + 1 :])

    wrapped.__name__ = wrapped.__qualname__ = name
    wrapped.__module__ = "haliax"
    wrapped.__doc__ = (
        f"`jax.numpy.{name}` over one named axis; None searches the flattened array (storage order).\n\n"
        "    Raises:\n        AxisNotFoundError: The axis is absent.\n"
    )
    return wrapped


argmax = _arg_reduction("argmax", jnp.argmax)
argmin = _arg_reduction("argmin", jnp.argmin)
nanargmax = _arg_reduction("nanargmax", jnp.nanargmax)
nanargmin = _arg_reduction("nanargmin", jnp.nanargmin)


def _quantile(name: str, fn: Any) -> Any:
    def wrapped(array: NamedArray, q: float, axis: AxisSelection | None = None, **kwargs: Any) -> NamedArray:
        require_named(name, array)
        return reduced(name, lambda x, axis: fn(x, q, axis=axis, **kwargs), array, axis)

    wrapped.__name__ = wrapped.__qualname__ = name
    wrapped.__module__ = "haliax"
    wrapped.__doc__ = f"`jax.numpy.{name}` for one scalar ``q`` over named axes (None: all)."
    return wrapped


quantile = _quantile("quantile", jnp.quantile)
percentile = _quantile("percentile", jnp.percentile)
nanquantile = _quantile("nanquantile", jnp.nanquantile)


def average(array: NamedArray, axis: AxisSelection | None = None, *, weights: NamedArray | None = None) -> NamedArray:
    """Return the weighted mean ``sum(w * x) / sum(w)`` over ``axis``; plain mean without weights.

    Args:
        array: Values.
        axis: Axes to reduce; None reduces all.
        weights: Non-negative weights whose axes are among those of ``array``.

    Example:
        >>> import haliax as hax
        >>> average(hax.named([1.0, 3.0], "a"), weights=hax.named([3.0, 1.0], "a")).item()
        1.5
    """
    if weights is None:
        return mean(array, axis)
    spread = array * 0 + weights
    return sum(array * weights, axis) / sum(spread, axis)


bind(
    all=all,
    any=any,
    argmax=argmax,
    argmin=argmin,
    argsort=argsort,
    cumprod=cumprod,
    cumsum=cumsum,
    max=max,
    mean=mean,
    min=min,
    prod=prod,
    product=prod,
    ptp=ptp,
    sort=sort,
    std=std,
    sum=sum,
    var=var,
)
