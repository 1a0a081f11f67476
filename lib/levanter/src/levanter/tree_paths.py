"""Names for the leaves of a model or optimizer state.

A checkpoint key, a weight-decay rule and a watched norm all need the same answer to one question: what is this array
called? The answer is the dotted attribute path from the root, with list indices as numbers and the NamedArray wrapper
left out: ``transformer.layers.stacked.self_attn.q_proj.weight``.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from haliax import NamedArray
from jax.sharding import NamedSharding, PartitionSpec

BLOCK_BYTES = 64 << 20
"""Most that a process holds of an array of which others have a part, when all of it is to be read; one row at least."""


def is_named(node: Any) -> bool:
    """Tell whether ``node`` is a NamedArray; used as ``is_leaf`` so that names stay attached."""
    return isinstance(node, NamedArray)


def path_name(key_path: tuple[Any, ...], separator: str = ".") -> str:
    """Join a JAX key path into one name.

    Example:
        >>> path_name((jax.tree_util.DictKey("a"), jax.tree_util.SequenceKey(3)))
        'a.3'
    """
    return separator.join(_key_text(key) for key in key_path)


def named_leaves(tree: Any, separator: str = ".") -> list[tuple[str, Any]]:
    """List ``(name, leaf)`` in flattening order; NamedArray leaves stay NamedArrays, None is skipped."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_named)
    return [(path_name(path, separator), leaf) for path, leaf in flat if raw_array(leaf) is not None]


def raw_array(leaf: Any) -> Any:
    """The array inside a NamedArray, or the leaf itself."""
    return leaf.array if isinstance(leaf, NamedArray) else leaf


def map_named(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Map ``fn(name, leaf, *others)`` over a tree whose NamedArrays count as leaves."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf, *others: fn(path_name(path), leaf, *others), tree, *rest, is_leaf=is_named
    )


def owner_classes(tree: Any) -> dict[str, str]:
    """Map each leaf name to ``OuterClass.OwnerClass.field``: the class names met on the way down.

    Only dataclasses (equinox modules among them), lists, tuples and mappings are opened.
    """
    found: dict[str, str] = {}

    def visit(node: Any, name: str, classes: str) -> None:
        if isinstance(node, NamedArray) or node is None:
            found[name] = classes
        elif dataclasses.is_dataclass(node) and not isinstance(node, type):
            here = f"{classes}.{type(node).__name__}" if classes else type(node).__name__
            for field in dataclasses.fields(node):
                visit(getattr(node, field.name, None), _join(name, field.name), f"{here}.{field.name}")
        elif isinstance(node, dict):
            for key, value in node.items():
                visit(value, _join(name, str(key)), classes)
        elif isinstance(node, list | tuple):
            for index, value in enumerate(node):
                visit(value, _join(name, str(index)), classes)
        else:
            found[name] = classes

    visit(tree, "", "")
    return found


def tree_digest(tree: Any) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of every array leaf; equal trees give equal digests.

    The layout does not count: a tree that is spread over several processes has the digest that it has on one device.
    All of those processes must call this, at the same point of the run, since they read each other's parts.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> tree_digest({"w": np.zeros(2, np.float32)}) == tree_digest({"w": np.zeros(2, np.float32)})
        True
    """
    digest = hashlib.sha256()
    for name, leaf in named_leaves(tree):
        value = raw_array(leaf)
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        if not isinstance(value, jax.Array | np.ndarray | np.generic | int | float):
            continue
        like = np.asarray(value) if isinstance(value, int | float) else value
        digest.update(f"{name}|{like.dtype.name}|{like.shape}|".encode())
        for block in _host_blocks(value):
            host = np.ascontiguousarray(block)
            digest.update(host.view(np.uint8).data if host.ndim else host.tobytes())
    return digest.hexdigest()


def _host_blocks(value: Any) -> Iterator[np.ndarray]:
    """An array on the host: whole where this process has all of it, else block after block of its first axis."""
    if not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated:
        yield np.asarray(value)
        return
    layout = value.sharding
    if not isinstance(layout, NamedSharding):
        raise TypeError(f"sharding={layout}; expected a NamedSharding for an array that several processes share.")
    rows = value.shape[0]
    step = max(1, BLOCK_BYTES * rows // value.nbytes)
    everywhere = NamedSharding(layout.mesh, PartitionSpec())
    take = jax.jit(jax.lax.dynamic_slice_in_dim, static_argnums=2, out_shardings=everywhere)
    for start in range(0, rows, step):
        yield np.asarray(take(value, start, min(step, rows - start)))


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _key_text(key: Any) -> str:
    for attribute in ("name", "idx", "key"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
