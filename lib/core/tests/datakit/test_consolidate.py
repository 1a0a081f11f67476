"""Splits are a pure function of the group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.datakit.consolidate import SPLITS, split_of
from marin.datakit.recipe import SplitRule


@given(st.text())
def test_a_group_always_lands_in_the_same_split(group):
    assert split_of(group, SplitRule()) == split_of(group, SplitRule()) in SPLITS


def test_shares_are_close_to_what_was_asked_for():
    rule = SplitRule(validation_percent=10, test_percent=20)
    dealt = [split_of(f"group-{i}", rule) for i in range(20_000)]
    # Three standard deviations of a binomial share at n = 20,000 are below 0.9 %.
    assert dealt.count("test") / 200 == pytest.approx(20, abs=0.9)
    assert dealt.count("validation") / 200 == pytest.approx(10, abs=0.9)


def test_another_salt_deals_anew():
    groups = [f"group-{i}" for i in range(1000)]
    assert [split_of(g, SplitRule()) for g in groups] != [split_of(g, SplitRule(salt="other")) for g in groups]


@pytest.mark.parametrize("shares", [(0, 5), (5, 0), (60, 40), (-1, 5)])
def test_shares_that_leave_a_split_empty_are_refused(shares):
    with pytest.raises(ValueError, match="bad split"):
        SplitRule(validation_percent=shares[0], test_percent=shares[1])
