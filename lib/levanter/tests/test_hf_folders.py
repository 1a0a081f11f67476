"""Hugging Face folders that are wrong are refused, with what was found, what was expected and what to do."""

import json
import os
import pathlib
import runpy

import jax
import numpy as np
import pytest
from haliax import Axis
from levanter.compat import hf_weights
from levanter.compat.hf_checkpoints import (
    INDEX,
    HFCheckpointConverter,
    config_class_of,
    load_hf_checkpoint,
    read_hf_config,
    save_hf_checkpoint,
)
from levanter.errors import ConfigError, HfCheckpointError, HfTensorError
from levanter.inference.generate import generate
from levanter.layers.rotary import (
    DefaultRotaryConfig,
    DynamicRotaryConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    YarnRotaryConfig,
)
from levanter.models.gemma import Gemma3Config
from levanter.models.gpt2 import Gpt2Config
from levanter.models.hf_config import rope_from_hf, rope_to_hf
from levanter.models.llama import LlamaConfig
from levanter.models.mistral import MistralConfig
from levanter.models.qwen import Qwen3Config, QwenConfig
from levanter.tree_paths import tree_digest
from safetensors.numpy import load_file, save_file

RECIPE = runpy.run_path(str(pathlib.Path(__file__).parent / "golden" / "recipe.py"))


def write(folder: pathlib.Path, name: str, **changes) -> pathlib.Path:
    """A case's folder with changed fields in config.json; None removes a field."""
    config, tensors, _, _ = RECIPE["load_case"](name)
    merged = {key: value for key, value in {**config, **changes}.items() if value is not None}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(merged))
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_tokenizer(folder: pathlib.Path, size: int) -> None:
    vocab = {chr(33 + i): i for i in range(size)}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


@pytest.mark.parametrize(
    ("case", "changes", "shown"),
    [
        ("llama", {"model_type": "lama"}, r"'lama'; expected one of apertus.*llama.*Did you mean 'llama'"),
        ("llama", {"model_type": None}, "model_type is missing"),
        ("llama", {"hidden_size": None}, "hidden_size is missing, model_type='llama'"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "'longrope'; expected one of default, dynamic"),
        ("llama", {"mlp_bias": True}, "attention_bias=False, mlp_bias=True; expected equal"),
        ("gpt2", {"n_inner": 17}, "n_inner=17, n_embd=16"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("apertus", {"hidden_act": "silu"}, "'silu'; expected 'xielu'"),
    ],
)
def test_configs_that_cannot_be_read_say_which_field(case, changes, shown, tmp_path):
    with pytest.raises(HfCheckpointError, match=shown):
        read_hf_config(str(write(tmp_path / "x", case, **changes)))


@pytest.mark.parametrize(
    ("case", "changes", "name", "expected", "found"),
    [
        ("llama", {"intermediate_size": 25}, "mlp", "25", "24"),
        ("qwen3", {"head_dim": 8}, "self_attn", "8", "6"),
        ("gpt2", {"n_positions": 33}, "wpe", r"\(33, 16\)", r"\(32, 16\)"),
        ("olmo2", {"vocab_size": 33}, "embed_tokens|lm_head", r"\(33, 16\)", r"\(32, 16\)"),
    ],
)
def test_configs_that_contradict_the_tensors_show_both_shapes(case, changes, name, expected, found, tmp_path):
    with pytest.raises(HfTensorError, match=f"{expected}.*found.*{found}") as caught:
        load_hf_checkpoint(str(write(tmp_path / "x", case, **changes)))
    assert caught.value.problem == "shape" and any(part in caught.value.name for part in name.split("|"))


def test_a_layer_too_many_or_too_few_is_named(tmp_path):
    with pytest.raises(HfTensorError, match=r"layers\.2.*missing"):
        load_hf_checkpoint(str(write(tmp_path / "more", "mistral", num_hidden_layers=3)))
    with pytest.raises(HfTensorError, match=r"layers\.1.*unexpected"):
        load_hf_checkpoint(str(write(tmp_path / "less", "mistral", num_hidden_layers=1)))


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_refused(keep, tmp_path):
    folder = write(tmp_path / "x", "llama")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:keep])
    with pytest.raises(HfCheckpointError, match=r"whole safetensors file. Copy it again"):
        load_hf_checkpoint(str(folder))


