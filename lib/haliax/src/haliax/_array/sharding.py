"""Names to mesh axes: the axis mapping in force, and placing arrays accordingly.

The mapping is a JAX *user context*: it takes part in the cache keys of `jax.jit`, so a function called under another
mapping is traced again instead of silently re-using the old placement.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from haliax._array.compat import is_tracing, legacy_context_mesh
from haliax._array.named import NamedArray, wrap
from haliax._axis.types import AxisSelection, names_of
from haliax.errors import ShardingError

PhysicalAxisSpec = str | Sequence[str]
ResourceMapping = Mapping[str, PhysicalAxisSpec]
MeshLike = Mesh | AbstractMesh


class FrozenMapping(Mapping[str, Any]):
    """A hashable axis mapping."""

    __slots__ = ("_data", "_hash")

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = {k: v if isinstance(v, str) or v is None else tuple(v) for k, v in data.items()}
        self._hash = hash(frozenset(self._data.items()))

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenMapping) and self._data == other._data

    def __repr__(self) -> str:
        return f"FrozenMapping({self._data!r})"


_mapping_context: Any = jax.make_user_context(None)


def current_thread_local_mapping() -> ResourceMapping | None:
    """Return the axis mapping in force in this thread, or None."""
    return _mapping_context.value


@contextlib.contextmanager
def axis_mapping(mapping: ResourceMapping | None = None, *, merge: bool = False, **kwargs: Any) -> Iterator[None]:
    """Put an axis mapping in force for the block, in this thread.

    Args:
        mapping: Axis name to mesh axis (or several).
        merge: Keep the entries of the enclosing mapping that the new one does not name. The new mapping wins.
        **kwargs: Further entries; they win over ``mapping``.

    Example:
        >>> with axis_mapping({"batch": "data"}):
        ...     dict(current_thread_local_mapping())
        {'batch': 'data'}
    """
    entries: dict[str, Any] = {}
    outer = _mapping_context.value
    if merge and outer is not None:
        entries.update(outer)
    entries.update(mapping or {})
    entries.update(kwargs)
    with _mapping_context(FrozenMapping(entries)):
        yield


@contextlib.contextmanager
def mapping_scope(mapping: ResourceMapping | None) -> Iterator[None]:
    """Put ``mapping`` in force if it is given; keep the present one otherwise."""
    if mapping is None:
        yield
    else:
        with _mapping_context(mapping if isinstance(mapping, FrozenMapping) else FrozenMapping(mapping)):
            yield


def resolve_mesh(mesh: MeshLike | None = None) -> MeshLike | None:
    """Return the mesh to use: the argument, else the context's (abstract inside jit, concrete outside), else None."""
    if mesh is not None:
        return mesh.abstract_mesh if isinstance(mesh, Mesh) and is_tracing() else mesh
    abstract = jax.sharding.get_abstract_mesh()
    if is_tracing():
        if not abstract.empty:
            return abstract
        legacy = legacy_context_mesh()
        return None if legacy is None else legacy
    if not abstract.empty:
        concrete = jax.sharding.get_mesh()
        return abstract if concrete.empty else concrete
    return legacy_context_mesh()


def pspec_for_names(names: Sequence[str], mapping: ResourceMapping | None) -> PartitionSpec:
    """Return the PartitionSpec that ``mapping`` gives to ``names``; unmapped names give None.

    Raises:
        ShardingError: Two names are mapped to one mesh axis.
    """
    if mapping is None:
        return PartitionSpec(*(None for _ in names))
    entries = [mapping.get(n) for n in names]
    used: dict[str, str] = {}
    for name, entry in zip(names, entries, strict=True):
        for physical in _physical(entry):
            if used.setdefault(physical, name) != name:
                raise ShardingError(
                    f"partition {{{', '.join(names)}}}: axes {used[physical]!r} and {name!r} are both mapped to "
                    f"mesh axis "
                    f"{physical!r}; expected at most one. Map one of them elsewhere, or leave it out of the mapping."
                )
    return PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in entries))


