"""Examples to batches: the array leaves of a pytree, stacked along a new first axis.

An example is any pytree of arrays and named arrays. Its *leaves* here are the raw arrays in the order
``jax.tree.leaves`` gives with a named array counted as one leaf; Python scalars in the tree are settings, not data, and
stay as they are. Datasets that can, build stacked leaves directly (one vectorised read for a batch); others stack item
by item. :func:`batch_from_leaves` rebuilds the pytree.
"""

from collections.abc import Callable, Sequence
from typing import Any

import haliax as hax
import jax
import numpy as np


def is_named(leaf: Any) -> bool:
    """Whether a node of a pytree is a named array."""
    return isinstance(leaf, hax.NamedArray)


def _is_data(leaf: Any) -> bool:
    return is_named(leaf) or not isinstance(leaf, bool | int | float | complex)


def example_leaves(example: Any) -> list[np.ndarray]:
    """The raw arrays of one example."""
    leaves = jax.tree.leaves(example, is_leaf=is_named)
    return [np.asarray(leaf.array if is_named(leaf) else leaf) for leaf in leaves if _is_data(leaf)]


def stack_examples(examples: Sequence[Any]) -> list[np.ndarray]:
    """Stack the leaves of examples of one structure.

    Args:
        examples: At least one; equal structure, shapes and dtypes.
    Returns:
        One array a leaf, shape ``(len(examples), ...)``.
    """
    columns = zip(*(example_leaves(example) for example in examples), strict=True)
    return [np.stack(column) for column in columns]


def batch_from_leaves(
    exemplar: Any, leaves: Sequence[Any], batch_axis: hax.Axis, *, finish: Callable[[Any, Any], Any] | None = None
) -> Any:
    """Rebuild a batched pytree from stacked leaves.

    Args:
        exemplar: One example: gives the structure and the names.
        leaves: Stacked arrays in leaf order, first axis ``batch_axis``.
        batch_axis: Becomes the first axis of every named array.
        finish: Called with (leaf of the exemplar, stacked array) to place the array on devices.
    """
    nodes, structure = jax.tree.flatten(exemplar, is_leaf=is_named)
    rebuilt = []
    arrays = iter(leaves)
    for node in nodes:
        if not _is_data(node):
            rebuilt.append(node)
            continue
        array = next(arrays)
        placed = array if finish is None else finish(node, array)
        rebuilt.append(hax.NamedArray(placed, (batch_axis, *node.axes)) if is_named(node) else placed)
    return jax.tree.unflatten(structure, rebuilt)
