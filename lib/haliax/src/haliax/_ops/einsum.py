"""`einsum`: contraction by an equation over axis names, in three modes.

Ordered ``"h w d, d w h -> h w"`` binds by position and its names are placeholders; unordered ``"{H D} -> H"`` names the
axes to contract or keep over all operands; output-only ``"-> H W"`` names what is kept.
"""

import functools
from typing import Any, NamedTuple

import jax

from haliax._array.named import NamedArray, check_rank, intern_names, require_named, wrap
from haliax._array.plan import check_same_sizes
from haliax._array.sharding import auto_sharded, out_sharding_for
from haliax._axis.order import solve_order
from haliax._axis.types import Axis, AxisSelector, reject_duplicates
from haliax._ops.contract import contract
from haliax._ops.parsing import AxisCapture, EllipsisCapture, Expression, parse_einsum
from haliax.errors import AxisSizeMismatchError, ExpressionError, format_axes

Names = tuple[str, ...]


class EinsumPlan(NamedTuple):
    """Labels per operand, labels of the result, and the names of the result."""

    labels: tuple[Names, ...]
    out: Names
    names: Names
    scope: str


class _Binder:
    def __init__(self, text: str, operands: tuple[tuple[Names, tuple[int, ...]], ...], aliases: dict[str, Any]) -> None:
        self.text, self.operands, self.aliases = text, operands, aliases
        self.used_aliases: set[str] = set()

    def fail(self, reason: str, span: tuple[int, int] | None = None) -> ExpressionError:
        shown = ", ".join(format_axes(n, s) for n, s in self.operands)
        return ExpressionError(f"einsum {shown}: {reason}", self.text, span)

    def real(self, local: str) -> str:
        alias = self.aliases.get(local)
        if alias is not None:
            self.used_aliases.add(local)
        return local if alias is None else alias.name if isinstance(alias, Axis) else alias

    def check_alias_sizes(self) -> None:
        for local, alias in self.aliases.items():
            for names, shape in self.operands:
                name = alias.name if isinstance(alias, Axis) else alias
                if isinstance(alias, Axis) and name in names and shape[names.index(name)] != alias.size:
                    raise AxisSizeMismatchError(
                        f"einsum: Size mismatch for alias {local!r}",
                        [("array", dict(zip(names, shape, strict=True))), ("alias", alias)],
                    )

    def order(self, rhs: Expression, natural: Names, translate: bool) -> Names:
        wanted = [
            ... if isinstance(c, EllipsisCapture) else self.real(c.axes[0]) if translate else c.axes[0]
            for c in rhs.captures
        ]
        named = [w for w in wanted if w is not ...]
        for w in named:
            if named.count(w) > 1:
                raise self.fail(f"axis {w!r} is used multiple times in the output")
        return solve_order(tuple(wanted), natural)

    # --- modes --------------------------------------------------------------------------------------------------------

    def ordered(self, terms: tuple[Expression, ...], rhs: Expression) -> EinsumPlan:
        if len(terms) != len(self.operands):
            raise self.fail(f"number of terms ({len(terms)}) does not match number of arrays ({len(self.operands)})")
        labels: list[Names] = []
        real: dict[str, str] = {}
        for term, (names, shape) in zip(terms, self.operands, strict=True):
            labels.append(self.bind_term(term, names, shape, real))
        seen = tuple(dict.fromkeys(n for term in labels for n in term))
        sizes = [(lab, s) for lab, (_, s) in zip(labels, self.operands, strict=True)]
        check_same_sizes("einsum", tuple(f"operand {i}" for i in range(len(labels))), tuple(sizes))
        keep = {c.axes[0] for c in rhs.captures if isinstance(c, AxisCapture)}
        for c in rhs.captures:
            if isinstance(c, AxisCapture) and c.axes[0] not in seen:
                raise self.fail(f"axis {c.axes[0]!r} of the output is not on the lhs", c.span)
        if rhs.has_ellipsis:
            keep |= {n for n in seen if n.startswith("\0")}
        out = self.order(rhs, tuple(n for n in seen if n in keep), translate=False)
        return self.plan(tuple(labels), out, tuple(real[n] for n in out))

    def bind_term(self, term: Expression, names: Names, shape: tuple[int, ...], real: dict[str, str]) -> Names:
        captures = term.captures
        dots = sum(isinstance(c, EllipsisCapture) for c in captures)
        if dots > 1:
            raise self.fail("more than one ellipsis in a term; Only one ellipsis allowed", captures[-1].span)
        given = len(captures) - dots
        if given > len(names) or (not dots and given != len(names)):
            raise self.fail(f"Mismatched number of axes: {given} in the term, {format_axes(names)} in the array")
        out: list[str] = []
        i = 0
        for c in captures:
            if isinstance(c, EllipsisCapture):
                hidden = names[i : i + len(names) - given]
                out.extend("\0" + n for n in hidden)
                real.update(("\0" + n, n) for n in hidden)
                i += len(hidden)
                continue
            local = c.axes[0]
            if local in out:
                raise self.fail(f"axis {local!r} occurs twice in one term", c.span)
            if local in self.aliases:
                self.check_bound(local, names[i], shape[i], c)
            out.append(local)
            real.setdefault(local, names[i])
            i += 1
        return tuple(out)

    def check_bound(self, local: str, name: str, size: int, capture: AxisCapture) -> None:
        alias = self.aliases[local]
        self.used_aliases.add(local)
        if isinstance(alias, Axis) and alias.size != size:
            raise self.fail(f"Size mismatch: {local}={alias}, but the array has {name}: {size}", capture.span)
        if (alias.name if isinstance(alias, Axis) else alias) != name:
            raise self.fail(f"alias {local}={alias} is bound to axis {name!r}", capture.span)

    def all_names(self) -> Names:
        check_same_sizes(
            "einsum: Size mismatch", tuple(f"operand {i}" for i in range(len(self.operands))), self.operands
        )
        return tuple(dict.fromkeys(n for names, _ in self.operands for n in names))

    def unordered(self, lhs: Expression, rhs: Expression) -> EinsumPlan:
        present = self.all_names()
        self.check_alias_sizes()
        left = [self.real(c.axes[0]) for c in lhs.captures if isinstance(c, AxisCapture)]
        right = [self.real(c.axes[0]) for c in rhs.captures if isinstance(c, AxisCapture)]
        for side, names in ((lhs, left), (rhs, right)):
            spans = [c.span for c in side.captures if isinstance(c, AxisCapture)]
            for name, span in zip(names, spans, strict=True):
                if name not in present:
                    raise self.fail(f"axis {name!r} is not present in any of the input arrays", span)
        if rhs.has_ellipsis:
            out = self.order(rhs, present, translate=True)
        elif lhs.has_ellipsis:
            out = self.order(rhs, tuple(n for n in present if n in right), translate=True)
        else:
            kept = [n for n in present if n not in left and n not in right]
            out = (*kept, *self.order(rhs, tuple(n for n in present if n in right), translate=True))
        return self.plan(tuple(n for n, _ in self.operands), out, out)

    def output_only(self, rhs: Expression) -> EinsumPlan:
        present = self.all_names()
        self.check_alias_sizes()
        right = [self.real(c.axes[0]) for c in rhs.captures if isinstance(c, AxisCapture)]
        for name in right:
            if right.count(name) > 1:
                raise self.fail(f"axis {name!r} is used multiple times in the output")
            if name not in present:
                raise self.fail(f"axis {name!r} not found in any of the input arrays")
        if sum(isinstance(c, EllipsisCapture) for c in rhs.captures) > 1:
            raise self.fail("Only one ellipsis allowed in the output")
        natural = present if rhs.has_ellipsis else tuple(n for n in present if n in right)
        out = self.order(rhs, natural, translate=True)
        return self.plan(tuple(n for n, _ in self.operands), out, out)

    def plan(self, labels: tuple[Names, ...], out: Names, names: Names) -> EinsumPlan:
        unused = [a for a in self.aliases if a not in self.used_aliases]
        if unused:
            raise self.fail(f"Unused aliases from kwargs: {', '.join(unused)}; Axis alias {unused[0]} not used")
        reject_duplicates("einsum", names, names)
        return EinsumPlan(labels, out, intern_names(names), f"einsum {self.text}")