def _physical(entry: PhysicalAxisSpec | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def validate_spec(names: Sequence[str], shape: Sequence[int], spec: PartitionSpec, mesh: MeshLike) -> None:
    """Check that every mesh axis of ``spec`` exists and that sizes divide.

    Raises:
        ShardingError: A mesh axis is unknown, or an axis is not divisible by the devices it is spread over.
    """
    for name, size, entry in zip(names, shape, spec, strict=True):
        total = 1
        for physical in _physical(entry):
            if physical not in mesh.shape:
                raise ShardingError(
                    f"partition axis {name!r}: mesh axis {physical!r} not found; expected one of "
                    f"{dict(mesh.shape)}. Correct the axis mapping or the mesh."
                )
            total *= mesh.shape[physical]
        if size % total:
            rounded = -(-size // total) * total
            raise ShardingError(
                f"partition axis {name!r}: size={size} does not divide over {total} devices ({entry!r}). "
                f"Pad it to {rounded} (hax.partitioning.round_axis_for_partitioning), or leave the axis unmapped."
            )


def all_mesh_axes_explicit(mesh: MeshLike | None, pspec: PartitionSpec) -> bool:
    """Tell whether every mesh axis named by ``pspec`` is of type Explicit (vacuously true when it names none)."""
    if mesh is None or mesh.empty:
        return False
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return all(types.get(p) == AxisType.Explicit for entry in pspec for p in _physical(entry))


def _has_manual(mesh: MeshLike) -> bool:
    return any(t == AxisType.Manual for t in mesh.axis_types)


def place(array: Any, spec: PartitionSpec, mesh: MeshLike) -> Any:
    """Constrain a traced array to ``spec``, or put a concrete one there."""
    sharding = NamedSharding(mesh, spec)
    if isinstance(array, jax.core.Tracer):
        explicit = any(t == AxisType.Explicit for t in mesh.axis_types)
        if explicit and all_mesh_axes_explicit(mesh, spec):
            return jax.sharding.reshard(array, sharding)
        return jax.lax.with_sharding_constraint(array, sharding)
    if isinstance(mesh, AbstractMesh):
        return array
    if getattr(array, "sharding", None) == sharding:
        return array
    if jax.process_count() > 1 and not sharding.is_fully_addressable and not isinstance(array, jax.Array):
        return jax.make_array_from_process_local_data(sharding, np.asarray(array))
    return jax.device_put(array, sharding)


def shard_named(x: NamedArray, mapping: ResourceMapping, mesh: MeshLike) -> NamedArray:
    """Place one NamedArray by its names; payloads that are no arrays are left alone."""
    array = x.array
    shape = getattr(array, "shape", None)
    if type(shape) is not tuple or len(shape) != len(x.names) or isinstance(array, jax.ShapeDtypeStruct):
        return x
    if _has_manual(mesh):
        return x
    spec = pspec_for_names(x.names, mapping)
    validate_spec(x.names, shape, spec, mesh)
    return wrap(place(array, spec, mesh), x.names)


def auto_sharded(x: Any, mesh: MeshLike | None = None) -> Any:
    """Place the NamedArrays of a tree by the mapping in force; without a mapping or a mesh return ``x`` as it is."""
    mapping = _mapping_context.value
    if mapping is None:
        return x
    mesh = resolve_mesh(mesh)
    if mesh is None or mesh.empty:
        return x
    if isinstance(x, NamedArray):
        return shard_named(x, mapping, mesh)
    return jax.tree_util.tree_map(
        lambda leaf: shard_named(leaf, mapping, mesh) if isinstance(leaf, NamedArray) else leaf,
        x,
        is_leaf=lambda leaf: isinstance(leaf, NamedArray),
    )


def get_pspec_for_manual_mesh(
    axis: AxisSelection, mapping: ResourceMapping | None = None, *, mesh: MeshLike | None = None
) -> PartitionSpec | None:
    """Return the PartitionSpec of ``axis`` if every mesh axis it names is Explicit, else None."""
    mapping = mapping if mapping is not None else _mapping_context.value
    if mapping is None:
        return None
    mesh = resolve_mesh(mesh)
    if mesh is None or mesh.empty or not any(t == AxisType.Explicit for t in mesh.axis_types):
        return None
    spec = pspec_for_names(names_of(axis), mapping)
    return spec if all_mesh_axes_explicit(mesh, spec) else None


def out_sharding_for(names: Sequence[str]) -> Any:
    """Return the ``out_sharding`` that an operation must pass on an explicit mesh, or None elsewhere."""
    if _mapping_context.value is None:
        return None
    spec = get_pspec_for_manual_mesh(tuple(names))
    mesh = resolve_mesh() if spec is not None else None
    return None if mesh is None or spec is None else NamedSharding(mesh, spec)


def reshaped(x: Any, shape: Sequence[int], names: Sequence[str]) -> Any:
    """Reshape a raw array to dimensions called ``names``; on an explicit mesh those say how the result is sharded.

    JAX infers that in simple cases only: merging or splitting a sharded dimension needs to be told.
    """
    return jax.lax.reshape(x, shape, out_sharding=out_sharding_for(names))


def arange_along(name: str, size: int) -> Any:
    """Return ``0 .. size - 1``, sharded like the axis ``name`` on an explicit mesh."""
    return jnp.arange(size, out_sharding=out_sharding_for((name,)))


def match_sharding(x: Any, like: Any) -> Any:
    """Return ``x`` sharded as ``like`` is, where an explicit mesh makes the sharding a part of the type."""
    wanted, found = jax.typeof(like).sharding, jax.typeof(x).sharding
    if wanted == found or not any(t == AxisType.Explicit for t in wanted.mesh.axis_types):
        return x
    return jax.sharding.reshard(x, wanted)
