"""A list of Python items that moves to disk when it outgrows its share of memory."""

import os
import pickle
from collections.abc import Iterator
from typing import Any

from zephyr._files import output_error, remove_file
from zephyr._shuffle.format import dump_item

_CHUNK = 512
_SIZED = 64


class SpilledList:
    """Append items, then iterate as often as needed.

    Args:
        path: File for what does not fit; only touched when that happens.
        limit_bytes: Estimated bytes of items that stay in memory.

    Example:
        >>> items = SpilledList("/nowhere", 1 << 20)
        >>> items.append("a"); items.append("b"); list(items), bool(items)
        (['a', 'b'], True)
    """

    def __init__(self, path: str, limit_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.held: list[Any] = []
        self.held_bytes = 0.0
        self.spilled = 0
        self.seen = 0
        self.item_bytes = 0.0

    def append(self, item: Any) -> None:
        """Add an item at the end."""
        if self.seen < 8 or self.seen % _SIZED == 0:
            self.item_bytes = float(len(dump_item(item)))
        self.seen += 1
        self.held.append(item)
        self.held_bytes += self.item_bytes
        if self.held_bytes > self.limit_bytes:
            self._spill()

    def _spill(self) -> None:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "ab") as stream:
                for at in range(0, len(self.held), _CHUNK):
                    data = pickle.dumps([dump_item(item) for item in self.held[at : at + _CHUNK]])
                    stream.write(len(data).to_bytes(8, "little") + data)
        except OSError as error:
            raise output_error(self.path, error) from error
        self.spilled += len(self.held)
        self.held, self.held_bytes = [], 0.0

    def __bool__(self) -> bool:
        return self.seen > 0

    def __iter__(self) -> Iterator[Any]:
        if self.spilled:
            with open(self.path, "rb") as stream:
                while header := stream.read(8):
                    yield from map(pickle.loads, pickle.loads(stream.read(int.from_bytes(header, "little"))))
        yield from self.held

    def close(self) -> None:
        """Remove the file, if there is one."""
        if self.spilled:
            remove_file(self.path)