def test_an_absent_shard_is_named(tmp_path):
    converter = HFCheckpointConverter.from_hf(str(write(tmp_path / "x", "llama")))
    converter.save_pretrained(converter.load_pretrained(), str(tmp_path / "y"), max_shard_size=4000)
    file = sorted(set(json.loads((tmp_path / "y" / INDEX).read_text())["weight_map"].values()))[1]
    (tmp_path / "y" / file).unlink()
    with pytest.raises(HfCheckpointError, match=file):
        load_hf_checkpoint(str(tmp_path / "y"))


def test_tensors_that_are_no_floats_or_of_two_kinds_are_refused(tmp_path):
    folder = write(tmp_path / "x", "llama")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].astype(np.int8)}, folder / "model.safetensors")
    with pytest.raises(HfTensorError, match="found I8; dequantise"):
        load_hf_checkpoint(str(folder))
    save_file({**tensors, name: tensors[name].astype(np.float16)}, folder / "model.safetensors")
    with pytest.raises(HfTensorError, match="pass dtype"):
        load_hf_checkpoint(str(folder))
    assert load_hf_checkpoint(str(folder), dtype="float32")[1].lm_head.weight.array.dtype == np.float32


def test_bfloat16_survives_bit_for_bit(tmp_path):
    folder = write(tmp_path / "x", "apertus")
    converter = HFCheckpointConverter.from_hf(str(folder))
    half = converter.load_pretrained(dtype="bfloat16")
    converter.save_pretrained(half, str(tmp_path / "half"))
    again = HFCheckpointConverter.from_hf(str(tmp_path / "half")).load_pretrained()
    assert again.lm_head.weight.array.dtype == "bfloat16" and tree_digest(again) == tree_digest(half)


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_tensors_read_piece_by_piece_are_the_same(family, tmp_path, monkeypatch):
    """Sixteen rows at a time, which cuts every matrix of the recipe; GPT-2 fuses three leaves by columns."""
    folder = str(write(tmp_path / "x", family))
    whole = tree_digest(load_hf_checkpoint(folder)[1])
    monkeypatch.setattr(hf_weights, "PIECE_BYTES", 1)
    assert tree_digest(load_hf_checkpoint(folder)[1]) == whole


def test_a_file_cut_after_its_header_was_checked_is_refused(tmp_path, monkeypatch):
    folder = write(tmp_path / "x", "qwen3")
    size = (folder / "model.safetensors").stat().st_size
    tensors = hf_weights._tensors

    def cut(path):
        found = list(tensors(path))
        os.truncate(folder / "model.safetensors", size - 10)
        return found

    monkeypatch.setattr(hf_weights, "_tensors", cut)
    with pytest.raises(HfCheckpointError, match=f"size={size - 10} bytes; expected 10 more"):
        load_hf_checkpoint(str(folder))


def test_constants_that_differ_are_refused(tmp_path):
    folder = write(tmp_path / "x", "apertus")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {**tensors, "model.layers.0.mlp.act_fn.beta": np.float32([0.7]).reshape(())}, folder / "model.safetensors"
    )
    with pytest.raises(HfTensorError, match=r"beta.*0\.5, found 0\.7"):
        load_hf_checkpoint(str(folder))


def test_a_tokenizer_with_more_ids_than_rows_is_refused_and_a_smaller_one_resizes(tmp_path):
    folder = write(tmp_path / "x", "llama")
    write_tokenizer(folder, 40)
    with pytest.raises(HfCheckpointError, match=r"largest id=39, vocab_size=32.*resize_vocab"):
        load_hf_checkpoint(str(folder))
    write_tokenizer(folder, 30)
    converter = HFCheckpointConverter.from_hf(str(folder))
    assert converter.load_pretrained().Vocab.size == 30
    whole = converter.load_pretrained(resize_vocab_to_match_tokenizer=False)
    assert whole.Vocab.size == 32
    write_tokenizer(folder, 40)
    with pytest.raises(HfCheckpointError, match="largest id=39, vocab_size=32"):
        save_hf_checkpoint(whole, whole.config, str(tmp_path / "y"), tokenizer=str(folder))
    assert not (tmp_path / "y").exists()


