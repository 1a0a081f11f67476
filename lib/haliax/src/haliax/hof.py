"""Higher-order functions over named axes: `vmap`, `scan`, `fold`, `map`."""

from haliax._ops.checkpoint import (
    ScanCheckpointPolicy,
    ScanCheckpointSpec,
)
from haliax._ops.loops import fold, map, scan, vmap  # noqa: A004

__all__ = [
    "ScanCheckpointPolicy",
    "ScanCheckpointSpec",
    "fold",
    "map",
    "scan",
    "vmap",
]
