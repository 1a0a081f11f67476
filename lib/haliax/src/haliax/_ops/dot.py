"""`dot`: contraction by name."""

import functools
import warnings
from typing import Any

import jax

from haliax._array.named import NamedArray, bind, freeze, intern_names, require_named, wrap
from haliax._array.plan import check_same_sizes
from haliax._array.sharding import auto_sharded, out_sharding_for
from haliax._axis.order import check_partial_sizes, solve_order
from haliax._axis.types import PartialAxisSpec, names_of, pairs, reject_duplicates
from haliax._ops.contract import contract
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, AxisSpecError, format_axes, show


@functools.lru_cache(maxsize=8192)
def _dot_plan(
    terms: tuple[tuple[str, ...], ...],
    shapes: tuple[tuple[int, ...], ...],
    axis: Any,
    out_axes: tuple[Any, ...] | None,
    strict: bool,
) -> tuple[tuple[str, ...], str]:
    labels = tuple(f"operand {i}" for i in range(len(terms)))
    check_same_sizes("dot", labels, tuple(zip(terms, shapes, strict=True)))
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for n, s in zip(term, shape, strict=True):
            sizes.setdefault(n, s)
    if axis is None:
        contracted: tuple[str, ...] = tuple(sizes)
    else:
        found = pairs(axis)
        contracted = tuple(n for n, _ in found)
        reject_duplicates("dot (axis)", contracted, contracted)
        missing = [n for n in contracted if n not in sizes]
        if missing:
            raise AxisNotFoundError("dot", missing, sizes)
        if any(s is not None and sizes[n] != s for n, s in found):
            raise AxisSizeMismatchError("dot", [("operands", sizes), ("axis", dict(found))])
        if strict and len(terms) > 1:
            lonely = [n for n in contracted if sum(n in t for t in terms) < 2]
            if lonely:
                shown = ", ".join(
                    f"{lab} {show(dict(zip(t, s, strict=True)))}"
                    for lab, t, s in zip(labels, terms, shapes, strict=True)
                )
                raise AxisSpecError(
                    f"dot: axis {', '.join(map(repr, lonely))} is in one operand only: {shown}; expected it in "
                    f"at least two. "
                    "Check the names, or sum over it explicitly."
                )
    out = tuple(n for n in sizes if n not in contracted)
    if out_axes is not None:
        out = solve_order(tuple(p if p is ... else names_of(p)[0] for p in out_axes), out)
    shown_terms = ", ".join(" ".join(t) for t in terms)
    return intern_names(out), f"contract {shown_terms} -> {' '.join(out)}"


def dot(
    *arrays: Any,
    axis: Any = ...,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_axes: PartialAxisSpec | None = None,
    dot_general: Any = jax.lax.dot_general,
    strict: bool = False,
) -> NamedArray:
    """Multiply arrays and sum over ``axis``; names shared otherwise are batch axes.

    Args:
        *arrays: NamedArrays, at least one.
        axis: Axes to contract; None contracts all, ``()`` none (a batched outer product).
        precision: As in `jax.lax.dot_general`.
        preferred_element_type: As in `jax.lax.dot_general`.
        out_axes: Partial order of the result; order of first appearance unless given.
        dot_general: Replacement for `jax.lax.dot_general`.
        strict: Require every contracted axis in at least two operands. Otherwise an axis that only one operand has is
            summed.

    Raises:
        AxisNotFoundError: An axis is in no operand.
        AxisSizeMismatchError: One name has two sizes.
        AxisSpecError: No arrays, no axis, or ``strict`` and an axis in one operand only.

    Example:
        >>> import haliax as hax
        >>> x, w = hax.ones({"batch": 2, "i": 3}), hax.ones({"o": 4, "i": 3})
        >>> hax.dot(x, w, axis="i").shape
        {'batch': 2, 'o': 4}
    """
    if arrays and not isinstance(arrays[0], NamedArray):
        if axis is not ...:
            require_named("dot", arrays[0], "arrays[0]")
        warnings.warn(
            "dot(axis, *arrays) is deprecated; write dot(*arrays, axis=axis)", DeprecationWarning, stacklevel=2
        )
        axis, arrays = arrays[0], arrays[1:]
    if not arrays:
        raise AxisSpecError("dot: no arrays; expected at least one NamedArray.")
    for i, a in enumerate(arrays):
        require_named("dot", a, f"arrays[{i}]")
    if axis is ...:
        raise AxisSpecError(
            f"dot: no axis given for {', '.join(format_axes(a.names) for a in arrays)}; expected axis=. "
            "Name the axes to contract, None for all, or () for none."
        )
    terms = tuple(a.names for a in arrays)
    order = None if out_axes is None else tuple(out_axes)
    names, scope = _dot_plan(terms, tuple(a.array.shape for a in arrays), freeze(axis), order, strict)
    if order is not None:
        check_partial_sizes("dot", order, tuple(x for a in arrays for x in a.axes))
    out_sharding = out_sharding_for(names)
    with jax.named_scope(scope):
        out = contract(
            [a.array for a in arrays],
            terms,
            names,
            precision=precision,
            preferred_element_type=preferred_element_type,
            dot_general=dot_general,
            out_sharding=out_sharding,
        )
    result = wrap(out, names)
    return result if out_sharding is not None else auto_sharded(result)


def _dot_method(self: NamedArray, *others: Any, axis: Any = ..., **kwargs: Any) -> NamedArray:
    """Contract with other arrays; see `haliax.dot`."""
    if others and not isinstance(others[0], NamedArray):
        return dot(others[0], self, *others[1:], **kwargs)
    return dot(self, *others, axis=axis, **kwargs)


bind(dot=_dot_method)
