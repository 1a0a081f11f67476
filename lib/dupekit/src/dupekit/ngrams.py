"""Does one document really contain the other? Exact token n-gram sets, and two summaries that answer "surely not" fast.

Near-duplicate clusters built from MinHash alone over-merge: templated pages collapse into one. Before a document is
removed, check that it is no longer than the one that stays and that the latter has every one of its token 3-grams.
`TokenNgrams.intersection_size` answers exactly; `TokenNgramSignature` (4,096 bits) and `TokenNgramFingerprintSignature`
(4,063 bytes, storable) rule out most pairs first and never rule out a true subset.

Example:
    >>> page = TokenNgrams("the quick brown fox jumps", 3)
    >>> part = TokenNgrams("Quick  brown fox", 3)
    >>> part.intersection_size(page) == len(part)
    True
    >>> part.signature().may_be_subset_of(page.signature())
    True
    >>> TokenNgrams("quick red fox", 3).fingerprint_signature().may_be_subset_of(page.fingerprint_signature())
    False
"""

from dupekit._native import native

TokenNgrams = native.TokenNgrams
TokenNgramSignature = native.TokenNgramSignature
TokenNgramFingerprintSignature = native.TokenNgramFingerprintSignature

__all__ = ["TokenNgramFingerprintSignature", "TokenNgramSignature", "TokenNgrams"]
