"""`Axis` and the forms in which axes may be given.

Three questions come up everywhere: *which names*, *which sizes*, *in what container*. This module answers the first
two for every accepted form (Axis, str, sequence of both, mapping name to size) so that no other module parses forms.
"""

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, overload

from haliax.errors import AxisCollisionError, AxisSpecError


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """A name with a size.

    Args:
        name: Identifier of the axis; unique within an array.
        size: Number of elements, ``>= 0``.

    Raises:
        AxisSpecError: The size is negative.

    Example:
        >>> Embed = Axis("embed", 8)
        >>> str(Embed), Embed.resize(4), Embed.alias("embed2").name
        ('embed(8)', Axis(name='embed', size=4), 'embed2')
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, int) and self.size < 0:
            raise AxisSpecError(f"create axis: name={self.name!r}, size={self.size}; expected size >= 0. Pass a count.")

    def alias(self, new_name: str) -> "Axis":
        """Return an axis of the same size under another name.

        Example:
            >>> Axis("pos", 4).alias("key_pos")
            Axis(name='key_pos', size=4)
        """
        return Axis(new_name, self.size)

    def resize(self, size: int) -> "Axis":
        """Return an axis of the same name with another size.

        Example:
            >>> Axis("pos", 4).resize(8)
            Axis(name='pos', size=8)
        """
        return Axis(self.name, size)

    def __str__(self) -> str:
        return f"{self.name}({self.size})"


AxisSelector = Axis | str
AxisSelection = AxisSelector | Sequence[AxisSelector] | Mapping[str, int | None]
AxisSpec = Axis | Sequence[Axis] | Mapping[str, int]
PartialAxisSpec = Sequence[AxisSelector | EllipsisType]
ShapeDict = Mapping[str, int]
PartialShapeDict = Mapping[str, int | None]


def make_axes(**sizes: int) -> tuple[Axis, ...]:
    """Return one axis per keyword, in keyword order.

    Example:
        >>> make_axes(batch=2, embed=4)
        (Axis(name='batch', size=2), Axis(name='embed', size=4))
    """
    return tuple(Axis(name, size) for name, size in sizes.items())


def pairs(spec: Any) -> tuple[tuple[str, int | None], ...]:
    """Return (name, size or None) for every axis of any accepted form, in order.

    Raises:
        AxisSpecError: An entry is neither an Axis nor a str, or a size is no integer.
    """
    if isinstance(spec, Axis):
        return ((spec.name, spec.size),)
    if isinstance(spec, str):
        return ((spec, None),)
    if isinstance(spec, Mapping):
        return tuple((_checked_name(n, spec), _checked_size(n, s)) for n, s in spec.items())
    if isinstance(spec, Iterable):
        return tuple(_pair(entry, spec) for entry in spec)
    raise _bad_entry(spec, spec)


def _pair(entry: Any, spec: Any) -> tuple[str, int | None]:
    if isinstance(entry, Axis):
        return (entry.name, entry.size)
    if isinstance(entry, str):
        return (entry, None)
    raise _bad_entry(entry, spec)


def _bad_entry(entry: Any, spec: Any) -> AxisSpecError:
    return AxisSpecError(
        f"read axes: entry of type {type(entry).__name__} in {type(spec).__name__}; expected Axis, str, a sequence of "
        "them, or a mapping from name to size. Wrap sizes as Axis(name, size)."
    )


def _checked_name(name: Any, spec: Any) -> str:
    if isinstance(name, str):
        return name
    raise _bad_entry(name, spec)


def _checked_size(name: str, size: Any) -> int | None:
    if size is None or type(size) is int:
        return size
    if isinstance(size, Axis):
        return size.size
    try:
        return operator.index(size)
    except TypeError:
        raise AxisSpecError(
            f"read axes: size of {name!r} has type {type(size).__name__}; expected an integer or None. "
            "Pass {name: size}."
        ) from None


def names_of(spec: Any) -> tuple[str, ...]:
    """Return the names of any accepted form, in order."""
    if isinstance(spec, str):
        return (spec,)
    return tuple(p[0] for p in pairs(spec))


def is_single(spec: Any) -> bool:
    """Tell whether ``spec`` is one selector rather than a collection."""
    return isinstance(spec, Axis | str)


def reject_duplicates(operation: str, names: Sequence[str], axes: Any) -> None:
    """Raise AxisCollisionError when a name occurs twice in ``names``.

    Raises:
        AxisCollisionError: There are some.
    """
    if len(set(names)) != len(names):
        raise AxisCollisionError(operation, sorted({n for n in names if list(names).count(n) > 1}), axes)


def sized_axes(spec: Any, operation: str = "read axes") -> tuple[Axis, ...]:
    """Return the axes of ``spec`` as a tuple of Axis.

    Raises:
        AxisSpecError: A size is missing.
        AxisCollisionError: A name occurs twice.
    """
    found = pairs(spec)
    unsized = [n for n, s in found if s is None]
    if unsized:
        raise AxisSpecError(
            f"{operation}: no size for axis {', '.join(map(repr, unsized))}; expected sized axes. "
            "Pass Axis(name, size) or {name: size}."
        )
    reject_duplicates(operation, [n for n, _ in found], spec)
    return tuple(Axis(n, s) for n, s in found if s is not None)


def selector(name: str, size: int | None) -> AxisSelector:
    """Return ``Axis(name, size)``, or the bare name when the size is None."""
    return name if size is None else Axis(name, size)


@overload
def axis_name(axis_selection: AxisSelector) -> str: ...
@overload
def axis_name(axis_selection: Sequence[AxisSelector] | Mapping[str, int | None]) -> tuple[str, ...]: ...
def axis_name(axis_selection: AxisSelection) -> str | tuple[str, ...]:
    """Return the name of a single selector, or the tuple of names of a collection.

    Example:
        >>> axis_name(Axis("a", 2)), axis_name((Axis("a", 2), "b"))
        ('a', ('a', 'b'))
    """
    if isinstance(axis_selection, str):
        return axis_selection
    if isinstance(axis_selection, Axis):
        return axis_selection.name
    return names_of(axis_selection)


def axis_size(axis_spec: AxisSpec) -> int:
    """Return the size of an axis, or the product of the sizes of several.

    Example:
        >>> axis_size(make_axes(a=2, b=3))
        6
    """
    total = 1
    for axis in sized_axes(axis_spec, "axis_size"):
        total *= axis.size
    return total


def axis_spec_to_shape_dict(axis_spec: AxisSelection) -> dict[str, int | None]:
    """Return name to size; a bare name maps to None.

    Raises:
        AxisSpecError: An entry is neither Axis nor str.

    Example:
        >>> axis_spec_to_shape_dict((Axis("a", 2), "b"))
        {'a': 2, 'b': None}
    """
    return dict(pairs(axis_spec))


def axis_spec_to_tuple(axis_spec: AxisSelection) -> tuple[AxisSelector, ...]:
    """Return the axes as a tuple in which a bare name stays a str.

    Raises:
        AxisSpecError: An entry is neither Axis nor str.

    Example:
        >>> axis_spec_to_tuple({"a": 2, "b": None})
        (Axis(name='a', size=2), 'b')
    """
    return tuple(selector(n, s) for n, s in pairs(axis_spec))


def to_jax_shape(axis_spec: AxisSpec | int) -> int | tuple[int, ...]:
    """Return the int size of a single axis, or the tuple of sizes of several.

    Example:
        >>> to_jax_shape((Axis("a", 2), Axis("b", 3)))
        (2, 3)
    """
    if isinstance(axis_spec, int):
        return axis_spec
    if isinstance(axis_spec, Axis):
        return axis_spec.size
    return tuple(axis.size for axis in sized_axes(axis_spec, "to_jax_shape"))
