import math
import pickle
from pathlib import Path

import dupekit
import pyarrow as pa
import pytest
from dupekit import Bloom
from hypothesis import given
from hypothesis import strategies as st

HASHES = st.integers(-(2**127), 2**128 - 1)


def indices(item: int, count: int, size: int) -> set[int]:
    """Bit positions of an item, as the file format defines them."""
    state, found = item % 2**128, set()
    for _ in range(count):
        state = (state * 47026247687942121848144207491837418733 + 1) % 2**128
        found.add((state >> 32) % 2**64 % size)
    return found


@given(items=st.sets(HASHES, max_size=30), other=HASHES)
def test_the_bits_are_those_of_the_format(items: set[int], other: int) -> None:
    bloom = Bloom(40, 0.01)
    bloom.update(items)
    raw = bloom.save_bytes()
    assert int.from_bytes(raw[:8], "little") == bloom.num_indices
    bits = {8 * at + bit for at, byte in enumerate(raw[8:]) for bit in range(8) if byte >> bit & 1}
    expected = set().union(*(indices(item, bloom.num_indices, bloom.size_in_bits) for item in items))
    assert bits == expected
    assert all(item in bloom for item in items)
    assert (other in bloom) == (indices(other, bloom.num_indices, bloom.size_in_bits) <= expected)


@given(items=st.integers(1, 10**6), rate=st.floats(1e-9, 0.999))
def test_the_size_follows_from_items_and_rate(items: int, rate: float) -> None:
    bloom = Bloom(items, rate)
    size = -items * math.log(rate) / math.log(2) ** 2
    assert bloom.size_in_bits == max(1, math.ceil(int(size) / 8)) * 8
    assert bloom.num_indices in {max(1, int(size / items * math.log(2) + slack)) for slack in (-1e-9, 0, 1e-9)}


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001])
def test_false_positives_come_at_the_promised_rate(rate: float) -> None:
    items, probes = 20_000, 100_000
    bloom = Bloom(items, rate)
    hashes = dupekit.hash_xxh3_64_array([str(number) for number in range(items + probes)])
    bloom.add_array(hashes[:items])
    assert all(bloom.contains_array(hashes[:items]).to_pylist())
    wrong = bloom.contains_array(hashes[items:]).true_count
    # Theory for the size and index count in use, within five binomial deviations and 5 % (indices are no ideal hashes).
    k, m = bloom.num_indices, bloom.size_in_bits
    expected = probes * (1 - math.exp(-k * items / m)) ** k
    assert abs(wrong - expected) <= 5 * math.sqrt(expected) + 0.05 * expected
    assert wrong <= 1.25 * rate * probes + 5 * math.sqrt(rate * probes)
    assert abs(bloom.approx_items / items - 1) < 0.03


def test_arrays_and_single_hashes_agree_and_nulls_are_skipped() -> None:
    one, many = Bloom(100, 0.01), Bloom(100, 0.01)
    one.update([5, 2**64 - 1])
    many.add_array(pa.array([5, None, 2**64 - 1], pa.uint64()))
    assert one == many
    assert many.contains_array(pa.array([5, None, 6], pa.uint64())).to_pylist() == [True, None, False]
    with pytest.raises(dupekit.ColumnTypeError, match="expected uint64"):
        many.add_array(pa.array([1]))


@given(a=st.sets(HASHES, max_size=20), b=st.sets(HASHES, max_size=20))
def test_set_algebra_contains_what_sets_contain(a: set[int], b: set[int]) -> None:
    left, right = Bloom(50, 0.01), Bloom(50, 0.01)
    left.update(a)
    right.update(b)
    union, common = left | right, left & right
    assert all(item in union for item in a | b)
    assert all(item in common for item in a & b)
    assert union == left.union(right) == left.union(b) == left.union(list(b), right)
    assert common == left.intersection(right) == left.intersection(b)
    assert common <= left <= union and union >= right and left.issubset(union) and union.issuperset(a)
    assert (left < union) == (left != union)
    assert (union > right) == (union != right)
    merged = left.copy()
    merged |= right
    assert merged == union
    merged &= right
    assert merged == right
    merged.intersection_update(left)
    assert merged == common


def test_a_copy_is_separate_and_clear_forgets() -> None:
    bloom = Bloom(10, 0.1)
    assert not bloom
    bloom.add(1)
    copy = bloom.copy()
    bloom.clear()
    assert not bloom and copy and 1 in copy and bloom.approx_items == 0


def test_combining_a_filter_with_itself_changes_nothing() -> None:
    bloom = Bloom(10, 0.1)
    bloom.add(1)
    before = bloom.copy()
    bloom |= bloom
    bloom &= bloom
    assert bloom == before == bloom.union(bloom)
    bloom.update(bloom)
    bloom.intersection_update(bloom)
    assert bloom == before


@pytest.mark.parametrize(
    "operation",
    [
        lambda a, b: a == b,
        lambda a, b: a <= b,
        lambda a, b: a | b,
        lambda a, b: a & b,
        lambda a, b: a.update(b),
        lambda a, b: a.issubset(b),
        lambda a, b: a.intersection(b),
    ],
)
def test_filters_of_different_shape_do_not_mix(operation) -> None:
    with pytest.raises(dupekit.ParameterError, match="made with the same arguments"):
        operation(Bloom(10, 0.1), Bloom(1_000, 0.1))


def test_a_filter_survives_bytes_file_and_pickle(tmp_path: Path) -> None:
    bloom = Bloom(100, 0.05)
    bloom.update(range(50))
    path = tmp_path / "seen.bloom"
    bloom.save(path)
    assert Bloom.load(path) == Bloom.load(str(path)) == Bloom.load_bytes(bloom.save_bytes()) == bloom
    assert pickle.loads(pickle.dumps(bloom)) == bloom
    assert [entry.name for entry in tmp_path.iterdir()] == ["seen.bloom"]


def test_a_file_that_cannot_be_written_or_read_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Bloom.load(tmp_path / "absent")
    with pytest.raises(OSError):
        Bloom(10, 0.1).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(st.binary(max_size=40))
def test_arbitrary_bytes_never_crash_the_reader(data: bytes) -> None:
    try:
        bloom = Bloom.load_bytes(data)
    except dupekit.ParseError:
        return
    assert bloom.save_bytes() == data
    bloom.add(1)
    assert 1 in bloom


@pytest.mark.parametrize(("items", "rate"), [(0, 0.1), (10, 0.0), (10, 1.0), (10, math.nan), (2**63, 0.01)])
def test_arguments_out_of_range_are_refused(items: int, rate: float) -> None:
    with pytest.raises(dupekit.ParameterError):
        Bloom(items, rate)


@pytest.mark.parametrize("item", ["text", b"bytes", 1.0, None])
def test_items_that_are_no_hashes_are_type_errors(item: object) -> None:
    bloom = Bloom(10, 0.1)
    with pytest.raises(TypeError, match="expected an int hash"):
        bloom.add(item)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(TypeError):
        _ = item in bloom


@pytest.mark.parametrize("item", [2**128, -(2**127) - 1])
def test_items_beyond_128_bits_are_refused(item: int) -> None:
    with pytest.raises(dupekit.ParameterError, match="item="):
        Bloom(10, 0.1).add(item)


def test_a_filter_cannot_be_a_dictionary_key() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Bloom(10, 0.1))
    assert Bloom(10, 0.1) != "something else"


def test_a_bad_item_leaves_the_filter_as_it_was() -> None:
    bloom = Bloom(10, 0.1)
    with pytest.raises(TypeError):
        bloom.update([1, 2, "three"])
    assert not bloom
