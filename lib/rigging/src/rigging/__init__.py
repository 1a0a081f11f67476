"""What every Marin package stands on: storage, leases, timing, secrets, provenance, resources.

Import the module that names the concern, for example ``from rigging.timing import Deadline``; the most used names are
also here. Nothing heavy is imported: fsspec is loaded when the first URL is opened.

==============================  =====================================================================
module                          holds
==============================  =====================================================================
``rigging.timing``              clocks, durations, deadlines, pacing, retries
``rigging.filesystem``          paths, atomic writes, compare-and-swap, leases, copies, regions, mirror
``rigging.fsutil``              the command ``fsutil``
``rigging.cache``               a bounded cache on disk
``rigging.config_discovery``    configuration files by name
``rigging.data_config``         where a cluster keeps its data
``rigging.path_validation``     names that others chose, made safe
``rigging.secrets``             secrets by reference
``rigging.redaction``           keeping secrets out of logs and records
``rigging.token_authority``     signed tokens
``rigging.server_auth``         who is calling
``rigging.route_auth``          whom a route serves
``rigging.auth``                tokens of a caller
``rigging.credential_store``    credentials of a user, in private files
``rigging.google_tokens``       tokens from Google, and its proxy's assertions
``rigging.connect``             from an address to a client
``rigging.telemetry``           traces and metrics, silent by default
``rigging.provenance``          code, machine, packages, person
``rigging.resources``           devices and resource requests
``rigging.job_identity``        rank and size of a job, from the environment
``rigging.hashing``             digests and canonical JSON
``rigging.memory``              memory in use and available, container-aware
``rigging.progress``            one live line for people
``rigging.log_setup``           logging, once
``rigging.errors``              every error, in one tree
==============================  =====================================================================
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rigging.errors import RiggingError
    from rigging.filesystem.atomic import atomic_rename, write_bytes_atomic, write_json_atomic, write_text_atomic
    from rigging.filesystem.conditional import conditional_object
    from rigging.filesystem.lease import Lease
    from rigging.filesystem.prefix import marin_prefix, marin_region
    from rigging.filesystem.storage_path import StoragePath, prefix_join
    from rigging.hashing import canonical_json, sha256_bytes, sha256_file, short_hash
    from rigging.job_identity import JobIdentity
    from rigging.log_setup import configure_logging
    from rigging.progress import Progress
    from rigging.provenance import Provenance
    from rigging.redaction import redact_string, redact_value
    from rigging.resources import CpuConfig, GpuConfig, ResourceConfig, TpuConfig, parse_bytes
    from rigging.secrets import resolve_secret_spec
    from rigging.timing import Clock, Deadline, Duration, ManualClock, SystemClock, Timestamp

_EXPORTS = {
    "Clock": "timing",
    "CpuConfig": "resources",
    "Deadline": "timing",
    "Duration": "timing",
    "GpuConfig": "resources",
    "JobIdentity": "job_identity",
    "Lease": "filesystem.lease",
    "ManualClock": "timing",
    "Progress": "progress",
    "Provenance": "provenance",
    "ResourceConfig": "resources",
    "RiggingError": "errors",
    "StoragePath": "filesystem.storage_path",
    "SystemClock": "timing",
    "Timestamp": "timing",
    "TpuConfig": "resources",
    "atomic_rename": "filesystem.atomic",
    "canonical_json": "hashing",
    "conditional_object": "filesystem.conditional",
    "configure_logging": "log_setup",
    "marin_prefix": "filesystem.prefix",
    "marin_region": "filesystem.prefix",
    "parse_bytes": "resources",
    "prefix_join": "filesystem.storage_path",
    "redact_string": "redaction",
    "redact_value": "redaction",
    "resolve_secret_spec": "secrets",
    "sha256_bytes": "hashing",
    "sha256_file": "hashing",
    "short_hash": "hashing",
    "write_bytes_atomic": "filesystem.atomic",
    "write_json_atomic": "filesystem.atomic",
    "write_text_atomic": "filesystem.atomic",
}

__all__ = [
    "Clock",
    "CpuConfig",
    "Deadline",
    "Duration",
    "GpuConfig",
    "JobIdentity",
    "Lease",
    "ManualClock",
    "Progress",
    "Provenance",
    "ResourceConfig",
    "RiggingError",
    "StoragePath",
    "SystemClock",
    "Timestamp",
    "TpuConfig",
    "atomic_rename",
    "canonical_json",
    "conditional_object",
    "configure_logging",
    "marin_prefix",
    "marin_region",
    "parse_bytes",
    "prefix_join",
    "redact_string",
    "redact_value",
    "resolve_secret_spec",
    "sha256_bytes",
    "sha256_file",
    "short_hash",
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
