"""Messages on a stream socket: kind, number, length, payload."""

import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

_HEADER: Final = struct.Struct("<BQQ")
_PIECE_BYTES: Final = 1 << 18


class Kind(IntEnum):
    """What a message is."""

    JOB = 2  # driver: run this
    RESULT = 3  # child or actor: value
    ERROR = 4  # child or actor: packed exception
    ACTOR = 5  # driver: become this actor
    READY = 6  # actor: constructed
    CALL = 7  # caller: call a method
    EXIT = 8  # driver: end when idle; child: leave without a value
    SUBMIT = 9  # caller: call a method that may be cancelled
    CANCEL = 10  # caller: the call of this number is wanted no more


def send_frame(sock: socket.socket, kind: Kind, number: int, payload: bytes) -> None:
    """Send one message, blocking until the kernel has taken it all.

    Raises:
        OSError: The other side is gone.
    """
    header = _HEADER.pack(kind, number, len(payload))
    if len(payload) < 65_536:
        sock.sendall(header + payload)
    else:
        sock.sendall(header)
        sock.sendall(payload)


def read_frame(sock: socket.socket) -> tuple[Kind, int, bytes] | None:
    """Read one message, blocking; None when the other side has closed."""
    header = _read_exactly(sock, _HEADER.size)
    if header is None:
        return None
    kind, number, length = _HEADER.unpack(header)
    payload = _read_exactly(sock, length)
    return None if payload is None else (Kind(kind), number, bytes(payload))


def _read_exactly(sock: socket.socket, count: int) -> bytearray | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        try:
            got = sock.recv_into(view)
        except ConnectionError:
            return None
        if got == 0:
            return None
        view = view[got:]
    return data


class FrameReader:
    """Assembles messages from a socket that is read only when something is there."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self.closed = False

    def read_available(self) -> Iterator[tuple[Kind, int, bytes]]:
        """Yield the messages that are complete now; never blocks. Sets ``closed`` at the end of the stream."""
        while True:
            try:
                piece = self._sock.recv(_PIECE_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                piece = b""
            if not piece:
                self.closed = True
                return
            self._buffer += piece
            yield from self._complete()
            if len(piece) < _PIECE_BYTES:
                return  # the socket was empty just now; the selector will tell when there is more

    def _complete(self) -> Iterator[tuple[Kind, int, bytes]]:
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._buffer, start)
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            yield Kind(kind), number, bytes(memoryview(self._buffer)[start + _HEADER.size : end])
            start = end
        if start:
            del self._buffer[:start]
