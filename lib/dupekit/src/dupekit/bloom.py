"""Was this hash seen before? A Bloom filter: no false negatives, false positives at a chosen rate, few bits an item.

Items are hashes (integers of up to 128 bits), so hash content first. Sizes, bit positions and the saved format equal
those of the `rbloom` package with an identity hash function.

Example:
    >>> from dupekit.hashing import hash_xxh3_128
    >>> seen = Bloom(expected_items=1_000, false_positive_rate=0.01)
    >>> seen.add(hash_xxh3_128(b"a"))
    >>> hash_xxh3_128(b"a") in seen, hash_xxh3_128(b"b") in seen
    (True, False)

References:
    B. Bloom, *Space/Time Trade-offs in Hash Coding with Allowable Errors*, CACM 13(7), 1970.
"""

from dupekit._native import native

Bloom = native.Bloom

__all__ = ["Bloom"]
