"""The fields of ``config.json`` that families share, in both directions.

Every family's ``from_hf_config`` and ``to_hf_config`` are built from these; they work on plain dictionaries, so that
neither ``transformers`` nor the network is needed.
"""

from collections.abc import Mapping
from typing import Any

from levanter.errors import HfCheckpointError
from levanter.layers.rotary import (
    DefaultRotaryConfig,
    DynamicRotaryConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    RotaryConfig,
    YarnRotaryConfig,
)

_TO_HF = {"relu_squared": "relu2"}
_FROM_HF = {"relu2": "relu_squared", "gelu_pytorch_tanh": "gelu_new", "swish": "silu"}


def as_mapping(hf_config: Any) -> Mapping[str, Any]:
    """A parsed ``config.json``, or whatever has ``to_dict`` (a ``transformers`` config), as a mapping."""
    return hf_config if isinstance(hf_config, Mapping) else hf_config.to_dict()


def require(raw: Mapping[str, Any], key: str) -> Any:
    """The value of a field.

    Raises:
        HfCheckpointError: it is absent; the message names it and what is there.

    Example:
        >>> require({"hidden_size": 8}, "hidden_size")
        8
    """
    if raw.get(key) is None:
        raise HfCheckpointError(
            f"cannot read config.json: {key} is missing, model_type={raw.get('model_type')!r}; expected that field "
            f"among {', '.join(sorted(raw)) or 'none'}. Is the file complete?",
            path=str(raw.get("_name_or_path", "")),
        )
    return raw[key]


def same_everywhere(raw: Mapping[str, Any], *keys: str) -> None:
    """Insist that switches which we have only one field for agree.

    Raises:
        HfCheckpointError: they differ; the message shows all values.
    """
    values = {key: bool(raw.get(key, False)) for key in keys}
    if len(set(values.values())) > 1:
        shown = ", ".join(f"{key}={value}" for key, value in values.items())
        raise HfCheckpointError(
            f"cannot import the model: {shown}; expected equal values. Biases in only some linear layers are not "
            "implemented for this family.",
            path=str(raw.get("_name_or_path", "")),
        )


def activation_from_hf(name: str) -> str:
    """Our name of an activation.

    Example:
        >>> activation_from_hf("gelu_pytorch_tanh")
        'gelu_new'
    """
    return _FROM_HF.get(name, name)


def activation_to_hf(name: str) -> str:
    """Hugging Face's name of an activation."""
    return _TO_HF.get(name, name)


