"""Devices that a task may ask for."""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from rigging._resources.flops import device_flops
from rigging._resources.tpu import TpuTopologyInfo, get_tpu_topology
from rigging.errors import ResourceError

DeviceKind = Literal["cpu", "gpu", "tpu"]

GPU_VARIANTS: Final = (
    "A10", "A100-40G", "A100-80G", "A10G", "B100", "GB200", "GB300", "H100", "H200", "L4", "T4", "V100", "auto",
)  # fmt: skip


def _known_flops(variant: str, dtype: str) -> float:
    rate = device_flops(variant, dtype)
    if rate is None:
        raise ResourceError("device_flops", f"{variant}/{dtype}", "a device and dtype with a published peak rate")
    return rate


@dataclass(frozen=True, slots=True)
class CpuConfig:
    """No accelerator.

    Example:
        >>> CpuConfig().chip_count(), CpuConfig().default_env_vars()
        (0, {'JAX_PLATFORMS': 'cpu'})
    """

    variant: str = "cpu"
    kind: ClassVar[DeviceKind] = "cpu"

    def chip_count(self) -> int:
        """Return 0: a CPU has no accelerator chips."""
        return 0

    def device_flops(self, dtype: str = "bf16") -> float:
        """Raise: CPUs differ too much for a table.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"no peak rate for CPUs: dtype={dtype!r}; expected a GPU or TPU. Measure it instead.")

    def default_env_vars(self) -> dict[str, str]:
        """Return the environment a task on this device starts with."""
        return {"JAX_PLATFORMS": "cpu"}


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """``count`` GPUs of one variant on one machine.

    Raises:
        ResourceError: Unknown variant or ``count < 1``.

    Example:
        >>> GpuConfig("H100", 8).total_flops("bf16")
        7915200000000000.0
    """

    variant: str
    count: int = 1
    kind: ClassVar[DeviceKind] = "gpu"

    def __post_init__(self) -> None:
        if self.variant not in GPU_VARIANTS:
            raise ResourceError("gpu", self.variant, f"one of {list(GPU_VARIANTS)}")
        if self.count < 1:
            raise ResourceError("gpu count", self.count, "at least 1")

    def chip_count(self) -> int:
        """Return the number of GPUs."""
        return self.count

    def device_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate of one GPU, operations per second.

        Raises:
            ResourceError: No published rate.
        """
        return _known_flops(self.variant, dtype)

    def total_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate of all GPUs together, operations per second."""
        return self.count * self.device_flops(dtype)

    def default_env_vars(self) -> dict[str, str]:
        """Return the environment a task on this device starts with."""
        return {"JAX_PLATFORMS": ""}


@dataclass(frozen=True, slots=True)
class TpuConfig:
    """One TPU slice.

    Raises:
        ResourceError: Unknown type.

    Example:
        >>> tpu = TpuConfig("v4-16")
        >>> tpu.chip_count(), tpu.vm_count()
        (4, 2)
    """

    variant: str
    topology: str | None = None
    kind: ClassVar[DeviceKind] = "tpu"

    def __post_init__(self) -> None:
        get_tpu_topology(self.variant)

    @property
    def info(self) -> TpuTopologyInfo:
        """The topology of this type."""
        return get_tpu_topology(self.variant)

    def chip_count(self) -> int:
        """Return the chips of **one** virtual machine."""
        return self.info.chips_per_vm

    def vm_count(self) -> int:
        """Return the number of virtual machines of the slice."""
        return self.info.vm_count

    def device_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate of one chip, operations per second.

        Raises:
            ResourceError: No published rate.
        """
        return _known_flops(self.variant, dtype)

    def total_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate of the chips of one virtual machine, operations per second."""
        return self.chip_count() * self.device_flops(dtype)

    def default_env_vars(self) -> dict[str, str]:
        """Return the environment a task on this device starts with."""
        env = {"JAX_PLATFORMS": ""}
        limit_kib = {"v5": 50_000, "v6": 98_304}.get(self.variant[:2])
        if limit_kib is not None:
            env["LIBTPU_INIT_ARGS"] = f"--xla_tpu_scoped_vmem_limit_kib={limit_kib}"
        return env


DeviceConfig = CpuConfig | GpuConfig | TpuConfig
