"""Llama: parameter counts, masks, Hugging Face folders, generation, bits per byte."""

import dataclasses
import json
import math

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from levanter.compat.hf_checkpoints import INDEX, load_hf_checkpoint, save_hf_checkpoint, tensor_map
from levanter.errors import ConfigError, EvaluationError, HfCheckpointError, HfTensorError, ModelShapeError
from levanter.eval import bits_per_byte, cut_windows
from levanter.flops import lm_flops_per_token
from levanter.inference.generate import generate
from levanter.layers.attention_mask import AttentionMask
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel
from levanter.tree_paths import named_leaves, tree_digest
from safetensors.numpy import load_file, save_file

VARIANTS = {
    "tied": {"tie_word_embeddings": True, "init_scheme": "normal"},
    "everything": {"use_bias": True, "qk_norm": True, "hybrid_norm": True, "input_embedding_norm": True},
}


def build(config: LlamaConfig, vocab: int = 50) -> LlamaLMHeadModel:
    return LlamaLMHeadModel.init(Axis("vocab", vocab), config, key=jax.random.PRNGKey(0))


@pytest.mark.parametrize("name", [*VARIANTS, "plain"])
def test_counted_parameters_equal_the_formula_and_survive_export(name, tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, **VARIANTS.get(name, {}))
    model = build(config)
    assert sum(x.size for x in jax.tree.leaves(model)) == config.total_trainable_params(50)
    save_hf_checkpoint(model, config, str(tmp_path / "hf"))
    loaded_config, loaded = load_hf_checkpoint(str(tmp_path / "hf"))
    assert loaded_config == dataclasses.replace(config, init_scheme="fan_in")
    assert tree_digest(loaded) == tree_digest(model)


def test_a_token_sees_no_later_token_and_no_other_segment(tiny_model, token_batch):
    changed = hax.named(token_batch.array.at[:, 10:].set(1), token_batch.axes)
    a, b = tiny_model(token_batch).array, tiny_model(changed).array
    np.testing.assert_array_equal(a[:, :10], b[:, :10])
    segments = hax.named(jnp.asarray([[0] * 8 + [1] * 8] * 3), token_batch.axes)
    mask = AttentionMask.causal().with_segment_ids(segments)
    changed = hax.named(token_batch.array.at[:, :8].set(1), token_batch.axes)
    a, b = tiny_model(token_batch, mask).array, tiny_model(changed, mask).array
    np.testing.assert_allclose(a[:, 8:], b[:, 8:], atol=1e-6)


