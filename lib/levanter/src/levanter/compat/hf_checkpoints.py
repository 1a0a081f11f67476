"""Models to and from Hugging Face folders: ``config.json``, safetensors, tokenizer files.

The folder is what ``transformers`` would write: torch names, ``[out, in]`` matrices, one ``model.safetensors`` or
shards with an index. Which family it is follows from ``model_type`` in ``config.json`` alone; neither the network nor a
mesh nor ``transformers`` is needed.

Invariants: equal models give equal bytes; import refuses a missing, unexpected or ill-shaped tensor by name; a round
trip changes no bit.
"""

import dataclasses
import difflib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from haliax import Axis, NamedArray
from jax.sharding import Mesh
from rigging.filesystem.atomic import atomic_rename

from levanter.compat.hf_weights import DEFAULT_SHARD_BYTES, INDEX, WEIGHTS, read_json, read_weights, write_json
from levanter.compat.hf_weights import write_weights as _write_weights
from levanter.errors import HfCheckpointError
from levanter.models.hf_config import require
from levanter.models.lm_model import HfLmConfig, HfLmModel, LmConfig
from levanter.models.state_dict import TensorSlot
from levanter.sharding import AxisMapping, named_sharding
from levanter.tokenizers import load_tokenizer

__all__ = [
    "DEFAULT_SHARD_BYTES",
    "INDEX",
    "WEIGHTS",
    "HFCheckpointConverter",
    "config_class_of",
    "load_hf_checkpoint",
    "read_hf_config",
    "save_hf_checkpoint",
    "tensor_map",
]
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def tensor_map(config: HfLmConfig) -> list[TensorSlot]:
    """The key map of a family's state dict, in export order."""
    return config.state_dict_map()


def config_class_of(model_type: str, *, path: str = "") -> type[HfLmConfig]:
    """The config class whose models have this ``model_type``.

    Args:
        model_type: As in ``config.json``.
        path: Where it came from, for the message.

    Raises:
        HfCheckpointError: none has; the message lists the known ones and the nearest.

    Example:
        >>> config_class_of("llama").__name__
        'LlamaConfig'
    """
    known = {
        cls.hf_model_type: cls
        for cls in LmConfig.get_known_choices().values()
        if issubclass(cls, HfLmConfig) and cls.hf_model_type
    }
    if model_type in known:
        return known[model_type]
    near = difflib.get_close_matches(str(model_type), known, 1)
    raise HfCheckpointError(
        f"cannot import the model: path={path}, model_type={model_type!r}; expected one of {', '.join(sorted(known))}."
        + (f" Did you mean {near[0]!r}?" if near else " See docs: adding a model."),
        path=path,
    )


def read_hf_config(path: str) -> HfLmConfig:
    """The config of a Hugging Face folder, from its ``config.json`` alone.

    Raises:
        HfCheckpointError: no such file, an unknown ``model_type``, a field is missing or not supported.
    """
    raw = read_json(path, "config.json")
    return config_class_of(require(raw, "model_type"), path=path).from_hf_config({"_name_or_path": path, **raw})


def save_hf_checkpoint(
    model: HfLmModel,
    config: HfLmConfig,
    path: str,
    *,
    tokenizer: str | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    config_overrides: Mapping[str, Any] | None = None,
) -> None:
    """Write a Hugging Face folder; it appears whole or not at all.

    Args:
        model: The model.
        config: Its config.
        path: Local folder to create or replace.
        tokenizer: Folder with tokenizer files, or a ``tokenizer.json``, to copy in.
        dtype: Dtype of the weights; None keeps theirs.
        max_shard_bytes: Largest weights file.
        config_overrides: Fields of ``config.json`` that replace ours.

    Raises:
        HfCheckpointError: the tokenizer has no ``tokenizer.json``, or more ids than the model has rows.
    """
    vocab = model.Vocab.size
    with atomic_rename(path) as folder:
        os.makedirs(folder, exist_ok=True)
        special = _copy_tokenizer(tokenizer, folder)
        if tokenizer is not None:
            _check_tokenizer(folder, vocab, tokenizer)
        slots = config.state_dict_map()
        _write_weights(model, slots, folder, dtype=dtype, max_shard_bytes=max_shard_bytes)
        torch_dtype = dtype or str(slots[0].leaves[0].array(model).dtype)
        overrides = {"torch_dtype": torch_dtype, **special, **(config_overrides or {})}
        write_json(folder, "config.json", config.to_hf_config(vocab, overrides))
        write_json(folder, "generation_config.json", {"_from_model_config": True, **special})


