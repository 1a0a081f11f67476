"""How much memory this process may use, and how much it has used.

Inside a container the machine's free memory is a lie: the control group's limit is what kills. Both versions of Linux
control groups are read, from the process's own group up to the root, and the smallest answer wins.
"""

import os
import resource
import sys

_UNLIMITED = 1 << 60  # cgroup v1 reports "no limit" as a number near 2**63


def peak_rss_bytes(include_children: bool = True) -> int:
    """Return the highest resident memory of this process in bytes.

    Args:
        include_children: Also look at children that have ended and been waited for; the result is then the larger of
            this process's peak and the peak of its largest such child (the kernel keeps no sum).
    Returns:
        Bytes.

    Example:
        >>> peak_rss_bytes() > 1_000_000
        True
    """
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if include_children:
        peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return peak * unit


def current_rss_bytes(pid: int | None = None) -> int:
    """Return the resident memory of process ``pid`` (default: this one) in bytes; 0 when it is gone.

    Falls back to the peak where there is no ``/proc``.
    """
    try:
        with open(f"/proc/{pid or 'self'}/statm") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return peak_rss_bytes(include_children=False) if pid is None else 0
    except ProcessLookupError:
        return 0


def available_memory_bytes() -> int:
    """Return how many bytes may still be allocated: the machine's available memory or the control group's headroom.

    Page cache that a control group could drop counts as available, since the kernel drops it before it kills.

    Example:
        >>> available_memory_bytes() > 0
        True
    """
    candidates = [_machine_available_bytes()]
    candidates += [max(0, limit - used) for limit, used in _cgroup_limits()]
    return min(candidates)


def total_memory_bytes() -> int:
    """Return the memory this process could ever have, in bytes: physical memory or the tightest control group limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _cgroup_limits())])


def _machine_available_bytes() -> int:
    try:
        with open("/proc/meminfo") as stream:
            for line in stream:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass  # not Linux: half of the physical memory is the customary guess
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup_limits() -> list[tuple[int, int]]:
    """Return ``(limit, used without reclaimable cache)`` in bytes for every limited group this process is in."""
    try:
        with open("/proc/self/cgroup") as stream:
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            root, names = "/sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts), -1, -1):
            limits = _group_limit("/".join([root, *parts[:depth]]), *names)
            if limits is not None:
                found.append(limits)
    return found


def _group_limit(folder: str, limit_name: str, used_name: str, cache_field: str) -> tuple[int, int] | None:
    try:
        with open(f"{folder}/{limit_name}") as stream:
            text = stream.read().strip()
        if text == "max" or int(text) >= _UNLIMITED:
            return None
        with open(f"{folder}/{used_name}") as stream:
            used = int(stream.read())
        with open(f"{folder}/memory.stat") as stream:
            cache = next((int(row.split()[1]) for row in stream if row.startswith(cache_field + " ")), 0)
    except OSError:
        return None  # the group is not mounted here, or the process was moved meanwhile
    return int(text), max(0, used - cache)
