"""Describe the machine and the Python environment that a result was made in."""

import os
import platform
import re
import sys

from rigging.hashing import sha256_file
from rigging.memory import total_memory_bytes

_DIST_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.(?:dist|egg)-info$")


def installed_packages() -> dict[str, str]:
    """Return name and version of every installed distribution, read from the folder names alone.

    ``importlib.metadata`` would parse every metadata file and costs a hundred times as much.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            match = _DIST_INFO.match(entry)
            if match:
                found.setdefault(match["name"].replace("_", "-").lower(), match["version"])
    return dict(sorted(found.items()))


def find_upwards(name: str, start: str | None = None) -> str | None:
    """Return the nearest file called ``name`` in ``start`` or a folder above it."""
    folder = os.path.abspath(start or os.getcwd())
    while True:
        candidate = os.path.join(folder, name)
        if os.path.isfile(candidate):
            return candidate
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def cpu_model() -> str:
    """Return the processor's marketing name, or the architecture when the system does not tell."""
    try:
        with open("/proc/cpuinfo") as stream:
            for line in stream:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.machine()


def environment_report() -> dict[str, object]:
    """Return what a result may depend on besides its code: Python, platform, processor, memory, packages, lock file.

    Returns:
        JSON-ready dict with ``python``, ``implementation``, ``platform``, ``machine``, ``cpu``, ``cpu_count``,
        ``memory_bytes``, ``packages`` (name to version) and ``lock_digest`` (SHA-256 of the nearest ``uv.lock`` above
        the current folder, or None).
    """
    lock = find_upwards("uv.lock")
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": total_memory_bytes(),
        "packages": installed_packages(),
        "lock_digest": sha256_file(lock) if lock else None,
    }
