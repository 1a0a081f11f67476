"""LoRA: starts as the base, trains only adapters, merges, and survives peft's format."""

import dataclasses
import json

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import Axis
from levanter.compat.hf_checkpoints import load_hf_checkpoint
from levanter.compat.peft import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from levanter.errors import ConfigError, HfCheckpointError, HfTensorError
from levanter.lora import (
    LoraConfig,
    is_lora_model,
    load_peft_pretrained,
    lora_state_dict,
    lora_trainable_params_filter,
    loraize,
    merge_lora_modules,
    save_merged_hf_model,
    save_peft_pretrained,
    unwrap_lora_modules,
)
from levanter.models.gpt2 import Gpt2Config
from levanter.models.loss import next_token_loss
from levanter.step import StepSpec, build_train_step
from levanter.trainer_state import TrainerState, trainable
from levanter.tree_paths import named_leaves, tree_digest
from safetensors.numpy import load_file, save_file

CONFIG = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], r=4, alpha=8)


@pytest.fixture(scope="module")
def adapted(tiny_model):
    """Adapters whose factors are both non-zero, as after training."""
    model = loraize(tiny_model, CONFIG, key=jax.random.PRNGKey(1))
    noise = np.random.default_rng(0)

    def shake(leaf, train):
        return leaf + 0.1 * noise.standard_normal(leaf.shape).astype(np.float32) if train else leaf

    return jax.tree.map(shake, model, lora_trainable_params_filter(model))


def logits(model, batch):
    return np.asarray(jax.jit(lambda m, b: m(b).array)(model, batch))


def test_an_adapted_model_starts_as_its_base_and_unwraps_to_it(tiny_model, token_batch):
    model = loraize(tiny_model, LoraConfig(), key=jax.random.PRNGKey(0))
    np.testing.assert_array_equal(logits(model, token_batch), logits(tiny_model, token_batch))
    names = [name for name, leaf in named_leaves(trainable(model))]
    assert len(names) == 14 and all(name.endswith(("lora_a", "lora_b")) for name in names)
    assert tree_digest(unwrap_lora_modules(model)) == tree_digest(tiny_model)
    assert not is_lora_model(tiny_model)


def test_merged_weights_give_the_outputs_of_the_adapters(adapted, tiny_model, token_batch):
    merged = merge_lora_modules(adapted)
    assert jax.tree.structure(merged) == jax.tree.structure(tiny_model)
    assert abs(logits(adapted, token_batch) - logits(tiny_model, token_batch)).max() > 1e-2
    np.testing.assert_allclose(logits(merged, token_batch), logits(adapted, token_batch), atol=1e-5)


def test_a_step_moves_the_adapters_and_nothing_else(tiny_model, examples):
    model = loraize(tiny_model, CONFIG, key=jax.random.PRNGKey(0))
    state = TrainerState.init(optax.adam(1e-2), model, key=jax.random.PRNGKey(0))
    batch = jax.tree.map(
        lambda *leaves: hax.stack(Axis("batch", 8), leaves) if isinstance(leaves[0], hax.NamedArray) else leaves[0],
        *examples[:8],
        is_leaf=lambda x: isinstance(x, hax.NamedArray),
    )
    step = build_train_step(StepSpec(lambda m, b, key=None: next_token_loss(m, b)))
    losses = []
    for _ in range(12):
        state, outputs = step(jax.tree.map(jnp.copy, state), batch)
        losses.append(float(outputs["train/loss"]))
    assert losses[-1] < losses[0] - 0.05
    assert tree_digest(unwrap_lora_modules(state.model)) == tree_digest(tiny_model)
    assert sum(x.size for x in jax.tree.leaves(state.opt_state)) < 0.5 * sum(x.size for x in jax.tree.leaves(model))


def test_peft_files_have_torch_names_and_load_back(adapted, tiny_model, tmp_path):
    save_peft_pretrained(adapted, CONFIG, str(tmp_path / "a"), base_model_name_or_path="base")
    tensors = load_file(tmp_path / "a" / ADAPTER_WEIGHTS)
    assert tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"].shape == (4, 32)
    assert tensors["base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"].shape == (32, 4)
    assert len(tensors) == 2 * 3 * 2
    document = json.loads((tmp_path / "a" / ADAPTER_CONFIG).read_text())
    assert document["target_modules"] == ["mlp.down_proj", "self_attn.q_proj", "self_attn.v_proj"]
    assert (document["r"], document["lora_alpha"]) == (4, 8)
    config, loaded = load_peft_pretrained(tiny_model, str(tmp_path / "a"))
    assert config.scale == CONFIG.scale
    assert tree_digest(loaded) == tree_digest(adapted)


