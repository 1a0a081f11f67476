"""Decontamination: planted leaks are found, other text is not, and drop sets hide no leak of one source."""

import json
import random
from collections import Counter
from glob import glob
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from marin.datakit.consolidate import consolidate
from marin.datakit.decontaminate.drop_sets import COUNT_SCHEMA, EVERYWHERE, build_drop_sets, choose_drops
from marin.datakit.decontaminate.eval_index import build_eval_index, contains, load_index
from marin.datakit.decontaminate.features import feature_hash, has_letter, paragraph_features
from marin.datakit.decontaminate.mark import NO_HASHES, decontaminate, overlap
from marin.datakit.dedup.fuzzy import mark_fuzzy_duplicates
from marin.datakit.documents import make_document
from marin.datakit.errors import DocumentFieldError, FeatureVersionError, MissingSuiteError, ShardMismatchError
from marin.datakit.normalize import normalize
from marin.datakit.recipe import (
    CleanConsolidateConfig,
    ConsolidateConfig,
    DecontaminateConfig,
    DropRule,
    DropSetsConfig,
    EvalFiles,
    EvalIndexConfig,
    EvalSuite,
    FeatureRule,
    FuzzyDedupConfig,
    NormalizeConfig,
    OverlapRule,
    SplitRule,
)
from marin.datakit.sources import Source, SourceKind
from marin.experiment.data import eval_index
from zephyr.errors import TaskFailedError

WORDS = [f"word{number}" for number in range(2_000)]
RULE = FeatureRule()


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setenv("ZEPHYR_MAX_WORKERS", "0")


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def normalised(folder, texts_by_source, num_shards=3):
    """Normalised documents of several sources, and their folder."""
    raw = folder / "raw" / "documents"
    raw.mkdir(parents=True)
    rows = [
        make_document(text, source=source, source_id=f"{source}-{number}")
        for source, texts in texts_by_source.items()
        for number, text in enumerate(texts)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (raw / "part-00000.jsonl.zst").write_bytes(zstandard.compress(lines))
    normalize(NormalizeConfig(str(folder / "norm"), str(folder / "raw"), num_shards=num_shards))
    return str(folder / "norm")


def files(path, **options):
    return EvalFiles(Source(SourceKind.PATH, str(path), licence="MIT"), **options)


def write_suite(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return files(path)


def index_config(tmp_path, *suites, required=None, **options):
    asked = tuple(item.suite for item in suites) if required is None else required
    return EvalIndexConfig(str(tmp_path / "index"), str(tmp_path / "scratch"), suites, asked, **options)


def exam(tmp_path, texts):
    """An index of one suite."""
    suite = write_suite(
        tmp_path / "exam.jsonl", [{"id": f"q{number}", "text": text} for number, text in enumerate(texts)]
    )
    return build_eval_index(index_config(tmp_path, EvalSuite("exam@1", files=suite)))


def mark(tmp_path, documents, *, out="marks", drops="", **options):
    return decontaminate(
        DecontaminateConfig(
            str(tmp_path / out), documents, str(tmp_path / "index"), ("exam@1",), drop_sets_path=drops, **options
        )
    )


def rows_of(folder):
    return [row for path in sorted(glob(f"{folder}/part-*.parquet")) for row in pq.read_table(path).to_pylist()]


def texts_by_id(documents):
    return {row["id"]: row["text"] for row in rows_of(f"{documents}/outputs/main")}


# ---- features --------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["a", "Ä", "7", "...", "x1", "¼"]), max_size=20), st.integers(3, 6))
def test_features_are_those_of_the_definition(tokens, length):
    grams = [tokens[i : i + length] for i in range(len(tokens) - length + 1)] or [tokens]
    with_letter = [gram for gram in grams if len(gram) >= 3 and any(c.isalpha() for token in gram for c in token)]
    expected = [int.from_bytes(blake2b(" ".join(gram).encode()).digest()[:8], "big") for gram in with_letter]
    found = paragraph_features("  ".join(tokens), FeatureRule(ngram_length=length))
    assert found == ([expected] if expected else [])


def test_paragraphs_do_not_share_ngrams_and_the_whole_record_counts_only_when_no_paragraph_does():
    long = [f"w{i}" for i in range(13)]
    found = paragraph_features(" ".join(long[:7]) + "\n\n" + " ".join(long[7:]), RULE)
    assert found == [[feature_hash(long[:7])], [feature_hash(long[7:])]]
    assert paragraph_features("\n\n".join(long), RULE) == [[feature_hash(long)]]
    assert paragraph_features("\n\n".join([*long, "a b c"]), RULE) == [[feature_hash(["a", "b", "c"])]]
    assert paragraph_features("two words", RULE) == [] == paragraph_features("", RULE)


def test_without_a_length_every_line_is_one_feature():
    found = paragraph_features("a b c d\ne f\n1 2 3\nx y z", FeatureRule(ngram_length=None))
    assert found == [[feature_hash(["a", "b", "c", "d"])], [feature_hash(["x", "y", "z"])]]


@given(st.text(max_size=4))
def test_a_letter_is_a_letter_of_any_script(text):
    assert has_letter(text) == any(c.isalpha() for c in text)


@given(st.sets(st.integers(0, 40)), st.lists(st.integers(0, 40)))
def test_membership_is_that_of_a_set(held, asked):
    found = contains(np.array(sorted(held), np.uint64), np.array(asked, np.uint64))
    assert found.tolist() == [value in held for value in asked]


@given(
    st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=8), max_size=5),
    st.sets(st.integers(0, 15)),
    st.sets(st.integers(0, 15)),
)
def test_the_overlap_is_that_of_the_worst_paragraph(paragraphs, held, dropped):
    shares, matched = [0.0], set()
    for part in paragraphs:
        kept = [value for value in part if value not in dropped]
        hits = [value for value in kept if value in held]
        matched.update(hits)
        shares.append(len(hits) / len(kept) if kept else 0.0)
    share, found = overlap(paragraphs, np.array(sorted(held), np.uint64), np.array(sorted(dropped), np.uint64))
    assert share == pytest.approx(max(shares)) and found.tolist() == sorted(matched)


