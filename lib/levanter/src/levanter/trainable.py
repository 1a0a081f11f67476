"""Which leaves of a model are trained.

Every floating-point array is, with two exceptions. What sits in a :class:`Buffer` is state that a step sets: it is
neither trained nor cast. And in a model that holds adapters, only they are: a module class that names
``trainable_fields`` says that in a model which has one of it, those fields of it are trained and nothing else. The
optimizer, the gradients, the averages and the counts all ask here, so they cannot disagree.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
from haliax import NamedArray

from levanter.tree_paths import path_name

TRAINABLE_FIELDS = "trainable_fields"
BUFFER_PREFIX = "buffer/"
"""Metrics of a loss function under this prefix are the next values of the buffers at that path, not numbers to log."""


class Buffer(eqx.Module):
    """State of a model that a training step sets, such as the bias of a router.

    It keeps its dtype whatever the precision policy says, has no gradient, no optimizer state and no average, and is
    part of every checkpoint.

    Attributes:
        value: The array.
    """

    value: NamedArray


def with_buffers(model: Any, values: Mapping[str, jax.Array]) -> Any:
    """A model whose buffers have these values.

    Args:
        model: Any model.
        values: Array by path of the buffer, in the buffer's shape; cast to its dtype.

    Raises:
        KeyError: the model has no buffer at a path.

    Example:
        >>> import haliax as hax
        >>> model = {"bias": Buffer(hax.zeros(hax.Axis("experts", 2)))}
        >>> with_buffers(model, {"bias": jax.numpy.ones(2)})["bias"].value.array.tolist()
        [1.0, 1.0]
    """
    remaining = dict(values)

    def visit(path: tuple[Any, ...], node: Any) -> Any:
        name = path_name(path)
        if not isinstance(node, Buffer) or name not in remaining:
            return node
        old = node.value
        return Buffer(NamedArray(remaining.pop(name).astype(old.array.dtype), old.axes))

    changed = jax.tree_util.tree_map_with_path(visit, model, is_leaf=is_buffer)
    if remaining:
        raise KeyError(f"no such buffer: {', '.join(sorted(remaining))}; expected paths of Buffer nodes of the model.")
    return changed


def is_buffer(node: Any) -> bool:
    """Whether ``node`` is a :class:`Buffer`; used as ``is_leaf``."""
    return isinstance(node, Buffer)


def trainable_filter(model: Any) -> Any:
    """A tree of booleans in the structure of ``model``, or the predicate that trains every floating array.

    Example:
        >>> trainable_filter({"w": jax.numpy.ones(2)}) is eqx.is_inexact_array
        True
    """
    adapters = [node for node in jax.tree.leaves(model, is_leaf=_is_adapter) if _is_adapter(node)]
    if not adapters:
        if not any(map(is_buffer, jax.tree.leaves(model, is_leaf=is_buffer))):
            return eqx.is_inexact_array
        return jax.tree.map(lambda node: not is_buffer(node) and eqx.is_inexact_array(node), model, is_leaf=is_buffer)

    def mark(node: Any) -> Any:
        if not _is_adapter(node):
            return False
        names = type(node).trainable_fields

        def under(path: tuple[Any, ...], leaf: Any) -> bool:
            return eqx.is_inexact_array(leaf) and path[0].name in names

        return jax.tree_util.tree_map_with_path(under, node)

    return jax.tree.map(mark, model, is_leaf=_is_adapter)


def partition_trainable(model: Any) -> tuple[Any, Any]:
    """Split a model into what is trained and what is not; ``eqx.combine`` joins them again.

    Returns:
        ``(params, rest)``, both in the structure of ``model`` with None where the other has the leaf.
    """
    return eqx.partition(model, trainable_filter(model))


def _is_adapter(node: Any) -> bool:
    return hasattr(type(node), TRAINABLE_FIELDS)
