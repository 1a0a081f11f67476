"""``config.json`` of a Llama model, in both directions."""

from typing import Any

from levanter.errors import HfCheckpointError
from levanter.layers.rotary import (
    DefaultRotaryConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    RotaryConfig,
    YarnRotaryConfig,
)
from levanter.models.llama import LlamaConfig


def llama_to_hf(config: LlamaConfig, vocab_size: int, torch_dtype: str, special: dict[str, Any]) -> dict[str, Any]:
    """The ``config.json`` that describes a model.

    Args:
        config: Our config.
        vocab_size: Rows of the embedding.
        torch_dtype: Dtype of the stored weights.
        special: Special-token ids to include.

    Raises:
        HfCheckpointError: a setting that Hugging Face's Llama has no field for.
    """
    unsupported = [n for n in ("qk_norm", "hybrid_norm", "input_embedding_norm") if getattr(config, n)]
    if config.logits_soft_cap is not None:
        unsupported.append("logits_soft_cap")
    if config.sliding_window is not None:
        unsupported.append("sliding_window")
    document = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.intermediate_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "hidden_act": config.activation_function,
        "initializer_range": config.initializer_range,
        "rms_norm_eps": config.layer_norm_epsilon,
        "max_position_embeddings": config.max_seq_len,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.use_bias,
        "mlp_bias": config.use_bias,
        "attention_dropout": 0.0,
        "use_cache": True,
        "torch_dtype": torch_dtype,
        **rope_to_hf(config.rope),
        **special,
    }
    if unsupported:
        document["levanter_extensions"] = {name: getattr(config, name) for name in unsupported}
    return document


def llama_from_hf(raw: dict[str, Any], path: str) -> LlamaConfig:
    """Our config from a ``config.json``.

    Args:
        raw: The parsed file.
        path: Where it came from, for messages.

    Raises:
        HfCheckpointError: not a Llama, or a rotary scaling we do not know.
    """
    if raw.get("model_type") != "llama":
        raise HfCheckpointError(
            f"cannot import the model: path={path}, model_type={raw.get('model_type')!r}; expected 'llama'. "
            "Only Llama-shaped models are supported by this function.",
            path=path,
        )
    heads = raw["num_attention_heads"]
    head_dim = raw.get("head_dim")
    derived = raw["hidden_size"] // heads
    return LlamaConfig(
        max_seq_len=raw.get("max_position_embeddings", 2048),
        hidden_dim=raw["hidden_size"],
        intermediate_dim=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=None if head_dim in (None, derived) else head_dim,
        activation_function=raw.get("hidden_act", "silu"),
        initializer_range=raw.get("initializer_range", 0.02),
        layer_norm_epsilon=raw.get("rms_norm_eps", 1e-6),
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
        use_bias=raw.get("attention_bias", False),
        rope=rope_from_hf(raw, path),
        **raw.get("levanter_extensions", {}),
    )


def rope_to_hf(rope: RotaryConfig) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling``."""
    scaling: dict[str, Any] | None = None
    if isinstance(rope, Llama3RotaryConfig):
        scaling = {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        }
    elif isinstance(rope, YarnRotaryConfig):
        scaling = {
            "rope_type": "yarn",
            "factor": rope.factor,
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        }
    elif isinstance(rope, DefaultRotaryConfig) and rope.factor != 1.0:
        scaling = {"rope_type": "linear", "factor": rope.factor}
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def rope_from_hf(raw: dict[str, Any], path: str) -> RotaryConfig:
    """A rotary config from ``rope_theta`` and ``rope_scaling`` (or the newer ``rope_parameters``)."""
    scaling = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    theta = float(raw.get("rope_theta") or scaling.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return DefaultRotaryConfig(theta=theta)
    if kind == "linear":
        return LinearRotaryConfig(theta=theta, factor=float(scaling["factor"]))
    classes: dict[str, tuple[type[RotaryConfig], tuple[str, ...]]] = {
        "llama3": (
            Llama3RotaryConfig,
            ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        ),
        "yarn": (YarnRotaryConfig, ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings")),
    }
    if kind not in classes:
        raise HfCheckpointError(
            f"cannot import the model: path={path}, rope_type={kind!r}; expected default, linear, llama3 or yarn.",
            path=path,
        )
    cls, names = classes[kind]
    return cls(theta=theta, **{name: scaling[name] for name in names if name in scaling})
