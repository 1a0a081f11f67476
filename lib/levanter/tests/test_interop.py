"""Beside the real torch, transformers and peft: logits, gradients, exports, adapters (``scripts/test --interop``).

The default suite compares with golden files instead (``test_golden_models.py``); this file proves that those are what
transformers says now, and that transformers and peft read what we write.
"""

import json
import os
import pathlib
import re
import runpy

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from levanter.compat.hf_checkpoints import HFCheckpointConverter, load_hf_checkpoint, save_hf_checkpoint
from levanter.inference.generate import generate
from levanter.layers.attention_mask import AttentionMask
from levanter.lora import LoraConfig, lora_trainable_params_filter, loraize, save_merged_hf_model, save_peft_pretrained
from levanter.models.llama import LlamaConfig
from levanter.tokenizers import load_tokenizer, save_tokenizer, train_byte_bpe

torch = pytest.importorskip("torch", reason="needs torch: scripts/test --interop")
transformers = pytest.importorskip("transformers", reason="needs transformers: scripts/test --interop")
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

RECIPE = runpy.run_path(str(pathlib.Path(__file__).parent / "golden" / "recipe.py"))
CASES = sorted(RECIPE["CASES"])
IDS = RECIPE["make_ids"]()


def torch_logits(model, ids=IDS) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids).long()).logits.float().numpy()


def ours(model, ids=IDS) -> np.ndarray:
    named = hax.named(ids, (Axis("batch", ids.shape[0]), Axis("position", ids.shape[1])))
    return np.asarray(jax.jit(lambda m, x: m(x, AttentionMask.causal()).array)(model, named))


def read_back(path) -> torch.nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    return model.eval()


@pytest.mark.parametrize("name", CASES)
def test_saved_by_transformers_loaded_here_exported_and_read_by_transformers(name, tmp_path):
    theirs = RECIPE["build_torch"](name)
    theirs.save_pretrained(tmp_path / "in")
    expected = torch_logits(theirs)
    converter = HFCheckpointConverter.from_hf(str(tmp_path / "in"))
    model = converter.load_pretrained()
    np.testing.assert_allclose(ours(model), expected, atol=3e-5)
    converter.save_pretrained(model, str(tmp_path / "out"), max_shard_size=6000)
    np.testing.assert_allclose(torch_logits(read_back(tmp_path / "out")), expected, atol=1e-6)
    config, _, _, golden = RECIPE["load_case"](name)
    np.testing.assert_allclose(golden, expected, atol=2e-5, err_msg=f"golden file of {config['model_type']} is stale")


def torch_gradient(by_name: dict[str, np.ndarray], name: str) -> np.ndarray:
    """A gradient by its name in files; transformers 5 fuses experts in memory and parts them when it saves."""
    name = name.replace("block_sparse_moe", "mlp")
    found = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)\.weight", name)
    if found is None:
        return by_name[name]
    experts, number, part = found[1], int(found[2]), found[3]
    if part in ("down_proj", "w2"):
        return by_name[f"{experts}.down_proj"][number]
    halves = np.split(by_name[f"{experts}.gate_up_proj"][number], 2)
    return halves[0 if part in ("gate_proj", "w1") else 1]


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_torch(name, tmp_path):
    theirs = RECIPE["build_torch"](name)
    theirs.save_pretrained(tmp_path / "in")
    pull = np.random.default_rng(1).standard_normal((*IDS.shape, RECIPE["VOCAB"])).astype(np.float32)
    theirs.zero_grad()
    (theirs(torch.from_numpy(IDS).long()).logits * torch.from_numpy(pull)).sum().backward()
    _, model = load_hf_checkpoint(str(tmp_path / "in"))
    named = hax.named(IDS, (Axis("batch", IDS.shape[0]), Axis("position", IDS.shape[1])))
    gradient = jax.jit(jax.grad(lambda m: jnp.sum(m(named).array * pull)))(model)
    by_name = {key: value.grad.numpy() for key, value in theirs.named_parameters()}
    for slot in model.config.state_dict_map():
        if slot.constant is None:
            expected = torch_gradient(by_name, slot.name)
            scale = max(1.0, float(abs(expected).max()))
            np.testing.assert_allclose(slot.export(gradient), expected, atol=2e-5 * scale, err_msg=slot.name)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "olmo3"])
def test_greedy_generation_picks_the_tokens_that_transformers_picks(name, tmp_path):
    theirs = RECIPE["build_torch"](name)
    theirs.save_pretrained(tmp_path / "in")
    _, model = load_hf_checkpoint(str(tmp_path / "in"))
    prompt = IDS[0, :6].tolist()
    with torch.no_grad():
        produced = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert generate(model, prompt, max_new_tokens=12, temperature=0) == produced[0, 6:].tolist()


