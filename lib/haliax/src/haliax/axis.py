"""Axes: a name with a size, the forms in which axes are given, and their algebra.

haliax identifies the dimensions of an array by name. Storage order exists but carries no meaning, so most functions
take *selections*: an `Axis`, a bare name, a sequence of both, or a mapping from name to size. All functions here are
pure and never touch array data.
"""

from haliax._axis.algebra import (
    concat_axes,
    concat_axis_specs,
    eliminate_axes,
    intersect_axes,
    is_axis_compatible,
    replace_axis,
    replace_missing_with_ellipsis,
    resolve_axis,
    selects_axis,
    union_axes,
    unsize_axes,
    without_axes,
)
from haliax._axis.dslice import dblock, ds, dslice
from haliax._axis.order import rearrange_for_partial_order
from haliax._axis.types import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    PartialAxisSpec,
    PartialShapeDict,
    ShapeDict,
    axis_name,
    axis_size,
    axis_spec_to_shape_dict,
    axis_spec_to_tuple,
    make_axes,
    to_jax_shape,
)

__all__ = [
    "Axis",
    "AxisSelection",
    "AxisSelector",
    "AxisSpec",
    "PartialAxisSpec",
    "PartialShapeDict",
    "ShapeDict",
    "axis_name",
    "axis_size",
    "axis_spec_to_shape_dict",
    "axis_spec_to_tuple",
    "concat_axes",
    "concat_axis_specs",
    "dblock",
    "ds",
    "dslice",
    "eliminate_axes",
    "intersect_axes",
    "is_axis_compatible",
    "make_axes",
    "rearrange_for_partial_order",
    "replace_axis",
    "replace_missing_with_ellipsis",
    "resolve_axis",
    "selects_axis",
    "to_jax_shape",
    "union_axes",
    "unsize_axes",
    "without_axes",
]
