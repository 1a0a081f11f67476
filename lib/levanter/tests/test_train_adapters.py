"""``train_lm`` with adapters: a Hugging Face folder in, a peft folder and a merged folder out."""

import dataclasses
import json
import pathlib
import runpy
import shutil

import haliax as hax
import numpy as np
import pytest
from haliax import Axis
from levanter._trainer.base import BaseModel, load_state, saved_part
from levanter.callbacks.watch import WatchConfig
from levanter.checkpoint import CheckpointerConfig, KeepEvery, read_manifest, read_metadata, save_checkpoint
from levanter.compat.hf_checkpoints import load_hf_checkpoint, read_hf_config
from levanter.config import load_config
from levanter.data.dataset import ListAsyncDataset
from levanter.data.text.config import DirectDatasetComponent, LmDataConfig
from levanter.data.text.examples import LmExample
from levanter.errors import CheckpointMismatchError, ConfigError
from levanter.lora import LoraConfig, load_peft_pretrained, merge_lora_modules, unwrap_lora_modules
from levanter.main.train_lm import TrainLmConfig, train
from levanter.optim.config import AdamConfig
from levanter.trainer_config import TrainerConfig
from levanter.tree_paths import named_leaves, tree_digest
from safetensors.numpy import save_file

RECIPE = runpy.run_path(str(pathlib.Path(__file__).parent / "golden" / "recipe.py"))
SMALL = runpy.run_path(str(pathlib.Path(__file__).parent / "adapter_worker.py"))
LENGTH = 16


def rows(count: int) -> ListAsyncDataset:
    starts = np.random.default_rng(0).integers(0, RECIPE["VOCAB"], (count, 1))
    ids = ((np.arange(LENGTH)[None] * 3 + starts) % RECIPE["VOCAB"]).astype(np.int32)
    return ListAsyncDataset([LmExample.causal(hax.named(row, Axis("position", LENGTH))) for row in ids])


@pytest.mark.slow
def test_adapters_train_from_a_folder_leave_two_and_resume_on_the_same_base_only(tmp_path):
    config, tensors, _, _ = RECIPE["load_case"]("qwen3")
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "base/model.safetensors")
    lora = LoraConfig(target_modules=["q_proj", "down_proj"], r=2, alpha=4)
    run = TrainLmConfig(
        data=LmDataConfig(
            tokenizer="passthrough",
            vocab_size=RECIPE["VOCAB"],
            components={"toy": DirectDatasetComponent(datasets={"train": rows(64)})},
        ),
        optimizer=AdamConfig(learning_rate=1e-2, warmup=0),
        trainer=TrainerConfig(
            train_batch_size=8,
            num_train_steps=10,
            log_dir=str(tmp_path / "logs"),
            watch=WatchConfig(interval=0),
            id="run",
            checkpointer=CheckpointerConfig(base_path=str(tmp_path / "checkpoints"), keep=[KeepEvery(5)]),
        ),
        train_seq_len=LENGTH,
        initialize_from_hf=str(tmp_path / "base"),
        use_hf_model_config=True,
        lora=lora,
        peft_save_path=str(tmp_path / "peft"),
        merged_hf_save_path=str(tmp_path / "merged"),
    )
    done = train(run, progress=False)
    assert done.step == 10
    _, base = load_hf_checkpoint(str(tmp_path / "base"))
    read, adapted = load_peft_pretrained(base, str(tmp_path / "peft/step-10"))
    assert (read.r, read.alpha) == (2, 4)
    assert tree_digest(unwrap_lora_modules(adapted)) == tree_digest(base)
    factors = [leaf.array for name, leaf in named_leaves(adapted) if name.endswith("lora_a")]
    assert len(factors) == 2 and all(abs(np.asarray(a)).max() > 0 for a in factors)
    _, merged = load_hf_checkpoint(str(tmp_path / "merged/step-10"))
    for (name, ours), (_, theirs) in zip(named_leaves(merge_lora_modules(adapted)), named_leaves(merged), strict=True):
        np.testing.assert_allclose(ours.array, theirs.array, atol=1e-6, err_msg=name)

    last, half = tmp_path / "checkpoints/run/step-10", tmp_path / "checkpoints/run/step-5"
    leaves = read_manifest(str(half))
    held = {name.rpartition("/")[2] for name in leaves if name.startswith("model/")}
    assert held == {"lora_a", "lora_b"} and any(name.startswith("opt_state/") for name in leaves)
    record = read_metadata(str(half)).extra["base"]
    assert record["source"] == str(tmp_path / "base") and len(record["sha256"]) == 64

    shutil.rmtree(last)
    again = train(run, progress=False)
    assert again.step == 10 and again.parameter_digest == done.parameter_digest

    shutil.rmtree(last)
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name] + 1}, tmp_path / "base/model.safetensors")
    with pytest.raises(CheckpointMismatchError, match=rf"found=adapters of sha256={record['sha256']}.*base") as caught:
        train(run, progress=False)
    assert caught.value.expected.startswith("sha256=") and record["sha256"] not in caught.value.expected
    other = dataclasses.replace(run.trainer, id="other", load_checkpoint=False)
    with pytest.raises(CheckpointMismatchError, match="base"):
        changes = {"initialize_from_hf": None, "use_hf_model_config": False}
        shape = read_hf_config(str(tmp_path / "base"))
        full = {**changes, "model": shape, "initialize_from_checkpoint_path": str(half.parent), "trainer": other}
        train(dataclasses.replace(run, merged_hf_save_path=None, peft_save_path=None, **full), progress=False)


