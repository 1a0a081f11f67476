"""Stacked layers in a state dict: one key per layer outside, one array with a layer dimension inside."""

import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from haliax.errors import StateDictError


class Incomplete:
    """Stands for a stacked array whose layers do not fit together; an error only if the module needs it."""

    def __init__(self, error: StateDictError) -> None:
        self.error = error


def _pattern(prefix: str | None) -> re.Pattern[str]:
    return re.compile((re.escape(prefix) + r"\." if prefix else "") + r"(\d+)\.(.*)")


def _join(prefix: str | None, *parts: str) -> str:
    return ".".join([prefix, *parts] if prefix else parts)


def stack_state_dict(
    state_dict: Mapping[str, Any], prefix: str | None = None, num_layers: int | None = None, *, strict: bool = True
) -> dict[str, Any]:
    """Replace the keys ``prefix.<i>.rest`` by one ``prefix.rest`` stacked in the order of i; other keys stay.

    Args:
        state_dict: Arrays by key.
        prefix: Where the layers are.
        num_layers: Number of layers; the largest index plus 1 unless given.
        strict: Raise at once; otherwise groups that do not fit are marked, and raise when a module reads them.

    Raises:
        StateDictError: Layers are missing, more than expected, or a key has differing shapes.

    Example:
        >>> {k: v.shape for k, v in stack_state_dict({"h.0.w": np.zeros(2), "h.1.w": np.ones(2)}, "h").items()}
        {'h.w': (2, 2)}
    """
    out: dict[str, Any] = {}
    groups: dict[str, dict[int, Any]] = {}
    pattern = _pattern(prefix)
    for key, array in state_dict.items():
        match = pattern.fullmatch(key)
        if match is None:
            out[key] = array
        else:
            groups.setdefault(match.group(2), {})[int(match.group(1))] = array
    for rest, layers in groups.items():
        try:
            out[_join(prefix, rest)] = _stack_layers(_join(prefix, "<i>", rest), layers, num_layers)
        except StateDictError as error:
            if strict:
                raise
            out[_join(prefix, rest)] = Incomplete(error)
    return out


def _stack_layers(shown: str, layers: dict[int, Any], num_layers: int | None) -> Any:
    wanted = range(max(layers) + 1 if num_layers is None else num_layers)
    if sorted(layers) != list(wanted):
        missing, extra = sorted(set(wanted) - set(layers)), sorted(set(layers) - set(wanted))
        raise StateDictError(
            f"stack layers {shown}: missing layers {missing}, unexpected layers {extra}; expected "
            f"0..{len(wanted) - 1}. "
            "Check the number of layers in the model's configuration."
        )
    arrays = [layers[i] for i in wanted]
    inner = next((a for a in arrays if isinstance(a, Incomplete)), None)
    if inner is not None:
        raise inner.error
    shapes = sorted({tuple(a.shape) for a in arrays})
    if len(shapes) != 1:
        raise StateDictError(f"stack layers {shown}: shapes {shapes}; expected one. Check the checkpoint.")
    return np.stack(arrays) if isinstance(arrays[0], np.ndarray) else jnp.stack(arrays)


def unstack_state_dict(
    state_dict: Mapping[str, Any], prefix: str | None = None, num_layers: int | None = None
) -> dict[str, Any]:
    """Replace every key ``prefix.rest`` by ``prefix.<i>.rest``, one per element of dimension 0.

    Raises:
        StateDictError: An array lacks the layer dimension.

    Example:
        >>> sorted(unstack_state_dict({"h.w": np.zeros((2, 3)), "other": np.zeros(1)}, "h"))
        ['h.0.w', 'h.1.w', 'other']
    """
    out: dict[str, Any] = {}
    head = f"{prefix}." if prefix else ""
    for key, array in state_dict.items():
        if array is None:
            continue
        if not key.startswith(head):
            out[key] = array
            continue
        if array.ndim == 0 or (num_layers is not None and array.shape[0] != num_layers):
            raise StateDictError(
                f"unstack layers: {key!r} has shape {tuple(array.shape)}; expected a leading dimension of "
                f"{num_layers} layers."
            )
        for i in range(array.shape[0]):
            out[_join(prefix, str(i), key[len(head) :])] = array[i]
    return out
