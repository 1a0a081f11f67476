"""Dynamic slices: a window whose start may be traced and whose size is static."""

from typing import Any

import equinox as eqx

from haliax._axis.types import Axis
from haliax.errors import AxisSpecError


class dslice(eqx.Module):
    """A window ``start .. start + size`` for indexing; the start may be traced, the size is static.

    Reading beyond the end of the axis gives 0, writing beyond it is dropped, and a negative start counts from the end.

    Args:
        start: First index, an int or a 0-d integer array.
        length: Number of elements, or an Axis whose size is taken.

    Example:
        >>> dslice(2, 3).to_slice(), dslice.block(2, 4).start
        (slice(2, 5, None), 8)
    """

    start: Any
    size: int = eqx.field(static=True)

    def __init__(self, start: Any, length: int | Axis) -> None:
        self.start = getattr(start, "array", start)
        self.size = length.size if isinstance(length, Axis) else length
        if isinstance(self.size, int) and self.size < 0:
            raise AxisSpecError(f"dslice: size={self.size}; expected size >= 0. Pass the number of elements.")

    def to_slice(self) -> slice:
        """Return the equivalent built-in slice; needs a concrete start."""
        return slice(int(self.start), int(self.start) + self.size)

    @classmethod
    def block(cls, idx: Any, size: int) -> "dslice":
        """Return the ``idx``-th window of ``size`` elements."""
        return cls(idx * size, size)


ds = dslice


def dblock(idx: Any, size: int) -> dslice:
    """Return the ``idx``-th window of ``size`` elements (same as ``dslice.block``)."""
    return dslice(idx * size, size)