def test_a_checkpoint_that_holds_the_base_restores_with_it_whatever_base_the_run_has(tmp_path):
    """The form of older runs: the whole model, and no record of a base."""
    adapted, make_trainer, begin = (SMALL[name] for name in ("adapted", "make_trainer", "begin"))
    with make_trainer(str(tmp_path)) as trainer:
        state = dataclasses.replace(begin(trainer, None), model=adapted(last=7.0))
        save_checkpoint(state, 1, str(tmp_path / "checkpoints/run/step-1"))
        restored = begin(trainer, BaseModel(adapted, "elsewhere"))
        assert tree_digest(restored.model) == tree_digest(state.model) != tree_digest(adapted())
        into = dataclasses.replace(state, model=adapted())
        assert tree_digest(load_state(into, str(tmp_path / "checkpoints/run/step-1"))) == tree_digest(state)


def test_a_record_without_digest_is_taken_with_a_warning(tmp_path, caplog):
    adapted, make_trainer, begin = (SMALL[name] for name in ("adapted", "make_trainer", "begin"))
    with make_trainer(str(tmp_path)) as trainer:
        state = begin(trainer, None)
        record = {"source": "there", "sha256": ""}
        save_checkpoint(saved_part(state), 1, str(tmp_path / "checkpoints/run/step-1"), extra={"base": record})
        restored = begin(trainer, BaseModel(lambda: adapted(last=7.0), "here"))
    assert tree_digest(restored.model) == tree_digest(adapted(last=7.0))
    assert "does not say which base its adapters belong to; taking the one from here" in caplog.text


def test_adapters_are_written_in_yaml_and_contradictions_are_refused(tmp_path):
    (tmp_path / "c.yaml").write_text("lora: {target_modules: [q_proj], r: 4}\nmodel: {type: gemma3, num_layers: 6}\n")
    config = load_config(TrainLmConfig, [str(tmp_path / "c.yaml")])
    assert config.lora == LoraConfig(target_modules=["q_proj"], r=4)
    assert [x.window for x in config.model.layer_settings()][-2:] == [4096, None]
    with pytest.raises(ConfigError, match="merged_hf_save_path"):
        TrainLmConfig(lora=LoraConfig(), hf_save_path="/x")
    with pytest.raises(ConfigError, match="needs lora"):
        TrainLmConfig(peft_save_path="/x")
