"""Switches for checks, each scoped to the context (thread or task) that flips it.

The shape check of `NamedArray(...)` is on unless switched off, warnings about promotion are off unless asked for.
"""

import contextlib
import contextvars
import warnings
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

_enabled: contextvars.ContextVar[bool] = contextvars.ContextVar("haliax_shape_checks", default=True)


@contextlib.contextmanager
def enable_shape_checks(enabled: bool) -> Iterator[bool]:
    """Switch the check on or off for the block; yields the previous state.

    Example:
        >>> with enable_shape_checks(False) as before:
        ...     (before, are_shape_checks_enabled())
        (True, False)
    """
    before = _enabled.get()
    token = _enabled.set(enabled)
    try:
        yield before
    finally:
        _enabled.reset(token)


def are_shape_checks_enabled() -> bool:
    """Tell whether `NamedArray(...)` compares the axes with the shape of the payload."""
    return _enabled.get()


class PromotionWarning(UserWarning):
    """A layer turned half-precision activations into wider ones because its parameters are wider."""


_promotion: contextvars.ContextVar[bool] = contextvars.ContextVar("haliax_promotion_warnings", default=False)


@contextlib.contextmanager
def warn_on_promotion(enabled: bool = True) -> Iterator[bool]:
    """Warn, within the block, whenever a layer widens its floating-point input; yields the previous state.

    A float32 weight applied to bfloat16 activations gives float32 activations, twice the memory and traffic, without a
    word. The warning comes while the layer is traced or run eagerly: a compiled function that is already in the cache
    stays silent.

    Example:
        >>> import warnings, haliax as hax, haliax.nn as hnn, jax.numpy as jnp
        >>> x = hax.ones(hax.Axis("embed", 4), dtype=jnp.bfloat16)
        >>> with warn_on_promotion(), warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     y = hnn.RmsNorm.init(hax.Axis("embed", 4))(x)
        >>> len(caught), str(y.dtype)
        (1, 'float32')
    """
    before = _promotion.get()
    token = _promotion.set(enabled)
    try:
        yield before
    finally:
        _promotion.reset(token)


def note_promotion(layer: str, given: Any, result: Any) -> None:
    """Warn when warnings are on and ``result`` is a wider floating-point type than ``given``."""
    if given == result or not _promotion.get():
        return
    floating = jnp.issubdtype(given, jnp.floating) and jnp.issubdtype(result, jnp.floating)
    if floating and jnp.finfo(result).bits > jnp.finfo(given).bits:
        warnings.warn(
            f"{layer}: input of {jnp.dtype(given).name} became {jnp.dtype(result).name} because the parameters are "
            f"{jnp.dtype(result).name}. Cast the parameters (or the result) with astype.",
            PromotionWarning,
            stacklevel=4,
        )
