"""Llama models to and from Hugging Face folders: ``config.json``, safetensors, tokenizer files.

The folder is what ``transformers`` would write: torch names, ``[out, in]`` matrices, one ``model.safetensors`` or
shards with an index. The key map is a table (:func:`tensor_map`), read in one direction to export and in the other to
import, so that the two cannot drift apart.

Invariants: equal models give equal bytes; import refuses a missing, unexpected or ill-shaped tensor by name; a round
trip changes no bit.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from rigging.filesystem.atomic import atomic_rename
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from levanter.compat.hf_config import llama_from_hf, llama_to_hf
from levanter.errors import HfCheckpointError, HfTensorError
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "chat_template.jinja",
)
DEFAULT_SHARD_BYTES = 10_000_000_000


@dataclass(frozen=True)
class TensorSlot:
    """Where one torch tensor lives in our model.

    Attributes:
        name: Name in the state dict.
        get: The NamedArray that holds it.
        layer: Index on the leading layer axis, or None.
        in_size: Product of the input axes of a linear weight, which torch stores as ``[out, in]``; None for tensors
            stored as they are.
    """

    name: str
    get: Callable[[Any], NamedArray]
    layer: int | None = None
    in_size: int | None = None

    def export(self, model: Any) -> np.ndarray:
        """The tensor as torch stores it."""
        array = np.asarray(jax.device_get(self._array(model)))
        if self.in_size is None:
            return np.ascontiguousarray(array.reshape(-1) if self.name.endswith("bias") else array)
        return np.ascontiguousarray(array.reshape(self.in_size, -1).T)

    def shape(self, model: Any) -> tuple[int, ...]:
        """Shape of the torch tensor."""
        own = self.get(model).array.shape
        own = own if self.layer is None else own[1:]
        size = int(np.prod(own))
        if self.in_size is None:
            return (size,) if self.name.endswith("bias") else tuple(own)
        return (size // self.in_size, self.in_size)

    def restore(self, model: Any, tensor: np.ndarray) -> np.ndarray:
        """The tensor as we store it."""
        own = self.get(model).array.shape
        own = own if self.layer is None else own[1:]
        return (tensor if self.in_size is None else tensor.T).reshape(own)

    def _array(self, model: Any) -> jax.Array:
        array = self.get(model).array
        return array if self.layer is None else array[self.layer]


def tensor_map(config: LlamaConfig) -> list[TensorSlot]:
    """The key map of a Llama state dict, in export order."""
    slots = [TensorSlot("model.embed_tokens.weight", lambda m: m.embeddings.token_embeddings.weight)]
    for layer in range(config.num_layers):
        slots += _layer_slots(config, layer)
    slots.append(TensorSlot("model.norm.weight", lambda m: m.transformer.norm.weight))
    if config.input_embedding_norm:
        slots.append(TensorSlot("model.embed_norm.weight", lambda m: m.embeddings.norm.weight))
    if not config.tie_word_embeddings:
        slots.append(TensorSlot("lm_head.weight", lambda m: m.lm_head.weight, in_size=config.hidden_dim))
    return slots


def save_hf_checkpoint(
    model: LlamaLMHeadModel,
    config: LlamaConfig,
    path: str,
    *,
    tokenizer: str | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> None:
    """Write a Hugging Face folder; it appears whole or not at all.

    Args:
        model: The model.
        config: Its config.
        path: Local folder to create or replace.
        tokenizer: Folder with tokenizer files, or a ``tokenizer.json``, to copy in.
        dtype: Dtype of the weights; None keeps theirs.
        max_shard_bytes: Largest weights file.

    Raises:
        HfCheckpointError: the tokenizer has no ``tokenizer.json``.
    """
    with atomic_rename(path) as folder:
        os.makedirs(folder, exist_ok=True)
        names = _write_weights(model, config, folder, dtype, max_shard_bytes)
        special = _copy_tokenizer(tokenizer, folder)
        torch_dtype = dtype or str(model.embeddings.token_embeddings.weight.array.dtype)
        _write_json(folder, "config.json", llama_to_hf(config, model.Vocab.size, torch_dtype, special))
        _write_json(folder, "generation_config.json", {"_from_model_config": True, **special})
        if len(names) > 1:
            _write_json(folder, INDEX, _index(folder, names))


def load_hf_checkpoint(
    path: str, *, config: LlamaConfig | None = None, dtype: str | None = None
) -> tuple[LlamaConfig, LlamaLMHeadModel]:
    """Read a Hugging Face folder.

    Args:
        path: Local folder.
        config: Shape to insist on; None reads ``config.json``.
        dtype: Dtype of the parameters; None keeps the stored one.

    Returns:
        ``(config, model)``.

    Raises:
        HfCheckpointError: not such a folder, or not a Llama.
        HfTensorError: a tensor is missing, unexpected or ill-shaped; it is named.
    """
    raw = _read_json(path, "config.json")
    shape = config or llama_from_hf(raw, path)
    Vocab = Axis("vocab", int(raw["vocab_size"]))
    template = eqx.filter_eval_shape(lambda key: LlamaLMHeadModel.init(Vocab, shape, key=key), jax.random.PRNGKey(0))
    slots = {slot.name: slot for slot in tensor_map(shape)}
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in _read_tensors(path):
        if name not in slots:
            if _is_buffer(name) or (name == "lm_head.weight" and shape.tie_word_embeddings):
                continue
            raise HfTensorError(path, name, "unexpected", detail=f"one of the {len(slots)} tensors of this config")
        expected = slots[name].shape(template)
        if tuple(tensor.shape) != expected:
            raise HfTensorError(path, name, "shape", detail=f"shape {expected}, found {tuple(tensor.shape)}")
        arrays[name] = slots[name].restore(template, tensor)
    missing = next((name for name in slots if name not in arrays), None)
    if missing is not None:
        raise HfTensorError(path, missing, "missing", detail="every tensor of the config")
    return shape, _fill(template, list(slots.values()), arrays, dtype)


def _layer_slots(config: LlamaConfig, layer: int) -> Iterator[TensorSlot]:
    prefix = f"model.layers.{layer}."
    heads = config.num_heads * config.head_size
    inputs = {"q_proj": config.hidden_dim, "k_proj": config.hidden_dim, "v_proj": config.hidden_dim, "o_proj": heads}
    widths = {"gate_proj": config.hidden_dim, "up_proj": config.hidden_dim, "down_proj": config.intermediate_dim}
    for part, sizes in (("self_attn", inputs), ("mlp", widths)):
        for name, in_size in sizes.items():
            path = (part, name)
            yield TensorSlot(f"{prefix}{part}.{name}.weight", _leaf(*path, "weight"), layer, in_size)
            if config.use_bias:
                yield TensorSlot(f"{prefix}{part}.{name}.bias", _leaf(*path, "bias"), layer)
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            yield TensorSlot(f"{prefix}self_attn.{name}.weight", _leaf("self_attn", name, "weight"), layer)
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["post_attn_output_norm", "post_mlp_output_norm"] if config.hybrid_norm else []
    for name in norms:
        yield TensorSlot(f"{prefix}{name}.weight", _leaf(name, "weight"), layer)


def _leaf(*names: str) -> Callable[[Any], NamedArray]:
    def get(model: Any) -> NamedArray:
        node = model.transformer.layers.stacked
        for name in names:
            node = getattr(node, name)
        return node

    return get


def _fill(template: Any, slots: list[TensorSlot], arrays: dict[str, np.ndarray], dtype: str | None) -> Any:
    """Put the tensors into the model, stacking layers."""
    by_leaf: dict[int, tuple[Callable[[Any], NamedArray], list[np.ndarray]]] = {}
    order: list[tuple[Callable[[Any], NamedArray], list[np.ndarray]]] = []
    for slot in slots:
        leaf = id(slot.get(template))
        if leaf not in by_leaf:
            by_leaf[leaf] = (slot.get, [])
            order.append(by_leaf[leaf])
        by_leaf[leaf][1].append(arrays[slot.name])
    model = template
    for get, parts in order:
        named = get(template)
        value = parts[0].reshape(named.array.shape) if parts[0].shape == named.array.shape else np.stack(parts)
        array = jnp.asarray(value, dtype=dtype)
        model = eqx.tree_at(get, model, NamedArray(array, named.axes), is_leaf=lambda x: isinstance(x, NamedArray))
    return model


def _write_weights(
    model: Any, config: LlamaConfig, folder: str, dtype: str | None, max_shard_bytes: int
) -> dict[str, list[str]]:
    """Write shards one at a time, so that at most one is in memory; return tensor names by file."""
    slots = tensor_map(config)
    itemsize = jnp.dtype(dtype).itemsize if dtype else 4
    shards: list[list[TensorSlot]] = [[]]
    filled = 0
    for slot in slots:
        size = int(np.prod(slot.shape(model))) * itemsize
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(slot)
        filled += size
    names: dict[str, list[str]] = {}
    for number, shard in enumerate(shards, start=1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {slot.name: _cast(slot.export(model), dtype) for slot in shard}
        save_file(tensors, os.path.join(folder, file), metadata={"format": "pt"})
        names[file] = list(tensors)
    return names


def _cast(array: np.ndarray, dtype: str | None) -> np.ndarray:
    return array if dtype is None else array.astype(jnp.dtype(dtype))


def _index(folder: str, names: dict[str, list[str]]) -> dict[str, Any]:
    total = 0
    for file in names:
        with safe_open(os.path.join(folder, file), framework="numpy") as tensors:
            total += sum(tensors.get_tensor(name).nbytes for name in tensors.keys())
    weight_map = {name: file for file, members in names.items() for name in members}
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}


def _read_tensors(path: str) -> Iterator[tuple[str, np.ndarray]]:
    files = [WEIGHTS]
    if os.path.exists(os.path.join(path, INDEX)):
        files = sorted(set(_read_json(path, INDEX)["weight_map"].values()))
    for file in files:
        full = os.path.join(path, file)
        if not os.path.exists(full):
            raise HfCheckpointError(
                f"cannot import the model: path={path}, file={file} is absent; expected safetensors weights. "
                "Convert the weights to safetensors first.",
                path=path,
            )
        try:
            with safe_open(full, framework="numpy") as tensors:
                for name in sorted(tensors.keys()):
                    yield name, tensors.get_tensor(name)
        except SafetensorError as error:
            raise HfCheckpointError(
                f"cannot read the weights: path={full}, reason={error}; expected a whole safetensors file. "
                "Copy it again.",
                path=path,
            ) from error


def _copy_tokenizer(tokenizer: str | None, folder: str) -> dict[str, Any]:
    """Copy tokenizer files; return the special-token ids that belong in the configs."""
    if tokenizer is None:
        return {}
    source = tokenizer if os.path.isdir(tokenizer) else os.path.dirname(tokenizer)
    if not os.path.exists(os.path.join(source, "tokenizer.json")):
        raise HfCheckpointError(
            f"cannot export the tokenizer: path={tokenizer}; expected a folder with tokenizer.json. "
            "Save the tokenizer first.",
            path=tokenizer,
        )
    for name in TOKENIZER_FILES:
        if os.path.exists(os.path.join(source, name)):
            shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
    if not os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        _write_json(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return _special_ids(folder)


def _special_ids(folder: str) -> dict[str, Any]:
    config = _read_json(folder, "tokenizer_config.json")
    added = {entry["content"]: entry["id"] for entry in _read_json(folder, "tokenizer.json").get("added_tokens", [])}
    ids = {}
    for kind in ("bos", "eos", "pad"):
        token = config.get(f"{kind}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token in added:
            ids[f"{kind}_token_id"] = added[token]
    return ids


def _is_buffer(name: str) -> bool:
    """Buffers that old exports carry and that are computed, not learned."""
    return name.endswith("rotary_emb.inv_freq")


def _read_json(path: str, name: str) -> dict[str, Any]:
    try:
        with open(os.path.join(path, name), encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, json.JSONDecodeError) as error:
        raise HfCheckpointError(
            f"cannot read a Hugging Face folder: path={path}, file={name}, reason={error}; expected valid JSON there. "
            "Check the path.",
            path=path,
        ) from error


def _write_json(folder: str, name: str, document: dict[str, Any]) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
        json.dump(document, stream, sort_keys=True, indent=2)
        stream.write("\n")
