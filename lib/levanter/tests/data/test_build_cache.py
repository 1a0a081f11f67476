import os
import random
import subprocess
import sys

import numpy as np
import pytest
from levanter.data._shard_build import TokenizeSettings, build_shard, plan_shards
from levanter.data.errors import BadRecordError, SourceError
from levanter.data.text._batch_tokenizer import BatchTokenizer
from levanter.data.text.cache import build_cache_in_process, load_or_build_cache
from levanter.store.cache import TreeCache, verify_cache
from levanter.store.errors import CacheMetadataError, CacheNotFinishedError
from levanter.tokenizers import HfTokenizer, load_tokenizer, train_byte_bpe
from levanter.tokenizers.errors import MissingSpecialTokenError

TEXTS = [f"def function_{i}():\n    return '{'x' * (i % 50)}'  # <|endoftext|>\n" for i in range(2000)]


@pytest.fixture
def corpus(tmp_path, write_jsonl):
    paths = [write_jsonl(tmp_path / f"in-{k}.jsonl{'.gz' if k else ''}", TEXTS[k::3]) for k in range(3)]
    return paths


def decode(cache, tokenizer):
    rows = cache.get_batch_sync(range(len(cache)))
    return [tokenizer.decode(row["input_ids"].tolist()[:-1]) for row in rows], rows


def test_every_document_is_a_row_that_ends_with_eos_and_decodes_to_itself(tmp_path, corpus, tokenizer_dir):
    cache = build_cache_in_process(corpus, str(tmp_path / "c"), TokenizeSettings(tokenizer_dir))
    tokenizer = load_tokenizer(tokenizer_dir)
    texts, rows = decode(cache, tokenizer)
    assert texts == TEXTS[0::3] + TEXTS[1::3] + TEXTS[2::3]
    assert all(row["input_ids"][-1] == tokenizer.eos_token_id for row in rows)
    assert all(tokenizer.eos_token_id not in row["input_ids"][:-1] for row in rows)
    assert cache.ledger.metadata["tokenizer"] == tokenizer.fingerprint
    assert verify_cache(str(tmp_path / "c"), read_all=True) == cache.ledger


def test_first_id_is_bos_and_last_id_is_eos_for_every_document(tokenizer_dir):
    tokenizer = load_tokenizer(tokenizer_dir)
    batch = BatchTokenizer(tokenizer, enforce_bos=True)(["a", "", "b c"])["input_ids"]
    rows = np.split(batch.data, batch.ends[:-1])
    assert [row[0] for row in rows] == [tokenizer.bos_token_id] * 3
    assert [row[-1] for row in rows] == [tokenizer.eos_token_id] * 3
    assert [tokenizer.decode(row[1:-1]) for row in rows] == ["a", "", "b c"]


def test_marks_that_a_tokenizer_lacks_are_refused():
    bare = HfTokenizer(train_byte_bpe(["a a"] * 3, vocab_size=256, special_tokens=[]))
    with pytest.raises(MissingSpecialTokenError, match="no eos token"):
        BatchTokenizer(bare)
    with pytest.raises(MissingSpecialTokenError, match="no bos token"):
        BatchTokenizer(bare, enforce_eos=False, enforce_bos=True)


def test_two_builds_are_byte_equal_wherever_they_lie(tmp_path, corpus, tokenizer_dir, tree_digest):
    settings = TokenizeSettings(tokenizer_dir)
    build_cache_in_process(corpus, str(tmp_path / "one"), settings)
    build_cache_in_process(corpus, str(tmp_path / "elsewhere" / "two"), settings)
    assert tree_digest(tmp_path / "one") == tree_digest(tmp_path / "elsewhere/two")


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
def test_any_number_of_shards_holds_every_document_once(tmp_path, corpus, tokenizer_dir, num_shards):
    cache = build_cache_in_process(corpus, str(tmp_path / "c"), TokenizeSettings(tokenizer_dir), num_shards=num_shards)
    assert len(cache.ledger.finished_shards) == num_shards
    texts, _ = decode(cache, load_tokenizer(tokenizer_dir))
    assert sorted(texts) == sorted(TEXTS)


def test_finished_shards_are_kept_and_others_built_anew(tmp_path, corpus, tokenizer_dir, write_jsonl, tree_digest):
    settings = TokenizeSettings(tokenizer_dir)
    jobs = plan_shards(corpus, str(tmp_path / "c"), settings)
    assert [build_shard(job)["reused"] for job in jobs[:2]] == [False, False]
    build_cache_in_process(corpus, str(tmp_path / "whole"), settings)
    build_cache_in_process(corpus, str(tmp_path / "c"), settings)
    assert tree_digest(tmp_path / "c") == tree_digest(tmp_path / "whole")
    assert [build_shard(job)["reused"] for job in jobs] == [True, True, True]
    write_jsonl(tmp_path / "in-0.jsonl", ["changed"])
    assert [build_shard(job)["reused"] for job in jobs] == [False, True, True]
    (tmp_path / "c/part-00001-of-00003/input_ids/data/zarr.json").unlink()
    assert [build_shard(job)["reused"] for job in jobs] == [True, False, True]


