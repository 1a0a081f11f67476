"""Near duplicates: candidates by MinHash, clusters by connected components, removal only after verification on text.

The problem: clusters of a locality-sensitive hash are not duplicates; removing them unread has wiped out whole sources.
The idea: hashing only *proposes*. A document is removed when its own n-grams are contained in a document that stays,
and the row that says so names both and the measured containment.
"""
