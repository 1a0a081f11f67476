"""Decide, on the text itself, which members of a candidate cluster are duplicates.

The problem: a chain of "looks similar" reaches documents that share nothing but a licence header. The idea: walk the
cluster from its richest document to its poorest; a member is a duplicate of an earlier document that stays when nearly
all of its distinct token n-grams occur there. Everything else stays and becomes a reference for the rest.

Containment of a member M in a reference R is ``|ngrams(M) ∩ ngrams(R)| / |ngrams(M)|`` over case-folded,
whitespace-separated tokens (Broder, On the resemblance and containment of documents, 1997, section 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dupekit import TokenNgrams

from marin.datakit.recipe import VerifyRule


@dataclass(frozen=True)
class Duplicate:
    """One removal and its evidence.

    Attributes:
        id: Document to remove.
        duplicate_of: Document that stays and contains it.
        containment: Share of the removed document's n-grams found there.
        jaccard: Shared n-grams over the union of both.
    """

    id: str
    duplicate_of: str
    containment: float
    jaccard: float


def verify_cluster(members: Iterable[tuple[str, str]], rule: VerifyRule) -> list[Duplicate]:
    """Find the duplicates of one candidate cluster.

    Args:
        members: ``(id, text)`` pairs; their order does not matter.
        rule: What counts as a duplicate.
    Returns:
        The duplicates, sorted by id; at least one member of a cluster always stays.
    Example:
        >>> twins = [("a", "one two three four five"), ("b", "one two three four five"), ("c", "something else again")]
        >>> [(d.id, d.duplicate_of) for d in verify_cluster(twins, VerifyRule())]
        [('b', 'a')]
    """
    grams = {identity: TokenNgrams(text, rule.ngram_size) for identity, text in members}
    references: list[str] = []
    found = []
    for identity in sorted(grams, key=lambda i: (-len(grams[i]), i)):
        own = grams[identity]
        match = _best_reference(own, [(r, grams[r]) for r in references], rule.min_containment)
        if match is not None and len(own):
            reference, shared = match
            union = len(own) + len(grams[reference]) - shared
            found.append(Duplicate(identity, reference, shared / len(own), shared / union))
        elif len(references) < rule.max_references:
            references.append(identity)
    return sorted(found, key=lambda d: d.id)


def _best_reference(
    own: TokenNgrams, references: list[tuple[str, TokenNgrams]], min_containment: float
) -> tuple[str, int] | None:
    """The reference that shares most n-grams, earliest on ties, if it holds enough of them."""
    best: tuple[str, int] | None = None
    for identity, reference in references:
        shared = own.intersection_size(reference)
        if shared >= min_containment * len(own) and (best is None or shared > best[1]):
            best = (identity, shared)
    return best
