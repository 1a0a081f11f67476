"""Helpers to lift functions of your own to named arrays, and the protocols of what they return."""

from typing import Any, Protocol

from haliax._array.lift import lift_axiswise, lift_binary, lift_reduction, lift_unary
from haliax._array.named import NamedArray
from haliax._axis.types import AxisSelection, AxisSelector

wrap_elemwise_unary = lift_unary
wrap_elemwise_binary = lift_binary
wrap_reduction_call = lift_reduction
wrap_axiswise_call = lift_axiswise


class ReductionFunction(Protocol):
    """A reduction over named axes."""

    def __call__(
        self, array: NamedArray, axis: AxisSelection | None = None, *, where: NamedArray | None = None, **kwargs: Any
    ) -> NamedArray:
        """Reduce ``array`` over ``axis``."""
        ...


class SimpleReductionFunction(Protocol):
    """A reduction over one named axis."""

    def __call__(self, array: NamedArray, axis: AxisSelector | None = None) -> NamedArray:
        """Reduce ``array`` over ``axis``."""
        ...
