r"""Adapters in the format of the ``peft`` library: ``adapter_config.json`` and ``adapter_model.safetensors``.

For every torch module ``m`` with an adapter the file holds ``base_model.model.{m}.lora_A.weight`` ``[r, in]`` and
``base_model.model.{m}.lora_B.weight`` ``[out, r]``. Where torch fuses layers that we keep apart (GPT-2's query, key and
value), the fused adapter has the sum of the ranks: the ``A`` are stacked, the ``B`` are blocks on a diagonal.

The model's state-dict map names the modules, so a family needs nothing of its own.

References:
    https://huggingface.co/docs/peft/main/en/developer_guides/checkpoint
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from rigging.filesystem.atomic import atomic_rename
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from levanter.adaptor.lora import LoraConfig, is_lora_model, loraize, merge_lora_modules
from levanter.compat.hf_checkpoints import save_hf_checkpoint
from levanter.compat.hf_weights import cast, read_json, write_json
from levanter.errors import HfCheckpointError, HfTensorError
from levanter.layers.linear import LoraLinear
from levanter.models.decoder import DecoderLMHeadModel
from levanter.models.state_dict import Layout, TensorSlot

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
_TORCH_NAMES = {"c_attn": ("q_proj", "k_proj", "v_proj"), "c_fc": ("up_proj",)}


@dataclass(frozen=True)
class _Module:
    """One torch module and our adapters in it."""

    name: str
    slot: TensorSlot
    layers: tuple[LoraLinear, ...]

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """``A [r, in]`` and ``B [out, r]`` of the torch module."""
        parts = [
            _factors(layer, leaf.index, leaf.in_axes) for layer, leaf in zip(self.layers, self.slot.leaves, strict=True)
        ]
        a = np.concatenate([part[0] for part in parts], axis=0)
        b = np.zeros((sum(part[1].shape[0] for part in parts), a.shape[0]), a.dtype)
        row = column = 0
        for _, part in parts:
            b[row : row + part.shape[0], column : column + part.shape[1]] = part
            row, column = row + part.shape[0], column + part.shape[1]
        return a, b


def lora_state_dict(model: DecoderLMHeadModel, *, dtype: str | None = None) -> dict[str, np.ndarray]:
    """The adapters of a model under the names of ``peft``.

    Raises:
        HfCheckpointError: the model has none, or only part of what torch fuses has one.
    """
    if not is_lora_model(model):
        raise HfCheckpointError("the model has no adapters; expected one made by loraize.")
    tensors = {}
    for module in _modules(model):
        a, b = module.factors()
        tensors[f"{PREFIX}{module.name}.lora_A.weight"] = cast(np.ascontiguousarray(a), dtype)
        tensors[f"{PREFIX}{module.name}.lora_B.weight"] = cast(np.ascontiguousarray(b), dtype)
    return tensors


def save_peft_pretrained(
    model: DecoderLMHeadModel,
    config: LoraConfig,
    path: str,
    *,
    base_model_name_or_path: str | None = None,
    dtype: str | None = None,
) -> None:
    """Write a folder that ``peft.PeftModel.from_pretrained`` reads; it appears whole or not at all.

    Args:
        model: A model with adapters.
        config: What :func:`~levanter.adaptor.lora.loraize` was given.
        path: Local folder to create or replace.
        base_model_name_or_path: Where the base model is, for the reader.
        dtype: Dtype of the factors; None keeps theirs.

    Raises:
        HfCheckpointError: see :func:`lora_state_dict`.
    """
    tensors = lora_state_dict(model, dtype=dtype)
    modules = list(_modules(model))
    names = sorted({_suffix(module.name) for module in modules})
    fused = {_suffix(module.name): len(module.layers) for module in modules if len(module.layers) > 1}
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model_name_or_path or model.config.reference_checkpoint,
        "r": config.r,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(module.slot.layout == Layout.CONV1D for module in modules),
        "target_modules": names,
        "rank_pattern": {name: count * config.r for name, count in fused.items()},
        "alpha_pattern": {name: count * config.alpha for name, count in fused.items()},
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
    }
    with atomic_rename(path) as folder:
        os.makedirs(folder, exist_ok=True)
        save_file(tensors, os.path.join(folder, ADAPTER_WEIGHTS), metadata={"format": "pt"})
        write_json(folder, ADAPTER_CONFIG, document)


def load_peft_pretrained(model: DecoderLMHeadModel, path: str) -> tuple[LoraConfig, DecoderLMHeadModel]:
    """Give a base model the adapters of a ``peft`` folder.

    Args:
        model: The base model.
        path: Folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

    Returns:
        ``(config, model with adapters)``.

    Raises:
        HfCheckpointError: no such folder, or adapters of another kind.
        HfTensorError: a tensor is missing, unexpected or ill-shaped.
    """
    config = _read_config(path)
    adapted = loraize(model, config, key=jax.random.PRNGKey(0))
    try:
        tensors = load_file(os.path.join(path, ADAPTER_WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise HfCheckpointError(
            f"cannot read the adapters: path={path}, reason={error}; expected {ADAPTER_WEIGHTS}. Copy it again.",
            path=path,
        ) from error
    buffers: dict[str, np.ndarray] = {}
    for module in _modules(adapted):
        a = _take(tensors, path, f"{PREFIX}{module.name}.lora_A.weight")
        b = _take(tensors, path, f"{PREFIX}{module.name}.lora_B.weight")
        _write(buffers, module, a, b, config.r, path)
    if tensors:
        raise HfTensorError(path, sorted(tensors)[0], "unexpected", detail="adapters of the chosen layers only")
    for name, array in buffers.items():
        adapted = _replace(adapted, name, array)
    return config, adapted


def save_merged_hf_model(model: DecoderLMHeadModel, path: str, **arguments: Any) -> None:
    """Fold the adapters in and write a plain Hugging Face folder.

    Args:
        model: With or without adapters.
        path: Local folder to create or replace.
        arguments: Those of :func:`levanter.compat.hf_checkpoints.save_hf_checkpoint`.
    """
    save_hf_checkpoint(merge_lora_modules(model), model.config, path, **arguments)


def _modules(model: DecoderLMHeadModel) -> Iterator[_Module]:
    for slot in model.config.state_dict_map():
        if slot.layout not in (Layout.LINEAR, Layout.CONV1D):
            continue
        owners = [_owner(model, leaf.path) for leaf in slot.leaves]
        adapted = [isinstance(owner, LoraLinear) for owner in owners]
        if not any(adapted):
            continue
        if not all(adapted):
            raise HfCheckpointError(
                f"cannot name the adapters: module={slot.name}; expected adapters on all of "
                f"{', '.join(leaf.path for leaf in slot.leaves)} or on none, because torch stores them as one."
            )
        yield _Module(slot.name.removesuffix(".weight"), slot, tuple(owners))


def _owner(model: Any, path: str) -> Any:
    node = model
    for name in path.split(".")[:-1]:
        node = getattr(node, name)
    return node


def _factors(layer: LoraLinear, index: tuple[int, ...], in_axes: int) -> tuple[np.ndarray, np.ndarray]:
    a = np.asarray(jax.device_get(layer.lora_a.array[index]))
    b = np.asarray(jax.device_get(layer.lora_b.array[index]))
    return a.reshape(math.prod(a.shape[:in_axes]), -1).T, b.reshape(b.shape[0], -1).T


def _write(buffers: dict[str, np.ndarray], module: _Module, a: np.ndarray, b: np.ndarray, rank: int, path: str) -> None:
    """Copy torch's factors into whole host arrays of ours; a fused module's are cut, or shared when they are one."""
    shared = len(module.layers) > 1 and a.shape[0] == rank
    row = column = 0
    for layer, leaf in zip(module.layers, module.slot.leaves, strict=True):
        own_a, own_b = layer.lora_a.array[leaf.index], layer.lora_b.array[leaf.index]
        outs = math.prod(own_b.shape[1:])
        part_a = a if shared else a[column : column + rank]
        part_b = b[row : row + outs] if shared else b[row : row + outs, column : column + rank]
        row, column = row + outs, column + rank
        if part_a.size != own_a.size or part_b.size != own_b.size:
            detail = f"lora_A of {own_a.size} and lora_B of {own_b.size} values at r={rank}, found {a.shape}, {b.shape}"
            raise HfTensorError(path, module.name, "shape", detail=detail)
        for name, part, own in (("lora_a", part_a, own_a), ("lora_b", part_b, own_b)):
            whole = leaf.path.removesuffix("weight") + name
            array = getattr(layer, name).array
            buffers.setdefault(whole, np.zeros(array.shape, part.dtype))[leaf.index] = part.T.reshape(own.shape)


def _replace(model: Any, name: str, array: np.ndarray) -> Any:
    def get(tree: Any) -> Any:
        node = tree
        for part in name.split("."):
            node = getattr(node, part)
        return node

    named = NamedArray(jnp.asarray(array), get(model).axes)
    return eqx.tree_at(get, model, named, is_leaf=lambda node: isinstance(node, NamedArray))


def _take(tensors: dict[str, np.ndarray], path: str, name: str) -> np.ndarray:
    if name not in tensors:
        raise HfTensorError(path, name, "missing", detail="both factors of every adapted module")
    return tensors.pop(name)


def _read_config(path: str) -> LoraConfig:
    raw = read_json(path, ADAPTER_CONFIG)
    plain = {"peft_type": "LORA", "bias": "none", "use_rslora": False, "use_dora": False, "modules_to_save": None}
    odd = [name for name, only in plain.items() if raw.get(name, only) != only]
    if odd:
        raise HfCheckpointError(
            f"cannot read the adapters: path={path}, {odd[0]}={raw[odd[0]]!r}; expected {plain[odd[0]]!r}. "
            "Only plain LoRA is implemented.",
            path=path,
        )
    targets = raw.get("target_modules")
    if not isinstance(targets, list):
        raise HfCheckpointError(
            f"cannot read the adapters: path={path}, target_modules={targets!r}; expected a list of names.", path=path
        )
    return LoraConfig(
        target_modules=[ours for name in targets for ours in _our_names(name)],
        r=raw["r"],
        alpha=raw["lora_alpha"],
        exclude_modules=raw.get("exclude_modules") or [],
    )


def _our_names(name: str) -> list[str]:
    """Our layers for a torch name; only GPT-2's differ."""
    last = name.rpartition(".")[2]
    if last in _TORCH_NAMES:
        return list(_TORCH_NAMES[last])
    if last == "c_proj":
        own = {"attn.c_proj": ["o_proj"], "mlp.c_proj": ["down_proj"]}
        return own.get(name, ["o_proj", "down_proj"])
    return [name]


def _suffix(name: str) -> str:
    """The last two parts of a module's name, which no other kind of module ends with."""
    return ".".join(name.split(".")[-2:])
