import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rigging.errors import CanonicalJsonError
from rigging.hashing import canonical_json, sha256_bytes, sha256_file, short_hash

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_canonical_text_reads_back_and_is_a_fixed_point(value):
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text
    assert text.isascii() and "\n" not in text


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=8))
def test_key_order_does_not_matter(value):
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@given(json_values, json_values)
def test_equal_texts_mean_equal_values(a, b):
    if canonical_json(a) == canonical_json(b):
        assert a == b


def test_numbers_keep_their_kind_and_tuples_are_lists():
    assert canonical_json(1) != canonical_json(1.0) != canonical_json(True)
    assert canonical_json((1, 2)) == canonical_json([1, 2]) == "[1,2]"


@pytest.mark.parametrize(
    ("value", "location"),
    [
        ({"a": [1, math.nan]}, r"\$\.a\[1\]"),
        ({"a": math.inf}, r"\$\.a"),
        ({1: 2}, r"\$"),
        ({"s": {1, 2}}, r"\$\.s"),
        ([b"x"], r"\$\[0\]"),
        (object(), r"\$"),
    ],
)
def test_what_has_no_canonical_text_is_refused_with_its_place(value, location):
    with pytest.raises(CanonicalJsonError, match=f"at={location},"):
        canonical_json(value)


def test_file_and_bytes_digests_agree_for_files_larger_than_a_piece(tmp_path):
    data = bytes(range(256)) * 10_000
    path = tmp_path / "x"
    path.write_bytes(data)
    assert sha256_file(str(path)) == sha256_bytes(data) == hashlib.sha256(data).hexdigest()


def test_short_hash_is_a_prefix_and_checks_its_length():
    assert sha256_bytes(b"x").startswith(short_hash("x", 12)) and len(short_hash("x")) == 16
    with pytest.raises(ValueError, match="n=65"):
        short_hash("x", 65)
