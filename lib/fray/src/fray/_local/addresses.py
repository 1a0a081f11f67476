"""Where an actor listens: a Unix socket for callers of this machine, or TCP with a shared key for others.

An address is text: a path, or ``tcp://HOST:PORT/KEY``. What comes through a connection is unpickled, so nobody may
connect who does not hold the key: a Unix socket lies in a folder of ours alone, and over TCP the listener sends a
random challenge that the caller answers with its keyed digest. The key travels inside pickled handles only.
"""

import hashlib
import hmac
import os
import secrets
import socket
from typing import Final

_TCP: Final = "tcp://"
_NONCE_BYTES: Final = 32
_HANDSHAKE_S: Final = 10.0
_BACKLOG: Final = 256


def tcp_listener(host: str) -> tuple[str, socket.socket]:
    """Listen on a free port of all interfaces; return the address for callers of ``host``, and the socket."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("", 0))
    listener.listen(_BACKLOG)
    return f"{_TCP}{host}:{listener.getsockname()[1]}/{secrets.token_hex(32)}", listener


def unix_listener(path: str) -> socket.socket:
    """Listen on a Unix socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(_BACKLOG)
    return listener


def connect(address: str) -> socket.socket:
    """Connect to ``address`` and prove the key.

    Raises:
        OSError: Nobody listens there, or it refuses the key.
    """
    if not address.startswith(_TCP):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.connect(address)
        except OSError:
            made.close()
            raise
        return made
    place, _, key = address.removeprefix(_TCP).partition("/")
    host, _, port = place.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=_HANDSHAKE_S)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sendall(_answer(key, _read(made, _NONCE_BYTES)))
        if _read(made, 1) != b"+":
            raise ConnectionRefusedError("the key was refused")
        made.settimeout(None)
    except OSError:
        made.close()
        raise
    return made


def admit(connection: socket.socket, address: str) -> bool:
    """Tell whether a caller may talk: over TCP it must answer the challenge in time."""
    if not address.startswith(_TCP):
        return True
    key = address.rpartition("/")[2]
    nonce = os.urandom(_NONCE_BYTES)
    try:
        connection.settimeout(_HANDSHAKE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(nonce)
        if not hmac.compare_digest(_read(connection, hashlib.sha256().digest_size), _answer(key, nonce)):
            return False
        connection.sendall(b"+")
        connection.settimeout(None)
    except OSError:
        return False
    return True


def _answer(key: str, nonce: bytes) -> bytes:
    return hmac.digest(key.encode(), nonce, "sha256")


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the other side left during the handshake")
        data += piece
    return data