# ---- property 12 -----------------------------------------------------------------------------------------------------


def test_every_planted_leak_is_found_and_nothing_else_is_marked(tmp_path):
    rng = random.Random(1)
    items = [words(rng, rng.randint(13, 40)) for _ in range(150)]
    index = exam(tmp_path, items)
    clean = ["\n\n".join(words(rng, rng.randint(3, 50)) for _ in range(4)) for _ in range(300)]
    as_paragraph = [f"{words(rng, 30)}\n\n{'  '.join(item.split())}\n\n{words(rng, 30)}" for item in items]
    buried = [f"{words(rng, rng.randint(1, 60))} {item} {words(rng, rng.randint(1, 60))}" for item in items]
    documents = normalised(tmp_path, {"web": clean + as_paragraph + buried})
    marks = mark(tmp_path, documents)
    by_id = texts_by_id(documents)
    rows = {by_id[row["id"]]: row for row in rows_of(tmp_path / "marks/outputs/main")}
    assert all(rows[text]["contaminated"] and rows[text]["max_overlap"] == 1.0 for text in as_paragraph)
    for text, item in zip(buried, items, strict=True):
        (own,) = paragraph_features(item, RULE)
        assert set(own) <= set(rows[text]["matched_hashes"])
        assert rows[text]["contaminated"] == (rows[text]["max_overlap"] >= 0.5)
    assert not set(clean) & set(rows)
    assert marks.num_documents == 600 and marks.num_touched == 300 == len(rows)
    assert marks.num_contaminated == sum(row["contaminated"] for row in rows.values()) >= 150
    assert index.suites == {"exam@1": index.num_features} and index.num_documents == 150
    flagged = rows_of(tmp_path / "marks/outputs/flagged_sample")
    assert len(flagged) == 24 and all(row["eval_ids"][0].startswith("exam@1/q") for row in flagged)
    assert all(rows[row["text"]]["contaminated"] for row in flagged)


def test_random_text_is_marked_less_than_once_in_ten_thousand():
    # Counted in documents with any hit, which is more than those over the threshold. No hit in 30,000 documents bounds
    # the rate below 1e-4 with 95 % confidence ((1 - 1e-4)**30_000 < 0.05).
    rng = random.Random(2)
    exam_features = {f for _ in range(300) for part in paragraph_features(random_text(rng), RULE) for f in part}
    index = np.array(sorted(exam_features), np.uint64)
    touched = sum(
        len(overlap(paragraph_features(random_text(rng), RULE), index, NO_HASHES)[1]) > 0 for _ in range(30_000)
    )
    assert touched == 0


def random_text(rng):
    return "\n\n".join(" ".join(rng.choices(WORDS, k=size)) for size in (rng.randint(3, 12), rng.randint(13, 30)))


