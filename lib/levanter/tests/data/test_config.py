import json

import haliax as hax
import jax
import numpy as np
import pytest
import yaml
from levanter.config import decode, encode
from levanter.data.dataset import BlockShuffleConfig, ListAsyncDataset
from levanter.data.errors import DataConfigError
from levanter.data.loader import DataLoader
from levanter.data.text.config import (
    DirectDatasetComponent,
    LmDataConfig,
    TextLmDatasetFormat,
    UrlDatasetSourceConfig,
    count_corpus_sizes,
)
from levanter.data.text.examples import LmExample
from levanter.errors import ConfigError
from levanter.store.errors import CacheMetadataError, CacheNotFinishedError
from levanter.tokenizers import load_tokenizer
from levanter.tokenizers.errors import TokenizerNotFoundError

Pos = hax.Axis("position", 16)
KEY = jax.random.PRNGKey(0)


@pytest.fixture
def files(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "code-0.jsonl.gz", [f"def function_{i}(argument): return {i}" for i in range(400)])
    write_jsonl(tmp_path / "code-1.jsonl", [f"class Thing{i}: pass" for i in range(200)])
    write_jsonl(tmp_path / "val.jsonl", [f"def held_out_{i}(): return {i}" for i in range(50)])
    for i in range(3):
        (tmp_path / f"book{i}.txt").write_text("once upon a time " * 200)
    return tmp_path


def section(files, tokenizer_dir, text=""):
    raw = yaml.safe_load(f"""
tokenizer: {tokenizer_dir}
cache_dir: {files}/cache
mixture_block_size: 20
components:
  code:
    source: {{type: url, train_urls: ["{files}/code-*.jsonl*"], validation_urls: ["{files}/val.jsonl"]}}
    tags: [programming]
  books:
    source: {{type: url, train_urls: ["{files}/book*.txt"]}}
train_weights: {{code: 0.75, books: 0.25}}
""")
    return {**raw, **(yaml.safe_load(text) or {})}


def config(files, tokenizer_dir, text=""):
    return decode(LmDataConfig, section(files, tokenizer_dir, text))


def test_a_yaml_section_becomes_a_training_stream(files, tokenizer_dir):
    data = config(files, tokenizer_dir)
    stream = data.train_set(Pos, 8, key=KEY)
    batch = next(iter(DataLoader(stream, 8)))
    assert isinstance(batch, LmExample)
    assert batch.tokens.axes == (hax.Axis("batch", 8), Pos)
    components, _ = stream.locate(range(200))
    assert np.bincount(components).tolist() == [150, 50]
    tokenizer = load_tokenizer(tokenizer_dir)
    text = "".join(tokenizer.decode(row) for row in np.asarray(batch.tokens.array))
    assert "function_" in text or "Thing" in text or "once" in text


def test_the_stream_is_the_same_every_time_and_follows_the_key(files, tokenizer_dir):
    def tokens(key, **kwargs):
        stream = config(files, tokenizer_dir, **kwargs).train_set(Pos, 8, key=key)
        return np.stack([e.tokens.array for e in stream.as_sync_dataset().get_batch(range(60))])

    first = tokens(KEY)
    np.testing.assert_array_equal(first, tokens(KEY))
    assert (first != tokens(jax.random.PRNGKey(1))).any()
    assert (first != tokens(KEY, text="shuffle: false")).any()
    assert (first != tokens(KEY, text="shuffle: true")).any()


def test_configs_survive_encoding(files, tokenizer_dir):
    data = config(files, tokenizer_dir, "shuffle: {io_block_size: 4, window_blocks: 2}")
    assert data.shuffle == BlockShuffleConfig(4, 2)
    assert isinstance(data.components["code"].source, UrlDatasetSourceConfig)
    assert data.components["code"].format == TextLmDatasetFormat()
    again = decode(LmDataConfig, json.loads(json.dumps(encode(data))))
    assert again == data


def test_validation_files_held_out_sequences_and_tags(files, tokenizer_dir):
    data = config(files, tokenizer_dir, "num_validation_sequences: {books: 5}")
    sets = data.validation_sets(Pos)
    assert list(sets) == ["code", "books"]
    assert len(sets["books"].as_sync_dataset()) == 5
    held_out = {e.tokens.array.tobytes() for e in sets["books"].as_sync_dataset().get_batch(range(5))}
    assert held_out
    assert [tags for _, tags in data.tagged_eval_sets(Pos)] == [["programming", "code"], ["books"]]
    kept = data.train_sets(Pos, key=KEY)["books"].as_sync_dataset()
    whole = config(files, tokenizer_dir).train_sets(Pos, key=KEY)["books"].as_sync_dataset()
    assert len(kept) == len(whole) - 5
    assert list(config(files, tokenizer_dir).validation_sets(Pos)) == ["code"]


def test_a_component_of_weight_zero_is_for_evaluation_only(files, tokenizer_dir):
    data = config(files, tokenizer_dir, "train_weights: {code: 0, books: 1}")
    assert list(data.train_sets(Pos, key=KEY)) == ["books"]
    assert list(data.validation_sets(Pos)) == ["code"]


def test_stages_are_given_in_training_steps(files, tokenizer_dir):
    data = config(files, tokenizer_dir, "train_weights: [[0, {code: 1.0}], [5, {books: 1.0}]]")
    components, _ = data.train_set(Pos, 8, key=KEY).locate(range(80))
    assert components.tolist() == [0] * 40 + [1] * 40


