"""Environment variables that the store reads; the only place where it does.

| name | type | default | meaning |
|---|---|---|---|
| ``LEVANTER_TS_CACHE_LIMIT`` | bytes | 1000000000 | size of the cache of decoded chunks, shared by all readers |
"""

import os

TS_CACHE_LIMIT_VARIABLE = "LEVANTER_TS_CACHE_LIMIT"
DEFAULT_TS_CACHE_LIMIT_BYTES = 1_000_000_000


def ts_cache_limit_bytes() -> int:
    """Size of the shared read cache in bytes, from ``LEVANTER_TS_CACHE_LIMIT``.

    Raises:
        ValueError: The variable is not a whole number of bytes ``>= 0``.
    """
    text = os.environ.get(TS_CACHE_LIMIT_VARIABLE)
    if text is None:
        return DEFAULT_TS_CACHE_LIMIT_BYTES
    if not text.isdecimal():
        raise ValueError(
            f"cannot read {TS_CACHE_LIMIT_VARIABLE}={text!r}; expected a whole number of bytes. "
            "Unset it or give digits only."
        )
    return int(text)
