"""Partial orders of axes: ``("batch", ..., "embed")`` completed to a full order.

Greedy and stable. Each ``...`` is an empty slot. A cursor starts at the first slot; walking the axes in their natural
order, a *named* axis moves the cursor to the first still-empty slot after its own position (never backwards), and an
*unnamed* axis is appended to the slot under the cursor. Slots left empty vanish.
"""

import functools
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from haliax._axis.types import Axis, AxisSelector, names_of, pairs
from haliax.errors import AxisSizeMismatchError, AxisSpecError


def _fail(reason: str, partial: Sequence[Any], names: Sequence[str]) -> AxisSpecError:
    wanted = ", ".join("..." if p is ... else str(p) for p in partial)
    return AxisSpecError(
        f"order axes: {reason}; order=({wanted}), axes=({', '.join(names)}). "
        "Name each axis once, and use ... for the axes whose place does not matter."
    )


@functools.lru_cache(maxsize=4096)
def solve_order(partial: tuple[str | EllipsisType, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Complete ``partial`` (names and any number of ``...``) to a permutation of ``names``.

    Raises:
        AxisSpecError: A name is missing, unknown or repeated.

    Example:
        >>> solve_order(("C", ..., ...), ("H", "W", "D", "C")), solve_order((..., "H", ..., "D"), ("H", "W", "D", "C"))
        (('C', 'H', 'W', 'D'), ('H', 'W', 'C', 'D'))
    """
    wanted = [p for p in partial if p is not ...]
    if len(set(wanted)) != len(wanted):
        raise _fail("a name occurs twice", partial, names)
    unknown = [w for w in wanted if w not in names]
    if unknown:
        raise _fail(f"{', '.join(map(repr, unknown))} not present", partial, names)
    if len(wanted) == len(partial):
        if len(wanted) != len(names):
            missing = [n for n in names if n not in wanted]
            raise _fail(f"{', '.join(map(repr, missing))} missing", partial, names)
        return tuple(wanted)

    slots: list[list[str] | str] = [[] if p is ... else p for p in partial]
    open_slots = [i for i, p in enumerate(partial) if p is ...]
    cursor = open_slots[0]
    position = {p: i for i, p in enumerate(partial) if p is not ...}
    for name in names:
        if name in position:
            later = [i for i in open_slots if i > position[name] and i > cursor and not slots[i]]
            if later:
                cursor = later[0]
        else:
            slot = slots[cursor]
            assert isinstance(slot, list)
            slot.append(name)
    out: list[str] = []
    for slot in slots:
        if isinstance(slot, str):
            out.append(slot)
        else:
            out.extend(slot)
    return tuple(out)


def rearrange_for_partial_order(
    partial_order: Sequence[AxisSelector | EllipsisType], axes: Sequence[Axis]
) -> tuple[Axis, ...]:
    """Order ``axes`` so that they follow ``partial_order``.

    Args:
        partial_order: Selectors and any number of ``...``; without ``...`` a permutation of ``axes``.
        axes: The axes in natural order.

    Raises:
        AxisSpecError: A name is missing, unknown or repeated.
        AxisSizeMismatchError: A sized selector disagrees with the axis of its name.

    Example:
        >>> H, W, D = Axis("H", 2), Axis("W", 3), Axis("D", 4)
        >>> [a.name for a in rearrange_for_partial_order(("D", ..., "W", "H"), (H, W, D))]
        ['D', 'W', 'H']
    """
    by_name = {a.name: a for a in axes}
    check_partial_sizes("rearrange_for_partial_order", partial_order, axes)
    partial = tuple(p if p is ... else names_of(p)[0] for p in partial_order)
    return tuple(by_name[n] for n in solve_order(partial, tuple(by_name)))


def check_partial_sizes(operation: str, partial: Sequence[Any], axes: Sequence[Axis]) -> None:
    """Raise AxisSizeMismatchError when a sized entry of ``partial`` disagrees with ``axes``.

    Raises:
        AxisSizeMismatchError: A sized entry disagrees.
    """
    by_name = {a.name: a.size for a in axes}
    for entry in partial:
        if entry is ...:
            continue
        ((name, size),) = pairs(entry)
        if size is not None and by_name.get(name, size) != size:
            raise AxisSizeMismatchError(operation, [("array", tuple(axes)), ("requested", entry)])
