"""Keys as bytes whose order is the order of the keys.

Shuffles sort and merge bytes, so the codec decides what "sorted" means: None, then False and True, numbers by value
(1 before 1.0 where they are equal, NaN last), then strings by code point, then bytes, dates, datetimes, then tuples
element by element. 1, 1.0 and True are three different keys. The code of one key is never a prefix of another's,
hence codes may be joined: key + secondary sort value sorts as a pair.

    null 01 · false 02 · true 03 · number 10 + float64 (8, sign folded) + rest (2) + type (1)
    string 20 + UTF-8 with 00 as 00 FF + 00 00 · bytes 28 likewise · date 30 · datetime 31 · tuple 40 + elements + 00

`rest` is the difference between an integer and its nearest float64, so 64-bit integers keep their exact order.
"""

import datetime as dt
import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from zephyr._arrow import pc
from zephyr.errors import KeyTypeError

_NULL, _FALSE, _TRUE = b"\x01", b"\x02", b"\x03"
_NUMBER, _STRING, _BYTES, _DATE, _DATETIME, _TUPLE = 0x10, 0x20, 0x28, 0x30, 0x31, 0x40
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_REST_BIAS = 1 << 15


def encode_key(value: Any) -> bytes:
    """Encode a key so that byte order is key order.

    Raises:
        KeyTypeError: the value has no defined order.
    Example:
        >>> encode_key("b") < encode_key("ba") < encode_key("c")
        True
        >>> sorted([2, None, 1.5, True, "x"], key=encode_key)
        [None, True, 1.5, 2, 'x']
    """
    kind = type(value)
    if kind is str:
        return b"\x20" + value.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\0"
    if value is None:
        return _NULL
    if kind is bool or isinstance(value, np.bool_):
        return _TRUE if value else _FALSE
    if isinstance(value, int | np.integer):
        return _encode_int(int(value))
    if isinstance(value, float | np.floating):
        return struct.pack(">BQHB", _NUMBER, _fold(float(value)), _REST_BIAS, 1)
    if isinstance(value, str):
        return encode_key(str(value))
    if isinstance(value, bytes):
        return b"\x28" + value.replace(b"\0", b"\0\xff") + b"\0\0"
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return struct.pack(">BQ", _DATETIME, (value - _EPOCH) // _MICROSECOND + (1 << 63))
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return struct.pack(">BI", _DATE, value.toordinal())
    if isinstance(value, tuple | list):
        return b"\x40" + b"".join(map(encode_key, value)) + b"\0"
    text = repr(value)
    raise KeyTypeError(type(value).__name__, text if len(text) <= 80 else text[:77] + "...")


def _encode_int(value: int) -> bytes:
    if not -(2**63) <= value < 2**64:
        raise KeyTypeError("int", str(value))
    nearest = float(value)
    return struct.pack(">BQHB", _NUMBER, _fold(nearest), _REST_BIAS + value - int(nearest), 0)


def _fold(value: float) -> int:
    """Bits of a float64, changed so that unsigned order is numeric order; -0.0 is 0.0 and NaN is last."""
    if math.isnan(value):
        return 2**64 - 1
    bits = int.from_bytes(struct.pack(">d", value + 0.0))
    return bits ^ (2**64 - 1) if bits >> 63 else bits | 1 << 63


def decode_key(code: bytes) -> Any:
    """Give back the key; lists come back as tuples.

    Example:
        >>> decode_key(encode_key(("a", 1)))
        ('a', 1)
    """
    value, end = _decode(code, 0)
    assert end == len(code), "a key code has nothing after its end"
    return value


def _decode(code: bytes, at: int) -> tuple[Any, int]:
    tag = code[at]
    at += 1
    match tag:
        case 0x01:
            return None, at
        case 0x02 | 0x03:
            return tag == 0x03, at
        case 0x10:
            folded, rest, is_float = struct.unpack_from(">QHB", code, at)
            bits = folded ^ (1 << 63) if folded >> 63 else folded ^ (2**64 - 1)
            number = math.nan if folded == 2**64 - 1 else struct.unpack(">d", bits.to_bytes(8))[0]
            return (number if is_float else int(number) + rest - _REST_BIAS), at + 11
        case 0x20 | 0x28:
            raw, at = _unescape(code, at)
            return (raw.decode("utf-8", "surrogatepass") if tag == 0x20 else raw), at
        case 0x30:
            return dt.date.fromordinal(struct.unpack_from(">I", code, at)[0]), at + 4
        case 0x31:
            return _EPOCH + (struct.unpack_from(">Q", code, at)[0] - (1 << 63)) * _MICROSECOND, at + 8
    items = []
    while code[at] != 0:
        item, at = _decode(code, at)
        items.append(item)
    return tuple(items), at + 1


def _unescape(code: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while True:
        end = code.index(b"\0", end)
        if code[end + 1] == 0:
            return code[at:end].replace(b"\0\xff", b"\0"), end + 2
        end += 2


def encode_keys(column: pa.Array) -> pa.Array:
    """Encode a whole Arrow column; same codes as `encode_key` gives value by value.

    Args:
        column: Keys of any type that `encode_key` takes.
    Returns:
        Binary array of the same length, without nulls.
    """
    if column.null_count == 0:
        if pa.types.is_string(column.type):
            return _encode_strings(column)
        if pa.types.is_signed_integer(column.type):
            values = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
            if len(values) and -(2**53) < values.min() and values.max() < 2**53:
                return _encode_small_ints(values)
    return pa.array([encode_key(v) for v in column.to_pylist()], pa.binary())


def _encode_strings(column: pa.Array) -> pa.Array:
    raw = column.cast(pa.binary())
    zero = pc.match_substring(column, "\0")
    if pc.any(zero).as_py():
        return pa.array([encode_key(v) for v in column.to_pylist()], pa.binary())
    return pc.binary_join_element_wise(
        pa.scalar(b"\x20", pa.binary()), raw, pa.scalar(b"\0\0", pa.binary()), pa.scalar(b"", pa.binary())
    )


def _encode_small_ints(values: np.ndarray) -> pa.Array:
    bits = values.astype(np.float64).view(np.uint64)
    folded = np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))
    out = np.zeros((len(values), 12), np.uint8)
    out[:, 0] = _NUMBER
    out[:, 1:9] = folded.astype(">u8").view(np.uint8).reshape(-1, 8)
    out[:, 9:11] = np.frombuffer(struct.pack(">H", _REST_BIAS), np.uint8)
    offsets = np.arange(0, 12 * (len(values) + 1), 12, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(out.tobytes())])


def invert_keys(codes: pa.Array) -> pa.Array:
    """Complement every byte: the order of the result is the reverse order of `codes`."""
    flipped = [bytes(255 - b for b in code) if len(code) < 32 else _flip(code) for code in codes.to_pylist()]
    return pa.array(flipped, pa.binary())


def _flip(code: bytes) -> bytes:
    return (~np.frombuffer(code, np.uint8)).tobytes()
