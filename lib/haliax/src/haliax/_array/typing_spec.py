"""What ``NamedArray["batch ... embed"]`` means: a constraint on names, carried by annotations and checked on demand."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

import jax.numpy as jnp
import numpy as np

from haliax.errors import ArrayTypeError


@dataclasses.dataclass(frozen=True)
class NamedArrayAxes:
    """A constraint on the names of an array.

    Attributes:
        before: Names that come first (all names when there is no ellipsis).
        after: Names that come last, after the ellipsis.
        ordered: Whether order matters.
        subset: Whether further axes are allowed.
        dtype: An exact dtype, a dtype category, or None for any.
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    ordered: bool = True
    subset: bool = False
    dtype: Any = None


def parse(item: Any) -> NamedArrayAxes:
    """Read ``"a b ..."``, ``("a", "b", ...)`` or ``{"a", "b", ...}``.

    Raises:
        ArrayTypeError: Another form, or more than one ellipsis.
    """
    if isinstance(item, NamedArrayAxes):
        return item
    if isinstance(item, set | frozenset):
        names = [n for n in item if n is not ... and n != "..."]
        if not all(isinstance(n, str) for n in names):
            raise ArrayTypeError(f"read axis spec: {item!r}; expected names and at most one '...'. Write {{'a', 'b'}}.")
        return NamedArrayAxes(tuple(sorted(names)), ordered=False, subset=len(names) != len(item))
    parts: Sequence[Any] = item.split() if isinstance(item, str) else item if isinstance(item, tuple) else (item,)
    parts = [... if p == "..." else p for p in parts]
    if not all(isinstance(p, str) or p is ... for p in parts):
        raise ArrayTypeError(f"read axis spec: {item!r}; expected names and at most one '...'. Write 'a b ...'.")
    if parts.count(...) > 1:
        raise ArrayTypeError(f"read axis spec: {item!r} has more than one ellipsis; expected at most one.")
    if ... in parts:
        cut = parts.index(...)
        return NamedArrayAxes(tuple(parts[:cut]), tuple(parts[cut + 1 :]), subset=True)
    return NamedArrayAxes(tuple(parts))


def annotate(base: Any, item: Any, dtype: Any = None) -> Any:
    """Return ``Annotated[base, NamedArrayAxes]``."""
    return Annotated[base, dataclasses.replace(parse(item), dtype=dtype)]


def matches(spec: Any, names: tuple[str, ...], dtype: Any = None) -> bool:
    """Tell whether ``names`` (and ``dtype``, where the spec has one) fit ``spec``."""
    if get_origin(spec) is Annotated:
        spec = next(m for m in get_args(spec)[1:] if isinstance(m, NamedArrayAxes))
    spec = parse(spec)
    if spec.dtype is not None and not dtype_matches(spec.dtype, dtype):
        return False
    if not spec.ordered:
        return set(spec.before) <= set(names) if spec.subset else set(spec.before) == set(names)
    if not spec.subset:
        return names == spec.before
    n, m = len(spec.before), len(spec.after)
    return len(names) >= n + m and names[:n] == spec.before and names[len(names) - m :] == spec.after


def dtype_matches(wanted: Any, dtype: Any) -> bool:
    """Tell whether ``dtype`` is ``wanted`` or belongs to the category ``wanted``."""
    if isinstance(wanted, type) and issubclass(wanted, np.generic) and wanted in _CATEGORIES:
        return jnp.issubdtype(dtype, wanted)
    return np.dtype(dtype) == np.dtype(wanted)


_CATEGORIES = (np.floating, np.complexfloating, np.signedinteger, np.unsignedinteger, np.integer, np.inexact, np.number)
