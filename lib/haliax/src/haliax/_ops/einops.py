"""The string language beyond rearrange: reduce, repeat, pack and unpack.

reduce   "b (h p) -> b h", "mean", p=2       names that vanish are reduced
repeat   "b d -> b r d", r=3                 names that appear are new axes
pack     several arrays into one axis, with the layout that `unpack` needs
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from haliax._array.named import NamedArray, intern_names, position, require_named, wrap
from haliax._array.plan import permute_to
from haliax._axis.types import Axis, AxisSelection, AxisSelector, names_of, reject_duplicates
from haliax._ops.broadcast import broadcast_axis
from haliax._ops.joining import concatenate
from haliax._ops.parsing import AxisCapture, EllipsisCapture, parse_rearrangement
from haliax._ops.rearrange import einops_rearrange
from haliax._ops.shape import flatten_axes, split, unflatten_axis
from haliax._ops.shape import repeat as repeat_elements
from haliax.errors import AxisSpecError, ExpressionError

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": jnp.sum,
    "mean": jnp.mean,
    "max": jnp.max,
    "min": jnp.min,
    "prod": jnp.prod,
    "any": jnp.any,
    "all": jnp.all,
}


def _quote(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _names(captures: Any) -> list[str]:
    return [n for c in captures if isinstance(c, AxisCapture) for n in c.axes]


@functools.lru_cache(maxsize=1024)
def _spelled(expression: str) -> tuple[str, str, tuple[str, ...]]:
    """Return (split everything, merge as on the right, vanished names) as rearrange expressions."""
    lhs, rhs = parse_rearrangement(expression)
    left, right = _names(lhs.captures), _names(rhs.captures)
    unknown = [n for n in right if n not in left]
    if unknown:
        raise ExpressionError(f"reduce: axis {unknown[0]!r} is not bound on the lhs", expression)
    vanished = tuple(n for n in left if n not in right)
    source = expression.partition("->")[0].strip()
    middle = " ".join([*(["..."] if lhs.has_ellipsis or not lhs.is_ordered else []), *map(_quote, left)])
    target = expression.partition("->")[2].strip()
    return f"{source} -> {middle}", target, vanished


def reduce(
    array: NamedArray, expression: str, reduction: str | Callable[..., Any], **bindings: AxisSelector | int
) -> NamedArray:
    """Reduce the names that are on the left of an expression and not on the right.

    Args:
        array: Array.
        expression: As for `rearrange`; splits on the left and merges on the right work.
        reduction: "sum", "mean", "max", "min", "prod", "any", "all", or ``f(array, axis=positions)``.
        **bindings: As for `rearrange`.

    Raises:
        ExpressionError: The expression does not parse or bind.
        AxisSpecError: The reduction is unknown.

    Example:
        >>> import haliax as hax
        >>> x = hax.arange({"t": 6}, dtype=float)
        >>> reduce(x, "(t p) -> t", "mean", p=2).tolist()
        [0.5, 2.5, 4.5]
    """
    require_named("reduce", array)
    fn = _REDUCTIONS.get(reduction) if isinstance(reduction, str) else reduction
    if fn is None:
        raise AxisSpecError(f"reduce: reduction={reduction!r}; expected one of {', '.join(_REDUCTIONS)} or a function.")
    split_up, target, vanished = _spelled(expression)
    lhs, _ = parse_rearrangement(expression)
    left = _names(lhs.captures)
    sizes = {k: v.size if isinstance(v, Axis) else v for k, v in bindings.items() if not isinstance(v, str)}
    parts = einops_rearrange(array, split_up, **sizes)
    local = dict(zip(left, parts.names[len(parts.names) - len(left) :], strict=True))
    positions = tuple(parts.names.index(local[n]) for n in vanished)
    kept = tuple(n for i, n in enumerate(parts.names) if i not in positions)
    reduced = wrap(fn(parts.array, axis=positions) if positions else parts.array, intern_names(kept))
    remaining = [n for n in left if n not in vanished]
    source = " ".join([*(["..."] if len(kept) > len(remaining) else []), *map(_quote, remaining)])
    names = {k: v for k, v in bindings.items() if k not in sizes or isinstance(v, Axis)}
    groups = {
        c.binding for c in parse_rearrangement(expression)[1].captures if isinstance(c, AxisCapture) and c.is_group
    }
    return einops_rearrange(reduced, f"{source} -> {target}", **{k: v for k, v in names.items() if k in groups})


def repeat(
    array: NamedArray,
    repeats: Any,
    axis: AxisSelector | None = None,
    total_repeat_length: int | None = None,
    **bindings: AxisSelector | int,
) -> NamedArray:
    """Repeat elements along an axis, or add axes by an expression.

    Args:
        array: Array.
        repeats: Count(s) per element of ``axis``; or an expression such as ``"b d -> b r d"`` in which names that are
            only on the right become new axes.
        axis: Axis whose elements are repeated (first form).
        total_repeat_length: As in `jax.numpy.repeat` (first form).
        **bindings: Sizes (int) or axes of the new names (second form), and bindings of `rearrange`.

    Raises:
        ExpressionError: A new name has no size.

    Example:
        >>> import haliax as hax
        >>> x = hax.arange({"d": 2})
        >>> repeat(x, 2, "d").tolist(), repeat(x, "d -> r d", r=2).tolist()
        ([0, 0, 1, 1], [[0, 1], [0, 1]])
    """
    require_named("repeat", array)
    if not isinstance(repeats, str):
        if axis is None:
            raise AxisSpecError("repeat: no axis given; expected axis=.")
        return repeat_elements(array, repeats, axis, total_repeat_length)
    lhs, rhs = parse_rearrangement(repeats)
    left = set(_names(lhs.captures))
    new: list[Axis] = []
    for n in _names(rhs.captures):
        if n in left:
            continue
        size = bindings.pop(n, None)
        if size is None or isinstance(size, str):
            raise ExpressionError(f"repeat: no size for the new axis {n!r}; pass {n}=<int or Axis>", repeats)
        new.append(size if isinstance(size, Axis) else Axis(n, size))
    fresh = [n for n in _names(rhs.captures) if n not in left]
    wide = broadcast_axis(array, tuple(new)) if new else array
    source, target = repeats.partition("->")[0].strip(), repeats.partition("->")[2].strip()
    if lhs.is_ordered:
        source = " ".join([*map(_quote, fresh), source])
    else:
        inner = source[source.index("{") + 1 : source.rindex("}")]
        bindings.update({f: a.name for f, a in zip(fresh, new, strict=True)})
        source = "{" + " ".join([*map(_quote, fresh), inner]) + "}"
    return einops_rearrange(wide, f"{source} -> {target}", **bindings)


class PackLayout(NamedTuple):
    """What `unpack` needs: per array its packed axes, and the order of its axes."""

    axis: str
    shapes: tuple[tuple[Axis, ...], ...]
    orders: tuple[tuple[str, ...], ...]


def pack(axis: str, arrays: Sequence[NamedArray], keep: AxisSelection = ()) -> tuple[NamedArray, PackLayout]:
    """Flatten all but the kept axes of each array and join the results along a new axis.

    Args:
        axis: Name of the new axis, which comes last.
        arrays: Arrays that share the axes ``keep``.
        keep: Axes that stay.

    Returns:
        The packed array with axes (keep, axis), and the layout for `unpack`.

    Raises:
        AxisNotFoundError: An array lacks a kept axis.

    Example:
        >>> import haliax as hax
        >>> packed, layout = pack("flat", [hax.zeros({"a": 2, "b": 3}), hax.ones({"c": 4})])
        >>> packed.shape, [x.shape for x in unpack(packed, layout)]
        ({'flat': 10}, [{'a': 2, 'b': 3}, {'c': 4}])
    """
    kept = names_of(keep)
    rows, shapes, orders = [], [], []
    for i, a in enumerate(arrays):
        require_named("pack", a, f"arrays[{i}]")
        for n in kept:
            position("pack", a, n)
        rest = tuple(x for x in a.axes if x.name not in kept)
        ordered = wrap(permute_to(a, (*kept, *(x.name for x in rest))), intern_names((*kept, *(x.name for x in rest))))
        flat = flatten_axes(ordered, rest, axis) if rest else _append_axis(ordered, axis)
        rows.append(flat)
        shapes.append(rest)
        orders.append(a.names)
    return concatenate(axis, rows), PackLayout(axis, tuple(shapes), tuple(orders))


def _append_axis(array: NamedArray, axis: str) -> NamedArray:
    names = (*array.names, axis)
    reject_duplicates("pack", names, names)
    return wrap(jnp.expand_dims(array.array, -1), intern_names(names))


def unpack(packed: NamedArray, layout: PackLayout) -> list[NamedArray]:
    """Take apart what `pack` joined; further axes that ``packed`` has gained come first.

    Raises:
        AxisSizeMismatchError: The packed axis has another size than the layout says.

    Example:
        >>> import haliax as hax
        >>> packed, layout = hax.pack("flat", [hax.ones({"a": 2}), hax.ones({"b": 3})])
        >>> [x.shape for x in unpack(packed, layout)]
        [{'a': 2}, {'b': 3}]
    """
    pieces = split(packed, layout.axis, [Axis(layout.axis, _total(s)) for s in layout.shapes])
    out = []
    for piece, shape, order in zip(pieces, layout.shapes, layout.orders, strict=True):
        whole = unflatten_axis(piece, layout.axis, shape)
        gained = tuple(n for n in whole.names if n not in order)
        names = (*gained, *(n for n in order if n in whole.names))
        out.append(wrap(permute_to(whole, names), intern_names(names)))
    return out


def _total(axes: Sequence[Axis]) -> int:
    total = 1
    for a in axes:
        total *= a.size
    return total


def parse_shape(array: NamedArray, expression: str) -> dict[str, int]:
    """Return the sizes of an array's axes under the names of ``expression``; ``_`` skips one.

    Raises:
        ExpressionError: The expression does not parse or does not fit the axes.

    Example:
        >>> import haliax as hax
        >>> parse_shape(hax.zeros({"batch": 2, "embed": 3}), "b _")
        {'b': 2}
    """
    lhs, _ = parse_rearrangement(f"{expression} ->")
    captures = lhs.captures
    if any(isinstance(c, EllipsisCapture) for c in captures) or len(captures) != array.ndim:
        raise ExpressionError(f"parse_shape: array has {array.ndim} axes; expected one name for each", expression)
    return {n: s for n, s in zip(_names(captures), array.array.shape, strict=True) if n != "_"}