def decoder_from_hf(hf_config: Any, **defaults: Any) -> dict[str, Any]:
    """Arguments of a :class:`~levanter.models.decoder.RotaryDecoderConfig`.

    Args:
        hf_config: Parsed ``config.json``.
        defaults: What the family's ``transformers`` config takes for a field that is absent.

    Raises:
        HfCheckpointError: a field is missing, or a rotary scaling we do not know.
    """
    raw = {**defaults, **as_mapping(hf_config)}
    heads, hidden = require(raw, "num_attention_heads"), require(raw, "hidden_size")
    head_dim = raw.get("head_dim")
    return {
        "max_seq_len": raw.get("max_position_embeddings", 2048),
        "hidden_dim": hidden,
        "intermediate_dim": require(raw, "intermediate_size"),
        "num_layers": require(raw, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": None if head_dim in (None, hidden / heads) else head_dim,
        "activation_function": activation_from_hf(raw.get("hidden_act") or "silu"),
        "initializer_range": raw.get("initializer_range", 0.02),
        "layer_norm_epsilon": raw.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": raw.get("tie_word_embeddings", False),
        "rope": rope_from_hf(raw),
    }


def decoder_to_hf(config: Any, vocab_size: int, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields that every rotary decoder writes.

    Args:
        config: A :class:`~levanter.models.decoder.RotaryDecoderConfig`.
        vocab_size: Rows of the embedding.
        overrides: Fields of the family, and of the caller; they win.
    """
    return {
        "architectures": [config.hf_architecture],
        "model_type": config.hf_model_type,
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.intermediate_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "hidden_act": activation_to_hf(config.activation_function),
        "initializer_range": config.initializer_range,
        "rms_norm_eps": config.layer_norm_epsilon,
        "max_position_embeddings": config.max_seq_len,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_dropout": 0.0,
        "use_cache": True,
        **rope_to_hf(config.rope),
        **(overrides or {}),
    }


_ROPES: dict[str, tuple[type[RotaryConfig], tuple[str, ...]]] = {
    "default": (DefaultRotaryConfig, ()),
    "linear": (LinearRotaryConfig, ("factor",)),
    "dynamic": (DynamicRotaryConfig, ("factor",)),
    "llama3": (
        Llama3RotaryConfig,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
    "yarn": (
        YarnRotaryConfig,
        ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings", "attention_factor", "truncate"),
    ),
}


def rope_scaling_to_hf(rope: RotaryConfig) -> dict[str, Any]:
    """``rope_scaling`` of a rotation: its type and the fields that type has.

    Example:
        >>> rope_scaling_to_hf(LinearRotaryConfig(factor=2.0))
        {'rope_type': 'linear', 'factor': 2.0}
    """
    kind = next(
        name for name in ("yarn", "llama3", "dynamic", "linear", "default") if isinstance(rope, _ROPES[name][0])
    )
    if kind == "default" and getattr(rope, "factor", 1.0) != 1.0:
        kind = "linear"
    fields = {name: getattr(rope, name) for name in _ROPES[kind][1] if getattr(rope, name) is not None}
    if isinstance(rope, YarnRotaryConfig) and rope.attention_factor is None and rope.mscale != 1.0:
        fields["attention_factor"] = rope.table_scale()
    if rope.partial_rotary_factor != 1.0:
        fields["partial_rotary_factor"] = rope.partial_rotary_factor
    return {"rope_type": kind, **fields}


def rope_to_hf(rope: RotaryConfig) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling``; the latter is None for the plain rotation."""
    scaling = rope_scaling_to_hf(rope)
    return {"rope_theta": rope.theta, "rope_scaling": None if scaling == {"rope_type": "default"} else scaling}


def rope_from_hf(raw: Mapping[str, Any], kind: str | None = None, *, theta: float = 10_000.0) -> RotaryConfig:
    """A rotary config from ``rope_theta`` and ``rope_scaling``, or the newer ``rope_parameters``.

    Args:
        raw: Parsed ``config.json``.
        kind: Layer type whose entry to read where ``rope_parameters`` has one per type.
        theta: Base where none is given.

    Raises:
        HfCheckpointError: a rotary scaling we do not know.

    Example:
        >>> rope_from_hf({"rope_theta": 5e5}).theta
        500000.0
    """
    scaling = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    if kind is not None and isinstance(scaling.get(kind), Mapping):
        scaling = dict(scaling[kind])
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or theta)
    name = scaling.get("rope_type", scaling.get("type", "default"))
    if name not in _ROPES:
        raise HfCheckpointError(
            f"cannot import the model: rope_type={name!r}; expected one of {', '.join(sorted(_ROPES))}. "
            "This rotary scaling is not implemented.",
            path=str(raw.get("_name_or_path", "")),
        )
    cls, names = _ROPES[name]
    given = {field: scaling[field] for field in names if scaling.get(field) is not None}
    if name == "dynamic":
        given["max_position_embeddings"] = require(raw, "max_position_embeddings")
    if name == "yarn" and "attention_factor" not in given and scaling.get("mscale") and scaling.get("mscale_all_dim"):
        both = [YarnRotaryConfig(factor=given["factor"], mscale=scaling[n]) for n in ("mscale", "mscale_all_dim")]
        given["attention_factor"] = both[0].table_scale() / both[1].table_scale()
    partial = scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    return cls(theta=theta, partial_rotary_factor=partial, **given)


def refuse_settings(config: Any, **unsupported: Any) -> None:
    """Insist that settings which the family's ``config.json`` cannot express are off.

    Args:
        config: Ours.
        unsupported: Field name to the only value that can be exported.

    Raises:
        HfCheckpointError: one has another value; it is named.
    """
    for name, only in unsupported.items():
        if getattr(config, name) != only:
            raise HfCheckpointError(
                f"cannot export {type(config).__name__}: {name}={getattr(config, name)!r}; expected {only!r}, because "
                f"{config.hf_architecture} has no such setting. Use a family that has it."
            )
