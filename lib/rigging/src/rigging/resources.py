"""Resources and devices: one vocabulary for every package that places work.

``ResourceConfig`` says what a replica needs, the device configs say which accelerator, and the tables hold the facts
about TPU topologies and peak rates. fray, iris and zephyr import these names; none has its own.
"""

from rigging._resources.config import ANY_REGION, ResourceConfig
from rigging._resources.devices import GPU_VARIANTS, CpuConfig, DeviceConfig, DeviceKind, GpuConfig, TpuConfig
from rigging._resources.flops import PEAK_FLOPS, device_flops
from rigging._resources.sizes import format_bytes, parse_bytes
from rigging._resources.tpu import TPU_TOPOLOGIES, TpuTopologyInfo, get_tpu_topology

__all__ = [
    "ANY_REGION",
    "CpuConfig",
    "DeviceConfig",
    "DeviceKind",
    "GPU_VARIANTS",
    "GpuConfig",
    "PEAK_FLOPS",
    "ResourceConfig",
    "TPU_TOPOLOGIES",
    "TpuConfig",
    "TpuTopologyInfo",
    "device_flops",
    "format_bytes",
    "get_tpu_topology",
    "parse_bytes",
]