def test_caches_are_built_once_and_settings_are_checked(files, tokenizer_dir):
    with pytest.raises(CacheNotFinishedError):
        config(files, tokenizer_dir, "auto_build_caches: false").train_set(Pos, 8, key=KEY)
    config(files, tokenizer_dir).build_caches("train")
    (files / "code-1.jsonl").unlink()
    config(files, tokenizer_dir, "auto_build_caches: false").train_set(Pos, 8, key=KEY)
    with pytest.raises(CacheMetadataError, match="append_bos"):
        config(files, tokenizer_dir, "enforce_bos: true").train_set(Pos, 8, key=KEY)


def test_budgets_and_batch_limits_shorten_components(files, tokenizer_dir):
    whole = len(config(files, tokenizer_dir).train_sets(Pos, key=KEY)["books"].as_sync_dataset())
    half = config(files, tokenizer_dir, "{target_budget: 1000, experiment_budget: 500}")
    assert len(half.train_sets(Pos, key=KEY)["books"].as_sync_dataset()) == whole // 2
    few = config(files, tokenizer_dir, "max_train_batches: {books: 3}")
    assert len(few.train_sets(Pos, initial_batch_size=4, key=KEY)["books"].as_sync_dataset()) == 12
    with pytest.raises(DataConfigError, match="exceed"):
        config(files, tokenizer_dir, "max_train_batches: {books: 100000}").train_sets(Pos, key=KEY)


def test_packed_components_keep_documents_whole(files, tokenizer_dir):
    text = "components: {books: {source: {train_urls: ['%s/code-1.jsonl']}, pack: 2}}\ntrain_weights: {books: 1}"
    data = config(files, tokenizer_dir, text % files)
    Long = hax.Axis("position", 64)
    example = data.train_sets(Long, key=KEY)["books"].as_sync_dataset()[0]
    assert len(set(example.attn_mask.segment_ids[0].array.tolist())) == 3
    eos = load_tokenizer(tokenizer_dir).eos_token_id
    assert (example.tokens.array == eos).sum() >= 2


def test_datasets_made_by_code_take_part(tokenizer_dir):
    examples = [LmExample.causal(hax.named(np.full(16, i, np.int32), (Pos,))) for i in range(30)]
    component = DirectDatasetComponent(datasets={"train": ListAsyncDataset(examples)}, tags=["made"])
    data = LmDataConfig(tokenizer=tokenizer_dir, components={"made": component}, mixture_block_size=4)
    values = [int(e.tokens.array[0]) for e in data.train_set(Pos, 2, key=KEY).as_sync_dataset().get_batch(range(28))]
    assert len(set(values)) == 28
    assert data.validation_sets(Pos) == {}


def test_ready_made_ids_need_a_vocabulary_size(tmp_path, write_jsonl):
    write_jsonl(tmp_path / "ids.jsonl", [" ".join(str(i % 50) for i in range(400))])
    raw = {
        "tokenizer": "passthrough",
        "cache_dir": f"{tmp_path}/cache",
        "mixture_block_size": 4,
        "components": {"ids": {"source": {"train_urls": [f"{tmp_path}/ids.jsonl"]}}},
    }
    data = decode(LmDataConfig, {**raw, "vocab_size": 50})
    example = data.train_set(Pos, 2, key=KEY).as_sync_dataset()[0]
    assert example.tokens.array.max() < 50
    with pytest.raises(DataConfigError, match="vocab_size"):
        _ = decode(LmDataConfig, raw).the_tokenizer


def test_corpus_sizes_are_counted(files, tokenizer_dir):
    stats = count_corpus_sizes(config(files, tokenizer_dir), seq_len=16)
    assert stats["data/stats/train/code/total_docs"] == 600
    assert stats["data/stats/train/books/total_docs"] == 3
    assert stats["data/stats/train/books/total_seqs"] == stats["data/stats/train/books/total_tokens"] // 16


@pytest.mark.parametrize(
    "text, message",
    [
        ("train_weights: {cod: 1}", "unknown components"),
        ("num_validation_sequences: {x: 1}", "unknown components"),
        ("max_train_batches: {x: 1}", "unknown components"),
        ("target_budget: 5", "only one of the two budgets"),
        ("{target_budget: 5, experiment_budget: 6}", "0 < experiment <= target"),
        ("{target_budget: 5, experiment_budget: 5, max_train_batches: {code: 1}}", "combined"),
        ("on_bad_record: ignore", "'raise' or 'skip'"),
    ],
)
def test_sections_that_contradict_themselves_are_refused(files, tokenizer_dir, text, message):
    with pytest.raises((DataConfigError, ConfigError), match=message):
        config(files, tokenizer_dir, text)


def test_missing_files_and_unknown_keys_are_named(files, tokenizer_dir):
    with pytest.raises(ConfigError, match="components"):
        config(files, tokenizer_dir, "component: {}")
    without = config(files, tokenizer_dir, "{components: {a: {}}, train_weights: {a: 1}}")
    with pytest.raises(DataConfigError, match=r"components\.a.*no train files"):
        without.train_set(Pos, 8, key=KEY)
    with pytest.raises(TokenizerNotFoundError, match="gpt2"):
        config(files, "gpt2").train_set(Pos, 8, key=KEY)