def counts_table(rows):
    """Document frequencies as rows of source, feature, documents."""
    sources, hashes, documents = zip(*rows, strict=True)
    return pa.table([list(sources), list(hashes), list(documents), list(documents)], schema=COUNT_SCHEMA)


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 300), min_size=1),
    st.integers(1, 6),
    st.integers(1, 60),
    st.integers(1, 10),
)
def test_what_one_source_holds_nine_tenths_of_is_never_dropped(elsewhere, least, least_everywhere, factor):
    leaked = 9 * sum(elsewhere.values()) * factor + 1
    rule = DropRule(min_documents=least, min_share=0.0, global_min_documents=least_everywhere)
    counts = counts_table([("leaky", 7, leaked), *[(source, 7, n) for source, n in elsewhere.items()]])
    sizes = dict.fromkeys(["leaky", *elsewhere], leaked)
    drops, kept = choose_drops(counts, sizes, np.array([7], np.uint64), rule)
    assert drops.num_rows == 0 and kept == 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.booleans())
def test_drops_are_those_of_the_rule(frequencies, of_index):
    rule = DropRule(min_documents=5, min_share=0.1, global_min_documents=50)
    sources = [f"s{number}" for number in range(len(frequencies))]
    sizes = dict.fromkeys(sources, 100)
    index = np.array([9] if of_index else [], np.uint64)
    counts = counts_table([(source, 9, n) for source, n in zip(sources, frequencies, strict=True)])
    drops, _ = choose_drops(counts, sizes, index, rule)
    spread = sum(n >= 0.05 * sum(frequencies) for n in frequencies) >= 3
    here = {s for s, n in zip(sources, frequencies, strict=True) if n >= 10 and (spread or not of_index)}
    everywhere = {EVERYWHERE} if of_index and spread and sum(frequencies) >= 50 else set()
    assert set(drops.column("source").to_pylist()) == here | everywhere


def test_a_stock_phrase_of_all_sources_is_dropped_and_a_leak_of_one_source_is_found(tmp_path):
    rng = random.Random(3)
    phrase, leak = words(rng, 20), words(rng, 20)
    exam(tmp_path, [phrase, leak])
    corpus = {
        f"source{s}": [f"{words(rng, 30)}\n\n{phrase if n < 20 else words(rng, 15)}" for n in range(50)]
        for s in range(4)
    }
    corpus["source0"] += [f"{words(rng, 30)}\n\n{leak}" for _ in range(60)]
    for source in ("source1", "source2"):  # a stray copy elsewhere does not make it common language
        corpus[source].append(f"{words(rng, 30)}\n\n{leak}")
    documents = normalised(tmp_path, corpus)

    def found(name, rule):
        paths = str(tmp_path / name), str(tmp_path / f"{name}-scratch")
        drops = build_drop_sets(DropSetsConfig(*paths, (documents,), str(tmp_path / "index"), rule))
        mark(tmp_path, documents, out=f"{name}-marks", drops=paths[0])
        by_id = texts_by_id(documents)
        marked = rows_of(tmp_path / f"{name}-marks/outputs/main")
        texts = [by_id[row["id"]] for row in marked if row["contaminated"]]
        return drops, Counter("leak" if leak in text else "phrase" for text in texts)

    drops, kinds = found("drops", DropRule())
    assert kinds == {"leak": 62}
    assert (drops.num_dropped_everywhere, drops.num_kept_concentrated) == (8, 8)
    assert drops.num_documents == {"source0": 110, "source1": 51, "source2": 51, "source3": 50}
    # The guard is what finds it: when every single copy counts as a source, the leak is common language.
    assert found("unguarded", DropRule(min_source_share=0.0))[1] == {}


def test_a_sample_has_its_size_and_is_the_same_at_any_sharding(tmp_path):
    rng = random.Random(4)
    header = words(rng, 15)
    exam(tmp_path, [header])
    corpus = {source: [f"{header}\n\n{words(rng, 20)}" for _ in range(60)] for source in "abc"}
    tables = []
    for shards in (1, 4):
        documents = normalised(tmp_path / str(shards), corpus, num_shards=shards)
        out = str(tmp_path / f"drops{shards}")
        rule = DropRule(sample_documents=30, global_documents=20)
        config = DropSetsConfig(out, f"{out}-scratch", (documents,), str(tmp_path / "index"), rule)
        assert build_drop_sets(config).num_documents == dict.fromkeys("abc", 20)
        tables.append(rows_of(f"{out}/outputs/main"))
    assert tables[0] == tables[1]
    found = Counter((row["source"], row["documents"], row["sources"]) for row in tables[0])
    assert found == {(EVERYWHERE, 60, 3): 3, ("a", 30, 3): 3, ("b", 30, 3): 3, ("c", 30, 3): 3}


