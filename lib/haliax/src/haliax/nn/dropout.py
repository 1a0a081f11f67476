"""Dropout."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jrandom

from haliax._array.named import NamedArray, wrap
from haliax._axis.types import AxisSelection, names_of
from haliax._callable import callable_module
from haliax.errors import HaliaxError


class DropoutKeyError(HaliaxError, RuntimeError):
    """Dropout is active but was given no random key."""


def dropout(
    x: Any, pdrop: float, broadcast_axes: AxisSelection | None = None, *, inference: bool, key: Any = None
) -> Any:
    """Zero elements with probability ``pdrop`` and scale the others by ``1 / (1 - pdrop)``.

    Args:
        x: Array.
        pdrop: Probability, in [0, 1].
        broadcast_axes: Axes along which all elements share one fate.
        inference: Return ``x`` as it is.
        key: Random key; needed unless inference or ``pdrop == 0``.

    Raises:
        DropoutKeyError: No key.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> dropout(hax.ones({"a": 4}), 0.5, inference=True).tolist()
        [1.0, 1.0, 1.0, 1.0]
        >>> dropout(hax.ones({"a": 1000}), 0.5, inference=False, key=jax.random.key(0)).max().item()
        2.0

    References:
        Srivastava et al., JMLR 15 (2014).
    """
    if inference or pdrop == 0:
        return x
    array = x.array if isinstance(x, NamedArray) else x
    if pdrop == 1:
        out = jnp.zeros_like(array)
    elif key is None:
        raise DropoutKeyError(f"dropout: pdrop={pdrop} and inference=False, but key is None. Pass key=.")
    else:
        shape = array.shape
        if broadcast_axes is not None and isinstance(x, NamedArray):
            shared = names_of(broadcast_axes)
            shape = tuple(1 if n in shared else s for n, s in zip(x.names, shape, strict=True))
        keep = 1 - pdrop
        mask = jrandom.bernoulli(key, keep, shape)
        out = jnp.where(mask, array / keep, 0).astype(array.dtype)
    return wrap(out, x.names) if isinstance(x, NamedArray) else out


class Dropout(eqx.Module):
    """Dropout as a layer.

    Attributes:
        pdrop: Probability of zeroing an element, in [0, 1].
        broadcast_axes: Axes along which all elements share one fate.
        inference: Whether to do nothing.

    Example:
        >>> import haliax as hax
        >>> Dropout(0.1)(hax.ones({"a": 2}), inference=True).tolist()
        [1.0, 1.0]
    """

    pdrop: float = eqx.field(static=True, default=0.5)
    broadcast_axes: AxisSelection | None = eqx.field(static=True, default=None)
    inference: bool = False

    def __call__(self, x: Any, *, inference: bool | None = None, key: Any = None) -> Any:
        """Apply dropout; ``inference`` overrides the field."""
        inference = self.inference if inference is None else inference
        return dropout(x, self.pdrop, self.broadcast_axes, inference=inference, key=key)

    @property
    def is_active(self) -> bool:
        """Whether a call would drop anything."""
        return not self.inference and self.pdrop > 0


callable_module(__name__, dropout)
