import pickle

import dupekit
import pytest
import xxhash
from dupekit import TokenNgramFingerprintSignature, TokenNgrams
from hypothesis import assume, given
from hypothesis import strategies as st

# Few distinct tokens, so that n-grams repeat and texts overlap.
TEXT = st.lists(st.sampled_from(["a", "B", "b", "é", "É", "日本", "x\u3000", "\n"]), max_size=40).map(" ".join)
RECORD_BYTES = 4_063


@given(a=TEXT, b=TEXT, size=st.integers(1, 5))
def test_counts_and_intersections_equal_those_of_sets(reference, a: str, b: str, size: int) -> None:
    left, right = TokenNgrams(a, size), TokenNgrams(b, size)
    expected_left, expected_right = reference.ngrams(a, size), reference.ngrams(b, size)
    assert (len(left), len(right)) == (len(expected_left), len(expected_right))
    assert left.token_count == len(reference.words(a.lower()))
    shared = len(expected_left & expected_right)
    assert left.intersection_size(right) == right.intersection_size(left) == shared


@given(a=TEXT, b=TEXT, size=st.integers(1, 5))
def test_signatures_never_rule_out_a_true_subset(reference, a: str, b: str, size: int) -> None:
    assume(reference.ngrams(a, size) <= reference.ngrams(b, size) and len(a) <= len(b))
    member, canonical = TokenNgrams(a, size), TokenNgrams(b, size)
    assert member.signature().may_be_subset_of(canonical.signature())
    assert member.fingerprint_signature().may_be_subset_of(canonical.fingerprint_signature())


@pytest.mark.parametrize("length", [1, 3, 100, 1_333, 1_334, 1_335, 1_336, 5_000])
def test_any_stretch_of_a_long_text_may_be_a_subset(corpus, length: int) -> None:
    words = corpus.words(6_000)
    whole = TokenNgrams(" ".join(words), 3)
    for start in range(0, 6_000 - length + 1, max(1, (6_000 - length) // 10)):
        part = TokenNgrams(" ".join(words[start : start + length]), 3)
        if length >= 3:
            assert part.intersection_size(whole) == len(part)
            assert part.signature().may_be_subset_of(whole.signature())
            assert part.fingerprint_signature().may_be_subset_of(whole.fingerprint_signature())


def test_signatures_rule_out_nearly_all_strangers(corpus) -> None:
    sets = [TokenNgrams(corpus.text(200), 3) for _ in range(60)]
    bitmaps = [ngrams.signature() for ngrams in sets]
    prints = [ngrams.fingerprint_signature() for ngrams in sets]
    pairs = [(a, b) for a in range(60) for b in range(60) if a != b]
    assert not any(bitmaps[a].may_be_subset_of(bitmaps[b]) for a, b in pairs)
    assert not any(prints[a].may_be_subset_of(prints[b]) for a, b in pairs)


def test_one_foreign_word_in_a_long_text_is_noticed_exactly(corpus) -> None:
    words = corpus.words(20_000)
    whole = TokenNgrams(" ".join(words), 3)
    words[10_000] = "unheard-of"
    part = TokenNgrams(" ".join(words), 3)
    assert len(part) - part.intersection_size(whole) == 3


def test_texts_without_enough_tokens_have_one_ngram_or_none() -> None:
    assert len(TokenNgrams("", 3)) == len(TokenNgrams(" \n\u3000", 3)) == 0
    assert len(TokenNgrams("a b", 3)) == 1
    assert TokenNgrams("a b", 3).intersection_size(TokenNgrams("A\nB", 3)) == 1
    assert TokenNgrams("a b", 3).intersection_size(TokenNgrams("a b c", 3)) == 0


def test_different_sizes_share_nothing() -> None:
    two, three = TokenNgrams("a b", 2), TokenNgrams("a b", 3)
    assert two.intersection_size(three) == 0
    assert not two.signature().may_be_subset_of(three.signature())
    assert not two.fingerprint_signature().may_be_subset_of(three.fingerprint_signature())


def test_a_longer_text_is_no_subset_by_the_fingerprint() -> None:
    short, long = TokenNgrams("a b c", 3), TokenNgrams("a    b    c", 3)
    assert short.fingerprint_signature().may_be_subset_of(long.fingerprint_signature())
    assert not long.fingerprint_signature().may_be_subset_of(short.fingerprint_signature())


def test_the_fingerprint_counts_its_text() -> None:
    record = TokenNgrams("Ab  é\nAB é c\n", 2).fingerprint_signature()
    assert (record.chars, record.lines, record.token_count, record.ngram_count, record.ngram_size) == (13, 2, 5, 3, 2)
    assert record.normalized_sequence_hash == xxhash.xxh3_128_intdigest("ab é ab é c".encode())


@given(TEXT, st.integers(1, 4))
def test_a_record_reads_back_and_pickles(text: str, size: int) -> None:
    record = TokenNgrams(text, size).fingerprint_signature()
    raw = record.to_bytes()
    assert len(raw) == RECORD_BYTES
    assert TokenNgramFingerprintSignature.from_bytes(raw) == record == pickle.loads(pickle.dumps(record))


def test_the_record_has_the_documented_layout() -> None:
    record = TokenNgrams("a b c d", 2).fingerprint_signature()
    raw = record.to_bytes()
    numbers = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, 40, 8)]
    assert numbers == [7, 1, 4, 3, 2]
    assert int.from_bytes(raw[40:56], "little") == record.normalized_sequence_hash
    assert int.from_bytes(raw[56:60], "little") == 1 << 24
    assert int.from_bytes(raw[60:64], "little") == 3
    prints = [int.from_bytes(raw[at : at + 3], "little") for at in range(64, 73, 3)]
    assert prints == sorted(set(prints))
    assert not any(raw[73:])


@given(st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES) | st.binary(max_size=100))
def test_arbitrary_bytes_never_crash_the_reader(data: bytes) -> None:
    try:
        record = TokenNgramFingerprintSignature.from_bytes(data)
    except dupekit.ParseError:
        return
    assert record.to_bytes() == data


@pytest.mark.parametrize("length", [0, RECORD_BYTES - 1, RECORD_BYTES + 1])
def test_a_record_of_wrong_length_is_refused(length: int) -> None:
    with pytest.raises(dupekit.ParseError, match=f"length={length}; expected {RECORD_BYTES} bytes") as caught:
        TokenNgramFingerprintSignature.from_bytes(bytes(length))
    assert isinstance(caught.value, ValueError)


def test_an_ngram_of_no_tokens_is_refused() -> None:
    with pytest.raises(dupekit.ParameterError, match="ngram_size=0"):
        TokenNgrams("a", 0)


def test_signatures_cannot_be_dictionary_keys() -> None:
    ngrams = TokenNgrams("a", 1)
    with pytest.raises(TypeError):
        hash(ngrams.signature())
    assert ngrams.signature() == TokenNgrams("A", 1).signature()