def test_the_main_jobs_kind_of_export_opens_with_auto_classes(tmp_path):
    """As the main job exports: our tokenizer, our Llama, special ids; opened without telling transformers anything."""
    texts = ["the quick brown fox jumps over the lazy dog " * 4, "pack my box with five dozen liquor jugs " * 4]
    tokenizer = train_byte_bpe(texts, vocab_size=300)
    save_tokenizer(tokenizer, str(tmp_path / "tok"))
    size = load_tokenizer(str(tmp_path / "tok")).vocab_size
    config = LlamaConfig(
        max_seq_len=64, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=2,
        init_scheme="normal", initializer_range=0.2, tie_word_embeddings=True,
    )  # fmt: skip
    model = config.build(Axis("vocab", size), key=jax.random.PRNGKey(0))
    save_hf_checkpoint(model, config, str(tmp_path / "model"), tokenizer=str(tmp_path / "tok"))
    theirs = read_back(tmp_path / "model")
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = load_tokenizer(str(tmp_path / "model")).encode(texts[0][:60])
    assert their_tokenizer(texts[0][:60], add_special_tokens=False)["input_ids"] == list(ids)
    batch = np.asarray([list(ids)], np.int32)
    np.testing.assert_allclose(ours(model, batch), torch_logits(theirs, batch), atol=3e-5)
    assert theirs.config.model_type == "llama" and theirs.config.vocab_size == size


@pytest.mark.skipif("MARIN_EXPORTED_MODEL" not in os.environ, reason="MARIN_EXPORTED_MODEL names no exported folder")
def test_a_given_export_has_equal_logits_on_both_sides():
    folder = os.environ["MARIN_EXPORTED_MODEL"]
    _, model = load_hf_checkpoint(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = np.asarray([tokenizer("Once upon a time there was a small town by the sea.")["input_ids"]], np.int32)
    theirs = torch_logits(read_back(folder), ids)
    np.testing.assert_allclose(ours(model, ids), theirs, atol=1e-4 * max(1.0, float(abs(theirs).max())))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_adapters_open_with_peft_and_merge_to_the_same_model(name, tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft: scripts/test --interop")
    theirs = RECIPE["build_torch"](name)
    theirs.save_pretrained(tmp_path / "base")
    _, base = load_hf_checkpoint(str(tmp_path / "base"))
    config = LoraConfig(r=3, alpha=6)
    model = loraize(base, config, key=jax.random.PRNGKey(1))
    noise = np.random.default_rng(2)
    shake = lambda x, on: x + 0.1 * noise.standard_normal(x.shape).astype(np.float32) if on else x  # noqa: E731
    model = jax.tree.map(shake, model, lora_trainable_params_filter(model))
    save_peft_pretrained(model, config, str(tmp_path / "adapter"), base_model_name_or_path=str(tmp_path / "base"))
    adapted = peft.PeftModel.from_pretrained(read_back(tmp_path / "base"), tmp_path / "adapter").eval()
    expected = ours(model)
    assert abs(expected - torch_logits(theirs)).max() > 0.05
    np.testing.assert_allclose(torch_logits(adapted), expected, atol=5e-5)
    save_merged_hf_model(model, str(tmp_path / "merged"))
    np.testing.assert_allclose(torch_logits(read_back(tmp_path / "merged")), expected, atol=5e-5)


def test_adapters_of_peft_load_here(tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft: scripts/test --interop")
    from levanter.lora import load_peft_pretrained

    theirs = RECIPE["build_torch"]("llama")
    theirs.save_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM", init_lora_weights=False
    )
    adapted = peft.get_peft_model(theirs, settings).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    _, base = load_hf_checkpoint(str(tmp_path / "base"))
    config, model = load_peft_pretrained(base, str(tmp_path / "adapter"))
    assert (config.r, config.alpha) == (4, 8)
    np.testing.assert_allclose(ours(model), torch_logits(adapted), atol=5e-5)


def test_configs_of_transformers_before_five_mean_the_same(tmp_path):
    """``rope_theta`` and ``rope_scaling`` at the top level, as every checkpoint on the hub has them."""
    theirs = RECIPE["build_torch"]("llama_biased_llama3")
    theirs.save_pretrained(tmp_path / "in")
    raw = json.loads((tmp_path / "in" / "config.json").read_text())
    rope = raw.pop("rope_parameters")
    raw |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "torch_dtype": raw.pop("dtype")}
    (tmp_path / "in" / "config.json").write_text(json.dumps(raw))
    np.testing.assert_allclose(ours(load_hf_checkpoint(str(tmp_path / "in"))[1]), torch_logits(theirs), atol=3e-5)
