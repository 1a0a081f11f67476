"""From a token cache to a checkpoint, its export, a measurement and samples, in one process and as small as it gets."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from levanter.errors import DivergedError
from marin.evaluation.bits_per_byte import measure, within_budget
from marin.evaluation.results import BitsPerByteConfig
from marin.execution.failures import classify
from marin.inference.results import SampleConfig
from marin.inference.sample import sample
from marin.tokenization.cache import tokenize
from marin.tokenization.recipe import TokenizeConfig, TokenizerConfig
from marin.tokenization.tokenizer import train_tokenizer
from marin.training.curves import curve, last_value
from marin.training.export import export
from marin.training.lm import train_lm
from marin.training.recipe import AdamWRecipe, ExportConfig, LmRecipe, ModelShape, TrainLmConfig

SHAPE = ModelShape(hidden_dim=16, intermediate_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, seq_len=32)
RECIPE = LmRecipe(model=SHAPE, batch_size=4, num_steps=12, optimizer=AdamWRecipe(learning_rate=0.01))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Documents, tokeniser and token caches."""
    root = tmp_path_factory.mktemp("store")
    for split in ("train", "validation", "test"):
        folder = root / "docs" / "outputs" / split
        folder.mkdir(parents=True)
        texts = [f"{split} line {i}: the quick brown fox jumps over {i} lazy dogs\n" * 4 for i in range(40)]
        pq.write_table(pa.table({"text": texts}), folder / "part-00000-of-00001.parquet")
    (root / "tokenizer").mkdir()
    train_tokenizer(TokenizerConfig(str(root / "tokenizer"), str(root / "docs"), vocab_size=300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHYR_MAX_WORKERS", "0")
        tokenize(TokenizeConfig(str(root / "tokens"), str(root / "docs"), str(root / "tokenizer")))
    return root


def config(store, name, recipe=RECIPE):
    for folder in ("out", "scratch"):
        (store / name / folder).mkdir(parents=True)
    paths = [str(store / name / "out"), str(store / name / "scratch"), str(store / "tokens"), str(store / "tokenizer")]
    return TrainLmConfig(*paths, recipe=recipe)


@pytest.fixture(scope="module")
def trained(store):
    return train_lm(config(store, "good"))


@pytest.fixture(scope="module")
def exported(store, trained):
    export(ExportConfig(str(store / "export"), str(store / "good" / "out"), str(store / "tokenizer"), SHAPE))
    return store / "export" / "model"


def test_training_leaves_a_checkpoint_a_curve_and_the_digest_of_its_parameters(store, trained):
    folder = store / "good" / "out"
    assert trained.step == 12
    assert trained.num_tokens == 12 * 4 * 32
    assert (folder / "checkpoints" / "step-12" / "metadata.json").is_file()
    assert (folder / "parameters.sha256").read_text().strip() == trained.parameter_digest
    losses = curve(str(folder / "metrics.jsonl"), "train/loss")
    assert [step for step, _ in losses] == list(range(12))
    assert losses[-1][1] == trained.final_loss < losses[0][1]
    assert last_value(str(folder / "metrics.jsonl"), "eval/corpus/loss") == trained.validation_loss


def test_a_run_that_stood_complete_in_its_scratch_folder_gives_the_same_artifact(store, trained):
    again = config(store, "again", RECIPE)
    (store / "again" / "scratch").rmdir()
    (store / "again" / "scratch").symlink_to(store / "good" / "scratch")
    assert train_lm(again) == trained
    files = [(store / name / "out" / "metrics.jsonl").read_bytes() for name in ("good", "again")]
    assert files[0] == files[1]


def test_a_diverged_run_keeps_its_curve_and_names_its_category(store):
    hot = LmRecipe(model=SHAPE, batch_size=4, num_steps=30, optimizer=AdamWRecipe(learning_rate=100.0, warmup=0.0))
    with pytest.raises(DivergedError) as caught:
        train_lm(config(store, "hot", hot))
    assert classify(caught.value) == "diverged"
    assert curve(str(store / "hot" / "out" / "metrics.jsonl"), "train/loss")


def test_the_export_is_byte_equal_when_repeated(store, trained, exported):
    again = ExportConfig(str(store / "export2"), str(store / "good" / "out"), str(store / "tokenizer"), SHAPE)
    assert export(again).num_parameters > 0
    names = sorted(path.name for path in exported.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    assert all((exported / n).read_bytes() == (store / "export2" / "model" / n).read_bytes() for n in names)


def test_bits_per_byte_counts_the_bytes_of_the_test_split(store, exported):
    (store / "bpb").mkdir()
    result = measure(BitsPerByteConfig(str(store / "bpb"), str(exported), str(store / "docs"), seq_len=32))
    texts = pq.read_table(store / "docs" / "outputs" / "test").column("text").to_pylist()
    assert result.num_bytes == sum(len(text.encode()) for text in texts)
    assert 0 < result.bits_per_byte < 8
    assert json.loads((store / "bpb" / "results.json").read_text())["bits_per_byte"] == result.bits_per_byte


def test_a_byte_budget_leaves_out_what_does_not_fit():
    assert list(within_budget(iter(["aaa", "bb", "c"]), 4)) == ["aaa", "c"]
    assert list(within_budget(iter(["aaa"]), None)) == ["aaa"]


def test_equal_seeds_write_equal_samples(store, exported):
    texts = []
    for name in "ab":
        (store / f"samples-{name}").mkdir()
        folder = str(store / f"samples-{name}")
        sample(SampleConfig(folder, str(exported), prompts=("the quick", "line"), max_new_tokens=8, seed=3))
        texts.append(Path(folder, "samples.json").read_bytes())
    assert texts[0] == texts[1]
    assert [row["prompt"] for row in json.loads(texts[0])] == ["the quick", "line"]
