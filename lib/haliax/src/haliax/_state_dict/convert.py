"""Whole modules to and from the layout of PyTorch, and state dicts to and from safetensors files."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import equinox as eqx
import jax
import numpy as np

from haliax._array.named import NamedArray, wrap
from haliax._ops.loops import is_named, vmap
from haliax._stacked import is_stacked, stacked_axis
from haliax._state_dict.protocol import ModuleWithStateDictSerialization, StateDict, from_state_dict, to_state_dict
from haliax.errors import StateDictError
from haliax.jax_utils import is_jax_array_like, sync_global_devices


def _children_first(tree: Any, others: tuple[Any, ...], fn: Callable[..., Any]) -> Any:
    """Apply ``fn`` to every serialisable module, inner ones first, with single layers inside stacks."""

    def visit(node: Any, *rest: Any) -> Any:
        if is_stacked(node):

            def one_layer(stacked: Any, *more: Any) -> Any:
                return _children_first(stacked, more, fn)

            inner = vmap(one_layer, stacked_axis(node))(node.stacked, *(r.stacked for r in rest))
            return eqx.tree_at(lambda m: m.stacked, node, inner)
        if isinstance(node, ModuleWithStateDictSerialization):
            return _children_first(node, rest, fn)
        return node

    def is_leaf(x: Any) -> bool:
        return is_named(x) or (x is not tree and (is_stacked(x) or isinstance(x, ModuleWithStateDictSerialization)))

    if is_stacked(tree):
        return visit(tree, *others)
    walked = _map_prefix(visit, tree, others, is_leaf)
    return fn(walked, *others) if isinstance(walked, ModuleWithStateDictSerialization) else walked


def _map_prefix(visit: Callable[..., Any], tree: Any, others: tuple[Any, ...], is_leaf: Callable[[Any], bool]) -> Any:
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=is_leaf)
    columns = [jax.tree_util.tree_leaves(o, is_leaf=lambda x, o=o: _is_inner(x, o)) for o in others]
    if any(len(c) != len(leaves) for c in columns):
        raise StateDictError(
            "convert modules: the template has another structure; build it with the same configuration."
        )
    return jax.tree_util.tree_unflatten(treedef, [visit(*row) for row in zip(leaves, *columns, strict=True)])


def _is_inner(x: Any, root: Any) -> bool:
    return is_named(x) or (x is not root and (is_stacked(x) or isinstance(x, ModuleWithStateDictSerialization)))


def flatten_modules_for_export(tree: Any) -> Any:
    """Call ``flatten_for_export`` on every module of a tree (inside stacks: per layer)."""
    return _children_first(tree, (), lambda m: m.flatten_for_export())


def unflatten_modules_from_export(tree: Any, template: Any) -> Any:
    """Undo `flatten_modules_for_export`; ``template`` has the wanted axes, its arrays may be ShapeDtypeStructs."""
    return _children_first(tree, (_with_payload(template),), lambda m, t: m.unflatten_from_export(t))


def _with_payload(tree: Any) -> Any:
    """Replace ShapeDtypeStructs by zeros that take no memory."""

    def fill(x: Any) -> Any:
        array = x.array if isinstance(x, NamedArray) else x
        if not isinstance(array, jax.ShapeDtypeStruct):
            return x
        zeros = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        return wrap(zeros, x.names) if isinstance(x, NamedArray) else zeros

    return jax.tree_util.tree_map(fill, tree, is_leaf=is_named)


def to_torch_compatible_state_dict(
    t: Any,
    *,
    flatten: bool = True,
    prefix: str | None = None,
    filter: Callable[[Any], bool] = is_jax_array_like,  # noqa: A002
) -> StateDict:
    """Return the NumPy arrays of a module under the keys and in the shapes of PyTorch.

    Args:
        t: Module.
        flatten: Flatten layers with several axes to the ranks PyTorch has.
        prefix: First part of all keys.
        filter: Which leaves to write.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> layer = hax.nn.Linear.init(hax.Axis("e", 3), {"h": 2, "d": 2}, key=jax.random.key(0))
        >>> {k: v.shape for k, v in to_torch_compatible_state_dict(layer, prefix="up").items()}
        {'up.weight': (4, 3), 'up.bias': (4,)}
    """
    if flatten:
        t = flatten_modules_for_export(t)
    return to_numpy_state_dict(eqx.filter(t, filter) if filter is not is_jax_array_like else t, prefix)


def from_torch_compatible_state_dict(
    t: Any, state_dict: StateDict, *, unflatten: bool = True, prefix: str | None = None
) -> Any:
    """Return a copy of the template ``t`` with the arrays of a PyTorch-like state dict.

    Args:
        t: Template; its arrays may be ShapeDtypeStructs.
        state_dict: Arrays by key.
        unflatten: Undo the flattening of `to_torch_compatible_state_dict`.
        prefix: First part of all keys.

    Raises:
        StateDictKeyError: A key is missing.
        StateDictError: A shape differs.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> layer = hax.nn.Linear.init(hax.Axis("e", 3), {"h": 2, "d": 2}, key=jax.random.key(0))
        >>> state = to_torch_compatible_state_dict(layer)
        >>> from_torch_compatible_state_dict(layer, state).weight.shape
        {'h': 2, 'd': 2, 'e': 3}
    """
    if not unflatten:
        return from_state_dict(t, state_dict, prefix)
    flat = eqx.filter_eval_shape(flatten_modules_for_export, t)
    return unflatten_modules_from_export(from_state_dict(flat, state_dict, prefix), t)


def to_numpy_state_dict(model: Any, prefix: str | None = None) -> StateDict:
    """Return the arrays of a module as NumPy arrays on this host (gathered if they are spread).

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> layer = hax.nn.Linear.init(hax.Axis("e", 3), {"h": 2, "d": 2}, key=jax.random.key(0))
        >>> type(to_numpy_state_dict(layer)["weight"]).__name__
        'ndarray'
    """
    return {k: _to_host(v) for k, v in to_state_dict(model, prefix).items() if v is not None}


def _to_host(array: Any) -> np.ndarray:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        replicated = jax.sharding.NamedSharding(array.sharding.mesh, jax.sharding.PartitionSpec())  # type: ignore[attr-defined]
        array = jax.jit(lambda x: x, out_shardings=replicated)(array)
    return np.asarray(array)


def save_state_dict(state_dict: StateDict, path: str) -> None:
    """Write a state dict to a safetensors file (process 0 writes, all wait).

    Raises:
        ImportError: The extra ``state-dict`` is not installed.
    """
    if jax.process_index() == 0:
        _safetensors().save_file(
            {k: np.ascontiguousarray(_to_host(v)) for k, v in state_dict.items() if v is not None},
            path,
            metadata={"format": "pt"},
        )
    sync_global_devices(f"save_state_dict {path}")


def load_state_dict(path: str) -> StateDict:
    """Read a safetensors file as NumPy arrays.

    Raises:
        ImportError: The extra ``state-dict`` is not installed.
        StateDictError: The file is damaged or not in the safetensors format.
    """
    return _safetensors().load_file(path)


def _safetensors() -> Any:
    return import_module("haliax._adapters.safetensors_files")  # an optional dependency, loaded on demand
