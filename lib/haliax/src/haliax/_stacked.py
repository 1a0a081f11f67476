"""Which modules are stacks of layers: the vocabulary that tree functions, state dicts and quantisation share.

A class says so with `mark_stacked`; this keeps those users from importing `haliax.nn`.
"""

from typing import Any

from haliax._axis.types import Axis

_STACKED: dict[type, str] = {}


def mark_stacked(cls: type, axis_attribute: str) -> type:
    """Declare that instances hold a ``stacked`` module whose arrays carry the axis in ``axis_attribute``."""
    _STACKED[cls] = axis_attribute
    return cls


def is_stacked(x: Any) -> bool:
    """Tell whether ``x`` is a stack of layers in one module."""
    return type(x) in _STACKED


def stacked_axis(x: Any) -> Axis:
    """Return the axis of the layers of a stack."""
    return getattr(x, _STACKED[type(x)])
