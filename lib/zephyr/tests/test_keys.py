"""The key codec: order, identity, and equality of its two ways."""

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zephyr._keys import decode_key, encode_key, encode_keys, invert_keys
from zephyr.errors import KeyTypeError

INT64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.one_of(INT64, st.floats(allow_nan=False))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


@given(st.lists(NUMBERS))
def test_byte_order_of_numbers_is_their_numeric_order(numbers: list[float]) -> None:
    ours = sorted(numbers, key=encode_key)
    assert ours == sorted(numbers)


@given(st.lists(st.text()), st.lists(st.binary()))
def test_byte_order_of_text_and_bytes_is_theirs(texts: list[str], blobs: list[bytes]) -> None:
    assert sorted(texts, key=encode_key) == sorted(texts)
    assert sorted(blobs, key=encode_key) == sorted(blobs)


@given(st.lists(st.tuples(st.text(), INT64)))
def test_tuples_sort_element_by_element(pairs: list[tuple[str, int]]) -> None:
    assert sorted(pairs, key=encode_key) == sorted(pairs)


@given(KEYS)
def test_decoding_gives_the_key_back(key: object) -> None:
    out = decode_key(encode_key(key))
    assert out == key
    assert type(out) is type(key)


@given(KEYS, KEYS)
def test_no_code_is_a_prefix_of_another(a: object, b: object) -> None:
    x, y = encode_key(a), encode_key(b)
    assert x == y or not (x.startswith(y) or y.startswith(x))


def test_one_true_and_one_point_zero_are_three_keys() -> None:
    assert len({encode_key(1), encode_key(1.0), encode_key(True)}) == 3


def test_minus_zero_is_zero_and_nan_is_last() -> None:
    assert encode_key(-0.0) == encode_key(0.0)
    assert encode_key(math.inf) < encode_key(math.nan)
    assert math.isnan(decode_key(encode_key(math.nan)))


def test_lists_are_tuples() -> None:
    assert decode_key(encode_key([1, [2]])) == (1, (2,))


@given(
    st.one_of(
        st.lists(st.one_of(st.none(), INT64)).map(lambda v: pa.array(v, pa.int64())),
        st.lists(INT64).map(lambda v: pa.array(v, pa.int64())),
        st.lists(st.integers(-(2**31), 2**31 - 1)).map(lambda v: pa.array(v, pa.int32())),
        st.lists(st.text(st.characters(exclude_categories=["Cs"]))).map(lambda v: pa.array(v, pa.string())),
        st.lists(st.floats()).map(lambda v: pa.array(v, pa.float64())),
        st.lists(st.booleans()).map(lambda v: pa.array(v, pa.bool_())),
    )
)
def test_columns_are_encoded_as_their_values_are(column: pa.Array) -> None:
    assert encode_keys(column).to_pylist() == [encode_key(value) for value in column.to_pylist()]


def test_a_slice_of_a_column_is_encoded_by_its_own_values() -> None:
    column = pa.array(["a", "b", "c"])
    assert encode_keys(column.slice(1)).to_pylist() == [encode_key("b"), encode_key("c")]


@given(st.lists(KEYS))
def test_inverted_codes_sort_the_other_way_round(keys: list[object]) -> None:
    codes = [encode_key(key) for key in keys]
    flipped = invert_keys(pa.array(codes, pa.binary())).to_pylist()
    by_flipped = [code for _, code in sorted(zip(flipped, codes, strict=True))]
    assert by_flipped == sorted(codes, reverse=True)


@pytest.mark.parametrize("value", [{"a": 1}, 2**64, object(), {1}, dt.datetime.now(dt.UTC)])
def test_values_without_an_order_are_refused(value: object) -> None:
    with pytest.raises(KeyTypeError) as caught:
        encode_key(value)
    assert caught.value.value_type == type(value).__name__