def load_hf_checkpoint(
    path: str,
    *,
    config: HfLmConfig | None = None,
    dtype: str | None = None,
    axis_mapping: AxisMapping | None = None,
    mesh: Mesh | None = None,
) -> tuple[HfLmConfig, HfLmModel]:
    """Read a Hugging Face folder.

    Args:
        path: Local folder.
        config: Shape to insist on; None reads ``config.json``.
        dtype: Dtype of the parameters; None keeps the stored one.
        axis_mapping: Axis names to mesh axes; each array is placed as soon as it is whole.
        mesh: The mesh of ``axis_mapping``.

    Returns:
        ``(config, model)``.

    Raises:
        HfCheckpointError: not such a folder, an unknown ``model_type``, a truncated file, or a tokenizer with more ids
            than the model has rows.
        HfTensorError: a tensor is missing, unexpected or ill-shaped; it is named.
    """
    raw = read_json(path, "config.json")
    shape = config or read_hf_config(path)
    if config is not None and require(raw, "model_type") != config.hf_model_type:
        raise HfCheckpointError(
            f"cannot import the model: path={path}, model_type={raw['model_type']!r}; expected "
            f"{config.hf_model_type!r} for {type(config).__name__}. Pass the config of that family, or none.",
            path=path,
        )
    vocab = int(require(raw, "vocab_size"))
    if os.path.exists(os.path.join(path, "tokenizer.json")):
        _check_tokenizer(path, vocab, path)
    template = eqx.filter_eval_shape(lambda key: shape.build(Axis("vocab", vocab), key=key), jax.random.PRNGKey(0))
    slots = shape.state_dict_map()
    names = {slot.name for slot in slots}

    def with_prefix(name: str) -> str:
        """Checkpoints of the bare model, without its head, leave the prefix out."""
        longer = f"{shape.hf_base_prefix}.{name}"
        return longer if name not in names and longer in names else name

    def place(leaf: NamedArray) -> NamedArray:
        where = None if mesh is None else named_sharding(leaf, axis_mapping or {}, mesh)
        return NamedArray(jax.device_put(leaf.array, where), leaf.axes)

    model = read_weights(
        path,
        template,
        slots,
        dtype=dtype,
        ignored=lambda name: _is_buffer(name) or (name == "lm_head.weight" and shape.ties_embeddings),
        rename=with_prefix,
        place=place,
    )
    return shape, model


