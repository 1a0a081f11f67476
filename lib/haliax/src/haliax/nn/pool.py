"""Pooling over named windows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from haliax._array.named import NamedArray, require_named, wrap
from haliax._array.plan import positions_of
from haliax._array.sharding import auto_sharded
from haliax._axis.types import AxisSpec, sized_axes
from haliax._callable import callable_module
from haliax.errors import AxisSpecError

Padding = str | int | Sequence[tuple[int, int]]


def _plan(
    Window: AxisSpec, x: NamedArray, stride: Any, padding: Any, use_ceil: bool
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]:
    axes = sized_axes(Window, "pool")
    positions = positions_of("pool", x.names, x.array.shape, tuple(a.name for a in axes))
    n = len(axes)
    strides = (1 if stride is None else stride,) * n if stride is None or isinstance(stride, int) else tuple(stride)
    if len(strides) != n:
        raise AxisSpecError(f"pool: stride={stride} has {len(strides)} entries; expected {n}, one per window axis.")
    window = [1] * x.ndim
    steps = [1] * x.ndim
    for p, a, s in zip(positions, axes, strides, strict=True):
        window[p], steps[p] = a.size, s
    if isinstance(padding, str):
        pads = list(jax.lax.padtype_to_pads(x.array.shape, window, steps, padding.upper()))
    else:
        given = [(padding, padding)] * n if isinstance(padding, int) else [tuple(p) for p in padding]
        if len(given) != n:
            raise AxisSpecError(f"pool: padding={padding} has {len(given)} entries; expected {n}, one per window axis.")
        pads = [(0, 0)] * x.ndim
        for p, g in zip(positions, given, strict=True):
            pads[p] = (int(g[0]), int(g[1]))
    if use_ceil:
        for p in positions:
            rest = (x.array.shape[p] + sum(pads[p]) - window[p]) % steps[p]
            if rest:
                pads[p] = (pads[p][0], pads[p][1] + steps[p] - rest)
    return tuple(window), tuple(steps), [(int(a), int(b)) for a, b in pads]


def pool(
    Window: AxisSpec,
    inputs: NamedArray,
    init: Any,
    reduce_fn: Callable[..., Any],
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    use_ceil: bool = False,
) -> NamedArray:
    """Reduce sliding windows.

    Args:
        Window: Size of the window per axis; other axes are untouched.
        inputs: Array.
        init: Neutral element of the reduction.
        reduce_fn: Associative function of two scalars, such as `jax.lax.add`.
        stride: Step per window axis; 1 unless given.
        padding: "VALID", "SAME", or elements on both sides (per window axis).
        use_ceil: Pad so that no element is left out.

    Raises:
        AxisNotFoundError: A window axis is absent.
    """
    require_named("pool", inputs, "inputs")
    window, steps, pads = _plan(Window, inputs, stride, padding, use_ceil)
    out = jax.lax.reduce_window(inputs.array, init, reduce_fn, window, steps, pads)
    return auto_sharded(wrap(out, inputs.names))


def _limit(dtype: Any, lowest: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf if lowest else np.inf, dtype)
    info = jnp.iinfo(dtype)
    return np.asarray(info.min if lowest else info.max, dtype)


def max_pool(
    Window: AxisSpec,
    inputs: NamedArray,
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    use_ceil: bool = False,
) -> NamedArray:
    """Return the largest element of each window; see `pool`.

    Example:
        >>> import haliax as hax
        >>> max_pool(hax.Axis("x", 2), hax.arange({"x": 4}), stride=2).tolist()
        [1, 3]
    """
    return pool(Window, inputs, _limit(inputs.dtype, True), jax.lax.max, stride, padding, use_ceil)


def min_pool(
    Window: AxisSpec,
    inputs: NamedArray,
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    use_ceil: bool = False,
) -> NamedArray:
    """Return the smallest element of each window; see `pool`.

    Example:
        >>> import haliax as hax
        >>> min_pool(hax.Axis("t", 2), hax.arange({"t": 4}), stride=2).tolist()
        [0, 2]
    """
    return pool(Window, inputs, _limit(inputs.dtype, False), jax.lax.min, stride, padding, use_ceil)


def mean_pool(
    Window: AxisSpec,
    inputs: NamedArray,
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    *,
    use_ceil: bool = False,
    count_include_pad: bool = False,
) -> NamedArray:
    """Return the mean of each window; see `pool`.

    Args:
        Window: Size of the window per axis.
        inputs: Array of floats.
        stride: Step per window axis.
        padding: As in `pool`.
        use_ceil: As in `pool`.
        count_include_pad: Divide by the full window even where it reaches into the padding.

    Example:
        >>> import haliax as hax
        >>> mean_pool(hax.Axis("t", 2), hax.arange({"t": 4}) * 1.0, stride=2).tolist()
        [0.5, 2.5]
    """
    zero = np.zeros((), inputs.dtype)
    total = pool(Window, inputs, zero, jax.lax.add, stride, padding, use_ceil)
    if count_include_pad:
        return total / math.prod(a.size for a in sized_axes(Window))
    ones = wrap(jnp.ones_like(inputs.array), inputs.names)
    return total / pool(Window, ones, zero, jax.lax.add, stride, padding, use_ceil)


callable_module(__name__, pool)
