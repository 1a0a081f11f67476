"""`hax.field`: an Equinox field that remembers the axis names of a raw array."""

from typing import Any

import equinox as eqx

from haliax._callable import callable_module
from haliax.errors import AxisSpecError

AXIS_NAMES = "axis_names"


def field(
    *, converter: Any = None, static: bool = False, axis_names: tuple[str | None, ...] | None = None, **kwargs: Any
) -> Any:
    """Declare a field of an `equinox.Module`.

    Args:
        converter: As in `equinox.field`.
        static: As in `equinox.field`.
        axis_names: Names of the dimensions of the raw array in this field, for partitioning.
        **kwargs: Passed to `equinox.field`.

    Raises:
        AxisSpecError: ``axis_names`` on a static field.

    Example:
        >>> class Layer(eqx.Module):
        ...     weight: Any = field(axis_names=("mlp", "embed"))
        ...
        >>> Layer.__dataclass_fields__["weight"].metadata[AXIS_NAMES]
        ('mlp', 'embed')
    """
    if static and axis_names is not None:
        raise AxisSpecError(f"field: axis_names={axis_names} on a static field; expected an array field.")
    if axis_names is not None:
        kwargs["metadata"] = {**kwargs.get("metadata", {}), AXIS_NAMES: tuple(axis_names)}
    if converter is not None:
        kwargs["converter"] = converter
    return eqx.field(static=static, **kwargs)


callable_module(__name__, field)
