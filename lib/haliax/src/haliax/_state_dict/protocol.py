"""How a module becomes a flat dict of arrays, and back.

Keys are dotted paths of fields. A module changes its own keys by overriding `_state_dict_key_map` (rename or inline a
field) or the two conversion methods; layers whose arrays have several axes flatten them in `flatten_for_export`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax
import numpy as np
from jax.sharding import NamedSharding

from haliax._array.named import NamedArray, wrap
from haliax._array.sharding import current_thread_local_mapping, pspec_for_names, resolve_mesh
from haliax._ops.loops import is_arrayish
from haliax._state_dict.stacking import Incomplete
from haliax.errors import StateDictError, StateDictKeyError, format_axes

StateDict = dict[str, Any]


class ModuleWithStateDictSerialization(eqx.Module):
    """An `equinox.Module` that decides how it is written to and read from a state dict."""

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Return the arrays of this module by key, below ``prefix``."""
        return default_eqx_module_to_state_dict(self, prefix)

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> Self:
        """Return a copy of this module with the arrays found below ``prefix``."""
        return default_eqx_module_from_state_dict(self, state_dict, prefix)

    def _state_dict_key_map(self) -> dict[str, str | None]:
        """Return {field: key}; None puts the field's own keys directly below the module's prefix."""
        return {}

    def flatten_for_export(self) -> Self:
        """Return a copy whose arrays have the rank that other libraries expect."""
        return self

    def unflatten_from_export(self, template: Self) -> Self:
        """Undo `flatten_for_export`; ``template`` has the wanted axes."""
        return self


def with_prefix(prefix: str | None, leaf: str | None) -> str | None:
    """Join two parts of a key; either may be None.

    Example:
        >>> with_prefix("model", "weight"), with_prefix(None, "weight")
        ('model.weight', 'weight')
    """
    if prefix is None:
        return leaf
    return prefix if leaf is None else f"{prefix}.{leaf}"


def _fields(module: Any) -> list[tuple[str, str | None]]:
    key_map = module._state_dict_key_map() if isinstance(module, ModuleWithStateDictSerialization) else {}
    return [
        (f.name, key_map.get(f.name, f.name)) for f in dataclasses.fields(module) if not f.metadata.get("static", False)
    ]


def _is_plain(leaf: Any) -> bool:
    return callable(leaf) or isinstance(leaf, bool | int | float | complex | str | np.dtype)


def default_eqx_module_to_state_dict(module: eqx.Module, prefix: str | None = None) -> StateDict:
    """Write a module field by field; static fields and non-arrays in fields contribute nothing."""
    out: StateDict = {}
    for name, key in _fields(module):
        value = getattr(module, name)
        if not _is_plain(value) or isinstance(value, eqx.Module):
            out.update(to_state_dict(value, with_prefix(prefix, key)))
    return out


def default_eqx_module_from_state_dict(module: Any, state_dict: StateDict, prefix: str | None = None) -> Any:
    """Read a module field by field; static fields and fields that are None keep their value."""
    updates: dict[str, Any] = {}
    for name, key in _fields(module):
        value = getattr(module, name)
        if value is not None:
            updates[name] = from_state_dict(value, state_dict, with_prefix(prefix, key))
    return replace_fields(module, updates)


def replace_fields(module: Any, updates: Mapping[str, Any]) -> Any:
    """Return a copy of a module with some fields changed, without running its ``__init__``."""
    out = object.__new__(type(module))
    for f in dataclasses.fields(module):
        if f.name in updates or hasattr(module, f.name):
            object.__setattr__(out, f.name, updates[f.name] if f.name in updates else getattr(module, f.name))
    return out