@dataclass(frozen=True)
class HFCheckpointConverter:
    """One family's door to Hugging Face folders.

    Attributes:
        LevConfigClass: Our config class of the family.
        reference_checkpoint: Folder whose shape and tokenizer are the default.
        tokenizer: Folder with tokenizer files, or None.
        config_overrides: Fields of ``config.json`` that replace what is read or written.
    """

    LevConfigClass: type[HfLmConfig]
    reference_checkpoint: str | None = None
    tokenizer: str | None = None
    config_overrides: Mapping[str, Any] | None = None

    @classmethod
    def from_hf(cls, ref: str) -> "HFCheckpointConverter":
        """The converter of a local folder, by ``model_type`` in its ``config.json``.

        Raises:
            HfCheckpointError: no such folder, or an unknown ``model_type``.
        """
        model_type = require(read_json(ref, "config.json"), "model_type")
        tokenizer = ref if os.path.exists(os.path.join(ref, "tokenizer.json")) else None
        return cls(config_class_of(model_type, path=ref), ref, tokenizer)

    def replaced(self, **changes: Any) -> "HFCheckpointConverter":
        """A copy with other fields."""
        return dataclasses.replace(self, **changes)

    def with_config_overrides(self, overrides: Mapping[str, Any], merge: bool = True) -> "HFCheckpointConverter":
        """A copy that overrides fields of ``config.json``, added to earlier overrides or instead of them."""
        earlier = (self.config_overrides or {}) if merge else {}
        return self.replaced(config_overrides={**earlier, **overrides})

    @property
    def default_config(self) -> HfLmConfig:
        """The config of the reference checkpoint.

        Raises:
            HfCheckpointError: there is no reference checkpoint.
        """
        return self.config_from_hf(self._reference(None))

    def config_from_hf(self, ref: str) -> HfLmConfig:
        """The config of a folder, with this converter's overrides."""
        raw = {"_name_or_path": ref, **read_json(ref, "config.json"), **(self.config_overrides or {})}
        return self.LevConfigClass.from_hf_config(raw)

    def load_pretrained(
        self,
        ref: str | None = None,
        config: HfLmConfig | None = None,
        *,
        axis_mapping: AxisMapping | None = None,
        mesh: Mesh | None = None,
        dtype: str | None = None,
        resize_vocab_to_match_tokenizer: bool = True,
    ) -> HfLmModel:
        """Load a folder's model.

        Args:
            ref: Folder; None means the reference checkpoint.
            config: Shape to insist on; None reads the folder's.
            axis_mapping: Axis names to mesh axes.
            mesh: The mesh of ``axis_mapping``.
            dtype: Dtype of the parameters; None keeps the stored one.
            resize_vocab_to_match_tokenizer: Cut or grow the vocabulary to the ids of :attr:`tokenizer`, if it is set.

        Raises:
            HfCheckpointError: see :func:`load_hf_checkpoint`.
        """
        path = self._reference(ref)
        shape = config or self.config_from_hf(path)
        _, model = load_hf_checkpoint(path, config=shape, dtype=dtype, axis_mapping=axis_mapping, mesh=mesh)
        if resize_vocab_to_match_tokenizer and self.tokenizer is not None:
            size = load_tokenizer(self.tokenizer).vocab_size
            if size != model.Vocab.size:
                model = model.resize_vocab(size, key=jax.random.PRNGKey(0))
        return model

    def save_pretrained(
        self,
        model: HfLmModel,
        path: str,
        *,
        save_tokenizer: bool = True,
        max_shard_size: int = DEFAULT_SHARD_BYTES,
        dtype: str | None = None,
    ) -> None:
        """Write a folder that ``transformers`` reads.

        Args:
            model: The model.
            path: Local folder to create or replace.
            save_tokenizer: Copy the files of :attr:`tokenizer`, if it is set.
            max_shard_size: Largest weights file, in bytes.
            dtype: Dtype of the weights; None keeps theirs.
        """
        save_hf_checkpoint(
            model,
            model.hf_config,
            path,
            tokenizer=self.tokenizer if save_tokenizer else None,
            dtype=dtype,
            max_shard_bytes=max_shard_size,
            config_overrides=self.config_overrides,
        )

    def _reference(self, ref: str | None) -> str:
        path = ref or self.reference_checkpoint
        if path is None:
            raise HfCheckpointError(
                "no checkpoint to read: ref=None, reference_checkpoint=None; expected one of them. Pass a folder."
            )
        return path


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
        write_json(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    return _special_ids(folder)


def _special_ids(folder: str) -> dict[str, Any]:
    config = read_json(folder, "tokenizer_config.json")
    added = {entry["content"]: entry["id"] for entry in read_json(folder, "tokenizer.json").get("added_tokens", [])}
    ids = {}
    for kind in ("bos", "eos", "pad"):
        token = config.get(f"{kind}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token in added:
            ids[f"{kind}_token_id"] = added[token]
    return ids


def _check_tokenizer(folder: str, vocab: int, shown: str) -> None:
    """Refuse a tokenizer that makes ids the model has no row for."""
    document = read_json(folder, "tokenizer.json")
    ids = [entry["id"] for entry in document.get("added_tokens", [])]
    table = document.get("model", {}).get("vocab", {})
    ids += table.values() if isinstance(table, dict) else [len(table) - 1]
    largest = max(ids, default=-1)
    if largest >= vocab:
        raise HfCheckpointError(
            f"the tokenizer does not fit the model: largest id={largest}, vocab_size={vocab}, tokenizer={shown}; "
            "expected every id below vocab_size. Use the model's own tokenizer, or resize_vocab first.",
            path=folder,
        )


def _is_buffer(name: str) -> bool:
    """Buffers that old exports carry and that are computed, not learned."""
    return name.endswith(("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias"))
