"""The device mesh and the two axis mappings of a run.

Axes inside a slice (fast links) and across slices (slow links) are declared separately; exactly one of each may absorb
the devices that are left. Parameters are sharded over ``data`` on their ``embed`` axis (ZeRO-3), activations over the
batch axes, heads and MLP over ``model``. Two axes exist only where they are declared: ``context`` splits positions of
activations (sequence parallelism; keys and values are gathered for attention), ``expert`` splits experts and the batch.

References:
    Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5. Megatron-LM tensor parallelism: arXiv:1909.08053, section 3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np
from jax.sharding import Mesh

from levanter.errors import ConfigError

AxisTarget = list[str] | str
DEFAULT_AXES = {"data": -1, "replica": 1, "model": 1}
DEFAULT_DCN_AXES = {"replica_dcn": -1}
SHARED_MAPPING: dict[str, AxisTarget] = {"mlp": "model", "heads": "model", "kv_head": "model"}
OPTIONAL_SHARED: dict[str, AxisTarget] = {"experts": "expert"}
OPTIONAL_COMPUTE: dict[str, AxisTarget] = {"position": "context"}
"""Mapped when the mesh has the axis: experts over ``expert``, positions of activations over ``context``."""
BATCH_AXES = ("replica_dcn", "replica", "data", "expert")


@dataclass(frozen=True)
class MeshConfig:
    """Axes of the mesh and what is mapped onto them.

    Attributes:
        axes: Size of each axis inside a slice; -1 absorbs what is left. Unlisted defaults are ``data``, ``replica``,
            ``model``.
        dcn_axes: Size of each axis across slices.
        batch_axis_name: Name of the batch axis.
        shared_mapping: Mapped for parameters and activations alike.
        compute_mapping: Mapped for activations only.
        param_mapping: Mapped for parameters only.

    Example:
        >>> MeshConfig().axis_sizes(8, 1)
        {'replica_dcn': 1, 'data': 8, 'replica': 1, 'model': 1}
    """

    axes: dict[str, int] = field(default_factory=dict)
    dcn_axes: dict[str, int] = field(default_factory=dict)
    batch_axis_name: str = "batch"
    shared_mapping: dict[str, AxisTarget] = field(default_factory=dict)
    compute_mapping: dict[str, AxisTarget] = field(default_factory=dict)
    param_mapping: dict[str, AxisTarget] = field(default_factory=lambda: {"embed": "data"})

    def axis_sizes(self, num_devices: int, num_slices: int) -> dict[str, int]:
        """Size of every axis, slices first.

        Raises:
            ConfigError: sizes that do not multiply to the devices, a name in both maps, two absorbing axes.
        """
        axes = {**DEFAULT_AXES, **self.axes}
        if any(size == -1 for name, size in self.axes.items() if name != "data"):
            axes["data"] = 1 if "data" not in self.axes else axes["data"]
        dcn = {**DEFAULT_DCN_AXES, **self.dcn_axes}
        if any(size == -1 for name, size in self.dcn_axes.items() if name != "replica_dcn"):
            dcn["replica_dcn"] = 1 if "replica_dcn" not in self.dcn_axes else dcn["replica_dcn"]
        both = set(axes) & set(dcn)
        if both:
            raise ConfigError(
                f"axes {sorted(both)} are in axes and dcn_axes; expected one of them.", key="trainer.mesh"
            )
        per_slice = num_devices // num_slices
        return {**_resolve(dcn, num_slices, "dcn_axes"), **_resolve(axes, per_slice, "axes")}

    def device_mesh(self) -> Mesh:
        """Build the mesh over all devices."""
        devices = jax.devices()
        slices = {getattr(device, "slice_index", 0) for device in devices}
        sizes = self.axis_sizes(len(devices), len(slices))
        grid = np.asarray(devices).reshape(tuple(sizes.values()))
        return Mesh(grid, tuple(sizes))

    def resolved_compute_mapping(self, mesh: Mesh) -> dict[str, AxisTarget]:
        """Mapping for activations: batch axes, shared, compute; axes absent from the mesh are dropped."""
        batch = [name for name in BATCH_AXES if name in mesh.shape]
        mapping = {
            **self._shared(mesh),
            **_present(OPTIONAL_COMPUTE, mesh),
            self.batch_axis_name: batch,
            **self.compute_mapping,
        }
        return _checked(mapping, mesh)

    def resolved_param_mapping(self, mesh: Mesh) -> dict[str, AxisTarget]:
        """Mapping for parameters and optimizer state: shared, param."""
        return _checked({**self._shared(mesh), **self.param_mapping}, mesh)

    def _shared(self, mesh: Mesh) -> dict[str, AxisTarget]:
        return {**SHARED_MAPPING, **_present(OPTIONAL_SHARED, mesh), **self.shared_mapping}

    def data_axis_size(self, mesh: Mesh) -> int:
        """Ways the batch is split."""
        target = self.resolved_compute_mapping(mesh)[self.batch_axis_name]
        return math.prod(mesh.shape[name] for name in ([target] if isinstance(target, str) else target))


def _present(mapping: Mapping[str, AxisTarget], mesh: Mesh) -> dict[str, AxisTarget]:
    return {name: target for name, target in mapping.items() if target in mesh.shape}


def _resolve(axes: Mapping[str, int], total: int, key: str) -> dict[str, int]:
    absorbing = [name for name, size in axes.items() if size == -1]
    fixed = math.prod(size for size in axes.values() if size != -1)
    if len(absorbing) > 1 or fixed < 1 or total % fixed or (not absorbing and fixed != total):
        raise ConfigError(
            f"{dict(axes)} cannot hold {total} devices; expected sizes whose product divides them and at most one -1.",
            key=f"trainer.mesh.{key}",
        )
    return {name: total // fixed if size == -1 else size for name, size in axes.items()}


def _checked(mapping: Mapping[str, AxisTarget], mesh: Mesh) -> dict[str, AxisTarget]:
    for name, target in mapping.items():
        for axis in [target] if isinstance(target, str) else target:
            if axis not in mesh.shape:
                raise ConfigError(
                    f"{name!r} is mapped to {axis!r}; expected one of {', '.join(mesh.shape)}.", key="trainer.mesh"
                )
    return dict(mapping)