def test_a_config_of_another_family_is_refused(tmp_path):
    folder = write(tmp_path / "x", "llama")
    with pytest.raises(HfCheckpointError, match=r"'llama'; expected 'mistral' for MistralConfig"):
        load_hf_checkpoint(str(folder), config=MistralConfig())
    with pytest.raises(HfCheckpointError, match="reference_checkpoint=None"):
        _ = HFCheckpointConverter(LlamaConfig).default_config


def test_names_without_the_base_models_prefix_load_too(tmp_path):
    folder = write(tmp_path / "x", "gpt2")
    _, with_prefix = load_hf_checkpoint(str(folder))
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    save_file({**bare, "h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)}, folder / "model.safetensors")
    assert tree_digest(load_hf_checkpoint(str(folder))[1]) == tree_digest(with_prefix)


def test_overrides_reach_config_json_and_what_is_read(tmp_path):
    folder = write(tmp_path / "x", "llama")
    converter = HFCheckpointConverter.from_hf(str(folder)).with_config_overrides({"max_position_embeddings": 7})
    assert converter.default_config.max_seq_len == 7
    converter.save_pretrained(converter.load_pretrained(), str(tmp_path / "y"))
    assert json.loads((tmp_path / "y/config.json").read_text())["max_position_embeddings"] == 7
    assert converter.with_config_overrides({}, merge=False).default_config.max_seq_len == 64


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        (MistralConfig(use_bias=True), "use_bias=True"),
        (QwenConfig(head_dim=64), "head_dim=64"),
        (Gemma3Config(local_rope=LinearRotaryConfig(factor=2.0)), "local_rope"),
        (Gpt2Config(head_dim=32), "head_dim=32"),
    ],
)
def test_settings_that_config_json_cannot_hold_are_refused_on_export(config, shown):
    with pytest.raises(HfCheckpointError, match=shown):
        config.to_hf_config(32)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: MistralConfig(sliding_window=0), "0; expected at least 1"),
        (lambda: Gpt2Config(resid_pdrop=0.1), "0.1; expected 0"),
        (lambda: Gemma3Config(num_layers=3, layer_types=("full_attention",)).layer_settings(), "1 entries"),
        (lambda: Qwen3Config(num_layers=1, layer_types=("chunked",)).layer_settings(), "chunked"),
        (lambda: DefaultRotaryConfig(partial_rotary_factor=1.5), "1.5"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(make, shown):
    with pytest.raises(ConfigError, match=shown):
        make()


@pytest.mark.parametrize(
    "rope",
    [
        DefaultRotaryConfig(theta=5e5),
        LinearRotaryConfig(factor=2.0),
        Llama3RotaryConfig(factor=4.0),
        YarnRotaryConfig(factor=4.0, attention_factor=1.2, truncate=False),
        DynamicRotaryConfig(factor=2.0, max_position_embeddings=64),
        DefaultRotaryConfig(partial_rotary_factor=0.5),
    ],
)
def test_rotations_survive_config_json(rope):
    assert rope_from_hf({**rope_to_hf(rope), "max_position_embeddings": 64}) == rope


def test_every_model_type_is_found_by_name():
    names = "gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text olmo2 olmo3 apertus".split()
    assert [config_class_of(name).hf_model_type for name in names] == names


@pytest.mark.parametrize("case", ["gpt2_scaled", "gemma3", "olmo3", "mistral"])
def test_the_cache_generates_what_whole_passes_would(case, tmp_path):
    """Windows, two rotations, learned positions and score scales act on the cache as on the sequence."""
    _, model = load_hf_checkpoint(str(write(tmp_path / "x", case)))
    whole = RECIPE["make_ids"]()[0, :9].tolist()
    new = generate(model, whole, max_new_tokens=5, temperature=0)
    import haliax as hax

    ids = hax.named(np.asarray(whole + new[:-1], np.int32), Axis("position", len(whole) + 4))
    best = np.asarray(jax.jit(lambda m, x: m(x).array)(model, ids)).argmax(-1)
    assert best[len(whole) - 1 :].tolist() == new
