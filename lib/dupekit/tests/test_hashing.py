import hashlib

import blake3
import dupekit
import pyarrow as pa
import pytest
import xxhash
from dupekit import HashAlgorithm
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
REFERENCES = {
    HashAlgorithm.Blake2b: lambda data: hashlib.blake2b(data).hexdigest(),
    HashAlgorithm.Blake3: lambda data: blake3.blake3(data).hexdigest(),
    HashAlgorithm.Xxh3_64: lambda data: xxhash.xxh3_64_hexdigest(data),
    HashAlgorithm.Xxh3_128: lambda data: xxhash.xxh3_128_hexdigest(data),
}
STRING_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]


@given(st.binary(max_size=2_000))
def test_hashes_of_bytes_equal_the_reference_implementations(data: bytes) -> None:
    assert dupekit.hash_xxh3_64(data) == xxhash.xxh3_64_intdigest(data)
    assert dupekit.hash_xxh3_128(data) == xxhash.xxh3_128_intdigest(data)
    assert dupekit.hash_blake2_bytes(data) == hashlib.blake2b(data).digest() == bytes(dupekit.hash_blake2(data))
    assert dupekit.hash_blake3_bytes(data) == blake3.blake3(data).digest() == bytes(dupekit.hash_blake3(data))
    assert dupekit.hash_xxh3_64_batch([data, b""]) == [dupekit.hash_xxh3_64(data), dupekit.hash_xxh3_64(b"")]


@pytest.mark.parametrize("algorithm", list(HashAlgorithm))
@given(values=st.lists(st.none() | TEXT, max_size=20))
def test_hex_of_a_column_equals_the_reference_and_keeps_nulls(
    algorithm: HashAlgorithm, values: list[str | None]
) -> None:
    expected = [None if value is None else REFERENCES[algorithm](value.encode()) for value in values]
    assert dupekit.hash_hex(values, algorithm).to_pylist() == expected


@pytest.mark.parametrize("kind", STRING_TYPES + BYTES_TYPES, ids=str)
def test_every_layout_hashes_alike_also_when_sliced(kind: pa.DataType) -> None:
    values = ["", "a", None, "a longer text than fits a string view inline", "é日本\N{SLOTH}"]
    raw = [value if value is None else value.encode() for value in values]
    column = pa.array(raw if kind in BYTES_TYPES else values, kind)
    expected = dupekit.hash_xxh3_128_hex(values)
    assert dupekit.hash_xxh3_128_hex(column).equals(expected)
    assert dupekit.hash_xxh3_128_hex(column[1:4]).equals(expected[1:4])
    numbers = [None if value is None else xxhash.xxh3_64_intdigest(value) for value in raw]
    assert dupekit.hash_xxh3_64_array(column).to_pylist() == numbers


def test_a_chunked_column_keeps_its_chunks() -> None:
    column = pa.chunked_array([["a", None], [], ["b"]], pa.string())
    digests = dupekit.hash_hex(column)
    assert [len(chunk) for chunk in digests.chunks] == [2, 0, 1]
    assert digests.to_pylist() == dupekit.hash_hex(["a", None, "b"]).to_pylist()
    assert dupekit.hash_xxh3_64_array(column).type == pa.uint64()
    assert dupekit.hash_hex(pa.chunked_array([], pa.string())).type == pa.string()


def test_an_empty_or_all_null_column_is_no_special_case() -> None:
    assert dupekit.hash_hex([]).type == pa.string()
    assert dupekit.hash_hex(pa.nulls(3)).to_pylist() == [None] * 3


def test_digests_have_the_promised_length() -> None:
    digits = {algorithm: len(dupekit.hash_hex(["x"], algorithm)[0].as_py()) for algorithm in HashAlgorithm}
    assert digits == {
        HashAlgorithm.Blake2b: 128,
        HashAlgorithm.Blake3: 64,
        HashAlgorithm.Xxh3_128: 32,
        HashAlgorithm.Xxh3_64: 16,
    }


def test_a_column_of_numbers_is_refused_with_its_type() -> None:
    with pytest.raises(dupekit.ColumnTypeError, match="Int64") as caught:
        dupekit.hash_hex(pa.array([1, 2]))
    assert caught.value.found == "Int64"


def test_an_unknown_algorithm_is_refused_with_the_choices() -> None:
    with pytest.raises(dupekit.ParameterError, match="expected blake2b, blake3, xxh3_64 or xxh3_128"):
        dupekit.hash_hex(["a"], "md5")


@pytest.mark.parametrize("data", ["text", 1, None])
def test_hashing_something_else_than_bytes_is_a_type_error(data: object) -> None:
    with pytest.raises(TypeError):
        dupekit.hash_xxh3_128(data)  # pyrefly: ignore[bad-argument-type]
