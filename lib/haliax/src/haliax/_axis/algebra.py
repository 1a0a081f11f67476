"""Set algebra over axis specifications.

Every function keeps order, treats a missing size as "any size", and raises when one name carries two sizes. The
container of the first argument decides the container of the result: mapping in, mapping out; otherwise a tuple.
"""

from collections.abc import Mapping
from types import EllipsisType
from typing import Any

from haliax._axis.types import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    is_single,
    pairs,
    reject_duplicates,
    selector,
)
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError

Pairs = list[tuple[str, int | None]]


def _pack(found: Pairs, like: Any) -> Any:
    if isinstance(like, Mapping):
        return dict(found)
    return tuple(selector(n, s) for n, s in found)


def _check_sizes(operation: str, a: Any, b: Any) -> None:
    left = dict(pairs(a))
    for name, size in pairs(b):
        other = left.get(name)
        if size is not None and other is not None and size != other:
            raise AxisSizeMismatchError(operation, [("left", a), ("right", b)])


def selects_axis(selector: AxisSelection, selected: AxisSelection) -> bool:
    """Tell whether every axis of ``selected`` is in ``selector``, with equal sizes where both have one.

    Example:
        >>> selects_axis(("a", Axis("b", 2)), Axis("b", 2)), selects_axis(Axis("b", 2), Axis("b", 3))
        (True, False)
    """
    have = dict(pairs(selector))
    for name, size in pairs(selected):
        if name not in have:
            return False
        if size is not None and have[name] is not None and have[name] != size:
            return False
    return True


def is_axis_compatible(a: AxisSelector, b: AxisSelector) -> bool:
    """Tell whether two selectors have the same name; sizes are ignored.

    Example:
        >>> is_axis_compatible(Axis("x", 2), "x")
        True
    """
    return pairs(a)[0][0] == pairs(b)[0][0]


def concat_axes(a: AxisSelection, b: AxisSelection) -> Any:
    """Return the axes of ``a`` followed by those of ``b``.

    Raises:
        AxisCollisionError: A name is in both ("specified twice").

    Example:
        >>> concat_axes(Axis("x", 2), Axis("y", 3))
        (Axis(name='x', size=2), Axis(name='y', size=3))
    """
    found = [*pairs(a), *pairs(b)]
    reject_duplicates("concat_axes", [n for n, _ in found], tuple(selector(n, s) for n, s in found))
    return _pack(found, a)


concat_axis_specs = concat_axes


def union_axes(a: AxisSelection, b: AxisSelection) -> Any:
    """Return the axes of ``a``, then those of ``b`` that are new. A mapping if either argument is one.

    Raises:
        AxisSizeMismatchError: A common name has two sizes.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> [axis.name for axis in union_axes(a, b)]
        ['x', 'y', 'z']
    """
    _check_sizes("union_axes", a, b)
    found = dict(pairs(a))
    for name, size in pairs(b):
        if found.get(name) is None:
            found[name] = size
    return _pack(list(found.items()), b if isinstance(b, Mapping) else a)


def eliminate_axes(axis_spec: AxisSelection, to_remove: AxisSelection) -> Any:
    """Return ``axis_spec`` without ``to_remove``, all of which must be present.

    Raises:
        AxisNotFoundError: An axis to remove is absent.
        AxisSizeMismatchError: A common name has two sizes.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> eliminate_axes(a, "x")
        (Axis(name='y', size=3),)
    """
    have = dict(pairs(axis_spec))
    missing = [n for n, _ in pairs(to_remove) if n not in have]
    if missing:
        raise AxisNotFoundError("eliminate_axes", missing, axis_spec)
    return without_axes(axis_spec, to_remove)


def without_axes(axis_spec: AxisSelection, to_remove: AxisSelection, allow_mismatched_sizes: bool = False) -> Any:
    """Return ``axis_spec`` without those of ``to_remove`` that it has.

    Raises:
        AxisSizeMismatchError: A common name has two sizes and ``allow_mismatched_sizes`` is False.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> without_axes(a, b)
        (Axis(name='x', size=2),)
    """
    if not allow_mismatched_sizes:
        _check_sizes("without_axes", axis_spec, to_remove)
    gone = {n for n, _ in pairs(to_remove)}
    return _pack([(n, s) for n, s in pairs(axis_spec) if n not in gone], axis_spec)


