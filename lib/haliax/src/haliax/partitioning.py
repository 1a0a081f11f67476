"""Sharding by name: which axis goes to which mesh axis, said once and applied everywhere.

An *axis mapping* such as ``{"batch": "data", "mlp": "model"}`` says where each logical axis lives. Under a mapping and
a mesh, `shard` places any pytree of NamedArrays, `named_jit` compiles functions whose results are placed, and most
operations constrain their results by themselves. Without a mapping nothing happens and nothing is paid.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from haliax._array.compat import is_tracing
from haliax._array.sharding import (
    MeshLike,
    PhysicalAxisSpec,
    ResourceMapping,
    all_mesh_axes_explicit,
    auto_sharded,
    axis_mapping,
    current_thread_local_mapping,
    get_pspec_for_manual_mesh,
    mapping_scope,
    pspec_for_names,
    resolve_mesh,
    shard_named,
)
from haliax._axis.types import Axis, AxisSelection, AxisSelector, names_of
from haliax._ops.loops import is_named
from haliax._partition.jit import named_jit
from haliax.core import NamedArray
from haliax.errors import ShardingError
from haliax.field import AXIS_NAMES
from haliax.util import StringHolderEnum

__all__ = [
    "MeshLike",
    "PhysicalAxisSpec",
    "ResourceAxis",
    "ResourceMapping",
    "all_mesh_axes_explicit",
    "auto_sharded",
    "axis_mapping",
    "current_thread_local_mapping",
    "fsdp",
    "get_pspec_for_manual_mesh",
    "infer_resource_partitions",
    "mesh_context",
    "named_jit",
    "physical_axis_name",
    "physical_axis_size",
    "pspec_for",
    "pspec_for_axis",
    "round_axis_for_partitioning",
    "set_mesh",
    "shard",
    "shard_map",
    "shard_with_axis_mapping",
    "sharding_for_axis",
]


class ResourceAxis(StringHolderEnum):
    """Customary names of mesh axes."""

    MODEL = "model"
    DATA = "data"
    REPLICA = "replica"


@contextlib.contextmanager
def set_mesh(mesh: Any) -> Iterator[Any]:
    """Use ``mesh`` for the block (`jax.set_mesh`).

    Example:
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with set_mesh(mesh):
        ...     print(jax.sharding.get_abstract_mesh().axis_names)
        ...
        ('data',)
    """
    with jax.set_mesh(mesh) as inner:
        yield inner


mesh_context = set_mesh


def shard(x: Any, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None) -> Any:
    """Place every NamedArray of a pytree by its names; raw arrays stay where they are.

    Inside jit this constrains the result, outside it moves data.

    Args:
        x: Any pytree.
        mapping: Axis name to mesh axis; the mapping in force unless given.
        mesh: Mesh; that of the context unless given.

    Returns:
        The placed tree. Without a mapping or mesh ``x`` itself (with a RuntimeWarning outside jit).

    Raises:
        ShardingError: A mesh axis is unknown, used twice, or does not divide the axis.

    Example:
        >>> import haliax as hax
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with set_mesh(mesh), axis_mapping({"batch": "data"}):
        ...     x = shard(hax.ones({"batch": 2, "embed": 3}))
        ...
        >>> x.sharding.spec
        P('data', None)
    """
    mapping = mapping if mapping is not None else current_thread_local_mapping()
    resolved = resolve_mesh(mesh)
    if mapping is None or resolved is None:
        if not is_tracing():
            what = "axis mapping" if mapping is None else "mesh"
            warnings.warn(f"shard: no {what} given or in force; nothing is placed.", RuntimeWarning, stacklevel=2)
        return x
    if resolved.empty:
        return x
    return jax.tree_util.tree_map(
        lambda leaf: shard_named(leaf, mapping, resolved) if is_named(leaf) else leaf, x, is_leaf=is_named
    )


def shard_with_axis_mapping(x: Any, mapping: ResourceMapping, mesh: MeshLike | None = None) -> Any:
    """Same as `shard` with a mapping."""
    return shard(x, mapping, mesh)


def pspec_for_axis(axis: AxisSelection, mapping: ResourceMapping | None = None) -> PartitionSpec:
    """Return the PartitionSpec of axes under a mapping (that in force unless given); unmapped names give None.

    Example:
        >>> import haliax as hax
        >>> pspec_for_axis(hax.make_axes(batch=8, embed=4), {"batch": "data"})
        P('data', None)
    """
    mapping = mapping if mapping is not None else current_thread_local_mapping()
    return pspec_for_names(names_of(axis), mapping)


def physical_axis_name(axis: AxisSelector, mapping: ResourceMapping | None = None) -> PhysicalAxisSpec | None:
    """Return the mesh axis (or axes) an axis is mapped to, or None.

    Example:
        >>> import haliax as hax
        >>> physical_axis_name("batch", {"batch": "data"}), physical_axis_name("embed", {"batch": "data"})
        ('data', None)
    """
    mapping = mapping if mapping is not None else current_thread_local_mapping()
    return None if mapping is None else mapping.get(names_of(axis)[0])


def physical_axis_size(axis: AxisSelector, mapping: ResourceMapping | None = None) -> int | None:
    """Return the number of devices an axis is spread over, or None when it is not mapped.

    Raises:
        ShardingError: There is no mesh, or the mesh lacks the mesh axis.
    """
    physical = physical_axis_name(axis, mapping)
    if physical is None:
        return None
    mesh = resolve_mesh()
    if mesh is None:
        raise ShardingError(
            f"physical_axis_size {axis}: no mesh in force. Wrap the call in hax.partitioning.set_mesh(mesh)."
        )
    total = 1
    for name in (physical,) if isinstance(physical, str) else physical:
        if name not in mesh.shape:
            raise ShardingError(f"physical_axis_size {axis}: mesh axis {name!r} not found in {dict(mesh.shape)}.")
        total *= mesh.shape[name]
    return total


def sharding_for_axis(
    axis: AxisSelection, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> NamedSharding:
    """Return the NamedSharding of axes under a mapping and a mesh.

    Raises:
        ShardingError: There is no mesh.

    Example:
        >>> import haliax as hax
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> sharding_for_axis(hax.Axis("batch", 8), {"batch": "data"}, mesh).spec
        P('data',)
    """
    resolved = resolve_mesh(mesh)
    if resolved is None:
        raise ShardingError(f"sharding_for_axis {names_of(axis)}: no mesh given or in force.")
    return NamedSharding(resolved, pspec_for_axis(axis, mapping))  # type: ignore[arg-type]


def round_axis_for_partitioning(axis: Axis, mapping: ResourceMapping | None = None) -> Axis:
    """Round the size of an axis up to a multiple of the devices it is spread over.

    Example:
        >>> import haliax as hax
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with set_mesh(mesh):
        ...     print(round_axis_for_partitioning(hax.Axis("vocab", 13), {"vocab": "data"}))
        ...
        vocab(13)
    """
    size = physical_axis_size(axis, mapping)
    return axis if size is None else axis.resize(-(-axis.size // size) * size)


def pspec_for(
    tree: Any, resource_mapping: ResourceMapping | None = None, preserve_existing_shardings: bool = True
) -> Any:
    """Return the PartitionSpec of every array of a pytree.

    NamedArrays (also with payload None) go by their names, fields declared with ``hax.field(axis_names=...)`` by those,
    scalars are ``P()``. Other arrays keep the spec they have (None says so), or are replicated when
    ``preserve_existing_shardings`` is False; single-device arrays are ``P(None)``. Anything else gives None.

    Raises:
        ShardingError: No mapping is given or in force.

    Example:
        >>> import haliax as hax
        >>> pspec_for({"w": hax.ones({"mlp": 2, "embed": 3})}, {"mlp": "model"})
        {'w': P('model', None)}
    """
    mapping = resource_mapping if resource_mapping is not None else current_thread_local_mapping()
    if mapping is None:
        raise ShardingError("pspec_for: No resource mapping found. Pass one, or use hax.axis_mapping.")
    known: Any = mapping

    def spec(node: Any) -> Any:
        if isinstance(node, NamedArray):
            return pspec_for_names(node.names, known)
        if isinstance(node, eqx.Module):
            return _module_specs(node, known, spec)
        if isinstance(node, bool | int | float | complex | np.generic):
            return PartitionSpec()
        if hasattr(node, "shape") and hasattr(node, "dtype"):
            return _raw_spec(node, preserve_existing_shardings)
        return None

    return jax.tree_util.tree_map(spec, tree, is_leaf=lambda x: is_named(x) or isinstance(x, eqx.Module))


def _raw_spec(array: Any, preserve: bool) -> PartitionSpec | None:
    if array.ndim == 0:
        return PartitionSpec()
    sharding = getattr(array, "sharding", None)
    if preserve and isinstance(sharding, NamedSharding):
        return None
    if isinstance(sharding, jax.sharding.SingleDeviceSharding) or not preserve or sharding is None:
        return PartitionSpec(None)
    return None


def _module_specs(module: eqx.Module, mapping: ResourceMapping, spec: Callable[[Any], Any]) -> Any:
    updates: dict[str, Any] = {}
    for f in dataclasses.fields(module):
        if f.metadata.get("static", False) or not hasattr(module, f.name):
            continue
        value = getattr(module, f.name)
        names = f.metadata.get(AXIS_NAMES)
        if names is not None and value is not None:
            updates[f.name] = PartitionSpec(*(None if n is None else mapping.get(n) for n in names))
        else:
            updates[f.name] = jax.tree_util.tree_map(
                spec, value, is_leaf=lambda x: is_named(x) or isinstance(x, eqx.Module)
            )
    out = object.__new__(type(module))
    for f in dataclasses.fields(module):
        if hasattr(module, f.name):
            object.__setattr__(out, f.name, updates.get(f.name, getattr(module, f.name)))
    return out


def infer_resource_partitions(
    tree: Any,
    resource_mapping: ResourceMapping | None = None,
    preserve_existing_shardings: bool = True,
    mesh: MeshLike | None = None,
) -> Any:
    """Return the NamedSharding of every array of a pytree; see `pspec_for`. Specs of None keep the present sharding.

    Raises:
        ShardingError: No mesh, or no mapping.

    Example:
        >>> import haliax as hax
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> infer_resource_partitions(hax.ones({"a": 2}), {"a": "data"}, mesh=mesh).spec
        P('data',)
    """
    resolved = resolve_mesh(mesh)
    if resolved is None or resolved.empty:
        raise ShardingError(
            "infer_resource_partitions: no mesh given or in force. Use hax.partitioning.set_mesh(mesh)."
        )
    if isinstance(mesh, Mesh):
        resolved = mesh
    specs = pspec_for(tree, resource_mapping, preserve_existing_shardings)
    spec_leaves, treedef = jax.tree_util.tree_flatten(
        specs, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec)
    )
    leaves = jax.tree_util.tree_leaves(tree, is_leaf=lambda x: x is None or is_named(x))
    out: list[Any] = []
    for i, s in enumerate(spec_leaves):
        if isinstance(s, PartitionSpec):
            out.append(NamedSharding(resolved, s))  # type: ignore[arg-type]
        else:
            leaf = leaves[i] if len(leaves) == len(spec_leaves) else None
            out.append(getattr(leaf, "sharding", None))
    return jax.tree_util.tree_unflatten(treedef, out)


def fsdp(*args: Any, **kwargs: Any) -> Any:
    """Fully sharded data parallelism: parameters stored under one mapping, computed on under another.

    ``fsdp(fn, parameter_mapping, compute_mapping)`` or, as a decorator, ``fsdp(parameter_mapping, compute_mapping)``.
    Inputs and outputs are placed by the parameter mapping, everything in between by the compute mapping.

    Example:
        >>> import haliax as hax
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> double = fsdp(lambda w: w * 2, {"embed": "data"}, {"batch": "data"})
        >>> with set_mesh(mesh):
        ...     w = double(shard(hax.ones({"embed": 2}), {"embed": "data"}))
        ...
        >>> w.tolist()
        [2.0, 2.0]
    """
    if "fn" in kwargs or (args and callable(args[0])):
        return _fsdp(*args, **kwargs)
    return lambda fn: _fsdp(fn, *args, **kwargs)


def _fsdp(
    fn: Callable[..., Any], parameter_mapping: ResourceMapping, compute_mapping: ResourceMapping, **kwargs: Any
) -> Any:
    return named_jit(
        fn,
        in_axis_resources=parameter_mapping,
        out_axis_resources=parameter_mapping,
        axis_resources=compute_mapping,
        **kwargs,
    )


def shard_map(
    f: Any = None,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    mesh: MeshLike | None = None,
    axis_mapping: ResourceMapping | None = None,
    check_rep: bool = False,
    **kwargs: Any,
) -> Any:
    """`jax.shard_map` over NamedArrays: each device sees its own block, with the same names and smaller sizes.

    Args:
        f: Function of NamedArrays (a decorator without it).
        in_specs: PartitionSpecs per argument; from the names and the mapping unless given.
        out_specs: PartitionSpecs of the result; from its names unless given (``f`` is then traced once more).
        mesh: Mesh; that of the context unless given.
        axis_mapping: Mapping for the specs; that in force unless given.
        check_rep: Check that results declared replicated are.
        **kwargs: Passed to `jax.shard_map`.

    Raises:
        ShardingError: No mesh.

    Example:
        >>> import haliax as hax
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with set_mesh(mesh), axis_mapping({"batch": "data"}):
        ...     out = shard_map(lambda x: x * 2)(hax.arange({"batch": 2}))
        ...
        >>> out.tolist()
        [0, 2]
    """
    if f is None:
        return functools.partial(
            shard_map,
            in_specs=in_specs,
            out_specs=out_specs,
            mesh=mesh,
            axis_mapping=axis_mapping,
            check_rep=check_rep,
            **kwargs,
        )

    @functools.wraps(f)
    def wrapped(*args: Any) -> Any:
        mapping = axis_mapping if axis_mapping is not None else current_thread_local_mapping()
        resolved = resolve_mesh(mesh)
        if resolved is None or resolved.empty:
            raise ShardingError("shard_map: no mesh given or in force. Use hax.partitioning.set_mesh(mesh).")

        def by_name(x: Any) -> Any:
            return pspec_for_names(x.names, mapping) if is_named(x) else PartitionSpec()

        ins = (
            in_specs
            if in_specs is not None
            else tuple(jax.tree_util.tree_map(by_name, a, is_leaf=is_named) for a in args)
        )
        with mapping_scope({}):
            outs = out_specs
            if outs is None:
                probe = jax.shard_map(
                    f, mesh=resolved, in_specs=ins, out_specs=PartitionSpec(), check_vma=False, **kwargs
                )
                outs = jax.tree_util.tree_map(by_name, jax.eval_shape(probe, *args), is_leaf=is_named)
            mapped = jax.shard_map(f, mesh=resolved, in_specs=ins, out_specs=outs, check_vma=check_rep, **kwargs)
            return mapped(*args)

    return wrapped
