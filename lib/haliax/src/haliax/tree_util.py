"""Tree functions that treat a NamedArray as one leaf, and functions that look into stacked modules."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jrandom

from haliax._array.named import NamedArray, wrap
from haliax._axis.types import AxisSelector, names_of
from haliax._ops.loops import is_arrayish, is_named, vmap
from haliax._stacked import is_stacked, stacked_axis
from haliax.errors import AxisSpecError
from haliax.jax_utils import maybe_rng_split


def _leaf_test(is_leaf: Callable[[Any], bool] | None) -> Callable[[Any], bool]:
    if is_leaf is None:
        return is_named
    return lambda x: isinstance(x, NamedArray) or is_leaf(x)


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`jax.tree.map` with NamedArrays as leaves.

    Example:
        >>> import haliax as hax
        >>> tree_map(lambda x: x.sum().item(), {"w": hax.ones(hax.Axis("a", 3))})
        {'w': 3.0}
    """
    return jax.tree_util.tree_map(fn, tree, *rest, is_leaf=_leaf_test(is_leaf))


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """`jax.tree.flatten` with NamedArrays as leaves.

    Example:
        >>> import haliax as hax
        >>> len(tree_flatten([hax.ones(hax.Axis("a", 3)), 1])[0])
        2
    """
    return jax.tree_util.tree_flatten(tree, is_leaf=_leaf_test(is_leaf))


def tree_unflatten(treedef: Any, leaves: Any) -> Any:
    """`jax.tree.unflatten`."""
    return jax.tree_util.tree_unflatten(treedef, leaves)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """`jax.tree.leaves` with NamedArrays as leaves.

    Example:
        >>> import haliax as hax
        >>> [type(leaf).__name__ for leaf in tree_leaves([hax.ones(hax.Axis("a", 3)), 1])]
        ['NamedArray', 'int']
    """
    return jax.tree_util.tree_leaves(tree, is_leaf=_leaf_test(is_leaf))


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`jax.tree.structure` with NamedArrays as leaves.

    Example:
        >>> import haliax as hax
        >>> tree_structure({"w": hax.ones(hax.Axis("a", 3))})
        PyTreeDef({'w': *})
    """
    return jax.tree_util.tree_structure(tree, is_leaf=_leaf_test(is_leaf))


def scan_aware_tree_map(
    fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Map ``fn`` over leaves; inside stacked modules it is vectorised over the layers, so it sees single layers.

    Args:
        fn: Function of leaves (NamedArrays count as leaves).
        tree: Any pytree, with `Stacked` or `ArrayStacked` modules anywhere.
        *rest: Trees of the same structure.
        is_leaf: Further leaves.

    Example:
        >>> import haliax as hax
        >>> import haliax.nn as hnn
        >>> import jax
        >>> Layer, E, O = hax.make_axes(layer=2, e=3, o=4)
        >>> stack = hnn.Stacked.init(Layer, hnn.Linear)(E, O, key=jax.random.split(jax.random.key(0), 2))
        >>> scaled = scan_aware_tree_map(lambda x: x / x.axis_size("o") if "o" in x.names else x, stack)
        >>> scaled.stacked.weight.names  # the function saw single layers, without the axis "layer"
        ('layer', 'o', 'e')
    """

    def visit(node: Any, *others: Any) -> Any:
        if not is_stacked(node):
            return fn(node, *others)

        def inner(stacked: Any, *more: Any) -> Any:
            return scan_aware_tree_map(fn, stacked, *more, is_leaf=is_leaf)

        mapped = vmap(inner, stacked_axis(node))(node.stacked, *(o.stacked for o in others))
        return eqx.tree_at(lambda m: m.stacked, node, mapped)

    return tree_map(visit, tree, *rest, is_leaf=lambda x: is_stacked(x) or (is_leaf is not None and is_leaf(x)))


def resize_axis(tree: Any, old_axis: AxisSelector, new_size: int, key: Any = None) -> Any:
    """Change the size of an axis in every NamedArray that has it: cut, or pad with plausible values.

    Args:
        tree: Any pytree.
        old_axis: Axis.
        new_size: New size.
        key: Random key: padding is normal (cut at 2 standard deviations) with the array's mean and standard deviation;
            without a key padding is the mean over the axis.

    Raises:
        AxisSpecError: The size is negative.

    Example:
        >>> import haliax as hax
        >>> resize_axis(hax.named([1.0, 3.0], "v"), "v", 3).tolist()
        [1.0, 3.0, 2.0]
    """
    name = names_of(old_axis)[0]
    if new_size < 0:
        raise AxisSpecError(f"resize_axis {name!r}: new_size={new_size}; expected >= 0.")
    leaves, treedef = tree_flatten(tree)
    keys = maybe_rng_split(key, max(len(leaves), 1))
    resized = [_resize(x, name, new_size, k) if is_named(x) else x for x, k in zip(leaves, keys, strict=False)]
    return jax.tree_util.tree_unflatten(treedef, resized)


def _resize(x: NamedArray, name: str, new_size: int, key: Any) -> NamedArray:
    if name not in x.names or x.array is None:
        return x
    index = x.names.index(name)
    size = x.array.shape[index]
    if new_size <= size:
        return wrap(jax.lax.slice_in_dim(x.array, 0, new_size, axis=index), x.names)
    shape = list(x.array.shape)
    shape[index] = new_size - size
    if key is None:
        padding = jnp.broadcast_to(jnp.mean(x.array, axis=index, keepdims=True), shape).astype(x.dtype)
    else:
        noise = jrandom.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
        padding = (noise * jnp.std(x.array) + jnp.mean(x.array)).astype(x.dtype)
    return wrap(jnp.concatenate([x.array, padding], axis=index), x.names)


def hashable_partition(pytree: Any, filter_spec: Any) -> tuple[Any, Any]:
    """Split a tree into its selected leaves and a hashable rest; undo with `hashable_combine`.

    Example:
        >>> dynamic, static = hashable_partition({"w": jnp.ones(2), "name": "x"}, is_array_leaf)
        >>> len(dynamic), hashable_combine(dynamic, static)["name"]
        (1, 'x')
    """
    dynamic, static = eqx.partition(pytree, filter_spec)
    leaves, treedef = jax.tree_util.tree_flatten(dynamic)
    static_leaves, static_treedef = jax.tree_util.tree_flatten(static)
    return leaves, (treedef, tuple(static_leaves), static_treedef)


def hashable_combine(dynamic: Any, static: Any) -> Any:
    """Put together what `hashable_partition` split."""
    treedef, static_leaves, static_treedef = static
    return eqx.combine(
        jax.tree_util.tree_unflatten(treedef, dynamic), jax.tree_util.tree_unflatten(static_treedef, static_leaves)
    )


is_array_leaf = is_arrayish
