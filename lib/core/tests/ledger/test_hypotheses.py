import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import UsageError
from marin.ledger import Ledger
from marin.ledger.hypotheses import Direction, Hypothesis, VerdictOutcome, claims, conclude, declare, judge


def claim(**fields):
    values = {
        "experiment": "wide",
        "claim": "wider is better",
        "metric": "bpb",
        "direction": Direction.BELOW,
        "threshold": 2.0,
    }
    return Hypothesis(**{**values, **fields})


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_claim_and_its_opposite_are_never_both_confirmed(value, threshold):
    outcomes = {judge(claim(direction=direction, threshold=threshold), value) for direction in Direction}
    assert outcomes != {VerdictOutcome.CONFIRMED}
    assert VerdictOutcome.CRASHED not in outcomes


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_no_number_means_crashed(value):
    assert judge(claim(), value) is VerdictOutcome.CRASHED


def test_a_threshold_inside_the_interval_leaves_the_claim_open():
    assert judge(claim(), 1.9, (1.8, 2.0)) is VerdictOutcome.INCONCLUSIVE
    assert judge(claim(), 1.9, (1.8, 1.99)) is VerdictOutcome.CONFIRMED


def test_a_declared_claim_is_judged_and_both_stay_on_record(tmp_path):
    ledger = Ledger(str(tmp_path))
    declare(ledger, claim())
    verdict = conclude(ledger, "wide", 2.3, evidence=["evaluate@auto-1"])
    assert verdict.outcome is VerdictOutcome.REFUTED and not verdict.post_hoc
    (found,) = claims(ledger)
    assert found.hypothesis == claim() and found.verdicts == (verdict,)


def test_a_verdict_without_an_earlier_claim_is_post_hoc_for_ever(tmp_path):
    ledger = Ledger(str(tmp_path))
    assert conclude(ledger, "wide", 1.5, fallback=claim()).post_hoc
    declare(ledger, claim())
    (found,) = claims(ledger)
    assert found.hypothesis is None and found.verdicts[0].post_hoc


def test_a_later_claim_does_not_replace_the_first(tmp_path):
    ledger = Ledger(str(tmp_path))
    declare(ledger, claim())
    declare(ledger, claim(threshold=9.0))
    assert claims(ledger)[0].hypothesis.threshold == 2.0


def test_a_verdict_needs_a_claim_and_a_claim_needs_a_threshold(tmp_path):
    with pytest.raises(UsageError, match="no hypothesis"):
        conclude(Ledger(str(tmp_path)), "wide", 1.0)
    with pytest.raises(UsageError, match="threshold"):
        claim(threshold=float("nan"))
    with pytest.raises(UsageError, match="metric is empty"):
        claim(metric="")
