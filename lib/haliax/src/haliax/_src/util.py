"""Search helpers."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def index_where(pred: Callable[[Any], bool], xs: Iterable[Any], start: int = 0) -> int:
    """Return the index of the first element from ``start`` for which ``pred`` holds.

    Raises:
        ValueError: There is none.
    """
    for i, x in enumerate(xs):
        if i >= start and pred(x):
            return i
    raise ValueError(f"index_where: no element from index {start} satisfies the predicate.")


class IdentityMap:
    """A mapping keyed by object identity."""

    def __init__(self, items: Iterable[tuple[Any, Any]] = ()) -> None:
        self._data: dict[int, tuple[Any, Any]] = {}
        for key, value in items:
            self[key] = value

    def __getitem__(self, key: Any) -> Any:
        return self._data[id(key)][1]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._data[id(key)] = (key, value)

    def __contains__(self, key: Any) -> bool:
        return id(key) in self._data

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._data.values())
