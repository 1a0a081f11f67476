"""Former path of the loops."""

from haliax._ops.checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec
from haliax._ops.loops import fold, map, scan  # noqa: A004

__all__ = ["ScanCheckpointPolicy", "ScanCheckpointSpec", "fold", "map", "scan"]
