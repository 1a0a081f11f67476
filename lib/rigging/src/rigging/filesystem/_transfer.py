"""Charging what is read from another region, for the stores behind ``StoragePath``."""

import io
from collections.abc import Callable
from typing import IO, Any, Final

from rigging.filesystem.transfer_budget import is_cross_region_url, record_transfer

_BLOCK_BYTES: Final = 4 << 20


def charge(size_bytes: Callable[[], int], url: str) -> None:
    """Charge a whole object or tree; its size is asked for only when it lies in another region.

    Raises:
        TransferBudgetExceeded: The limit would be passed.
    """
    if is_cross_region_url(url):
        record_transfer(size_bytes(), url)


def charged_stream(stream: IO[bytes], url: str) -> io.BufferedReader:
    """Return a stream that charges what is read from it, before it is read."""
    return io.BufferedReader(_ChargedRaw(stream, url), buffer_size=_BLOCK_BYTES)


class _ChargedRaw(io.RawIOBase):
    """Reads through to another stream and charges each byte."""

    def __init__(self, inner: IO[bytes], url: str) -> None:
        self._inner = inner
        self._url = url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._inner.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def readinto(self, buffer: Any) -> int:
        # Charged before it is fetched, at most the rest of the object, so that a refusal moves nothing.
        wanted = len(buffer)
        size = getattr(self._inner, "size", None)
        if size is not None:
            wanted = max(0, min(wanted, size - self._inner.tell()))
        record_transfer(wanted, self._url)
        data = self._inner.read(wanted) if wanted else b""
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()
