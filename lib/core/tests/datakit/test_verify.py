"""Only text decides what is a duplicate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.datakit.dedup.verify import verify_cluster
from marin.datakit.recipe import VerifyRule

WORDS = st.lists(st.sampled_from("alpha beta gamma delta epsilon zeta eta theta".split()), min_size=4, max_size=30)


def test_a_document_contained_in_another_goes_and_the_richer_one_stays():
    long = " ".join(f"w{i}" for i in range(100))
    short = " ".join(f"w{i}" for i in range(60))
    (found,) = verify_cluster([("short", short), ("long", long)], VerifyRule(min_containment=1.0))
    assert (found.id, found.duplicate_of, found.containment) == ("short", "long", 1.0)
    assert found.jaccard == pytest.approx(58 / 98)


def test_documents_that_share_only_a_header_all_stay():
    header = "copyright holders all rights reserved "
    bodies = [header + " ".join(f"{name}{i}" for i in range(50)) for name in "abc"]
    assert verify_cluster(list(zip("abc", bodies, strict=True)), VerifyRule()) == []


def test_a_small_edit_passes_a_loose_rule_and_fails_a_strict_one():
    text = [f"w{i}" for i in range(200)]
    edited = [*text[:100], "edited", *text[101:]]
    cluster = [("a", " ".join(text)), ("b", " ".join(edited))]
    assert len(verify_cluster(cluster, VerifyRule(min_containment=0.95))) == 1
    assert verify_cluster(cluster, VerifyRule(min_containment=1.0)) == []


@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=3), WORDS, min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_something_always_stays_and_the_order_of_members_does_not_matter(texts, random):
    cluster = [(identity, " ".join(words)) for identity, words in texts.items()]
    found = verify_cluster(cluster, VerifyRule(min_containment=0.8))
    removed = {duplicate.id for duplicate in found}
    assert removed < set(texts)
    assert not any(duplicate.duplicate_of in removed for duplicate in found)
    random.shuffle(cluster)
    assert verify_cluster(cluster, VerifyRule(min_containment=0.8)) == found


@pytest.mark.parametrize(
    "rule", [{"min_containment": 0.0}, {"min_containment": 1.5}, {"ngram_size": 0}, {"max_references": 0}]
)
def test_a_rule_outside_its_range_is_refused_with_the_value(rule):
    name, value = next(iter(rule.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        VerifyRule(**rule)
