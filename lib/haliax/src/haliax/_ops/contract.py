"""Sums of products over labelled dimensions, lowered to `lax.dot_general` without detours.

`dot` and `einsum` differ only in how they label dimensions. Here labels are strings, one per dimension and operand; a
label in the output is kept, any other is summed. Two operands give exactly one dot_general, with batch dimensions in
the order of the left operand and operands swapped when that saves a transpose; more operands follow a contraction path
that is planned once per set of shapes. Shape legend: none, everything is by label.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Labels = tuple[str, ...]
DimensionNumbers = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


class PairPlan(NamedTuple):
    """One dot_general: axes to sum first, dimension numbers, whether to swap, and the final transpose."""

    sum_left: tuple[int, ...]
    sum_right: tuple[int, ...]
    dimension_numbers: DimensionNumbers
    swap: bool
    labels: Labels
    perm: tuple[int, ...] | None


@functools.lru_cache(maxsize=8192)
def pair_plan(left: Labels, right: Labels, keep: Labels, ordered: bool, may_swap: bool) -> PairPlan:
    """Plan the contraction of two operands; ``ordered`` asks for the output order ``keep``."""
    kept = set(keep)
    sum_left = tuple(i for i, n in enumerate(left) if n not in kept and n not in right)
    sum_right = tuple(i for i, n in enumerate(right) if n not in kept and n not in left)
    left = tuple(n for i, n in enumerate(left) if i not in sum_left)
    right = tuple(n for i, n in enumerate(right) if i not in sum_right)
    batch = [n for n in left if n in right and n in kept]
    contract = [n for n in left if n in right and n not in kept]
    free_left = [n for n in left if n not in right]
    free_right = [n for n in right if n not in left]
    normal, swapped = (*batch, *free_left, *free_right), (*batch, *free_right, *free_left)
    swap = may_swap and ordered and normal != keep and swapped == keep
    a, b = (right, left) if swap else (left, right)
    numbers = (
        (tuple(a.index(n) for n in contract), tuple(b.index(n) for n in contract)),
        (tuple(a.index(n) for n in batch), tuple(b.index(n) for n in batch)),
    )
    labels = swapped if swap else normal
    perm = tuple(labels.index(n) for n in keep) if ordered and labels != keep else None
    return PairPlan(sum_left, sum_right, numbers, swap, keep if perm else labels, perm)


@functools.lru_cache(maxsize=2048)
def contraction_path(labels: tuple[Labels, ...], shapes: tuple[tuple[int, ...], ...], out: Labels) -> tuple[Any, ...]:
    """Return the order in which to contract three or more operands, as tuples of positions (optimal for few)."""
    numbering: dict[str, int] = {}
    for term in labels:
        for n in term:
            numbering.setdefault(n, len(numbering))
    if len(numbering) > 52:
        return tuple((0, 1) for _ in labels[1:])
    arguments: list[Any] = []
    for term, shape in zip(labels, shapes, strict=True):
        arguments += [np.broadcast_to(np.float32(0), shape), [numbering[n] for n in term]]
    arguments.append([numbering[n] for n in out])
    strategy = "optimal" if len(labels) <= 5 else "greedy"
    path = np.einsum_path(*arguments, optimize=strategy)[0][1:]
    steps: list[tuple[int, int]] = []
    remaining = len(labels)
    for step in path:
        positions = sorted(step)
        while len(positions) > 1:  # a step over several operands becomes steps of two; each result goes last
            first, second = positions.pop(0), positions.pop(0)
            steps.append((first, second))
            remaining -= 1
            positions = [p - (p > first) - (p > second) for p in positions]
            if positions:
                positions.append(remaining - 1)
    return tuple(steps)


def _sum(x: Any, axes: tuple[int, ...]) -> Any:
    return jnp.sum(x, axis=axes) if axes else x


def _pair(a: Any, b: Any, plan: PairPlan, options: dict[str, Any], dot_general: Any, out_sharding: Any) -> Any:
    a, b = _sum(a, plan.sum_left), _sum(b, plan.sum_right)
    if plan.swap:
        a, b = b, a
    extra = {} if out_sharding is None else {"out_sharding": out_sharding}
    out = dot_general(a, b, plan.dimension_numbers, options["precision"], options["preferred_element_type"], **extra)
    return out if plan.perm is None else jnp.transpose(out, plan.perm)


def contract(
    arrays: Sequence[Any],
    labels: Sequence[Labels],
    out: Labels,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    dot_general: Callable[..., Any] = jax.lax.dot_general,
    out_sharding: Any = None,
) -> Any:
    """Return the raw sum of products whose dimensions are ``out``, in that order.

    Args:
        arrays: Raw operands, at least one.
        labels: One tuple of distinct labels per operand.
        out: Labels of the result; each occurs in an operand.
        precision: Passed to dot_general.
        preferred_element_type: Passed to dot_general.
        dot_general: Replacement for `lax.dot_general`; called positionally.
        out_sharding: Passed to the last dot_general, on explicit meshes.
    """
    dtype = arrays[0].dtype
    if any(x.dtype != dtype or getattr(x, "weak_type", False) for x in arrays):
        dtype = jnp.result_type(*arrays)
        arrays = [x if x.dtype == dtype else jnp.asarray(x, dtype) for x in arrays]
    operands = list(zip(arrays, labels, strict=True))
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    may_swap = dot_general is jax.lax.dot_general
    if len(operands) == 1:
        x, term = operands[0]
        x = _sum(x, tuple(i for i, n in enumerate(term) if n not in out))
        term = tuple(n for n in term if n in out)
        if preferred_element_type is not None:
            x = x.astype(preferred_element_type)
        return x if term == out else jnp.transpose(x, tuple(term.index(n) for n in out))
    steps: tuple[Any, ...] = ((0, 1),)
    if len(operands) > 2:
        steps = contraction_path(tuple(t for _, t in operands), tuple(x.shape for x, _ in operands), out)
    for step in steps:
        (b, right), (a, left) = operands.pop(step[1]), operands.pop(step[0])
        last = not operands
        if last:
            keep = out
        else:
            needed = set(out).union(*(t for _, t in operands))
            keep = tuple(n for n in dict.fromkeys(left + right) if n in needed)
        plan = pair_plan(left, right, keep, last, may_swap)
        result = _pair(a, b, plan, options, dot_general, _spec_before_transpose(out_sharding, plan) if last else None)
        operands.append((result, plan.labels))
    return operands[0][0]


def _spec_before_transpose(out_sharding: Any, plan: PairPlan) -> Any:
    if out_sharding is None or plan.perm is None:
        return out_sharding
    entries = [None] * len(plan.perm)
    for target, source in enumerate(plan.perm):
        entries[source] = out_sharding.spec[target]
    return jax.sharding.NamedSharding(out_sharding.mesh, jax.sharding.PartitionSpec(*entries))
