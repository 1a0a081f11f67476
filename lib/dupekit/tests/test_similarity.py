import math

import dupekit
import pytest
from hypothesis import given
from hypothesis import strategies as st

RATIO = st.floats(0, 1)


@given(st.lists(st.integers(0, 3), min_size=1), st.randoms())
def test_the_estimate_is_the_share_of_equal_slots(a: list[int], random) -> None:
    b = [random.randint(0, 3) for _ in a]
    assert dupekit.estimate_jaccard(a, b) * len(a) == pytest.approx(sum(x == y for x, y in zip(a, b, strict=True)))
    assert dupekit.estimate_jaccard(a, a) == 1


@given(RATIO, RATIO)
def test_match_probability_grows_with_similarity(low: float, high: float) -> None:
    low, high = sorted((low, high))
    p, q = (dupekit.lsh_match_probability(j, num_perms=286, num_bands=26) for j in (low, high))
    assert 0 <= p <= q <= 1


def test_the_formulas_meet_values_worked_out_by_hand() -> None:
    assert dupekit.lsh_match_probability(0.5, num_perms=4, num_bands=2) == pytest.approx(1 - 0.75**2)
    assert dupekit.jaccard_standard_error(0.5, 100) == pytest.approx(0.05)
    assert math.isclose(dupekit.jaccard_standard_error(1, 7), 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: dupekit.estimate_jaccard([], []),
        lambda: dupekit.estimate_jaccard([1], [1, 2]),
        lambda: dupekit.jaccard_standard_error(1.1, 10),
        lambda: dupekit.jaccard_standard_error(0.5, 0),
        lambda: dupekit.lsh_match_probability(0.5, num_perms=10, num_bands=3),
        lambda: dupekit.lsh_match_probability(0.5, num_perms=10, num_bands=0),
    ],
)
def test_arguments_out_of_range_are_refused(call) -> None:
    with pytest.raises(dupekit.ParameterError):
        call()