def test_a_failing_build_withdraws_the_commit_and_leaves_finished_shards(tmp_path, corpus, tokenizer_dir):
    settings = TokenizeSettings(tokenizer_dir)
    build_cache_in_process(corpus, str(tmp_path / "c"), settings)
    with open(corpus[0], "a") as file:
        file.write("{broken\n")
    with pytest.raises(BadRecordError, match="line=668"):
        build_cache_in_process(corpus, str(tmp_path / "c"), settings)
    with pytest.raises(CacheNotFinishedError):
        TreeCache.load(str(tmp_path / "c"))
    skipping = TokenizeSettings(tokenizer_dir, on_bad_record="skip")
    cache = build_cache_in_process(corpus, str(tmp_path / "c"), skipping)
    assert (len(cache), cache.ledger.metadata["skipped_records"]) == (2000, 1)


def test_leftovers_of_killed_writers_and_other_divisions_are_cleared(tmp_path, corpus, tokenizer_dir):
    settings = TokenizeSettings(tokenizer_dir)
    build_cache_in_process(corpus, str(tmp_path / "c"), settings, num_shards=2)
    (tmp_path / "c/part-00000-of-00003.tmp.00ff").mkdir()
    build_cache_in_process(corpus, str(tmp_path / "c"), settings)
    assert sorted(os.listdir(tmp_path / "c")) == [f"part-{k:05d}-of-00003" for k in range(3)] + ["shard_ledger.json"]


def test_a_cache_is_opened_not_rebuilt_and_other_settings_are_an_error(tmp_path, corpus, tokenizer_dir):
    settings = TokenizeSettings(tokenizer_dir)
    with pytest.raises(CacheNotFinishedError):
        load_or_build_cache(corpus, str(tmp_path / "c"), settings, build=False)
    load_or_build_cache(corpus, str(tmp_path / "c"), settings)
    for path in corpus:
        os.remove(path)
    assert len(load_or_build_cache([], str(tmp_path / "c"), settings)) == 2000
    with pytest.raises(CacheMetadataError, match="append_bos: cache has False, expected True"):
        load_or_build_cache([], str(tmp_path / "c"), TokenizeSettings(tokenizer_dir, enforce_bos=True))


def test_an_empty_file_makes_an_empty_shard(tmp_path, tokenizer_dir, write_jsonl):
    paths = [write_jsonl(tmp_path / "a.jsonl", []), write_jsonl(tmp_path / "b.jsonl", ["x"])]
    cache = build_cache_in_process(paths, str(tmp_path / "c"), TokenizeSettings(tokenizer_dir))
    assert dict(cache.ledger.shard_rows) == {"part-00000-of-00002": 0, "part-00001-of-00002": 1}
    with pytest.raises(SourceError):
        build_cache_in_process([], str(tmp_path / "d"), TokenizeSettings(tokenizer_dir))


def test_ready_made_ids_pass_through(tmp_path, write_jsonl):
    path = write_jsonl(tmp_path / "a.jsonl", ["1 2 3", "9"])
    settings = TokenizeSettings("passthrough", passthrough_vocab_size=10)
    cache = build_cache_in_process([path], str(tmp_path / "c"), settings)
    assert [row["input_ids"].tolist() for row in cache.get_batch_sync([0, 1])] == [[1, 2, 3], [9]]


BUILDER = """
import sys
from levanter.data._shard_build import TokenizeSettings
from levanter.data.text.cache import load_or_build_cache
print("ready", flush=True)
print(len(load_or_build_cache(sys.argv[3:], sys.argv[1], TokenizeSettings(sys.argv[2]))), flush=True)
"""


def start_builder(cache_dir, tokenizer_dir, corpus):
    command = [sys.executable, "-c", BUILDER, str(cache_dir), tokenizer_dir, *corpus]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_processes_that_want_the_same_cache_build_it_once_together(tmp_path, corpus, tokenizer_dir, tree_digest):
    build_cache_in_process(corpus, str(tmp_path / "alone"), TokenizeSettings(tokenizer_dir))
    builders = [start_builder(tmp_path / "c", tokenizer_dir, corpus) for _ in range(2)]
    outputs = [builder.communicate(timeout=100)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert outputs == ["ready\n2000\n"] * 2
    assert tree_digest(tmp_path / "c") == tree_digest(tmp_path / "alone")


@pytest.mark.slow
def test_a_build_killed_anywhere_resumes_to_the_same_bytes(tmp_path, corpus, tokenizer_dir, tree_digest):
    build_cache_in_process(corpus, str(tmp_path / "whole"), TokenizeSettings(tokenizer_dir))
    expected = tree_digest(tmp_path / "whole")
    rng = random.Random(3)
    killed = 0
    for number in range(3):
        target = tmp_path / f"c{number}"
        builder = start_builder(target, tokenizer_dir, corpus)
        assert builder.stdout is not None and builder.stdout.readline() == "ready\n"
        with builder.stdout:
            try:
                builder.wait(rng.uniform(0, 0.4))
            except subprocess.TimeoutExpired:
                builder.kill()
            builder.wait()
        killed += builder.returncode != 0
        if builder.returncode != 0 and not (target / "shard_ledger.json").exists():
            with pytest.raises(CacheNotFinishedError):
                TreeCache.load(str(target))
        load_or_build_cache(corpus, str(target), TokenizeSettings(tokenizer_dir))
        assert tree_digest(target) == expected
    assert killed
