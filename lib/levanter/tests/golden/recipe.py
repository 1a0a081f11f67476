"""Tiny models of every architecture: their configs, their weights by a NumPy recipe, and who makes the golden files.

``scripts/test --interop`` installs torch and transformers and runs what needs them. There ``python recipe.py`` builds
each model in transformers, fills it by the recipe, and writes ``models/<case>.json`` (config.json as transformers
writes it, tensor shapes, versions) and ``models/<case>.npz`` (ids, logits); ``--only CASE...`` makes some. The default
tests need neither package: they make the same weights from names and shapes, and compare logits.

The weights are no small perturbations of an initialisation: norm weights spread around their neutral value by 0.3, as
do biases and scalars, and matrices are scaled so that attention is far from uniform.
"""

import json
import pathlib
import sys
import tempfile
import zlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "models"
BATCH, LENGTH, VOCAB = 2, 20, 32
DENSE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
FUSED_IN_MEMORY = ("mixtral", "qwen3_moe")
CASES: dict[str, tuple[str, dict]] = {
    "gpt2": ("gpt2", {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}),
    "gpt2_scaled": (
        "gpt2",
        {
            "vocab_size": VOCAB,
            "n_embd": 16,
            "n_layer": 3,
            "n_head": 2,
            "n_inner": 32,
            "n_positions": 32,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "llama": ("llama", {**DENSE, "head_dim": 8}),
    "llama_biased_llama3": (
        "llama",
        {
            **DENSE,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16},
        },
    ),
    "llama_yarn": ("llama", {**DENSE, "rope_parameters": YARN}),
    "llama_linear": ("llama", {**DENSE, "rope_parameters": {**PLAIN, "rope_type": "linear", "factor": 4.0}}),
    "llama_dynamic": (
        "llama",
        {
            **DENSE,
            "max_position_embeddings": 8,
            "rope_parameters": {**PLAIN, "rope_type": "dynamic", "factor": 2.0},
        },
    ),
    "mistral": ("mistral", {**DENSE, "sliding_window": 5}),
    "qwen2": ("qwen2", {**DENSE, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {**DENSE, "head_dim": 6, "tie_word_embeddings": True}),
    "gemma": ("gemma", {**DENSE, "head_dim": 8, "num_key_value_heads": 1}),
    "gemma2": (
        "gemma2",
        {
            **DENSE,
            "head_dim": 8,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "query_pre_attn_scalar": 6,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            **DENSE,
            "head_dim": 8,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": PLAIN,
            },
        },
    ),
    "olmo2": ("olmo2", DENSE),
    "olmo3": (
        "olmo3",
        {
            **DENSE,
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN},
        },
    ),
    "mixtral": ("mixtral", {**DENSE, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **DENSE,
            "head_dim": 6,
            "moe_intermediate_size": 12,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe_unnormalised": (
        "qwen3_moe",
        {
            **DENSE,
            "head_dim": 8,
            "moe_intermediate_size": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
        },
    ),
    "apertus": (
        "apertus",
        {**DENSE, "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}},
    ),
}


def make_ids() -> np.ndarray:
    """Token ids ``[batch, position]``."""
    return np.random.default_rng(7).integers(0, VOCAB, (BATCH, LENGTH)).astype(np.int32)


def make_tensor(name: str, shape: list[int], model_type: str) -> np.ndarray:
    """The weights of one tensor, float32; a function of its name and shape alone."""
    x = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    if name.endswith("act_fn.beta"):
        return np.full(shape, 0.5, np.float32)
    if name.endswith("act_fn.eps"):
        return np.full(shape, -1e-6, np.float32)
    if "norm" in name or ".ln_" in name:
        neutral = 0.0 if name.endswith("bias") or model_type.startswith("gemma") else 1.0
        return (neutral + 0.3 * x).astype(np.float32)
    if len(shape) < 2:
        return (0.3 * x).astype(np.float32)
    if "embed" in name or "wte" in name or "wpe" in name:
        return x / np.float32(shape[1] ** 0.5) if model_type.startswith("gemma") else x
    return (1.5 * x / np.sqrt(min(shape))).astype(np.float32)


def load_case(name: str) -> tuple[dict, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Config, tensors by name, ids and the logits that transformers gives."""
    document = json.loads((FOLDER / f"{name}.json").read_text())
    kind = document["config"]["model_type"]
    tensors = {key: make_tensor(key, shape, kind) for key, shape in document["tensors"].items()}
    stored = np.load(FOLDER / f"{name}.npz")
    return document["config"], tensors, stored["ids"], stored["logits"]


def build_torch(name: str):
    """The transformers model of a case, in float32 with the plain attention, filled by the recipe."""
    import torch
    import transformers

    model_type, fields = CASES[name]
    config = transformers.AutoConfig.for_model(model_type, **fields)
    config.dtype = torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    if model_type in FUSED_IN_MEMORY:
        return refill_through_files(model, model_type)
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if key == "lm_head.weight" and config.tie_word_embeddings:
                continue  # the same storage as the embedding, under another name
            tensor.copy_(torch.from_numpy(make_tensor(key, list(tensor.shape), model_type)))
    return model


def refill_through_files(model, model_type: str):
    """Fill a model whose tensors in memory are not those of its files, by writing and reading such files."""
    import transformers
    from safetensors.numpy import save_file

    with tempfile.TemporaryDirectory() as folder:
        tensors = {k: make_tensor(k, list(v.shape), model_type) for k, v in saved_tensors(model).items()}
        model.config.save_pretrained(folder)
        save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
        return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval().float()


def saved_tensors(model) -> dict[str, np.ndarray]:
    """The tensors of the files that ``save_pretrained`` writes."""
    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def tensors_of(model) -> dict[str, np.ndarray]:
    """What ``save_pretrained`` writes: the state dict without the copies of tied tensors."""
    if model.config.model_type in FUSED_IN_MEMORY:
        return saved_tensors(model)
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return state


def make(name: str) -> None:
    """Write the golden files of one case."""
    import torch
    import transformers

    model = build_torch(name)
    ids = make_ids()
    with torch.no_grad():
        logits = model(torch.from_numpy(ids).long()).logits.numpy()
    config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    document = {
        "config": {**config, "architectures": [type(model).__name__]},
        "tensors": {key: list(value.shape) for key, value in sorted(tensors_of(model).items())},
        "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1, sort_keys=True, default=str) + "\n")
    np.savez_compressed(FOLDER / f"{name}.npz", ids=ids, logits=logits.astype(np.float32))
    print(f"{name}: logits {logits.shape}, std {logits.std():.3f}, max {abs(logits).max():.3f}")


if __name__ == "__main__":
    chosen = sys.argv[2:] if sys.argv[1:2] == ["--only"] else list(CASES)
    for case in chosen:
        make(case)
