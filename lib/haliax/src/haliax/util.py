"""Small helpers that code written for haliax expects here."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from haliax._array.named import NamedArray
from haliax._ops.loops import is_arrayish


def is_named_array(leaf: Any) -> bool:
    """Tell whether ``leaf`` is a NamedArray (for ``is_leaf=``).

    Example:
        >>> import haliax as hax
        >>> is_named_array(hax.ones(hax.Axis("a", 2))), is_named_array(1)
        (True, False)
    """
    return isinstance(leaf, NamedArray)


def is_jax_or_hax_array_like(x: Any) -> bool:
    """Tell whether ``x`` is a NamedArray or has a shape and a dtype.

    Example:
        >>> import haliax as hax
        >>> is_jax_or_hax_array_like(hax.ones(hax.Axis("a", 2))), is_jax_or_hax_array_like("text")
        (True, False)
    """
    return isinstance(x, NamedArray) or is_arrayish(x) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def ensure_tuple(x: Any) -> tuple[Any, ...]:
    """Return a tuple: a sequence converted, anything else (str included) alone in it.

    Example:
        >>> ensure_tuple("a"), ensure_tuple(["a", "b"])
        (('a',), ('a', 'b'))
    """
    if isinstance(x, str) or not isinstance(x, Sequence):
        return (x,)
    return tuple(x)


def maybe_untuple(x: Any) -> Any:
    """Return the element of a one-element tuple, else the argument.

    Example:
        >>> maybe_untuple((1,)), maybe_untuple((1, 2))
        (1, (1, 2))
    """
    return x[0] if isinstance(x, tuple) and len(x) == 1 else x


class StringHolderEnum:
    """A namespace of strings: like an enum whose members *are* plain strings."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuse: this is a namespace, not a type of values."""
        raise TypeError(f"create {cls.__name__}: it is a namespace of strings and has no instances.")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in vars(cls).items():
            if not name.startswith("_") and not isinstance(value, str):
                raise TypeError(f"define {cls.__name__}.{name}: {type(value).__name__}; expected a str.")


def safe_wraps(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`functools.wraps` that also accepts callables without a name (partials, modules)."""
    present = [a for a in functools.WRAPPER_ASSIGNMENTS if hasattr(fn, a)]
    return functools.wraps(fn, assigned=present)


class Unspecified:
    """Type of `UNSPECIFIED`: no value was given (None being a value)."""

    def __repr__(self) -> str:
        return "UNSPECIFIED"


UNSPECIFIED = Unspecified()
