"""Bytes in and out of files: decompression by suffix that notices truncation, and staged files that are renamed whole.

A staged file lies beside its target under a hidden name that carries the execution and the attempt, so two attempts
never share a file, and whoever sees the target sees all of it.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from typing import IO, Any

import deflate
import zstandard
from isal import isal_zlib

from zephyr import counters
from zephyr._adapters import remote
from zephyr._paths import is_remote, local_path
from zephyr.errors import CorruptInputError, MissingInputError, OutputError

_READ_BYTES = 1 << 20
_GZIP_WBITS = 31
_ZSTD_WINDOW_MAX = 1 << 31
_ZSTD_LEVEL = 3
_GZIP_LEVEL = 1
_GzipError: Any = isal_zlib.error


def open_input(path: str) -> IO[bytes]:
    """Open a file or fsspec URL for reading.

    Raises:
        MissingInputError: it is not there (any more).
    """
    try:
        if is_remote(path):
            return remote.open_url(path, "rb")
        return open(local_path(path), "rb", buffering=0)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingInputError(path) from error
    except IsADirectoryError as error:
        raise CorruptInputError(path, "it is a directory") from error


def read_decompressed(path: str) -> Iterator[bytes]:
    """Chunks of the contents of a file, decompressed as its suffix says.

    Raises:
        CorruptInputError: the compressed stream is damaged or ends early.
        MissingInputError: no such file.
    """
    with open_input(path) as stream:
        if path.endswith(".gz"):
            yield from _inflate(path, stream, "gzip", _new_gzip)
        elif path.endswith((".zst", ".zstd")):
            yield from _inflate(path, stream, "zstd", _new_zstd)
        else:
            yield from _chunks(path, stream)


def _chunks(path: str, stream: IO[bytes]) -> Iterator[bytes]:
    while True:
        try:
            chunk = stream.read(_READ_BYTES)
        except OSError as error:
            raise CorruptInputError(path, f"read error: {error.strerror or error}") from error
        if not chunk:
            return
        counters.increment("zephyr/bytes_in", len(chunk))
        yield chunk


def read_span(path: str, start: int, end: int, size_bytes: int) -> Iterator[bytes]:
    """The lines of an uncompressed local file that begin in [start, end), in chunks.

    Raises:
        CorruptInputError: the file has not the size any more that it had when the plan was made.
        MissingInputError: no such file.
    """
    with open_input(path) as stream:
        if (now := os.fstat(stream.fileno()).st_size) != size_bytes:
            raise CorruptInputError(path, f"its size was {size_bytes} bytes at planning and is {now}")
        # A line that begins at `start` follows a line end at `start - 1`.
        position = max(0, start - 1)
        stream.seek(position)
        started = start == 0
        for chunk in _chunks(path, stream):
            if not started:
                cut = chunk.find(b"\n") + 1
                position += cut or len(chunk)
                if not cut and position < end:
                    continue
                if not cut:
                    return
                chunk, started = chunk[cut:], True
            if position >= end:
                return
            stop = position + len(chunk)
            if stop >= end:
                # The line that holds byte `end - 1` is the last of this span.
                cut = chunk.find(b"\n", end - 1 - position) + 1
                if cut:
                    yield chunk[:cut]
                    return
            position = stop
            yield chunk
            if stop >= end:
                yield from _rest_of_line(path, stream)
                return


def _rest_of_line(path: str, stream: IO[bytes]) -> Iterator[bytes]:
    for chunk in _chunks(path, stream):
        cut = chunk.find(b"\n") + 1
        yield chunk[:cut] if cut else chunk
        if cut:
            return


def count_line_ends(path: str, end: int) -> int:
    """Line ends in the first `end` bytes of a local file; a line number is only needed on the way to a message."""
    found = 0
    with open_input(path) as stream:
        while end > 0 and (chunk := stream.read(min(_READ_BYTES, end))):
            found += chunk.count(b"\n")
            end -= len(chunk)
    return found


def _new_gzip() -> Any:
    return isal_zlib.decompressobj(wbits=_GZIP_WBITS)


def _new_zstd() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).decompressobj()


def _inflate(path: str, stream: IO[bytes], name: str, new_decoder: Callable[[], Any]) -> Iterator[bytes]:
    """Decompress members or frames that follow each other; the last one must be whole."""
    decoder = new_decoder()
    started, offset = False, 0
    for chunk in _chunks(path, stream):
        while chunk:
            if decoder.eof:
                # Zero padding after the last gzip member is legal.
                chunk = chunk.lstrip(b"\0") if name == "gzip" else chunk
                if not chunk:
                    break
                decoder = new_decoder()
            started = True
            try:
                out = decoder.decompress(chunk)
            except (_GzipError, zstandard.ZstdError) as error:
                raise CorruptInputError(path, f"damaged {name} stream: {error}", offset) from error
            offset += len(chunk) - len(decoder.unused_data)
            chunk = decoder.unused_data if decoder.eof else b""
            if out:
                yield out
    if started and not decoder.eof:
        raise CorruptInputError(path, f"truncated {name} stream", offset)


# Staged output


def staged_path(path: str, execution: str, attempt: str) -> str:
    """Hidden sibling that an attempt writes before the driver accepts it.

    Example:
        >>> staged_path("out/a.jsonl", "x1", "0-7-1")
        'out/.a.jsonl.zephyr-x1.0-7-1.tmp'
    """
    folder, sep, name = path.rpartition("/")
    return f"{folder}{sep}.{name}.zephyr-{execution}.{attempt}.tmp"


def output_error(path: str, error: OSError) -> OutputError:
    """Say what an operating system error means for an output."""
    reasons = {errno.ENOSPC: "the disk is full", errno.EFBIG: "the file size limit is reached", errno.EDQUOT: "quota"}
    return OutputError(path, reasons.get(error.errno or 0) or error.strerror or str(error), code=error.errno)


class StagedFile:
    """A binary file under construction; `finish` makes it durable, `discard` leaves nothing.

    Raises:
        OutputError: creating, writing or syncing failed; the file has been removed.
    """

    def __init__(self, path: str, target: str) -> None:
        self.path = path
        self.target = target
        self.size_bytes = 0
        try:
            self._stream: Any = self._open()
        except OSError as error:
            raise output_error(target, error) from error

    def _open(self) -> Any:
        if is_remote(self.path):
            return remote.open_url(self.path, "wb")
        plain = local_path(self.path)
        os.makedirs(os.path.dirname(plain) or ".", exist_ok=True)
        return open(plain, "wb", buffering=0)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B")
        try:
            while view.nbytes:
                done = self._stream.write(view)
                self.size_bytes += done
                view = view[done:]
        except OSError as error:
            self.discard()
            raise output_error(self.target, error) from error
        return len(data)

    def finish(self) -> None:
        """Sync and close."""
        try:
            if not is_remote(self.path):
                os.fsync(self._stream.fileno())
            self._stream.close()
        except OSError as error:
            self.discard()
            raise output_error(self.target, error) from error

    def discard(self) -> None:
        """Close and remove; safe to call twice."""
        try:
            self._stream.close()
        except OSError:
            # The descriptor is gone either way, and the file goes next; the first error is the one worth raising.
            pass
        remove_file(self.path)


def remove_file(path: str) -> None:
    """Remove a file, or a folder that is an output, if it is there."""
    if is_remote(path):
        remote.remove(path)
        return
    try:
        os.unlink(local_path(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    except IsADirectoryError:
        remove_tree(local_path(path))


def remove_tree(path: str) -> None:
    """Remove a local folder and what is in it, if it is there."""
    shutil.rmtree(path, ignore_errors=True)


def publish(staged: str, target: str) -> None:
    """Give a finished staged file, or folder, its final name, replacing what is there.

    A folder that is replaced steps aside under a hidden name first, so that what is seen is the old one, nothing for a
    moment, or the new one; never a mixture.

    Raises:
        OutputError: the rename failed.
    """
    try:
        if is_remote(target):
            remote.move(staged, target)
        elif os.path.isdir(local_path(target)):
            aside = f"{local_path(staged)}.old"
            os.rename(local_path(target), aside)
            os.rename(local_path(staged), local_path(target))
            remove_tree(aside)
        else:
            os.replace(local_path(staged), local_path(target))
    except OSError as error:
        remove_file(staged)
        raise output_error(target, error) from error


def sync_folders(paths: list[str]) -> None:
    """Make renames durable: sync the folders of these local paths, each once."""
    for folder in sorted({os.path.dirname(local_path(p)) or "." for p in paths if not is_remote(p)}):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class CompressedWriter:
    """Bytes into a staged file, compressed as the target's suffix says; equal bytes however they are cut up.

    A gzip file has a member for each MiB. Members are made by libdeflate, which looks at a whole piece: the streaming
    encoder of ISA-L is faster still, but now and then gave other (right, and longer) bytes for the same piece.
    """

    def __init__(self, file: StagedFile) -> None:
        self.file = file
        self._buffer = bytearray()
        self._encode: Callable[[bytes], bytes] = bytes
        self._flush: Callable[[], bytes] = bytes
        self._empty = b""
        if file.target.endswith(".gz"):
            self._encode = _gzip_member
            self._empty = _gzip_member(b"")
        elif file.target.endswith((".zst", ".zstd")):
            encoder = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
            self._encode, self._flush = encoder.compress, encoder.flush

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._buffer += data
        if len(self._buffer) < _READ_BYTES:
            return
        whole = len(self._buffer) - len(self._buffer) % _READ_BYTES
        for at in range(0, whole, _READ_BYTES):
            self._emit(bytes(self._buffer[at : at + _READ_BYTES]))
        del self._buffer[:whole]

    def _emit(self, piece: bytes) -> None:
        if out := self._encode(piece):
            self.file.write(out)

    def finish(self) -> None:
        """Flush and make durable."""
        if self._buffer:
            self._emit(bytes(self._buffer))
        if rest := self._flush():
            self.file.write(rest)
        if self.file.size_bytes == 0 and self._empty:
            self.file.write(self._empty)
        self.file.finish()


def _gzip_member(piece: bytes) -> bytes:
    return bytes(deflate.gzip_compress(piece, _GZIP_LEVEL))
