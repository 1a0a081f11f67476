"""The numpy generator is JAX's, bit for bit."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.data import _keys

SEEDS = st.integers(0, 2**32 - 1)


def words(key):
    return np.asarray(jax.random.key_data(key)).tolist()


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(0, 2**32 - 1))
def test_keys_and_seeds_equal_those_of_jax(seed, data):
    key = jax.random.key(seed)
    assert _keys.fold_in(key, data).tolist() == words(jax.random.fold_in(key, data))
    assert [k.tolist() for k in _keys.split(key, 3)] == [words(k) for k in jax.random.split(key, 3)]
    assert _keys.seed_from_key(key) == int(jax.random.randint(key, (), 0, 2**30))
    assert _keys.seed_from_key(jax.random.PRNGKey(seed)) == _keys.seed_from_key(key)
    folded = _keys.fold_in(_keys.split(key)[1], 7)
    assert folded.tolist() == words(jax.random.fold_in(jax.random.split(key)[1], 7))


@pytest.mark.parametrize("length", [1, 2, 10, 1625, 1626, 2048])
def test_orders_equal_those_of_jax(length):
    for seed in range(5):
        key = jax.random.key(seed)
        np.testing.assert_array_equal(_keys.random_order(key, length), jax.random.permutation(key, length))


def test_keys_of_other_kinds_go_through_jax():
    key = jax.random.key(3, impl="rbg")
    assert _keys.seed_from_key(key) == int(jax.random.randint(key, (), 0, 2**30))
    assert words(_keys.fold_in(key, 5)) == words(jax.random.fold_in(key, 5))
    assert words(_keys.split(key)[1]) == words(jax.random.split(key)[1])
    np.testing.assert_array_equal(_keys.random_order(key, 20), jax.random.permutation(key, 20))
    assert _keys.key_words(key) == np.asarray(jax.random.key_data(key)).tolist()


def test_golden_vectors_do_not_change():
    key = np.array([0, 42], dtype=np.uint32)
    assert _keys.split(key)[1].tolist() == GOLDEN_SPLIT
    assert _keys.random_order(key, 8).tolist() == GOLDEN_ORDER
    assert _keys.seed_from_key(key) == GOLDEN_SEED


GOLDEN_SPLIT = [64467757, 2916123636]
GOLDEN_ORDER = [7, 4, 2, 5, 3, 6, 0, 1]
GOLDEN_SEED = 977810628
