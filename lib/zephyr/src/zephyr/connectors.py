"""Sources and sinks of your own.

A *source* names its shards when the plan is made, and reads one shard in a worker. A *sink* writes the items of one
shard to a path that nobody else sees; zephyr checks it, renames it into place when the attempt has won, and removes it
when it has lost. So both get retries, fencing, exactly-once output and `skip_existing` without knowing of them.

Both travel to workers by pickle: keep them small, and open files and connections in `read` and `write`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from zephyr._blocks import Block, batches_of, iterate

__all__ = ["Block", "Sink", "Source", "batches_of", "iterate"]


class Source(Protocol):
    """Where items come from.

    Example:
        >>> from zephyr import Dataset, ZephyrContext
        >>> class Squares:
        ...     def shards(self):
        ...         return [(0, 2), (2, 5)]
        ...     def read(self, shard):
        ...         yield [{"n": n, "square": n * n} for n in range(*shard)]
        >>> ZephyrContext(inline=True).execute(Dataset.from_source(Squares()).select("square").take(3)).results
        [{'square': 0}, {'square': 1}, {'square': 4}]
    """

    def shards(self) -> Sequence[Any]:
        """What names each shard: any picklable values. Called once, when the plan is made."""
        ...

    def read(self, shard: Any) -> Iterable[Block]:
        """Blocks of one shard: Arrow record batches, or lists of items, each of a few megabytes.

        Called again for every attempt; equal shards must give equal items in equal order.
        """
        ...


class Sink(Protocol):
    """Where items go: one file or one folder per shard.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from zephyr import Dataset, ZephyrContext
        >>> class Lengths:
        ...     def write(self, blocks, path):
        ...         items = list(iterate(blocks))
        ...         _ = Path(path).write_text(" ".join(str(len(item)) for item in items))
        ...         return len(items)
        ...     def check(self, path, count):
        ...         assert len(Path(path).read_text().split()) == count
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ds = Dataset.from_list(["a", "bcd"], shards=1).write_to(Lengths(), folder + "/{shard}.len")
        ...     [path] = ZephyrContext(inline=True).execute(ds).results
        ...     Path(path).read_text()
        '1 3'
    """

    def write(self, blocks: Iterator[Block], path: str) -> int:
        """Write all items to `path`, which does not exist yet, as a file or a folder; return how many there were.

        `iterate(blocks)` gives single items, `batches_of(blocks, operation="name")` Arrow record batches. Equal items
        must give equal bytes, however they are cut into blocks.
        """
        ...

    def check(self, path: str, count: int) -> None:
        """Look whether `path` holds what was written; raise if not."""
        ...
