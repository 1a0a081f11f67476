"""`rearrange`: transpose, split and merge axes, by partial order or by an einops-like string.

A string is compiled once per (string, names, shape, bindings) to at most reshape, transpose, reshape; steps that do
nothing are left out.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from haliax._array.named import NamedArray, bind, check_rank, intern_names, require_named, wrap
from haliax._array.sharding import auto_sharded, reshaped
from haliax._axis.order import solve_order
from haliax._axis.types import Axis, AxisSelector, PartialAxisSpec, reject_duplicates
from haliax._ops.parsing import AxisCapture, EllipsisCapture, Expression, parse_rearrangement
from haliax._ops.shape import transpose_to
from haliax.errors import AxisSpecError, ExpressionError, format_axes

Binding = Axis | str | int


class RearrangePlan(NamedTuple):
    """Steps of a compiled rearrangement; None means nothing to do."""

    split_shape: tuple[int, ...] | None
    split_names: tuple[str, ...]
    perm: tuple[int, ...] | None
    merge_shape: tuple[int, ...] | None
    names: tuple[str, ...]


class _Part(NamedTuple):
    """An intermediate axis: local name (None when anonymous), name in the result, size."""

    local: str | None
    name: str
    size: int


class _Compiler:
    def __init__(self, text: str, names: tuple[str, ...], shape: tuple[int, ...], bindings: dict[str, Binding]) -> None:
        self.text, self.names, self.shape, self.bindings = text, names, shape, bindings
        self.lhs, self.rhs = parse_rearrangement(text)

    def fail(self, reason: str, span: tuple[int, int] | None = None) -> ExpressionError:
        return ExpressionError(f"rearrange {format_axes(self.names, self.shape)}: {reason}", self.text, span)

    # --- left-hand side: which axis is which, and how axes are split ------------------------------------------------

    def bind_lhs(self) -> list[tuple[int, AxisCapture | None]]:
        captures = self.lhs.captures
        if sum(isinstance(c, EllipsisCapture) for c in captures) > 1:
            raise self.fail("Only one ellipsis allowed on the lhs", captures[-1].span)
        self.check_assigned_once(captures)
        return self.bind_ordered(captures) if self.lhs.is_ordered else self.bind_by_name(captures)

    def check_assigned_once(self, captures: Any) -> None:
        seen: set[str] = set()
        for c in captures:
            for n in c.axes if isinstance(c, AxisCapture) else ():
                if n in seen:
                    raise self.fail(f"axis {n!r} is assigned more than once", c.span)
                seen.add(n)

    def bind_ordered(self, captures: Any) -> list[tuple[int, AxisCapture | None]]:
        rank, out, i = len(self.names), [], 0
        given = sum(isinstance(c, AxisCapture) for c in captures)
        for c in captures:
            if isinstance(c, EllipsisCapture):
                for _ in range(rank - given):
                    out.append((i, None))
                    i += 1
                continue
            if i >= rank:
                raise self.fail("Too many axes in lhs", c.span)
            out.append((i, c))
            i += 1
        if i < rank:
            raise self.fail(f"Not all axes are bound: {format_axes(self.names[i:])} left over; add '...'")
        return out

    def bind_by_name(self, captures: Any) -> list[tuple[int, AxisCapture | None]]:
        bound: dict[int, AxisCapture] = {}
        for c in captures:
            if isinstance(c, EllipsisCapture):
                continue
            if c.binding is None:
                raise self.fail("a group in braces must be bound by name, as in (axis: a b)", c.span)
            name = self.real_name(c.binding)
            if name not in self.names:
                raise self.fail(f"Could not resolve axis {c.binding!r}", c.span)
            index = self.names.index(name)
            if index in bound:
                raise self.fail(f"axis {name!r} is bound more than once", c.span)
            bound[index] = c
        return [(i, bound.get(i)) for i in range(len(self.names))]

    def real_name(self, local: str) -> str:
        binding = self.bindings.get(local, local)
        return binding.name if isinstance(binding, Axis) else local if isinstance(binding, int) else binding

    def bound_size(self, local: str) -> int | None:
        binding = self.bindings.get(local)
        return binding.size if isinstance(binding, Axis) else binding if isinstance(binding, int) else None

    def parts_of(self, index: int, capture: AxisCapture | None) -> list[_Part]:
        name, size = self.names[index], self.shape[index]
        if capture is None:
            return [_Part(None, name, size)]
        if not capture.is_group:
            wanted = self.bound_size(capture.axes[0])
            if wanted not in (None, size):
                raise self.fail(
                    f"axis {name!r} has size {size}, but {capture.axes[0]}={wanted} was given", capture.span
                )
            return [_Part(capture.axes[0], name, size)]
        sizes = [self.bound_size(n) for n in capture.axes]
        unknown = [n for n, s in zip(capture.axes, sizes, strict=True) if s is None]
        if len(unknown) > 1:
            raise self.fail(f"sizes of {', '.join(unknown)} are ambiguous; give all but one", capture.span)
        known = 1
        for s in sizes:
            known *= 1 if s is None else s
        if (unknown and (known == 0 or size % known)) or (not unknown and known != size):
            raise self.fail(f"sizes {capture.axes} = {sizes} do not divide axis {name!r} of size {size}", capture.span)
        return [
            _Part(n, self.real_name(n), size // known if s is None else s)
            for n, s in zip(capture.axes, sizes, strict=True)
        ]

    # --- right-hand side: order and merging -------------------------------------------------------------------------

    def compile(self) -> RearrangePlan:
        bound = self.bind_lhs()
        parts = [p for index, capture in bound for p in self.parts_of(index, capture)]
        local = {p.local: i for i, p in enumerate(parts) if p.local is not None}
        order: list[Any] = []
        groups: dict[int, tuple[str, tuple[int, ...], int | None]] = {}
        used: set[int] = set()
        for c in self.rhs.captures:
            if isinstance(c, EllipsisCapture):
                order.append(...)
                continue
            indices = tuple(self.use(n, c, local, used) for n in c.axes)
            if c.is_group:
                if c.binding is None:
                    raise self.fail("a group on the rhs must have a name, as in (new: a b)", c.span)
                groups[indices[0]] = (self.real_name(c.binding), indices, self.bound_size(c.binding))
            order.append(indices[0])
        swallowed = {i for _, members, _ in groups.values() for i in members[1:]}
        heads = [i for i in range(len(parts)) if i not in swallowed]
        rest = [i for i in range(len(parts)) if i not in used]
        if rest and ... not in order:
            raise self.fail(
                f"Not all intermediate axes are used: {format_axes([parts[i].name for i in rest])} left over; add '...'"
            )
        ordered = solve_order(tuple(o if o is ... else str(o) for o in order), tuple(str(i) for i in heads))
        return self.emit(parts, [int(o) for o in ordered], groups)

    def use(self, name: str, capture: AxisCapture, local: dict[str, int], used: set[int]) -> int:
        if name not in local:
            raise self.fail(f"axis {name!r} is not bound on the lhs", capture.span)
        if local[name] in used:
            raise self.fail(f"axis {name!r} is used more than once", capture.span)
        used.add(local[name])
        return local[name]

    def emit(self, parts: list[_Part], heads: list[int], groups: dict[int, Any]) -> RearrangePlan:
        perm: list[int] = []
        shape: list[int] = []
        names: list[str] = []
        for head in heads:
            if head in groups:
                name, members, wanted = groups[head]
                total = 1
                for m in members:
                    total *= parts[m].size
                if wanted not in (None, total):
                    raise self.fail(f"merged axis {name!r} has {total} elements, but size {wanted} was given")
                perm.extend(members)
                names.append(name)
                shape.append(total)
            else:
                perm.append(head)
                names.append(parts[head].name)
                shape.append(parts[head].size)
        reject_duplicates("rearrange", names, names)
        split_shape = tuple(p.size for p in parts)
        bound = self.bind_lhs()
        base_order = [i for i, _ in bound]
        base_shape = tuple(self.shape[i] for i in base_order)
        permuted = tuple(parts[i].size for i in perm)
        return RearrangePlan(
            None if split_shape == base_shape else split_shape,
            tuple(p.name for p in parts),
            None if perm == list(range(len(parts))) else tuple(perm),
            None if tuple(shape) == permuted else tuple(shape),
            intern_names(tuple(names)),
        )


@functools.lru_cache(maxsize=4096)
def rearrange_plan(
    text: str, names: tuple[str, ...], shape: tuple[int, ...], bindings: tuple[tuple[str, Binding], ...]
) -> RearrangePlan:
    """Compile a rearrangement string for an array of these names and sizes.

    Raises:
        ExpressionError: It does not parse or does not bind.
    """
    check_rank("rearrange", names, shape)
    return _Compiler(text, names, shape, dict(bindings)).compile()


def einops_rearrange(array: NamedArray, expression: str, **bindings: AxisSelector | int) -> NamedArray:
    """Rearrange by a string such as ``"b (h: heads d) -> b heads d"``; see `rearrange`.

    Example:
        >>> import haliax as hax
        >>> einops_rearrange(hax.ones({"b": 2, "e": 6}), "b (h d) -> h b d", h=3).shape
        {'h': 3, 'b': 2, 'd': 2}
    """
    require_named("rearrange", array)
    plan = rearrange_plan(expression, array.names, array.array.shape, tuple(bindings.items()))
    x = array.array
    if plan.split_shape is not None:
        x = reshaped(x, plan.split_shape, plan.split_names)
    if plan.perm is not None:
        x = jnp.transpose(x, plan.perm)
    if plan.merge_shape is not None:
        x = reshaped(x, plan.merge_shape, plan.names)
    return auto_sharded(wrap(x, plan.names))


def rearrange(array: NamedArray, axes: str | PartialAxisSpec, **bindings: AxisSelector | int) -> NamedArray:
    """Reorder, split and merge axes.

    Args:
        array: Array.
        axes: A partial order such as ``("embed", ...)``, or a string ``"lhs -> rhs"``. On the left ``(q: a b)`` splits
            an axis, on the right it merges; braces on the left match by name instead of by position.
        **bindings: For the string form: sizes (int), axes (Axis) or names in the result (str) of its identifiers.

    Raises:
        AxisSpecError: The order is no permutation.
        ExpressionError: The string does not parse or bind.

    Example:
        >>> import haliax as hax
        >>> x = hax.zeros({"batch": 2, "embed": 12})
        >>> hax.rearrange(x, "b (h d) -> h b d", h=3).shape
        {'h': 3, 'batch': 2, 'd': 4}
        >>> hax.rearrange(x, ("embed", ...)).shape
        {'embed': 12, 'batch': 2}
    """
    require_named("rearrange", array)
    if isinstance(axes, str):
        return einops_rearrange(array, axes, **bindings)
    if bindings:
        raise AxisSpecError(f"rearrange: bindings {list(bindings)} need the string form; got a sequence of axes.")
    return auto_sharded(transpose_to(array, _sequence(axes)))


def _sequence(axes: Any) -> Sequence[Any]:
    return (axes,) if axes is ... or isinstance(axes, Axis) else tuple(axes)


def side_names(side: Expression) -> tuple[str, ...]:
    """Return the plain names of one side, in order."""
    return tuple(n for c in side.captures if isinstance(c, AxisCapture) for n in c.axes)


bind(rearrange=rearrange)
