"""Which leaves of a model are trained.

Every floating-point array is, unless the model holds adapters: a module class that names ``trainable_fields`` says that
in a model which has one of it, those fields of it are trained and nothing else. The optimizer, the gradients, the
averages and the counts all ask here, so they cannot disagree.
"""

from typing import Any

import equinox as eqx
import jax

TRAINABLE_FIELDS = "trainable_fields"


def trainable_filter(model: Any) -> Any:
    """A tree of booleans in the structure of ``model``, or the predicate that trains every floating array.

    Example:
        >>> trainable_filter({"w": jax.numpy.ones(2)}) is eqx.is_inexact_array
        True
    """
    adapters = [node for node in jax.tree.leaves(model, is_leaf=_is_adapter) if _is_adapter(node)]
    if not adapters:
        return eqx.is_inexact_array

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
