"""TPU topologies: how many chips, hosts and virtual machines each type has."""

from dataclasses import dataclass
from typing import Final

from rigging.errors import ResourceError


@dataclass(frozen=True, slots=True)
class TpuTopologyInfo:
    """One TPU type: chips in all, physical hosts, virtual machines, chips per virtual machine."""

    name: str
    chip_count: int
    host_count: int
    vm_count: int
    chips_per_vm: int


def _powers(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    return sizes


def _build_table() -> dict[str, TpuTopologyInfo]:
    rows = []
    for family, sizes in (("v4", _powers(8, 4096)), ("v5p", [*_powers(8, 8192), 12288])):
        # These types are named after TensorCores, of which a chip has two.
        for cores in sizes:
            vms = cores // 8
            rows.append(TpuTopologyInfo(f"{family}-{cores}", cores // 2, vms, vms, 4))
    for family, single, multi in (("v5litepod", (1, 2, 4, 8), _powers(16, 256)), ("v6e", (1, 4, 8), _powers(16, 256))):
        rows += [TpuTopologyInfo(f"{family}-{chips}", chips, 1, 1, chips) for chips in single]
        for chips in multi:
            vms = chips // 4
            hosts = vms // 2 if family == "v5litepod" else vms
            rows.append(TpuTopologyInfo(f"{family}-{chips}", chips, hosts, vms, 4))
    return {row.name: row for row in rows}


TPU_TOPOLOGIES: Final[dict[str, TpuTopologyInfo]] = _build_table()


def get_tpu_topology(name: str) -> TpuTopologyInfo:
    """Return the topology of a TPU type.

    Raises:
        ResourceError: The type is unknown.

    Example:
        >>> get_tpu_topology("v4-8")
        TpuTopologyInfo(name='v4-8', chip_count=4, host_count=1, vm_count=1, chips_per_vm=4)
    """
    try:
        return TPU_TOPOLOGIES[name]
    except KeyError:
        families = sorted({known.partition("-")[0] for known in TPU_TOPOLOGIES})
        raise ResourceError(
            "tpu", name, f"<family>-<size> with a family of {families} and a size that exists"
        ) from None
