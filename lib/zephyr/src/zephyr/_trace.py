"""Where the items that a chain is working on came from: the file, and the records within it.

A chain pulls one block at a time, so whoever holds a block finds its origin here. Operations that keep the number of
items keep the positions; those that cut items anew forget them and keep the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Trace:
    """Origin of the block that is being worked on.

    Args:
        exact: Whether readers and operations keep the position of every single item, which costs time.
        path: The input file; empty when items do not come from a file.
        unit: What is counted: "line" or "row", from 1.
        first: Position of the first record of the block that the reader gave last.
        last: Position of its last record.
        positions: Position of each item of the present block, when known.

    Example:
        >>> trace = Trace(); trace.begin("a.jsonl", "line", 1, 3); trace.describe()
        'a.jsonl, lines 1 to 3'
    """

    exact: bool = False
    path: str = ""
    unit: str = "line"
    first: int = 0
    last: int = 0
    positions: Sequence[int] | None = None

    def begin(self, path: str, unit: str, first: int, last: int, positions: Sequence[int] | None = None) -> None:
        """A reader is about to give a block."""
        self.path, self.unit, self.first, self.last, self.positions = path, unit, first, last, positions

    def at(self, index: int) -> int | None:
        """Position of item `index` of the present block."""
        return None if self.positions is None or index >= len(self.positions) else self.positions[index]

    def keep(self, mask: Sequence[object]) -> None:
        """Only the items whose mask is true are left."""
        if self.positions is not None:
            self.positions = [at for at, kept in zip(self.positions, mask, strict=False) if kept]

    def describe(self) -> str:
        """The file and the records of the present block, as text; empty when there is no file."""
        if not self.path:
            return ""
        if self.first == self.last:
            return f"{self.path}, {self.unit} {self.first}"
        return f"{self.path}, {self.unit}s {self.first} to {self.last}"
