import math
import statistics

import dupekit
import pyarrow as pa
import pytest
from dupekit import MinHashKind, NgramKind, Transformation
from dupekit.testing import forced_simd, simd_paths
from hypothesis import given, settings
from hypothesis import strategies as st

# Made once by `Reference.compat_signature` of conftest.py; pinned so that kernel and reference cannot drift together.
GOLDEN_TEXT = "The quick brown fox  jumps over\tthe lazy dog"
GOLDEN = {
    ("word", 5, 42): [5500303311414673537, 3572491943776325191, 2899607558951161829, 248361603139267508],
    ("word", 2, 0): [1909556900868968682, 3690985927731408708, 1104361281311115129, 2450975876327743293],
    ("char", 5, 18446744073709551615): [263345702669007680, 163341811246288357, 239406655258344711, 71759806112156470],
    ("word", 50, 7): [10340215383113844750, 1606886422637535997, 12630800588383942329, 2516016231939220479],
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\u3000ab"), max_size=120)


def signatures(texts: list[str | None], *, threads: int = 1, **options: object) -> list[list[int] | None]:
    batch = pa.record_batch({"text": pa.array(texts, pa.string())})
    step = Transformation.MinHash("text", "signature", **options)  # pyrefly: ignore[bad-argument-type]
    return dupekit.transform(batch, [step], threads=threads)["signature"].to_pylist()


@pytest.mark.parametrize(("case", "expected"), GOLDEN.items(), ids=str)
def test_compat_signatures_equal_the_golden_vectors(case, expected, reference) -> None:
    kind, size, seed = case
    options = {"num_perms": len(expected), "ngram_size": size, "ngram_kind": kind, "seed": seed}
    assert signatures([GOLDEN_TEXT], **options) == [expected]
    assert reference.compat_signature(GOLDEN_TEXT, len(expected), size, kind, seed) == expected


@pytest.mark.parametrize("kind", list(NgramKind))
@given(text=TEXT, size=st.integers(1, 6), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_compat_signatures_equal_big_integer_arithmetic(reference, kind, text: str, size: int, seed: int) -> None:
    expected = reference.compat_signature(text, 9, size, kind, seed)
    assert signatures([text], num_perms=9, ngram_size=size, ngram_kind=kind, seed=seed) == [expected]


@pytest.mark.parametrize("kind", list(NgramKind))
@given(text=TEXT, size=st.integers(1, 6), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_fast32_signatures_equal_their_formula(reference, kind, text: str, size: int, seed: int) -> None:
    hashes = dupekit.shingle_hashes(text, ngram_size=size, ngram_kind=kind, kind=MinHashKind.FAST32)
    expected = reference.fast32_slots(hashes, 9, seed)
    options = {"num_perms": 9, "ngram_size": size, "ngram_kind": kind, "seed": seed, "kind": "fast32"}
    assert signatures([text], **options) == [expected]


@pytest.mark.parametrize("kind", list(MinHashKind))
@pytest.mark.parametrize("num_perms", [1, 7, 64, 286])
def test_every_instruction_set_gives_the_same_bits(corpus, kind: MinHashKind, num_perms: int) -> None:
    lengths = [0, 1, 4, 5, 6, 20, 21, 36, 37, 38, 52, 53, 69, 500, 3_000]
    texts = [corpus.text(length) for length in lengths] + ["a " * 300, "\N{SLOTH} é " * 90]
    results = {}
    for path in simd_paths():
        with forced_simd(path):
            results[path] = signatures(texts, num_perms=num_perms, kind=kind)
    assert len(results) >= 1
    assert all(result == results["scalar"] for result in results.values())


@given(texts=st.lists(TEXT, max_size=5), kind=st.sampled_from(MinHashKind), size=st.integers(1, 4))
def test_every_instruction_set_agrees_on_any_text(texts: list[str], kind: MinHashKind, size: int) -> None:
    results = []
    for path in simd_paths():
        with forced_simd(path):
            results.append(signatures(list(texts), num_perms=33, ngram_size=size, kind=kind))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("threads", [2, 3, 64])
def test_the_number_of_threads_does_not_matter(corpus, threads: int) -> None:
    texts = [None if n % 7 == 3 else corpus.text(n) for n in range(50)]
    assert signatures(texts, threads=threads) == signatures(texts)


def test_fast32_ignores_the_space_between_words_and_compat_does_not() -> None:
    texts: list[str | None] = ["a b c d e f", " a  b\nc d e f "]
    fast = signatures(texts, kind="fast32", num_perms=16)
    compat = signatures(texts, num_perms=16)
    assert fast[0] == fast[1]
    assert compat[0] != compat[1]


@pytest.mark.parametrize("kind", list(MinHashKind))
def test_word_order_matters_and_repetition_does_not(kind: MinHashKind) -> None:
    base, twice, swapped = signatures(["a b c d", "a b c d a b c d", "b a c d"], ngram_size=1, kind=kind)
    assert base == twice == swapped
    base, swapped = signatures(["a b c d e f g", "b a c d e f g"], ngram_size=2, num_perms=64, kind=kind)
    assert base != swapped


@pytest.mark.parametrize("kind", list(MinHashKind))
@pytest.mark.parametrize("share", [0.02, 0.10])
def test_the_error_of_the_estimate_is_that_of_theory(corpus, kind: MinHashKind, share: float) -> None:
    # The deviation of (estimate - J), in units of sqrt(J (1 - J) / k), has root mean square 1. With 300 pairs that is
    # known to 4 % (one standard deviation), and the mean to 6 %: the bounds leave more than three of each.
    pairs = [(text, corpus.edited(text, share)) for text in (corpus.text(300) for _ in range(300))]
    texts: list[str | None] = [text for pair in pairs for text in pair]
    found = signatures(texts, num_perms=128, kind=kind)
    deviations = []
    for number, pair in enumerate(pairs):
        a, b = (set(dupekit.shingle_hashes(text, kind=kind)) for text in pair)
        jaccard = len(a & b) / len(a | b)
        estimate = dupekit.estimate_jaccard(found[2 * number] or [], found[2 * number + 1] or [])
        deviations.append((estimate - jaccard) / dupekit.jaccard_standard_error(jaccard, 128))
    root_mean_square = math.sqrt(statistics.fmean(d * d for d in deviations))
    assert 0.85 < root_mean_square < 1.15
    assert abs(statistics.fmean(deviations)) < 0.25


@pytest.mark.parametrize("kind", list(MinHashKind))
def test_planted_near_duplicates_are_found_and_strangers_are_not(corpus, kind: MinHashKind) -> None:
    originals = [corpus.text(300) for _ in range(150)]
    copies = [corpus.edited(text, 0.02) for text in originals]
    batch = pa.record_batch({"text": originals + copies})
    steps = [
        Transformation.MinHash("text", "signature", num_perms=286, kind=kind),
        Transformation.MinHashLSH("signature", "buckets", num_bands=26),
    ]
    buckets = [set(enumerate(row)) for row in dupekit.transform(batch, steps)["buckets"].to_pylist()]
    expected = []
    for original, copy in zip(originals, copies, strict=True):
        a, b = (set(dupekit.shingle_hashes(text, kind=kind)) for text in (original, copy))
        expected.append(dupekit.lsh_match_probability(len(a & b) / len(a | b), num_perms=286, num_bands=26))
    hits = sum(bool(buckets[n] & buckets[150 + n]) for n in range(150))
    deviation = math.sqrt(sum(p * (1 - p) for p in expected))
    assert abs(hits - sum(expected)) <= 4 * deviation + 1
    assert hits >= 120
    strangers = sum(bool(buckets[a] & buckets[b]) for a in range(150) for b in range(a))
    assert strangers == 0


def test_a_text_of_megabytes_is_signed_on_every_path(corpus) -> None:
    text = corpus.text(400_000)
    assert len(text) > 2_000_000
    whole = signatures([text], num_perms=4)
    with forced_simd("scalar"):
        assert signatures([text], num_perms=4) == whole
    # A part has no smaller minimum than the whole.
    part = signatures([text[: len(text) // 2].rsplit(" ", 1)[0]], num_perms=4)
    assert all(a <= b for a, b in zip(whole[0] or [], part[0] or [], strict=True))


@pytest.mark.parametrize("kind", list(MinHashKind))
def test_lsh_buckets_equal_their_formula(reference, corpus, kind: MinHashKind) -> None:
    batch = pa.record_batch({"text": [corpus.text(30), None, ""]})
    steps = [Transformation.MinHash("text", "s", 12, kind=kind), Transformation.MinHashLSH("s", "b", 4)]
    out = dupekit.transform(batch, steps)
    width = 8 if kind is MinHashKind.COMPAT else 4
    expected = [row and reference.buckets(row, 4, width) for row in out["s"].to_pylist()]
    assert out["b"].to_pylist() == expected
    assert out["b"].type == pa.list_(pa.uint64())
    assert out["s"].type == pa.list_(pa.uint64() if width == 8 else pa.uint32())


@pytest.mark.parametrize("kind", [pa.large_list(pa.uint64()), pa.list_(pa.uint64(), 4)], ids=str)
def test_lsh_reads_every_list_layout(kind: pa.DataType) -> None:
    rows = [[1, 2, 3, 4], None, [5, 6, 7, 8]]
    step = Transformation.MinHashLSH("s", "b", 2)
    plain = dupekit.transform(pa.record_batch({"s": pa.array(rows, pa.list_(pa.uint64()))}), [step])
    other = dupekit.transform(pa.record_batch({"s": pa.array(rows, kind)}), [step])
    assert other["b"].equals(plain["b"])
    sliced = dupekit.transform(pa.record_batch({"s": pa.array(rows, kind)})[1:], [step])
    assert sliced["b"].equals(plain["b"][1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_perms": 0}, "num_perms=0; expected 1 to 65536"),
        ({"num_perms": 65_537}, "num_perms=65537"),
        ({"ngram_size": 0}, "ngram_size=0; expected at least 1"),
        ({"ngram_kind": "line"}, "ngram_kind=line; expected char or word"),
        ({"kind": "fast64"}, "kind=fast64; expected compat or fast32"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "expected 0 to 2\\^64 - 1"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(dupekit.ParameterError, match=message):
        signatures(["a"], **options)


def test_a_parameter_that_is_no_integer_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"num_perms=1\.5; expected an integer"):
        signatures(["a"], num_perms=1.5)


@pytest.mark.parametrize("num_bands", [0, 5, 13])
def test_bands_that_do_not_divide_the_signature_are_refused(num_bands: int) -> None:
    batch = pa.record_batch({"s": pa.array([[1, 2, 3, 4]], pa.list_(pa.uint64()))})
    with pytest.raises(dupekit.ParameterError, match=f"num_bands={num_bands}"):
        dupekit.transform(batch, [Transformation.MinHashLSH("s", "b", num_bands)])


@pytest.mark.parametrize("column", [pa.array([[1.5]]), pa.array(["a"]), pa.array([[1]], pa.list_(pa.int64()))])
def test_lsh_of_something_else_than_signatures_is_refused(column: pa.Array) -> None:
    with pytest.raises(dupekit.ColumnTypeError, match="expected a list of uint64 or uint32"):
        dupekit.transform(pa.record_batch({"s": column}), [Transformation.MinHashLSH("s", "b", 1)])