def test_one_worker_and_three_write_the_same_bytes(tmp_path, monkeypatch):
    rng = random.Random(5)
    items = [words(rng, 20) for _ in range(20)]
    corpus = {source: [f"{words(rng, 20)}\n\n{rng.choice(items)}" for _ in range(30)] for source in "abc"}
    documents = normalised(tmp_path, corpus, num_shards=4)
    written = []
    for workers in ("1", "3"):
        monkeypatch.setenv("ZEPHYR_MAX_WORKERS", workers)
        root = tmp_path / workers
        root.mkdir()
        exam(root, items)
        drops = str(root / "drops")
        build_drop_sets(DropSetsConfig(drops, str(root / "s"), (documents,), str(root / "index")))
        mark(root, documents, drops=drops)
        paths = sorted(path for path in root.rglob("outputs/**/*.parquet") if "scratch" not in path.parts)
        written.append({str(path.relative_to(root)): path.read_bytes() for path in paths})
    assert written[0] == written[1] and len(written[0]) == 1 + 1 + 4 + 4
    names = [Path(path).name for path in sorted(glob(f"{documents}/outputs/main/*"))]
    assert names == sorted(Path(path).name for path in written[0] if path.startswith("marks/outputs/main"))
    for path in glob(f"{tmp_path}/1/marks/outputs/main/*"):
        ids = pq.read_table(path).column("id").to_pylist()
        assert ids == sorted(set(ids))


# ---- the index -------------------------------------------------------------------------------------------------------


def test_suites_come_from_files_with_several_fields_and_from_steps(tmp_path):
    rng = random.Random(6)
    question, answer, other, third = (words(rng, 14) for _ in range(4))
    write_suite(tmp_path / "a.jsonl", [{"question": question, "answer": answer}, {"question": other}])
    pq.write_table(pa.table({"question": [third]}), tmp_path / "a.parquet")
    step = normalised(tmp_path, {"exam": [words(rng, 13)]}, num_shards=1)
    artifact = build_eval_index(
        index_config(
            tmp_path,
            EvalSuite("files@1", files=files(tmp_path / "a.*", text_keys=("question", "answer"))),
            EvalSuite("normal@1", documents_path=step),
            EvalSuite("raw@2", documents_path=str(tmp_path / "raw")),
        )
    )
    assert artifact.suites == {"files@1": 8, "normal@1": 1, "raw@2": 1}
    assert (artifact.num_features, artifact.num_documents) == (9, 5)
    rows = rows_of(tmp_path / "index/outputs/main")
    assert [(row["hash"], row["eval_id"]) for row in rows] == sorted({(row["hash"], row["eval_id"]) for row in rows})
    assert {row["eval_id"].partition("/")[0] for row in rows} == set(artifact.suites)
    assert len({row["eval_id"] for row in rows}) == 5
    assert len(load_index(str(tmp_path / "index"), 3).hashes) == 9


