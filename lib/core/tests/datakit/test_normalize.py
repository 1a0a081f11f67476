"""Cleaning rules of normalisation."""

from hypothesis import given
from hypothesis import strategies as st
from marin.datakit.normalize import compact_whitespace

TEXT = st.text(st.sampled_from(" \t\nab"), max_size=60)


@given(TEXT, st.integers(1, 8))
def test_no_run_is_longer_than_the_limit_and_nothing_else_changes(text, limit):
    compact = compact_whitespace(text, limit)
    assert compact.split() == text.split()
    longest = max((len(run) for run in "".join("#" if c in "ab" else c for c in compact).split("#")), default=0)
    assert longest <= limit


@given(TEXT, st.integers(1, 8))
def test_compacting_twice_changes_nothing(text, limit):
    once = compact_whitespace(text, limit)
    assert compact_whitespace(once, limit) == once