def unsize_axes(axis_spec: AxisSelection, to_unsize: AxisSelection | None = None) -> Any:
    """Drop the sizes of all axes, or of ``to_unsize``.

    Raises:
        AxisNotFoundError: An axis of ``to_unsize`` is absent.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> unsize_axes(a)
        ('x', 'y')
    """
    have = pairs(axis_spec)
    if to_unsize is None:
        chosen = {n for n, _ in have}
    else:
        chosen = {n for n, _ in pairs(to_unsize)}
        missing = [n for n in chosen if n not in dict(have)]
        if missing:
            raise AxisNotFoundError("unsize_axes", missing, axis_spec)
        _check_sizes("unsize_axes", axis_spec, to_unsize)
    found: Pairs = [(n, None if n in chosen else s) for n, s in have]
    if is_single(axis_spec):
        return found[0][0]
    return _pack(found, axis_spec)


def replace_axis(axis_spec: AxisSelection, old: AxisSelector, new: AxisSelection) -> Any:
    """Put ``new`` (one axis or several) in the place of ``old``.

    Raises:
        AxisNotFoundError: ``old`` is absent.
        AxisSizeMismatchError: ``old`` has another size than the axis it names.
        AxisCollisionError: A new name is already there.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> [axis.name for axis in replace_axis(a, "y", b[1])]
        ['x', 'z']
    """
    (old_name, _), *_ = pairs(old)
    have = pairs(axis_spec)
    if old_name not in dict(have):
        raise AxisNotFoundError("replace_axis", [old_name], axis_spec)
    _check_sizes("replace_axis", axis_spec, old)
    found: Pairs = []
    for name, size in have:
        found.extend(pairs(new) if name == old_name else [(name, size)])
    reject_duplicates("replace_axis", [n for n, _ in found], tuple(selector(n, s) for n, s in found))
    return _pack(found, axis_spec)


def intersect_axes(a: AxisSelection, b: AxisSelection) -> Any:
    """Return the axes that both have, in the order of ``a``; an axis is sized if it is sized in ``b``.

    Raises:
        AxisSizeMismatchError: A common name has two sizes.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> intersect_axes(a, b)
        (Axis(name='y', size=3),)
    """
    _check_sizes("intersect_axes", a, b)
    right = dict(pairs(b))
    return _pack([(n, right[n]) for n, _ in pairs(a) if n in right], b if isinstance(b, Mapping) else a)


def resolve_axis(axis_spec: AxisSpec, axis_selection: AxisSelection) -> Any:
    """Look names up in ``axis_spec``: a selector gives an Axis, a sequence a tuple, a mapping a dict.

    Raises:
        AxisNotFoundError: A name is absent.
        AxisSizeMismatchError: A given size differs from the size found.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> resolve_axis(a, "y")
        Axis(name='y', size=3)
    """
    have = dict(pairs(axis_spec))
    missing = [n for n, _ in pairs(axis_selection) if n not in have]
    if missing:
        raise AxisNotFoundError("resolve_axis", missing, axis_spec)
    _check_sizes("resolve_axis", axis_spec, axis_selection)
    found = [(n, have[n]) for n, _ in pairs(axis_selection)]
    if is_single(axis_selection):
        return selector(*found[0])
    return _pack(found, axis_selection)


def replace_missing_with_ellipsis(a: AxisSelection, b: AxisSelection) -> tuple[AxisSelector | EllipsisType, ...]:
    """Return the axes of ``a`` in which every axis that ``b`` lacks is ``...`` (one per run of them).

    Raises:
        AxisSizeMismatchError: A common name has two sizes.

    Example:
        >>> a, b = (Axis("x", 2), Axis("y", 3)), (Axis("y", 3), Axis("z", 4))
        >>> replace_missing_with_ellipsis(a, b)
        (Ellipsis, Axis(name='y', size=3))
    """
    _check_sizes("replace_missing_with_ellipsis", a, b)
    have = dict(pairs(b))
    out: list[AxisSelector | EllipsisType] = []
    for name, size in pairs(a):
        if name in have:
            out.append(selector(name, size))
        else:
            out.append(...)
    return tuple(out)


def axes_product(axes: tuple[Axis, ...]) -> int:
    """Return the product of the sizes of ``axes``."""
    total = 1
    for axis in axes:
        total *= axis.size
    return total
