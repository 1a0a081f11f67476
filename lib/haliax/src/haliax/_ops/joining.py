"""Stacking and concatenating by name."""

from collections.abc import Sequence

import jax.numpy as jnp

from haliax._array.named import NamedArray, intern_names, require_named, wrap
from haliax._array.plan import check_same_sizes, permute_to
from haliax._axis.types import AxisSelector, pairs, reject_duplicates
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, AxisSpecError


def _same_axes(operation: str, arrays: Sequence[NamedArray], ignore: str | None) -> None:
    first = arrays[0]
    for i, other in enumerate(arrays):
        require_named(operation, other, f"arrays[{i}]")
        if set(other.names) != set(first.names):
            raise AxisSpecError(
                f"{operation}: arrays[{i}] has axes {list(other.names)}, arrays[0] has {list(first.names)}; "
                "expected the same names. Broadcast or reduce the odd one first."
            )
    trimmed = [
        (
            tuple(n for n in a.names if n != ignore),
            tuple(s for n, s in zip(a.names, a.array.shape, strict=True) if n != ignore),
        )
        for a in arrays
    ]
    check_same_sizes(operation, tuple(f"arrays[{i}]" for i in range(len(arrays))), tuple(trimmed))


def stack(axis: AxisSelector, arrays: Sequence[NamedArray]) -> NamedArray:
    """Put arrays next to each other along a new first axis, in the order of the first one's axes.

    Raises:
        AxisSpecError: No arrays, or different axes.
        AxisSizeMismatchError: Sizes differ, or ``axis`` has a size other than the number of arrays.
        AxisCollisionError: The arrays already have ``axis``.

    Example:
        >>> import haliax as hax
        >>> hax.stack("layer", [hax.zeros({"e": 2}), hax.ones({"e": 2})]).shape
        {'layer': 2, 'e': 2}
    """
    arrays = list(arrays)
    ((name, size),) = pairs(axis)
    if not arrays:
        raise AxisSpecError(f"stack: no arrays to stack along {name!r}; expected at least one.")
    if size not in (None, len(arrays)):
        raise AxisSizeMismatchError("stack", [("axis", axis), ("arrays given", {name: len(arrays)})])
    _same_axes("stack", arrays, None)
    names = (name, *arrays[0].names)
    reject_duplicates("stack", names, names)
    return wrap(jnp.stack([permute_to(a, arrays[0].names) for a in arrays]), intern_names(names))


def concatenate(axis: AxisSelector, arrays: Sequence[NamedArray]) -> NamedArray:
    """Join arrays end to end along ``axis``, in the order of the first one's axes.

    Args:
        axis: Name, or Axis whose size must equal the total.
        arrays: Arrays with the same names; sizes may differ along ``axis`` only. None gives a float32 array of size 0.

    Raises:
        AxisNotFoundError: An array lacks ``axis``.
        AxisSizeMismatchError: Other sizes differ, or the total is not that of ``axis``.

    Example:
        >>> import haliax as hax
        >>> concatenate("a", [hax.ones({"a": 1}), hax.zeros({"a": 2})]).tolist()
        [1.0, 0.0, 0.0]
    """
    arrays = list(arrays)
    ((name, size),) = pairs(axis)
    if not arrays:
        return wrap(jnp.zeros((0,), jnp.float32), intern_names((name,)))
    _same_axes("concatenate", arrays, name)
    if name not in arrays[0].names:
        raise AxisNotFoundError("concatenate", [name], arrays[0].axes)
    names = arrays[0].names
    total = sum(a.array.shape[a.names.index(name)] for a in arrays)
    if size not in (None, total):
        raise AxisSizeMismatchError("concatenate", [("axis", axis), ("arrays together", {name: total})])
    return wrap(jnp.concatenate([permute_to(a, names) for a in arrays], axis=names.index(name)), names)
