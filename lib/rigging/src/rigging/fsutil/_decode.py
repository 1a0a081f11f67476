"""Compressed files, decoded by their suffix as they are read."""

import bz2
import gzip
import lzma
from typing import IO, Final

from rigging.errors import StoragePathError

_UNREADABLE: Final = (".zst", ".lz4", ".br")


def decoded(path: str, stream: IO[bytes]) -> IO[bytes]:
    """Return the decoded content of a ``.gz``, ``.bz2``, ``.xz`` or ``.lzma`` file; any other stream as it is.

    Raises:
        StoragePathError: A compression that Python's library cannot read; show the file raw.
    """
    suffix = path[path.rfind(".") :] if "." in path else ""
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=stream)  # type: ignore[return-value]
    if suffix == ".bz2":
        return bz2.BZ2File(stream)  # type: ignore[return-value]
    if suffix in (".xz", ".lzma"):
        return lzma.LZMAFile(stream)  # type: ignore[return-value]
    if suffix in _UNREADABLE:
        raise StoragePathError("decode", path, "a .gz, .bz2, .xz or .lzma file; --raw shows the bytes as they are")
    return stream


def first_lines(stream: IO[bytes], count: int, limit_bytes: int) -> list[bytes]:
    """Return at most ``count`` lines and ``limit_bytes`` bytes of a stream, line ends included.

    Example:
        >>> import io
        >>> first_lines(io.BytesIO(b"a\\nb\\nc"), 2, 100)
        [b'a\\n', b'b\\n']
    """
    lines: list[bytes] = []
    left = limit_bytes
    while len(lines) < count and left > 0:
        line = stream.readline(left)
        if not line:
            break
        lines.append(line)
        left -= len(line)
    return lines
