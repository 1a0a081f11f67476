"""Broadcasting by name: widening an array to axes it does not have."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from haliax._array.named import NamedArray, bind, check_rank, intern_names, raw, wrap
from haliax._array.plan import Names, Shape, align, alignment, binary_plan, check_same_sizes
from haliax._axis.types import Axis, AxisSelection, AxisSpec, pairs, reject_duplicates, selector
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, AxisSpecError, BroadcastError


@functools.lru_cache(maxsize=8192)
def _broadcast_plan(
    names: Names, shape: Shape, wanted: tuple[Any, ...], ensure_order: bool, no_extra: bool
) -> tuple[Names, Shape, tuple[int, ...] | None]:
    check_rank("broadcast_to", names, shape)
    have = dict(zip(names, shape, strict=True))
    found = pairs(wanted)
    reject_duplicates("broadcast_to", [n for n, _ in found], wanted)
    missing = [n for n, s in found if s is None and n not in have]
    if missing:
        raise AxisNotFoundError("broadcast_to (an axis without size must be in the array)", missing, have)
    if any(s is not None and have.get(n, s) != s for n, s in found):
        raise AxisSizeMismatchError("broadcast_to", [("array", have), ("requested", dict(found))])
    target = [n for n, _ in found]
    extra = [n for n in names if n not in target]
    if extra and no_extra:
        raise AxisSpecError(
            f"broadcast_to: array has axes {extra} that the requested axes {target} lack. "
            "Reduce them, or pass enforce_no_extra_axes=False."
        )
    sizes = {**{n: s for n, s in found if s is not None}, **have}
    new = [n for n in target if n not in have]
    natural = [*new, *names]
    iterator = iter(natural)
    in_order = all(n in iterator for n in target)
    out = natural if not ensure_order or in_order else [*target, *extra]
    perm = tuple(names.index(n) for n in out if n in have)
    return (
        intern_names(tuple(out)),
        tuple(sizes[n] for n in out),
        None if perm == tuple(range(len(names))) else perm,
    )


def broadcast_to(
    a: Any, axes: AxisSelection, ensure_order: bool = True, enforce_no_extra_axes: bool = True
) -> NamedArray:
    """Widen ``a`` to ``axes``.

    Args:
        a: NamedArray or scalar.
        axes: Wanted axes; a bare name must be in ``a``. New axes are added at the front, in the order given.
        ensure_order: Give the result the order of ``axes`` (extra axes last) unless that order already holds.
        enforce_no_extra_axes: Raise when ``a`` has axes that are not wanted.

    Raises:
        AxisNotFoundError: A bare name is absent from ``a``.
        AxisSizeMismatchError: A name has two sizes.
        AxisSpecError: ``a`` has extra axes.

    Example:
        >>> import haliax as hax
        >>> hax.broadcast_to(hax.arange(Axis("H", 3)), (Axis("B", 2), "H")).shape
        {'B': 2, 'H': 3}
    """
    if not isinstance(a, NamedArray):
        a = wrap(jnp.asarray(a), ())
    wanted = tuple(selector(n, s) for n, s in pairs(axes))
    x = a.array
    names, shape, perm = _broadcast_plan(a.names, x.shape, wanted, ensure_order, enforce_no_extra_axes)
    if perm is not None:
        x = jax.lax.transpose(jnp.asarray(x), perm)
    if x.shape == shape:
        return wrap(x, names)
    positions = tuple(i for i, n in enumerate(names) if n in a.names)
    return wrap(jax.lax.broadcast_in_dim(x, shape, positions), names)


def broadcast_axis(a: Any, axis: AxisSpec) -> NamedArray:
    """Add the axes of ``axis`` that ``a`` lacks, in front; other axes stay.

    Raises:
        AxisSizeMismatchError: The axis is there with another size.

    Example:
        >>> import haliax as hax
        >>> hax.ones((Axis("H", 3),)).broadcast_axis(Axis("B", 2)).shape
        {'B': 2, 'H': 3}
    """
    if isinstance(a, NamedArray) and isinstance(axis, Axis) and axis.name in a.names:
        if a.array.shape[a.names.index(axis.name)] != axis.size:
            raise AxisSizeMismatchError("broadcast_axis", [("array", a.axes), ("requested", axis)])
        return a
    return broadcast_to(a, axis, ensure_order=True, enforce_no_extra_axes=False)


def _size(x: Any) -> int:
    return x.array.size if isinstance(x, NamedArray) else 1


def broadcast_arrays_and_return_axes(
    *arrays: Any, require_subset: bool = True, ensure_order: bool = True
) -> tuple[tuple[Any, ...], tuple[Axis, ...]]:
    """Broadcast arrays against each other and also return the common axes.

    Args:
        *arrays: NamedArrays; None passes through, scalars become NamedArrays.
        require_subset: The largest array (by elements) must have every axis. Otherwise the axes that it lacks are put
            in front, in the order of the array that has them.
        ensure_order: Give all results the same order of axes.

    Raises:
        BroadcastError: ``require_subset`` and an array has an axis that the largest lacks.
        AxisSizeMismatchError: A name has two sizes.

    Example:
        >>> import haliax as hax
        >>> arrays, axes = broadcast_arrays_and_return_axes(hax.ones({"x": 2}), 1.0)
        >>> axes
        (Axis(name='x', size=2),)
    """
    if not arrays:
        return (), ()
    named = [a for a in arrays if isinstance(a, NamedArray)]
    if not named:
        return tuple(a if a is None else wrap(jnp.asarray(a), ()) for a in arrays), ()
    labels = tuple(f"operand {i}" for i in range(len(named)))
    check_same_sizes("broadcast_arrays", labels, tuple((a.names, a.array.shape) for a in named))
    by_size = sorted(named, key=_size, reverse=True)
    axes: tuple[Axis, ...] = by_size[0].axes
    for other in by_size[1:]:
        have = {a.name for a in axes}
        new = tuple(a for a in other.axes if a.name not in have)
        if new and require_subset:
            raise BroadcastError("broadcast_arrays", [("largest", axes), ("smaller", other.axes)])
        axes = new + axes
    out = [
        a if a is None else broadcast_to(a, axes, ensure_order=ensure_order) if isinstance(a, NamedArray) else a
        for a in arrays
    ]
    return tuple(out), axes


def broadcast_arrays(*arrays: Any, require_subset: bool = True, ensure_order: bool = True) -> tuple[Any, ...]:
    """Broadcast arrays against each other; see `broadcast_arrays_and_return_axes`.

    Example:
        >>> import haliax as hax
        >>> a, b = broadcast_arrays(hax.ones({"x": 2, "y": 3}), hax.ones({"y": 3}))
        >>> b.shape
        {'x': 2, 'y': 3}
    """
    return broadcast_arrays_and_return_axes(*arrays, require_subset=require_subset, ensure_order=ensure_order)[0]


def _broadcast_order(a: NamedArray, b: NamedArray, require_subset: bool = True) -> tuple[Axis, ...]:
    """Return the axes of the result of a binary operation on ``a`` and ``b``."""
    if require_subset:
        names = binary_plan(a.names, a.array.shape, b.names, b.array.shape).names
        have = {x.name: x for x in (*a.axes, *b.axes)}
        return tuple(have[n] for n in names)
    return broadcast_arrays_and_return_axes(a, b, require_subset=False)[1]


def check_shape(jnp_shape: Sequence[int], axes: AxisSelection) -> tuple[Axis, ...]:
    """Resolve ``axes`` against a positional shape: bare names take their sizes from it.

    Raises:
        AxisSpecError: The rank differs.
        AxisSizeMismatchError: A size differs.

    Example:
        >>> check_shape((2, 3), ("a", Axis("b", 3)))
        (Axis(name='a', size=2), Axis(name='b', size=3))
    """
    found = pairs(axes)
    if len(found) != len(jnp_shape):
        raise AxisSpecError(
            f"check_shape: {len(jnp_shape)} dimensions {tuple(jnp_shape)} but {len(found)} axes; expected one "
            f"per dimension."
        )
    if any(s is not None and s != d for (_, s), d in zip(found, jnp_shape, strict=True)):
        shape = dict(zip((n for n, _ in found), jnp_shape, strict=True))
        raise AxisSizeMismatchError("check_shape", [("array", shape), ("axes", dict(found))])
    return tuple(Axis(n, d) for (n, _), d in zip(found, jnp_shape, strict=True))


def aligned_to(x: Any, names: Names) -> Any:
    """Return the raw array of ``x`` ready to broadcast against an array stored in the order ``names``.

    ``names`` must contain those of ``x``. Scalars and raw values pass through.
    """
    if not isinstance(x, NamedArray):
        return raw(x)
    if x.names == names:
        return x.array
    return align(x.array, alignment(x.names, names))


bind(broadcast_to=broadcast_to, broadcast_axis=broadcast_axis)