def test_fused_layers_become_one_adapter_of_the_summed_rank(tmp_path):
    shape = Gpt2Config(hidden_dim=16, num_layers=2, num_heads=2, max_seq_len=16)
    base = shape.build(Axis("vocab", 20), key=jax.random.PRNGKey(0))
    config = LoraConfig(target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], r=2, alpha=6)
    model = loraize(base, config, key=jax.random.PRNGKey(1))
    model = jax.tree.map(lambda x, on: x + 0.1 if on else x, model, lora_trainable_params_filter(model))
    tensors = lora_state_dict(model)
    name = "base_model.model.transformer.h.0.attn.c_attn"
    a, b = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
    assert a.shape == (6, 16) and b.shape == (48, 6)
    q = model.transformer.layers.stacked.self_attn.q_proj
    np.testing.assert_allclose((b @ a)[:16] * 3.0, q.delta().array[0].reshape(16, 16).T, atol=1e-6)
    save_peft_pretrained(model, config, str(tmp_path / "a"))
    document = json.loads((tmp_path / "a" / ADAPTER_CONFIG).read_text())
    assert document["rank_pattern"] == {"attn.c_attn": 6} and document["alpha_pattern"] == {"attn.c_attn": 18}
    assert tree_digest(load_peft_pretrained(base, str(tmp_path / "a"))[1]) == tree_digest(model)
    partly = loraize(base, LoraConfig(target_modules=["q_proj"]), key=jax.random.PRNGKey(0))
    with pytest.raises(HfCheckpointError, match="k_proj"):
        lora_state_dict(partly)


def test_a_merged_folder_is_an_ordinary_model(adapted, token_batch, tmp_path):
    save_merged_hf_model(adapted, str(tmp_path / "m"))
    _, loaded = load_hf_checkpoint(str(tmp_path / "m"))
    np.testing.assert_allclose(logits(loaded, token_batch), logits(adapted, token_batch), atol=1e-5)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ({"r": 0}, "0"),
        ({"dropout": 0.1}, "0.1"),
        ({"zero_init_b": True}, "exactly one zero factor"),
        ({"a_init_mode": "random"}, "exactly one zero factor"),
        ({"a_init_mode": "ones"}, "'ones'"),
    ],
)
def test_settings_that_cannot_train_are_refused(bad, shown):
    with pytest.raises(ConfigError, match=shown):
        dataclasses.replace(LoraConfig(), **bad)


def test_targets_that_are_not_there_are_named_with_those_that_are(tiny_model):
    with pytest.raises(ConfigError, match=r"c_attn.*self_attn\.q_proj"):
        loraize(tiny_model, LoraConfig(target_modules=["c_attn"]), key=jax.random.PRNGKey(0))
    picked = loraize(tiny_model, LoraConfig(target_modules=r".*mlp\..*"), key=jax.random.PRNGKey(0))
    assert len(named_leaves(trainable(picked))) == 6
    head = loraize(tiny_model, LoraConfig(exclude_modules=["q_proj"]), key=jax.random.PRNGKey(0))
    assert "lm_head.lora_a" in [name for name, _ in named_leaves(trainable(head))]
    with pytest.raises(ConfigError, match="loraize"):
        lora_trainable_params_filter(tiny_model)


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        ("missing", lambda t: t.pop("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")),
        ("unexpected", lambda t: t.update({"base_model.model.surprise": np.zeros(1, np.float32)})),
        (
            "shape",
            lambda t: t.update(
                {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((3, 32), np.float32)}
            ),
        ),
    ],
)
def test_adapters_that_do_not_fit_are_named(problem, change, adapted, tiny_model, tmp_path):
    save_peft_pretrained(adapted, CONFIG, str(tmp_path / "a"))
    tensors = load_file(tmp_path / "a" / ADAPTER_WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / "a" / ADAPTER_WEIGHTS)
    with pytest.raises(HfTensorError) as caught:
        load_peft_pretrained(tiny_model, str(tmp_path / "a"))
    assert caught.value.problem == problem
    document = json.loads((tmp_path / "a" / ADAPTER_CONFIG).read_text())
    (tmp_path / "a" / ADAPTER_CONFIG).write_text(json.dumps({**document, "use_dora": True}))
    with pytest.raises(HfCheckpointError, match="use_dora=True"):
        load_peft_pretrained(tiny_model, str(tmp_path / "a"))
