"""Lifting positional functions to named ones: one helper per shape of function.

All named elementwise operations, reductions and scans of the library are rows in tables that go through these helpers.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from haliax._array.named import NamedArray, freeze, position, wrap
from haliax._array.plan import align, binary_plan, reduce_plan
from haliax._axis.types import AxisSelection, AxisSelector
from haliax.errors import ArrayTypeError, AxisSpecError, format_axes

_SCALARS = (int, float, bool, complex, np.generic)


def describe(fn: Callable[..., Any], wrapped: Callable[..., Any], text: str) -> None:
    """Give a lifted function the name of ``fn`` and a docstring of its own."""
    name = getattr(fn, "__name__", "fn")
    wrapped.__name__ = name
    wrapped.__qualname__ = name
    wrapped.__module__ = "haliax"
    wrapped.__doc__ = text.format(name=name)


def lift_unary(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Lift an elementwise function of one array; raw values pass through to ``fn``."""

    def wrapped(a: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(a, NamedArray):
            return wrap(fn(a.array, *args, **kwargs), a.names)
        return fn(a, *args, **kwargs)

    describe(fn, wrapped, "Elementwise `jax.numpy.{name}`: a NamedArray keeps its axes, a raw array stays raw.")
    return wrapped


def lift_binary(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Lift an elementwise function of two arrays under the subset rule of broadcasting."""
    name = getattr(fn, "__name__", "fn")

    def wrapped(a: Any, b: Any, /) -> Any:
        if type(a) is NamedArray:
            if type(b) is NamedArray:
                x, y, names = a.array, b.array, a.names
                shape = x.shape
                if names == b.names and shape == y.shape:
                    return wrap(fn(x, y), names)
                names, left, right = binary_plan(names, shape, b.names, y.shape, name)
                return wrap(fn(align(x, left), align(y, right)), names)
            if isinstance(b, _SCALARS):
                return wrap(fn(a.array, b), a.names)
            return _with_raw(name, fn, a, b, swap=False)
        if type(b) is NamedArray:
            if isinstance(a, _SCALARS):
                return wrap(fn(a, b.array), b.names)
            return _with_raw(name, fn, b, a, swap=True)
        return fn(a, b)

    describe(
        fn,
        wrapped,
        "Elementwise `jax.numpy.{name}` by name: the axes of one operand must contain those of the other.\n\n"
        "    Raises:\n        BroadcastError: Neither operand's axes contain the other's.\n"
        "        AxisSizeMismatchError: One name has two sizes.\n",
    )
    return wrapped


def _with_raw(name: str, fn: Callable[..., Any], a: NamedArray, b: Any, swap: bool) -> Any:
    if isinstance(b, jax.Array | np.ndarray) or hasattr(b, "__jax_array__"):
        if b.ndim == 0:
            return wrap(fn(b, a.array) if swap else fn(a.array, b), a.names)
        if not a.names:
            return fn(b, a.array) if swap else fn(a.array, b)
        raise AxisSpecError(
            f"{name}: cannot combine axes {format_axes(a.names, a.array.shape)} with a raw array of shape {b.shape}; "
            "expected a NamedArray or a scalar. Name its dimensions with hax.named(array, axes)."
        )
    raise ArrayTypeError(
        f"{name}: cannot combine axes {format_axes(a.names)} with a {type(b).__name__}; expected a NamedArray or "
        f"a scalar."
    )


def lift_operator(op: Callable[..., Any], swap: bool = False) -> Callable[..., Any]:
    """Turn a lifted binary function into an operator method; foreign types get NotImplemented."""

    def method(self: NamedArray, other: Any) -> Any:
        if type(other) is NamedArray or isinstance(other, _SCALARS) or hasattr(other, "dtype"):
            return op(other, self) if swap else op(self, other)
        if other is None or isinstance(other, str | list | tuple | dict):
            raise ArrayTypeError(
                f"{getattr(op, '__name__', 'operator')}: cannot combine axes {format_axes(self.names)} with a "
                f"{type(other).__name__}; expected a NamedArray or a scalar."
            )
        return NotImplemented

    method.__name__ = getattr(op, "__name__", "operator")
    return method


def reduced(
    name: str,
    fn: Callable[..., Any],
    array: NamedArray,
    axis: AxisSelection | None,
    where: Any = None,
    **kwargs: Any,
) -> NamedArray:
    """Reduce ``array`` over a selection of axes with a positional ``fn(array, axis=, where=, ...)``."""
    x = array.array
    plan = reduce_plan(name, array.names, x.shape, freeze(axis))
    if where is not None:
        kwargs["where"] = where_mask(name, array, where)
    return wrap(fn(x, axis=plan.positions, **kwargs), plan.names)


def where_mask(name: str, array: NamedArray, where: Any) -> Any:
    """Bring a mask to the axes of ``array``.

    Raises:
        ArrayTypeError: The mask is neither a NamedArray nor a bool.
        BroadcastError: The mask has axes that the array lacks.
    """
    if isinstance(where, bool | np.bool_):
        return jnp.asarray(where)
    if not isinstance(where, NamedArray):
        raise ArrayTypeError(
            f"{name}: where has type {type(where).__name__}; expected a NamedArray of bool. Wrap it with hax.named."
        )
    names, left, right = binary_plan(array.names, array.array.shape, where.names, where.array.shape, f"{name}(where=)")
    if names != array.names or left is not None:
        extra = tuple(n for n in where.names if n not in array.names)
        raise AxisSpecError(
            f"{name}: where has axes {format_axes(extra)} that the array {format_axes(array.names)} lacks. "
            "Reduce the mask, or broadcast the array first."
        )
    return align(where.array, right)


def lift_reduction(fn: Callable[..., Any], *, default_initial: Callable[[Any], Any] | None = None) -> Any:
    """Lift a reduction with ``axis=`` and ``where=``; pytrees of arrays are reduced leaf by leaf.

    Args:
        fn: Positional reduction.
        default_initial: Given a dtype, the neutral element to use when ``where`` is given and ``initial`` is not.
    """
    name = getattr(fn, "__name__", "fn")

    def wrapped(array: Any, axis: AxisSelection | None = None, *, where: Any = None, **kwargs: Any) -> Any:
        bad = [k for k in ("keepdims", "out") if kwargs.get(k)]
        if bad:
            raise AxisSpecError(f"{name}: {bad[0]}= makes no sense with named axes. Use broadcast_axis on the result.")
        if type(array) is NamedArray:
            if where is not None and default_initial is not None and kwargs.get("initial") is None:
                kwargs["initial"] = default_initial(array.dtype)
            return reduced(name, fn, array, axis, where, **kwargs)
        if isinstance(array, jax.Array | np.ndarray | int | float | complex | np.generic):
            if axis is not None:
                raise ArrayTypeError(f"{name}: axis={axis!r} of a raw array; expected a NamedArray. Use hax.named.")
            if where is not None:
                kwargs["where"] = where.array if isinstance(where, NamedArray) else where
                if default_initial is not None:
                    kwargs.setdefault("initial", default_initial(jnp.asarray(array).dtype))
            return fn(array, **kwargs)
        return jax.tree_util.tree_map(
            lambda leaf: wrapped(leaf, axis, where=where, **kwargs), array, is_leaf=lambda x: isinstance(x, NamedArray)
        )

    describe(
        fn,
        wrapped,
        "`jax.numpy.{name}` over named axes.\n\n    Args:\n        array: NamedArray (or a pytree of them).\n"
        "        axis: Axes to reduce; None reduces all and gives an array without axes.\n"
        "        where: NamedArray of bool, broadcast to the array; False entries are left out.\n"
        "    Raises:\n        AxisNotFoundError: An axis is absent.\n",
    )
    return wrapped


def lift_axiswise(fn: Callable[..., Any], single_axis_only: bool = True) -> Callable[..., Any]:
    """Lift a function that works along one axis and keeps all axes (cumsum, sort, softmax)."""
    name = getattr(fn, "__name__", "fn")

    def wrapped(a: Any, axis: AxisSelector | None = None, **kwargs: Any) -> Any:
        if not isinstance(a, NamedArray):
            return fn(a, **({} if axis is None else {"axis": axis}), **kwargs)
        if axis is None:
            return fn(a.array, axis=None, **kwargs)
        if not single_axis_only and not isinstance(axis, str) and not hasattr(axis, "name"):
            plan = reduce_plan(name, a.names, a.array.shape, freeze(axis))
            return wrap(fn(a.array, axis=plan.positions, **kwargs), a.names)
        return wrap(fn(a.array, axis=position(name, a, axis), **kwargs), a.names)

    describe(fn, wrapped, "`{name}` along one named axis; the result has the same axes. axis=None gives a raw array.\n")
    return wrapped