def _children(tree: Any) -> list[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        return [(str(k), v) for k, v in tree.items()]
    return [(str(i), v) for i, v in enumerate(tree)]


def to_state_dict(tree: Any, prefix: str | None = None) -> StateDict:
    """Return the arrays of a pytree by key.

    Args:
        tree: Module, list, tuple, dict, NamedArray, array or None (which contributes nothing).
        prefix: First part of all keys.

    Raises:
        StateDictError: A bare array without prefix, or a leaf that is no array.

    Example:
        >>> import haliax as hax
        >>> sorted(to_state_dict({"a": hax.zeros({"x": 2}), "b": [hax.ones({"y": 1})]}))
        ['a', 'b.0']
    """
    if tree is None:
        return {}
    if isinstance(tree, ModuleWithStateDictSerialization):
        return tree.to_state_dict(prefix)
    if isinstance(tree, eqx.Module):
        return default_eqx_module_to_state_dict(tree, prefix)
    if isinstance(tree, list | tuple | Mapping):
        out: StateDict = {}
        for key, value in _children(tree):
            out.update(to_state_dict(value, with_prefix(prefix, key)))
        return out
    array = tree.array if isinstance(tree, NamedArray) else tree
    if array is None:
        return {}
    if not (is_arrayish(array) or (hasattr(array, "shape") and hasattr(array, "dtype"))):
        raise StateDictError(
            f"write state dict: {prefix!r} is a {type(tree).__name__}; expected an array or a container."
        )
    if prefix is None:
        raise StateDictError("write state dict: a single array has no key; expected a prefix. Pass prefix='name'.")
    return {prefix: array}


def from_state_dict(tree: Any, state_dict: StateDict, prefix: str | None = None) -> Any:
    """Return a copy of the template ``tree`` with its arrays taken from ``state_dict``.

    Leaves that are no arrays, and None, stay as in the template. With several devices, NamedArrays that come as NumPy
    arrays are placed by the axis mapping in force.

    Raises:
        StateDictKeyError: A key is missing.
        StateDictError: An array has another shape than the template's, or there is no prefix for a bare array.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> layer = hax.nn.Linear.init(hax.Axis("e", 3), {"h": 2, "d": 2}, key=jax.random.key(0))
        >>> bool((from_state_dict(layer, to_state_dict(layer)).weight == layer.weight).all())
        True
    """
    if tree is None:
        return None
    if isinstance(tree, ModuleWithStateDictSerialization):
        return tree.from_state_dict(state_dict, prefix)
    if isinstance(tree, eqx.Module):
        return default_eqx_module_from_state_dict(tree, state_dict, prefix)
    if isinstance(tree, Mapping):
        return {k: from_state_dict(v, state_dict, with_prefix(prefix, str(k))) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        items = [from_state_dict(v, state_dict, with_prefix(prefix, str(i))) for i, v in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, NamedArray):
        return tree if tree.array is None else _read_named(tree, state_dict, _key(prefix))
    if is_arrayish(tree) or isinstance(tree, jax.ShapeDtypeStruct):
        return _lookup(state_dict, _key(prefix), tuple(tree.shape), None)
    return tree


def _key(prefix: str | None) -> str:
    if prefix is None:
        raise StateDictError("read state dict: a single array has no key; expected a prefix. Pass prefix='name'.")
    return prefix


def _lookup(state_dict: StateDict, key: str, shape: tuple[int, ...], names: tuple[str, ...] | None) -> Any:
    if key not in state_dict:
        raise StateDictKeyError(key, state_dict)
    array = state_dict[key]
    if isinstance(array, Incomplete):
        raise array.error
    if tuple(array.shape) != shape:
        wanted = shape if names is None else format_axes(names, shape)
        raise StateDictError(
            f"load from state dict: {key!r} has shape {tuple(array.shape)}; expected {wanted}. "
            "Check the model's configuration, and whether the weight is transposed or flattened."
        )
    return array


def _read_named(template: NamedArray, state_dict: StateDict, key: str) -> NamedArray:
    array = _lookup(state_dict, key, tuple(template.array.shape), template.names)
    mapping = current_thread_local_mapping()
    if isinstance(array, np.ndarray) and mapping is not None:
        mesh = resolve_mesh()
        if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1:
            sharding = NamedSharding(mesh, pspec_for_names(template.names, mapping))
            source = array
            array = jax.make_array_from_callback(source.shape, sharding, lambda index: source[index])
    return wrap(array, template.names)