def test_required_suites_that_are_missing_or_empty_are_all_named(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    short = write_suite(tmp_path / "short.jsonl", [{"text": "1 2 3 4"}])
    good = write_suite(tmp_path / "good.jsonl", [{"text": "one two three"}])
    suites = [
        EvalSuite("good@1", files=good),
        EvalSuite("short@1", files=short),
        EvalSuite("empty@1", files=files(tmp_path / "empty.jsonl")),
        EvalSuite("nowhere@1", files=files(tmp_path / "nowhere*.jsonl")),
    ]
    with pytest.raises(MissingSuiteError, match=r"\['short@1', 'empty@1', 'nowhere@1'\], known=\['good@1'\]"):
        build_eval_index(index_config(tmp_path, *suites))
    artifact = build_eval_index(index_config(tmp_path, *suites, required=("good@1",)))
    assert artifact.missing == ("short@1", "empty@1", "nowhere@1")
    with pytest.raises(MissingSuiteError, match="nowhere@1"):
        build_eval_index(index_config(tmp_path, suites[3], required=()))
    with pytest.raises(MissingSuiteError, match=r"\['mmlu@1'\]"):
        eval_index("index", {"good@1": good}, required=["mmlu@1"])


def test_bad_recipes_are_refused_with_their_values(tmp_path):
    place = files(tmp_path / "x.jsonl")
    with pytest.raises(ValueError, match=r"suite='gsm8k'; expected name@version"):
        EvalSuite("gsm8k", files=place)
    with pytest.raises(ValueError, match="exactly one"):
        EvalSuite("gsm8k@1", files=place, documents_path="out")
    with pytest.raises(ValueError, match="every suite once"):
        index_config(tmp_path, EvalSuite("a@1", files=place), EvalSuite("a@1", documents_path="out"))
    with pytest.raises(MissingSuiteError, match="at least one"):
        index_config(tmp_path)
    with pytest.raises(ValueError, match="at least one suite"):
        DecontaminateConfig("out", "docs", "index", ())
    with pytest.raises(ValueError, match="share in"):
        OverlapRule(threshold=0.0)
    with pytest.raises(ValueError, match="flagged_per_shard=-1"):
        OverlapRule(flagged_per_shard=-1)
    with pytest.raises(ValueError, match="min_sources=1"):
        DropRule(min_sources=1)
    with pytest.raises(ValueError, match="bad features"):
        FeatureRule(ngram_length=2)


def test_a_record_without_any_text_field_is_named(tmp_path):
    suite = write_suite(tmp_path / "a.jsonl", [{"body": "x"}])
    with pytest.raises(TaskFailedError, match="field='text'") as caught:
        build_eval_index(index_config(tmp_path, EvalSuite("exam@1", files=suite)))
    assert isinstance(caught.value.__cause__, DocumentFieldError)


def test_marks_need_an_index_of_their_suites_and_their_features(tmp_path):
    exam(tmp_path, ["one two three"])
    documents = normalised(tmp_path, {"web": ["a text of five words"]}, num_shards=1)
    config = DecontaminateConfig(str(tmp_path / "m"), documents, str(tmp_path / "index"), ("exam@1", "mmlu@1"))
    with pytest.raises(MissingSuiteError, match=r"missing=\['mmlu@1'\], known=\['exam@1'\]"):
        decontaminate(config)
    with pytest.raises(FeatureVersionError, match="feature_version=3; expected 2"):
        mark(tmp_path, documents, feature_version=2)


# ---- consolidation ---------------------------------------------------------------------------------------------------


def clean_config(root, documents, marks):
    split = SplitRule(validation_percent=20, test_percent=20)
    return CleanConsolidateConfig(
        str(root / "final"), documents, str(root / "dups"), split=split, contamination_path=str(marks)
    )


def test_contaminated_documents_are_dropped_and_counted_apart(tmp_path):
    rng = random.Random(7)
    item = words(rng, 40)
    exam(tmp_path, [item])
    twin = words(rng, 200)
    leaks = [f"{words(rng, 60)}\n\n{item}" for _ in range(5)]
    documents = normalised(tmp_path, {"web": [words(rng, 80) for _ in range(40)] + leaks + [twin, twin + " more"]})
    mark_fuzzy_duplicates(FuzzyDedupConfig(str(tmp_path / "dups"), str(tmp_path / "s"), documents, num_shards=3))
    marks = mark(tmp_path, documents)
    config = clean_config(tmp_path, documents, tmp_path / "marks")
    final = consolidate(config)
    kept = [
        row["text"] for split in ("train", "validation", "test") for row in rows_of(f"{tmp_path}/final/outputs/{split}")
    ]
    assert (final.num_dropped_contaminated, final.num_dropped_duplicates) == (5, 1)
    assert final.dropped_contaminated_bytes == marks.contaminated_bytes == sum(map(len, leaks))
    assert len(kept) == sum(final.num_documents.values()) == 41 and not set(leaks) & set(kept)
    plain = consolidate(
        ConsolidateConfig(str(tmp_path / "plain"), documents, str(tmp_path / "dups"), split=config.split)
    )
    assert (sum(plain.num_documents.values()), plain.num_dropped_contaminated) == (46, 0)


def test_marks_of_other_documents_are_refused(tmp_path):
    rng = random.Random(8)
    item = words(rng, 20)
    exam(tmp_path, [item])
    here = normalised(tmp_path / "here", {"web": [words(rng, 40) for _ in range(40)]})
    mark_fuzzy_duplicates(FuzzyDedupConfig(str(tmp_path / "dups"), str(tmp_path / "s"), here, num_shards=3))
    for name, shards, error in (("two", 2, "attribute_shards=2, document_shards=3"), ("three", 3, "unknown ids")):
        there = normalised(
            tmp_path / name, {"web": [f"{words(rng, 20)}\n\n{item}" for _ in range(9)]}, num_shards=shards
        )
        mark(tmp_path, there, out=f"{name}-marks")
        with pytest.raises((ShardMismatchError, TaskFailedError), match=error):
            consolidate(clean_config(tmp_path, here, tmp_path / f"{name}-marks"))