@pytest.mark.parametrize("policy", [False, "full", "save_all"])
def test_every_remat_policy_gives_the_same_gradients(policy, tiny_config, tiny_model, token_batch):
    def gradients(model):
        return jax.jit(jax.grad(lambda m: jnp.sum(jnp.square(m.activations(token_batch).array))))(model)

    other = build(dataclasses.replace(tiny_config, gradient_checkpointing=policy, scan_layers=policy != "save_all"))
    for a, b in zip(jax.tree.leaves(gradients(tiny_model)), jax.tree.leaves(gradients(other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_embedding_and_head_start_from_different_keys(tiny_model):
    table = np.asarray(tiny_model.embeddings.token_embeddings.weight.array)
    head = np.asarray(tiny_model.lm_head.weight.array).T
    assert abs(np.corrcoef(table.ravel(), head.ravel())[0, 1]) < 0.1


def test_resizing_the_vocabulary_keeps_the_old_rows(tiny_model):
    bigger = tiny_model.resize_vocab(60, key=jax.random.PRNGKey(1))
    assert bigger.Vocab.size == 60
    old = tiny_model.embeddings.token_embeddings.weight.array
    np.testing.assert_array_equal(bigger.embeddings.token_embeddings.weight.array[:50], old)
    np.testing.assert_array_equal(bigger.lm_head.weight.array[:, :50], tiny_model.lm_head.weight.array)


@pytest.mark.parametrize(
    "bad", [{"num_kv_heads": 3}, {"hidden_dim": 33}, {"head_dim": 5}, {"activation_function": "x"}]
)
def test_shapes_that_cannot_be_are_refused(bad, tiny_config):
    with pytest.raises(ConfigError):
        dataclasses.replace(tiny_config, **bad).block_spec()


def test_ids_without_a_position_axis_are_refused(tiny_model):
    with pytest.raises(ModelShapeError):
        tiny_model(hax.named(jnp.zeros((4,), jnp.int32), Axis("other", 4)))


def test_flops_agree_with_twice_the_parameters_for_a_7b():
    flops = LlamaConfig().flops_per_token(32_000, 2048)
    assert 1.05 < flops / (2 * LlamaConfig().total_trainable_params(32_000)) < 1.2
    shape = {
        "hidden_dim": 8,
        "intermediate_dim": 8,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "vocab_size": 5,
    }
    full = lm_flops_per_token(**shape, head_dim=4, context_length=100)
    assert lm_flops_per_token(**shape, head_dim=4, context_length=100, convention="causal") < full
    with pytest.raises(ConfigError):
        lm_flops_per_token(**shape, head_dim=4, context_length=1, convention="half")


def test_exports_are_equal_bytes_and_use_torch_names(tiny_model, tiny_config, tmp_path):
    for name in ("a", "b"):
        save_hf_checkpoint(tiny_model, tiny_config, str(tmp_path / name))
    for file in sorted(p.name for p in (tmp_path / "a").iterdir()):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    tensors = load_file(tmp_path / "a/model.safetensors")
    assert tensors["model.layers.1.self_attn.k_proj.weight"].shape == (16, 32)
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (32, 64)
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["num_key_value_heads"] == 2


def test_sharded_exports_have_an_index_and_load_back(tiny_model, tiny_config, tmp_path):
    save_hf_checkpoint(tiny_model, tiny_config, str(tmp_path / "hf"), max_shard_bytes=20_000)
    index = json.loads((tmp_path / "hf" / INDEX).read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert tree_digest(load_hf_checkpoint(str(tmp_path / "hf"))[1]) == tree_digest(tiny_model)


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        ("missing", lambda t: t.pop("model.norm.weight")),
        ("unexpected", lambda t: t.update({"model.surprise": np.zeros(2, np.float32)})),
        ("shape", lambda t: t.update({"model.norm.weight": np.zeros(7, np.float32)})),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(problem, change, tiny_model, tiny_config, tmp_path):
    save_hf_checkpoint(tiny_model, tiny_config, str(tmp_path / "hf"))
    tensors = load_file(tmp_path / "hf/model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "hf/model.safetensors")
    with pytest.raises(HfTensorError) as caught:
        load_hf_checkpoint(str(tmp_path / "hf"))
    assert caught.value.problem == problem and caught.value.name.startswith("model.")


def test_folders_that_are_no_llama_are_refused(tiny_model, tiny_config, tmp_path):
    with pytest.raises(HfCheckpointError):
        load_hf_checkpoint(str(tmp_path))
    save_hf_checkpoint(tiny_model, tiny_config, str(tmp_path / "hf"))
    config = json.loads((tmp_path / "hf/config.json").read_text())
    (tmp_path / "hf/config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(HfCheckpointError, match="gpt2"):
        load_hf_checkpoint(str(tmp_path / "hf"))
    with pytest.raises(HfCheckpointError, match="tokenizer"):
        save_hf_checkpoint(tiny_model, tiny_config, str(tmp_path / "x"), tokenizer=str(tmp_path))
    assert not (tmp_path / "x").exists()


def test_the_key_map_covers_every_parameter_once(tiny_model, tiny_config):
    slots = tensor_map(tiny_config)
    assert len({slot.name for slot in slots}) == len(slots)
    exported = sum(slot.export(tiny_model).size for slot in slots)
    assert exported == sum(leaf.array.size for _, leaf in named_leaves(tiny_model))


def test_greedy_generation_equals_repeated_full_passes(tiny_model):
    prompt = [1, 2, 3, 4]
    whole = list(prompt)
    forward = jax.jit(lambda ids: tiny_model(hax.named(ids, Axis("position", 16))).array)
    for _ in range(6):
        padded = np.zeros(16, np.int32)
        padded[: len(whole)] = whole
        whole.append(int(jnp.argmax(forward(padded)[len(whole) - 1])))
    assert generate(tiny_model, prompt, max_new_tokens=6, temperature=0) == whole[4:]


def test_sampling_is_a_function_of_its_key_and_obeys_top_k(tiny_model):
    def draw(seed, k):
        return generate(tiny_model, [1], max_new_tokens=8, temperature=1.5, top_k=k, key=jax.random.PRNGKey(seed))

    assert draw(0, 5) == draw(0, 5)
    assert draw(0, None) != draw(1, None)
    assert draw(3, 1) == generate(tiny_model, [1], max_new_tokens=8, temperature=0)


def test_generation_stops_after_a_stop_id(tiny_model):
    free = generate(tiny_model, [1, 2], max_new_tokens=6, temperature=0)
    assert (
        generate(tiny_model, [1, 2], max_new_tokens=6, temperature=0, stop_ids=[free[2]])
        == free[: free.index(free[2]) + 1]
    )


@pytest.mark.parametrize(
    ("prompt", "changes"), [([], {}), ([50], {}), ([1], {"max_new_tokens": 500}), ([1], {"temperature": 1.0})]
)
def test_requests_that_cannot_be_met_are_refused(prompt, changes, tiny_model):
    with pytest.raises(EvaluationError):
        generate(tiny_model, prompt, **{"max_new_tokens": 2, "temperature": 0, **changes})


class Bytes:
    """Ids are bytes modulo 50."""

    bos_token_id = 0

    def encode(self, text, **kwargs):
        return [b % 50 for b in text.encode()]


def test_bits_per_byte_of_a_uniform_model_is_the_log_of_its_vocabulary(tiny_config):
    model = jax.tree.map(jnp.zeros_like, build(tiny_config))
    result = bits_per_byte(model, ["hello world, how are you", "", "é"], Bytes(), seq_len=8, batch_size=2)
    assert result.bpb == pytest.approx(math.log2(50), rel=1e-5)
    assert (result.documents, result.bytes, result.tokens) == (2, 26, 26)


@pytest.mark.parametrize(("seq_len", "stride"), [(8, 0), (8, 3), (16, 4)])
def test_windows_count_every_token_once(seq_len, stride):
    ids = list(range(1, 41))
    seen = [int(i) for w in cut_windows(ids, seq_len, stride, 0) for i in w.ids[w.first :]]
    assert seen == ids


def test_nothing_to_measure_and_foreign_ids_are_errors(tiny_model):
    with pytest.raises(EvaluationError, match="documents=0"):
        bits_per_byte(tiny_model, [""], Bytes(), seq_len=8, batch_size=2)

    class Foreign(Bytes):
        def encode(self, text, **kwargs):
            return [99]

    with pytest.raises(EvaluationError, match="99"):
        bits_per_byte(tiny_model, ["a"], Foreign(), seq_len=8, batch_size=2)
