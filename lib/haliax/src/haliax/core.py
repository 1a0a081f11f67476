"""`NamedArray` with all its operations: import it from here (or from `haliax`), and every method is in place."""

from haliax._array.checks import (
    are_shape_checks_enabled,
    enable_shape_checks,
)
from haliax._array.named import NamedArray, named
from haliax._array.typing_spec import NamedArrayAxes
from haliax._axis.types import Axis
from haliax._ops.broadcast import (
    _broadcast_order,
    broadcast_arrays,
    broadcast_arrays_and_return_axes,
    broadcast_axis,
    broadcast_to,
    check_shape,
)
from haliax._ops.dot import dot
from haliax._ops.elementwise import add
from haliax._ops.indexing import index
from haliax._ops.rearrange import rearrange
from haliax._ops.reductions import sum  # noqa: A004
from haliax._ops.select import where
from haliax._ops.shape import (
    flatten,
    flatten_all_axes_but,
    flatten_axes,
    ravel,
    rename,
    roll,
    split,
    unbind,
    unflatten_axis,
)
from haliax._ops.slicing import slice_, take, updated_slice

__all__ = [
    "Axis",
    "NamedArray",
    "NamedArrayAxes",
    "_broadcast_order",
    "add",
    "are_shape_checks_enabled",
    "broadcast_arrays",
    "broadcast_arrays_and_return_axes",
    "broadcast_axis",
    "broadcast_to",
    "check_shape",
    "dot",
    "enable_shape_checks",
    "flatten",
    "flatten_all_axes_but",
    "flatten_axes",
    "index",
    "named",
    "ravel",
    "rearrange",
    "rename",
    "roll",
    "slice",
    "split",
    "sum",
    "take",
    "unbind",
    "unflatten_axis",
    "updated_slice",
    "where",
]

slice = slice_  # noqa: A001
