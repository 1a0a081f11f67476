import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.data._prp import FeistelPermutation, LcgPermutation, make_permutation
from levanter.data.errors import DatasetIndexError, PermutationError

KINDS = [FeistelPermutation, LcgPermutation]


def feistel_by_the_formula(x, length, keys):
    """The definition, one integer at a time in Python integers."""
    bits = (length - 1).bit_length()
    right_bits = bits - bits // 2
    mask = 2**right_bits - 1
    while True:
        left, right = x >> right_bits, x & mask
        for key in keys:
            left, right = right, left ^ (((right & mask) * 2654435761 + key) & mask)
        x = (left << right_bits) | right
        if x < length:
            return x


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 2**62), st.integers(0, 2**30), st.data())
def test_feistel_follows_its_formula(length, seed, data):
    permutation = FeistelPermutation(length, seed)
    index = data.draw(st.integers(0, length - 1))
    keys = [int(key) for key in permutation.round_keys]
    assert permutation(index) == feistel_by_the_formula(index, length, keys)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 2**48), st.integers(0, 2**30), st.data())
def test_linear_follows_its_formula_in_exact_arithmetic(length, seed, data):
    permutation = LcgPermutation(length, seed)
    index = data.draw(st.integers(0, length - 1))
    assert math.gcd(permutation.a, length) == 1
    assert permutation(index) == (permutation.a * index + permutation.b) % length


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_length_is_permuted(kind):
    for length in [*range(1, 70), 255, 256, 257, 1000]:
        images = kind(length, seed=length)(np.arange(length))
        assert sorted(images.tolist()) == list(range(length))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_of_every_width_are_indices(kind, dtype):
    permutation = kind(100, seed=3)
    images = permutation(np.arange(100, dtype=dtype).reshape(10, 10))
    assert images.shape == (10, 10)
    assert images.ravel().tolist() == [permutation(i) for i in range(100)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_int_gives_an_int_and_bad_indices_are_refused(kind):
    permutation = kind(10, seed=0)
    assert type(permutation(3)) is int
    assert kind(1, seed=9)(0) == 0
    for bad in (-1, 10, np.array([0, 10])):
        with pytest.raises(DatasetIndexError):
            permutation(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_above_32_bits_do_not_overflow(kind):
    length = 2**33 + 17
    permutation = kind(length, seed=1)
    indices = np.unique(np.random.default_rng(0).integers(0, length, size=50_000))
    images = permutation(indices)
    assert images.min() >= 0 and images.max() < length
    assert len(np.unique(images)) == len(indices)


def test_golden_vectors_do_not_change():
    assert FeistelPermutation(10, 0)(np.arange(10)).tolist() == GOLDEN_FEISTEL_10
    assert LcgPermutation(10, 0)(np.arange(10)).tolist() == GOLDEN_LINEAR_10
    assert FeistelPermutation(2**40, 5)(np.array([0, 1, 2**39])).tolist() == GOLDEN_FEISTEL_2_40


GOLDEN_FEISTEL_10 = [1, 7, 9, 2, 6, 0, 4, 8, 5, 3]
GOLDEN_LINEAR_10 = [3, 6, 9, 2, 5, 8, 1, 4, 7, 0]
GOLDEN_FEISTEL_2_40 = [89802862491, 158856551549, 639558152091]


def test_the_key_decides_the_order():
    one = make_permutation("feistel", 1000, jax.random.PRNGKey(0))(np.arange(1000))
    same = make_permutation("feistel", 1000, jax.random.PRNGKey(0))(np.arange(1000))
    other = make_permutation("feistel", 1000, jax.random.PRNGKey(1))(np.arange(1000))
    assert (one == same).all() and (one != other).any() and (one != np.arange(1000)).any()
    with pytest.raises(PermutationError, match="'era'"):
        make_permutation("era", 10, jax.random.PRNGKey(0))
    with pytest.raises(PermutationError):
        FeistelPermutation(0, 0)


def test_feistel_displaces_as_much_as_a_random_order():
    """A uniformly random order moves an item a third of the length on average."""
    length = 8192
    moved = np.abs(FeistelPermutation(length, 11)(np.arange(length)) - np.arange(length)).mean() / length
    assert abs(moved - 1 / 3) < 0.01
