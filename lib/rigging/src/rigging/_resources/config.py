"""What one replica of a task needs."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rigging._resources.devices import CpuConfig, DeviceConfig, GpuConfig, TpuConfig
from rigging._resources.sizes import format_bytes, parse_bytes
from rigging.errors import ResourceError

ANY_REGION: Final = "*"
_CPU_FLOPS: Final = 100e9  # a CPU replica counts this much in comparisons


@dataclass
class ResourceConfig:
    """Resources of one replica, and how many replicas.

    Args:
        cpu: Processor cores.
        ram: Memory, as human text in binary units.
        disk: Scratch disk.
        device: Accelerator, or ``CpuConfig()`` for none.
        preemptible: May run on machines that can be taken away.
        regions: Regions to run in; None inherits from the parent job; ``[ANY_REGION]`` lifts that.
        zone: One zone to run in.
        replicas: Number of equal replicas, ``>= 1``.
        device_alternatives: Other device variants that would do as well.
        image: Container image.
        target_cluster: Name of the cluster to run on.
    Raises:
        ResourceError: A value that cannot be, such as ``ANY_REGION`` beside a real region.
        SizeParseError: ``ram`` or ``disk`` is not a size.

    Example:
        >>> ResourceConfig.with_tpu("v4-16", slice_count=2).replicas
        4
        >>> ResourceConfig(cpu=2, ram="4g").scale(0.5).ram
        '2g'
    """

    cpu: float = 1
    ram: str = "4g"
    disk: str = "16g"
    device: DeviceConfig = field(default_factory=CpuConfig)
    preemptible: bool = True
    regions: Sequence[str] | None = None
    zone: str | None = None
    replicas: int = 1
    device_alternatives: Sequence[str] | None = None
    image: str | None = None
    target_cluster: str | None = None

    def __post_init__(self) -> None:
        if self.cpu <= 0:
            raise ResourceError("cpu", self.cpu, "a positive number of cores")
        if self.replicas < 1:
            raise ResourceError("replicas", self.replicas, "at least 1")
        parse_bytes(self.ram)
        parse_bytes(self.disk)
        if self.regions is not None and ANY_REGION in self.regions and len(self.regions) > 1:
            raise ResourceError("regions", list(self.regions), "ANY_REGION alone, or only real regions")

    @property
    def ram_bytes(self) -> int:
        """Memory of one replica in bytes."""
        return parse_bytes(self.ram)

    @property
    def disk_bytes(self) -> int:
        """Scratch disk of one replica in bytes."""
        return parse_bytes(self.disk)

    def chip_count(self) -> int:
        """Return accelerator chips over all replicas."""
        return self.device.chip_count() * self.replicas

    def total_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate over all replicas, operations per second; a CPU replica counts 100e9."""
        if isinstance(self.device, CpuConfig):
            return _CPU_FLOPS * self.replicas
        return self.device.total_flops(dtype) * self.replicas

    @classmethod
    def with_cpu(cls, **overrides: Any) -> Self:
        """Make a request without an accelerator."""
        return cls(device=CpuConfig(), **overrides)

    @classmethod
    def with_gpu(cls, variant: str, count: int = 1, **overrides: Any) -> Self:
        """Make a request for ``count`` GPUs per replica."""
        return cls(device=GpuConfig(variant, count), **overrides)

    @classmethod
    def with_tpu(cls, variant: str | Sequence[str], *, slice_count: int = 1, **overrides: Any) -> Self:
        """Make a request for TPU slices; one replica per virtual machine.

        Args:
            variant: One type, or several that are interchangeable; the first is canonical.
            slice_count: Number of slices.
            **overrides: Other fields; defaults here are 32 cores, 128g memory, 50g disk.
        Raises:
            ResourceError: No type, an unknown one, or types of different shape.
        """
        names = [variant] if isinstance(variant, str) else list(variant)
        if not names:
            raise ResourceError("tpu", names, "a non-empty list of types")
        first, *others = [TpuConfig(name) for name in names]
        for other in others:
            if (other.info.vm_count, other.info.chips_per_vm) != (first.info.vm_count, first.info.chips_per_vm):
                raise ResourceError(
                    "tpu",
                    names,
                    f"types of one shape; {first.variant} has {first.info.vm_count} VMs of {first.info.chips_per_vm} "
                    f"chips and {other.variant} has {other.info.vm_count} VMs of {other.info.chips_per_vm}",
                )
        defaults: dict[str, Any] = {"cpu": 32, "ram": "128g", "disk": "50g"}
        return cls(
            device=first,
            replicas=slice_count * first.vm_count(),
            device_alternatives=[other.variant for other in others] or None,
            **(defaults | overrides),
        )

    def scale(
        self,
        factor: float | None = None,
        *,
        cpu: float | None = None,
        ram: float | None = None,
        disk: float | None = None,
    ) -> Self:
        """Return a copy with processor, memory and disk multiplied.

        Args:
            factor: One factor for all three.
            cpu: Factor for the cores alone.
            ram: Factor for the memory alone.
            disk: Factor for the disk alone.
        Raises:
            ResourceError: ``factor`` together with another, or a factor that is not positive.
        """
        parts = {"cpu": cpu, "ram": ram, "disk": disk}
        if factor is not None and any(value is not None for value in parts.values()):
            raise ResourceError("scale", parts | {"factor": factor}, "either one factor or single ones, not both")
        factors = {name: factor if factor is not None else value for name, value in parts.items()}
        chosen = {name: 1.0 if value is None else value for name, value in factors.items()}
        if any(value <= 0 for value in chosen.values()):
            raise ResourceError("scale", chosen, "positive factors")
        return dataclasses.replace(
            self,
            cpu=self.cpu * chosen["cpu"],
            ram=format_bytes(int(self.ram_bytes * chosen["ram"])),
            disk=format_bytes(int(self.disk_bytes * chosen["disk"])),
        )
