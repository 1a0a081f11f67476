import importlib.util

import pytest
from levanter.data._shard_build import TokenizeSettings
from levanter.data.text.cache import build_cache_in_process
from levanter.store.cache import TreeCache

if importlib.util.find_spec("zephyr") is None:
    pytest.skip("needs the extra 'cache' (zephyr)", allow_module_level=True)

from levanter.data.cache_builder import build_token_cache
from levanter.data.errors import BadRecordError, SourceError
from zephyr import ZephyrContext

TEXTS = [f"def function_{i}():\n    return {i}\n" for i in range(900)]


@pytest.fixture
def corpus(tmp_path, write_jsonl):
    return [write_jsonl(tmp_path / f"in-{k}.jsonl", TEXTS[k::3]) for k in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_leave_no_trace_in_the_bytes(tmp_path, corpus, tokenizer_dir, tree_digest, workers):
    context = ZephyrContext(max_workers=workers, chunk_storage_prefix=str(tmp_path / "scratch"))
    built = build_token_cache(corpus, str(tmp_path / "zephyr"), tokenizer=tokenizer_dir, num_shards=4, context=context)
    build_cache_in_process(corpus, str(tmp_path / "plain"), TokenizeSettings(tokenizer_dir), num_shards=4)
    assert tree_digest(tmp_path / "zephyr") == tree_digest(tmp_path / "plain")
    assert TreeCache.load(str(tmp_path / "zephyr")).ledger == built
    assert built.total_num_rows == 900


@pytest.mark.slow
def test_a_bad_record_in_a_worker_is_reported_with_file_and_line(tmp_path, corpus, tokenizer_dir):
    with open(corpus[1], "a") as file:
        file.write("{broken\n")
    context = ZephyrContext(max_workers=1, chunk_storage_prefix=str(tmp_path / "scratch"))
    with pytest.raises(Exception) as caught:
        build_token_cache(corpus, str(tmp_path / "c"), tokenizer=tokenizer_dir, context=context)
    chain, error = [], caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__
    [bad] = [error for error in chain if isinstance(error, BadRecordError)]
    assert (bad.path, bad.line_number) == (corpus[1], 301)
    built = build_token_cache(
        corpus, str(tmp_path / "c"), tokenizer=tokenizer_dir, on_bad_record="skip", context=context
    )
    assert built.metadata["skipped_records"] == 1


def test_missing_input_fails_before_any_worker_starts(tmp_path, tokenizer_dir):
    with pytest.raises(SourceError, match="nothing there"):
        build_token_cache([str(tmp_path / "no.jsonl")], str(tmp_path / "c"), tokenizer=tokenizer_dir)