@functools.lru_cache(maxsize=4096)
def einsum_plan(
    text: str, operands: tuple[tuple[Names, tuple[int, ...]], ...], aliases: tuple[tuple[str, Any], ...]
) -> EinsumPlan:
    """Bind an equation to operands of these names and shapes.

    Raises:
        ExpressionError: It does not parse or does not bind.
    """
    for names, shape in operands:
        check_rank("einsum", names, shape)
    terms, rhs = parse_einsum(text)
    binder = _Binder(text, operands, dict(aliases))
    if not terms and not text.lstrip().startswith("{"):
        if len(operands) == 1 and not operands[0][0] and not rhs.captures:
            return binder.plan(((),), (), ())
        return binder.output_only(rhs)
    if len(terms) == 1 and not terms[0].is_ordered:
        return binder.unordered(terms[0], rhs)
    if any(not t.is_ordered for t in terms):
        raise binder.fail("a term in braces must be the only term")
    return binder.ordered(terms, rhs)


def einsum(
    equation: str,
    *arrays: NamedArray,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    _dot_general: Any = jax.lax.dot_general,
    **axis_aliases: AxisSelector,
) -> NamedArray:
    """Contract arrays by an equation over axis names.

    Args:
        equation: ``"a b, b c -> a c"`` (by position), ``"{a b} -> a"`` (by name) or ``"-> a"`` (what to keep). Names
            are whole identifiers separated by spaces; ``...`` stands for the other axes.
        *arrays: Operands.
        precision: As in `jax.lax.dot_general`.
        preferred_element_type: As in `jax.lax.dot_general`.
        out_sharding: Sharding of the result, on an explicit mesh.
        **axis_aliases: Axis or real name for an identifier of the equation.

    Raises:
        ExpressionError: The equation does not parse or bind.
        AxisSizeMismatchError: One name has two sizes.

    Example:
        >>> import haliax as hax
        >>> x, w = hax.ones({"B": 2, "H": 3}), hax.ones({"H": 3, "E": 4})
        >>> hax.einsum("b h, h e -> e b", x, w).shape, hax.einsum("-> B", x, w).shape
        ({'E': 4, 'B': 2}, {'B': 2})
    """
    operands = tuple((require_named("einsum", a).names, a.array.shape) for a in arrays)
    plan = einsum_plan(equation, operands, tuple(axis_aliases.items()))
    target = out_sharding if out_sharding is not None else out_sharding_for(plan.names)
    with jax.named_scope(plan.scope):
        out = contract(
            [a.array for a in arrays],
            plan.labels,
            plan.out,
            precision=precision,
            preferred_element_type=preferred_element_type,
            dot_general=_dot_general,
            out_sharding=target,
        )
    result = wrap(out, plan.names)
    return result if target is not None else auto_sharded(result)
