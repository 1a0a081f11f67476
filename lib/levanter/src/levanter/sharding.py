"""Placing named arrays on a device mesh.

A mapping sends axis names to mesh axes; an array's sharding follows from its names alone. Two mappings matter: the
*parameter* mapping says where weights and optimizer state live, the *compute* mapping says how activations are split.
The compute mapping is a context variable, so a model can constrain its activations without carrying a mesh around;
where there is no mesh, constraints are free no-ops and the program is the single-device program.
"""

import contextlib
import contextvars
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import jax
from haliax import NamedArray
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from levanter.tree_paths import is_named

AxisMapping = Mapping[str, str | Sequence[str]]
_compute: contextvars.ContextVar[tuple[Mesh, AxisMapping] | None] = contextvars.ContextVar("compute", default=None)


def partition_spec(
    names: Sequence[str | None], shape: Sequence[int], mapping: AxisMapping, mesh: Mesh
) -> PartitionSpec:
    """Spec of an array with these axis names.

    A dimension whose size does not divide by its mesh axes stays whole, and a mesh axis is used once, by the first
    dimension that asks for it.

    Example:
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> tuple(partition_spec(["embed", None], [8, 4], {"embed": "data"}, mesh))
        ('data', None)
    """
    used: set[str] = set()
    parts: list[Any] = []
    for name, size in zip(names, shape, strict=True):
        target = mapping.get(name) if name is not None else None
        axes = (target,) if isinstance(target, str) else tuple(target or ())
        ways = 1
        for axis in axes:
            ways *= mesh.shape[axis]
        if not axes or used & set(axes) or size % ways:
            parts.append(None)
            continue
        used |= set(axes)
        parts.append(axes[0] if len(axes) == 1 else axes)
    return PartitionSpec(*parts)


def named_sharding(leaf: Any, mapping: AxisMapping, mesh: Mesh) -> NamedSharding:
    """Sharding of a NamedArray (or replicated, for anything without names)."""
    if isinstance(leaf, NamedArray) and leaf.array is not None:
        names = [axis.name for axis in leaf.axes]
        return NamedSharding(mesh, partition_spec(names, leaf.array.shape, mapping, mesh))
    return NamedSharding(mesh, PartitionSpec())


def tree_shardings(tree: Any, mapping: AxisMapping, mesh: Mesh) -> Any:
    """A tree of shardings with the structure of ``tree``'s arrays, NamedArrays opened."""

    def of(leaf: Any) -> Any:
        sharding = named_sharding(leaf, mapping, mesh)
        return jax.tree.map(lambda _: sharding, leaf)

    return jax.tree.map(of, tree, is_leaf=is_named)


def place(tree: Any, mapping: AxisMapping, mesh: Mesh) -> Any:
    """Put every array of a tree on the mesh as the mapping says."""
    return jax.device_put(tree, tree_shardings(tree, mapping, mesh))


def constrain_tree(tree: Any, mapping: AxisMapping, mesh: Mesh) -> Any:
    """Inside jit, require that every array of a tree is laid out as the mapping says."""
    return jax.lax.with_sharding_constraint(tree, tree_shardings(tree, mapping, mesh))


@contextlib.contextmanager
def compute_sharding(mesh: Mesh | None, mapping: AxisMapping) -> Generator[None]:
    """Make a mesh and its compute mapping current while a step is traced; ``mesh`` None switches constraints off."""
    token = _compute.set(None if mesh is None else (mesh, mapping))
    try:
        yield
    finally:
        _compute.reset(token)


def current_mesh() -> Mesh | None:
    """The mesh that the step being traced runs on; None outside of a step or on one device without constraints."""
    current = _compute.get()
    return None if current is None else current[0]


def current_axes(name: str, size: int) -> tuple[str, ...]:
    """Mesh axes that a dimension of this name and size is split over; empty when it stays whole or there is no mesh."""
    current = _compute.get()
    if current is None:
        return ()
    mesh, mapping = current
    (target,) = tuple(partition_spec([name], [size], mapping, mesh))
    axes = (target,) if isinstance(target, str) else tuple(target or ())
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Lay out an activation by the current compute mapping; a no-op without one.

    Args:
        x: Activation.
        *names: Axis name of each dimension, None for dimensions that stay whole.
    """
    current = _compute.get()
    if current is None:
        return x
    mesh, mapping = current
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition_spec(names, x.shape, mapping, mesh)))
