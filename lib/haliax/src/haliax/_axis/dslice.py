"""Dynamic slices: a window whose start may be traced and whose size is static."""

from dataclasses import dataclass
from typing import Any, final

import jax

from haliax._axis.types import Axis
from haliax.errors import AxisSpecError


@final
@dataclass(frozen=True, init=False)
class dslice:
    """A window ``start .. start + size`` for indexing; the start may be traced, the size is static.

    Reading beyond the end of the axis gives 0, writing beyond it is dropped, and a negative start counts from the end.
    As a pytree it has one child, the start.

    Args:
        start: First index, an int or a 0-d integer array.
        length: Number of elements, or an Axis whose size is taken.

    Raises:
        AxisSpecError: The length is negative.

    Example:
        >>> dslice(2, 3).to_slice(), dslice.block(2, 4).start
        (slice(2, 5, None), 8)
    """

    start: Any
    size: int

    def __init__(self, start: Any, length: int | Axis) -> None:
        size = length.size if isinstance(length, Axis) else length
        if isinstance(size, int) and size < 0:
            raise AxisSpecError(f"dslice: size={size}; expected size >= 0. Pass the number of elements.")
        object.__setattr__(self, "start", getattr(start, "array", start))
        object.__setattr__(self, "size", size)

    def to_slice(self) -> slice:
        """Return the equivalent built-in slice; needs a concrete start."""
        return slice(int(self.start), int(self.start) + self.size)

    @classmethod
    def block(cls, idx: Any, size: int) -> "dslice":
        """Return the ``idx``-th window of ``size`` elements."""
        return cls(idx * size, size)


def _unflatten(size: int, children: Any) -> dslice:
    (start,) = children
    return dslice(start, size)


jax.tree_util.register_pytree_with_keys(
    dslice,
    lambda d: (((jax.tree_util.GetAttrKey("start"), d.start),), d.size),
    _unflatten,
    flatten_func=lambda d: ((d.start,), d.size),
)

ds = dslice


def dblock(idx: Any, size: int) -> dslice:
    """Return the ``idx``-th window of ``size`` elements (same as ``dslice.block``).

    Example:
        >>> dblock(2, 4).to_slice()
        slice(8, 12, None)
    """
    return dslice(idx * size, size)
