"""Which shard holds which part of a token window: pure arithmetic on cumulative counts."""

import bisect
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class WindowPiece:
    """Parts of windows that lie in one shard and have one length.

    Attributes:
        shard: Shard number.
        rows: Windows that the parts belong to. Shape ``(r,)``.
        column: Where in the window the parts begin.
        starts: First element of each part inside the shard. Shape ``(r,)``.
        size: Elements a part.
    """

    shard: int
    rows: np.ndarray
    column: int
    starts: np.ndarray
    size: int

    def put(self, out: np.ndarray, values: np.ndarray) -> None:
        """Write the parts, shape ``(r, size)``, to their place in the windows."""
        out[self.rows, self.column : self.column + self.size] = values


def plan_windows(shard_ends: np.ndarray, begins: np.ndarray, length: int) -> list[WindowPiece]:
    """Divide equally long windows over shards.

    A window inside one shard is one piece, together with all others of its shard; one that crosses has a piece a shard.

    Args:
        shard_ends: Cumulative elements of the shards. Shape ``(shards,)``.
        begins: First element of each window; every window must lie inside the whole. Shape ``(n,)``.
        length: Elements a window, ``>= 1``.
    Example:
        >>> pieces = plan_windows(np.array([4, 10]), np.array([0, 3, 6]), 2)
        >>> [(piece.shard, piece.rows.tolist(), piece.starts.tolist(), piece.size) for piece in pieces]
        [(0, [0], [0], 2), (1, [2], [2], 2), (0, [1], [3], 1), (1, [1], [0], 1)]
    """
    first = np.searchsorted(shard_ends, begins, side="right")
    last = np.searchsorted(shard_ends, begins + length - 1, side="right")
    pieces = []
    for shard in np.unique(first).tolist():
        rows = np.flatnonzero((first == shard) & (last == shard))
        base = int(shard_ends[shard - 1]) if shard else 0
        if len(rows):
            pieces.append(WindowPiece(shard, rows, 0, begins[rows] - base, length))
    for row in np.flatnonzero(first != last).tolist():
        pieces += _crossing_pieces(shard_ends, row, int(begins[row]), length)
    return pieces


def _crossing_pieces(shard_ends: np.ndarray, row: int, begin: int, length: int) -> list[WindowPiece]:
    pieces = []
    position = begin
    while position < begin + length:
        shard = bisect.bisect_right(shard_ends, position)
        base = int(shard_ends[shard - 1]) if shard else 0
        size = min(int(shard_ends[shard]), begin + length) - position
        pieces.append(WindowPiece(shard, np.array([row]), position - begin, np.array([position - base]), size))
        position += size
    return pieces
