"""Plans: what names mean in positions, worked out once per combination of names and shapes.

An operation on named arrays is a positional operation plus bookkeeping on names. The bookkeeping depends only on names
and shapes, so each kind is a pure function behind an LRU cache; a warm call costs one dictionary lookup.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from haliax._array.named import NamedArray, check_rank, intern_names
from haliax._axis.types import AxisSelection, pairs
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, BroadcastError

Names = tuple[str, ...]
Shape = tuple[int, ...]


class Align(NamedTuple):
    """How to bring one operand to the order of the result: transpose, then insert size-1 dimensions."""

    perm: tuple[int, ...] | None
    expand: tuple[int, ...] | None


class BinaryPlan(NamedTuple):
    """Names of the result and the alignment of both operands (None: use as is)."""

    names: Names
    left: Align | None
    right: Align | None


def alignment(names: Names, out: Names) -> Align | None:
    """Plan the alignment of ``names`` to ``out``. Missing leading dimensions are left to rank promotion."""
    if names == out[len(out) - len(names) :]:
        return None
    order = sorted(range(len(names)), key=lambda i: out.index(names[i]))
    perm = None if order == list(range(len(names))) else tuple(order)
    first = min((out.index(n) for n in names), default=0)
    expand = tuple(i - first for i, n in enumerate(out) if n not in names and i > first)
    return Align(perm, expand or None)


def align(array: Any, plan: Align | None) -> Any:
    """Apply an alignment."""
    if plan is None:
        return array
    if plan.perm is not None:
        array = jax.lax.transpose(jnp.asarray(array), plan.perm)
    if plan.expand is not None:
        array = jnp.expand_dims(array, plan.expand)
    return array


def check_same_sizes(operation: str, labels: tuple[str, ...], operands: tuple[tuple[Names, Shape], ...]) -> None:
    """Raise AxisSizeMismatchError when one name has two sizes among the operands.

    Raises:
        AxisSizeMismatchError: They do.
    """
    seen: dict[str, int] = {}
    for label, (names, shape) in zip(labels, operands, strict=True):
        check_rank(f"{operation} ({label})", names, shape)
        for name, size in zip(names, shape, strict=True):
            if seen.setdefault(name, size) != size:
                shown = [(lab, dict(zip(n, s, strict=True))) for lab, (n, s) in zip(labels, operands, strict=True)]
                raise AxisSizeMismatchError(operation, shown)


@functools.lru_cache(maxsize=16384)
def binary_plan(an: Names, ash: Shape, bn: Names, bsh: Shape, operation: str = "broadcast") -> BinaryPlan:
    """Plan a binary operation under the subset rule.

    The result has the axes of the operand whose set of names contains the other's; on a tie the left order, except
    that an operand without axes never decides.

    Raises:
        AxisSizeMismatchError: A common name has two sizes.
        BroadcastError: Neither set contains the other.
    """
    check_same_sizes(operation, ("left", "right"), ((an, ash), (bn, bsh)))
    if set(bn) <= set(an):
        out = an
    elif set(an) <= set(bn):
        out = bn
    else:
        raise BroadcastError(
            operation, [("left", dict(zip(an, ash, strict=True))), ("right", dict(zip(bn, bsh, strict=True)))]
        )
    return BinaryPlan(intern_names(out), alignment(an, out), alignment(bn, out))


class ReducePlan(NamedTuple):
    """Positions to reduce (None: all) and the names that stay."""

    positions: tuple[int, ...] | None
    names: Names


@functools.lru_cache(maxsize=16384)
def reduce_plan(operation: str, names: Names, shape: Shape, axis: Any) -> ReducePlan:
    """Plan a reduction over a hashable selection (None reduces everything).

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSizeMismatchError: A sized selector disagrees with the array.
    """
    check_rank(operation, names, shape)
    if axis is None:
        return ReducePlan(None, ())
    positions = positions_of(operation, names, shape, axis)
    keep = tuple(n for i, n in enumerate(names) if i not in positions)
    return ReducePlan(positions, intern_names(keep))


def positions_of(operation: str, names: Names, shape: Shape, axis: AxisSelection) -> tuple[int, ...]:
    """Return the positions of a selection of axes, in the order of the selection.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSizeMismatchError: A sized selector disagrees with the array.
    """
    check_rank(operation, names, shape)
    found = pairs(axis)
    missing = [n for n, _ in found if n not in names]
    if missing:
        raise AxisNotFoundError(operation, missing, dict(zip(names, shape, strict=True)))
    positions = tuple(names.index(n) for n, _ in found)
    if any(s is not None and shape[i] != s for i, (_, s) in zip(positions, found, strict=True)):
        raise AxisSizeMismatchError(operation, [("array", dict(zip(names, shape, strict=True))), ("requested", axis)])
    return positions


def permute_to(array: NamedArray, names: Names) -> Any:
    """Return the raw array transposed to ``names`` (a permutation of the array's own)."""
    if array.names == names:
        return array.array
    check_rank("transpose", array.names, array.array.shape)
    return jnp.transpose(array.array, tuple(array.names.index(n) for n in names))
