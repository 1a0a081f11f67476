"""Digests and canonical JSON: equal values give equal text, equal text gives equal names.

Fingerprints, manifests and cache keys need one spelling per value. ``canonical_json`` is that spelling: keys sorted,
no insignificant blanks, ASCII only, no NaN or infinity, and nothing that JSON would silently turn into something else
(a tuple is refused as a key, ``1`` and ``"1"`` may not be keys of one object).
"""

import functools
import hashlib
import json
import math

from rigging.errors import CanonicalJsonError

_CHUNK_BYTES = 1 << 20


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as 64 lower-case hex digits.

    Example:
        >>> sha256_bytes(b"")[:16]
        'e3b0c44298fc1c14'
    """
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str) -> str:
    """Return the SHA-256 of a local file as 64 hex digits, read in pieces of 1 MiB.

    Raises:
        OSError: The file cannot be read.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "empty")
        >>> open(path, "w").close(); sha256_file(path) == sha256_bytes(b"")
        True
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def short_hash(text: str, n: int = 16) -> str:
    """Return the first ``n`` hex digits of the SHA-256 of ``text`` in UTF-8.

    Raises:
        ValueError: ``n`` is not in 1..64.

    Example:
        >>> short_hash("marin", 8)
        '4249c67b'
    """
    if not 1 <= n <= 64:
        raise ValueError(f"bad digest length: n={n}; expected 1 <= n <= 64. Ask for fewer digits.")
    return sha256_bytes(text.encode("utf-8", "surrogatepass"))[:n]


@functools.cache
def _crc32c_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of ``data``; for small data, as it runs in Python.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'

    References:
        RFC 3720 appendix B.4.
    """
    table = _crc32c_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def canonical_json(obj: object) -> str:
    """Return the one JSON text of ``obj``: equal values give equal text.

    Tuples are written as lists. Floats use the shortest text that reads back to the same float; ``1.0`` and ``1`` are
    different texts, as they are different JSON numbers.

    Args:
        obj: None, bool, int, finite float, str, list, tuple, or dict with string keys, nested at will.
    Returns:
        ASCII text without blanks or a newline at the end.
    Raises:
        CanonicalJsonError: Any other type, a non-finite float, or a key that is not a string; names the place.

    Example:
        >>> canonical_json({"b": [1, 2.5, None], "a": "é"})
        '{"a":"\\\\u00e9","b":[1,2.5,null]}'
    """
    _check(obj, "$")
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _check(value: object, location: str) -> None:
    # Exact types only: a subclass (an IntEnum, a numpy float) may print as something else in another version.
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return
    if isinstance(value, float) and kind is float:
        if not math.isfinite(value):
            raise CanonicalJsonError(location, value, "a finite number")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{location}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise CanonicalJsonError(location, key, "string keys")
            _check(item, f"{location}.{key}")
    else:
        raise CanonicalJsonError(location, value, "None, bool, int, float, str, list, tuple or dict")
