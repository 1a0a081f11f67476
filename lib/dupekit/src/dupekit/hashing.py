"""Equal content has equal hashes: of one byte string, or of a whole Arrow column without a copy.

XXH3 is the default. It runs at memory speed and 128 bits make an accidental collision among 10^12 documents less likely
than 10^-14; it does not resist deliberate ones, for which BLAKE2b and BLAKE3 are there.

Nulls stay null. Strings are hashed as their UTF-8 bytes, so a column of strings and one of bytes hash alike.

References:
    XXH3: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. BLAKE2b: RFC 7693. BLAKE3: O'Connor,
    Aumasson, Neves and Wilcox-O'Hearn, *BLAKE3: one function, fast everywhere*, 2020.
"""

from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa

from dupekit._native import native


class HashAlgorithm(StrEnum):
    """A hash function; its text form has two hexadecimal digits a byte."""

    Blake2b = "blake2b"
    """64 bytes, 128 digits."""
    Blake3 = "blake3"
    """32 bytes, 64 digits."""
    Xxh3_128 = "xxh3_128"
    """16 bytes, 32 digits."""
    Xxh3_64 = "xxh3_64"
    """8 bytes, 16 digits."""


DEFAULT_HASH_ALGORITHM = HashAlgorithm.Xxh3_128
"""What `Transformation.Hash` and `hash_hex` use when not told otherwise."""

HashInput = pa.Array | pa.ChunkedArray | Sequence[str]
"""A column of strings or bytes (any Arrow layout), or a plain sequence of strings."""


def hash_xxh3_64(data: bytes) -> int:
    """Hash bytes with 64-bit XXH3, seed 0.

    Args:
        data: Bytes to hash.

    Returns:
        A number below 2^64.

    Example:
        >>> f"{hash_xxh3_64(b''):016x}"
        '2d06800538d394c2'
    """
    return native.xxh3_64(data)


def hash_xxh3_128(data: bytes) -> int:
    """Hash bytes with 128-bit XXH3, seed 0.

    Args:
        data: Bytes to hash.

    Returns:
        A number below 2^128.

    Example:
        >>> f"{hash_xxh3_128(b''):032x}"
        '99aa06d3014798d86001c324468d497f'
    """
    return native.xxh3_128(data)


def hash_blake2_bytes(data: bytes) -> bytes:
    """Hash bytes with BLAKE2b (RFC 7693).

    Args:
        data: Bytes to hash.

    Returns:
        The digest, 64 bytes.

    Example:
        >>> hash_blake2_bytes(b"abc").hex()[:16]
        'ba80a53f981c4d0d'
    """
    return native.blake2b(data)


def hash_blake3_bytes(data: bytes) -> bytes:
    """Hash bytes with BLAKE3.

    Args:
        data: Bytes to hash.

    Returns:
        The digest, 32 bytes.

    Example:
        >>> hash_blake3_bytes(b"abc").hex()[:16]
        '6437b3ac38465133'
    """
    return native.blake3(data)


def hash_blake2(data: bytes) -> list[int]:
    """Hash bytes with BLAKE2b; the digest as a list of 64 byte values (see `hash_blake2_bytes`).

    Example:
        >>> len(hash_blake2(b"abc"))
        64
    """
    return list(native.blake2b(data))


def hash_blake3(data: bytes) -> list[int]:
    """Hash bytes with BLAKE3; the digest as a list of 32 byte values (see `hash_blake3_bytes`).

    Example:
        >>> len(hash_blake3(b"abc"))
        32
    """
    return list(native.blake3(data))


def hash_xxh3_64_batch(items: Sequence[bytes]) -> list[int]:
    """Hash each byte string of a list with 64-bit XXH3.

    For columns `hash_xxh3_64_array` is faster, as it makes no Python objects.

    Example:
        >>> hash_xxh3_64_batch([b"", b"a"]) == [hash_xxh3_64(b""), hash_xxh3_64(b"a")]
        True
    """
    return native.xxh3_64_batch(items)


def hash_hex(
    values: HashInput, algorithm: HashAlgorithm | str = DEFAULT_HASH_ALGORITHM
) -> pa.StringArray | pa.ChunkedArray:
    """Hash a column to hexadecimal text.

    Args:
        values: Column of strings or bytes; nulls stay null.
        algorithm: Which hash function.

    Returns:
        A string column of the same length; chunked when the input is.

    Raises:
        ColumnTypeError: When the column holds neither strings nor bytes.
        ParameterError: When the algorithm is unknown.

    Example:
        >>> hash_hex(["a", None, "a"], HashAlgorithm.Xxh3_64).to_pylist()
        ['e6c632b61e964e1f', None, 'e6c632b61e964e1f']
    """
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([hash_hex(chunk, algorithm) for chunk in values.chunks], pa.string())
    return pa.array(native.hash_hex_array(_as_array(values), str(algorithm)))


def hash_xxh3_128_hex(values: HashInput) -> pa.StringArray | pa.ChunkedArray:
    """Hash a column with 128-bit XXH3 to 32 hexadecimal digits.

    Args:
        values: Column of strings or bytes; nulls stay null.

    Returns:
        A string column of the same length; chunked when the input is.

    Raises:
        ColumnTypeError: When the column holds neither strings nor bytes.

    Example:
        >>> hash_xxh3_128_hex([""]).to_pylist()
        ['99aa06d3014798d86001c324468d497f']
    """
    return hash_hex(values, HashAlgorithm.Xxh3_128)


def hash_xxh3_64_array(values: HashInput) -> pa.UInt64Array | pa.ChunkedArray:
    """Hash a column with 64-bit XXH3 to numbers.

    Args:
        values: Column of strings or bytes; nulls stay null.

    Returns:
        A `uint64` column of the same length; chunked when the input is.

    Raises:
        ColumnTypeError: When the column holds neither strings nor bytes.

    Example:
        >>> hash_xxh3_64_array(["a", None])[0].as_py() == hash_xxh3_64(b"a")
        True
    """
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([hash_xxh3_64_array(chunk) for chunk in values.chunks], pa.uint64())
    return pa.array(native.xxh3_64_array(_as_array(values)))


def _as_array(values: pa.Array | Sequence[str]) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, pa.string())
