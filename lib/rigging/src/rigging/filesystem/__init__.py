"""Storage: paths, atomic writes, compare-and-swap, leases, on local disk and object stores alike.

Local paths are served by the operating system directly; a URL is served by fsspec, which is loaded when the first URL
is used and not before.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rigging.filesystem.atomic import (
        atomic_rename,
        atomic_stream,
        write_bytes_atomic,
        write_json_atomic,
        write_text_atomic,
    )
    from rigging.filesystem.conditional import ConditionalObject, VersionedBytes, conditional_object
    from rigging.filesystem.lease import HeldLease, Lease, LeaseHolder, LeaseState
    from rigging.filesystem.prefix import marin_prefix, marin_region
    from rigging.filesystem.storage_path import StoragePath, prefix_join

_EXPORTS = {
    "ConditionalObject": "conditional",
    "HeldLease": "lease",
    "Lease": "lease",
    "LeaseHolder": "lease",
    "LeaseState": "lease",
    "StoragePath": "storage_path",
    "VersionedBytes": "conditional",
    "atomic_rename": "atomic",
    "atomic_stream": "atomic",
    "conditional_object": "conditional",
    "marin_prefix": "prefix",
    "marin_region": "prefix",
    "prefix_join": "storage_path",
    "write_bytes_atomic": "atomic",
    "write_json_atomic": "atomic",
    "write_text_atomic": "atomic",
}

__all__ = [
    "ConditionalObject",
    "HeldLease",
    "Lease",
    "LeaseHolder",
    "LeaseState",
    "StoragePath",
    "VersionedBytes",
    "atomic_rename",
    "atomic_stream",
    "conditional_object",
    "marin_prefix",
    "marin_region",
    "prefix_join",
    "write_bytes_atomic",
    "write_json_atomic",
    "write_text_atomic",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_EXPORTS[name]}", fromlist=[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
