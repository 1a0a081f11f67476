r"""Low-rank adaptation: freeze a model and train a product of two thin matrices beside each linear layer.

    y = W x + (alpha / r) B A x

:func:`loraize` replaces the chosen layers, :func:`merge_lora_modules` folds the products into the weights,
:func:`unwrap_lora_modules` drops them. A model with adapters trains nothing else (:mod:`levanter.trainable`).
Exactly one factor starts at zero, so that the adapted model starts as the base model; by default that is ``A``.

Invariant: at the start, and after :func:`unwrap_lora_modules` at any time, the model's outputs are those of the base.

References:
    Hu et al., LoRA, arXiv:2106.09685, sections 4.1 and 4.2.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.errors import ConfigError
from levanter.layers.linear import LoraLinear
from levanter.trainable import trainable_filter
from levanter.tree_paths import path_name

LORA_RANK = "lora_rank"


@dataclass(frozen=True)
class LoraConfig:
    """Which layers get adapters, and how large.

    Attributes:
        target_modules: None for every linear layer; a regular expression that a layer's whole path must match; or
            names, each of which may be the end of a path (``q_proj``, ``self_attn.q_proj``).
        r: Rank.
        alpha: The product is scaled by ``alpha / r``.
        dropout: Must be 0; dropout is not implemented.
        zero_init_b: Start ``B`` at zero; then ``a_init_mode`` must be ``random``.
        a_init_mode: ``zero`` or ``random``.
        exclude_modules: Names, as in ``target_modules``, that get none; None means ``lm_head``.

    Example:
        >>> LoraConfig(target_modules=["q_proj"]).matches("transformer.layers.stacked.self_attn.q_proj")
        True
    """

    target_modules: list[str] | str | None = None
    r: int = 8
    alpha: float = 8.0
    dropout: float = 0.0
    zero_init_b: bool = False
    a_init_mode: str = "zero"
    exclude_modules: list[str] | None = None

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ConfigError(f"{self.r}; expected a rank of at least 1.", key="lora.r")
        if self.dropout:
            raise ConfigError(f"{self.dropout}; expected 0, dropout is not implemented.", key="lora.dropout")
        if self.a_init_mode not in ("zero", "random"):
            raise ConfigError(f"{self.a_init_mode!r}; expected zero or random.", key="lora.a_init_mode")
        if self.zero_init_b == (self.a_init_mode == "zero"):
            raise ConfigError(
                f"zero_init_b={self.zero_init_b}, a_init_mode={self.a_init_mode!r}; expected exactly one zero factor: "
                "with two nothing is ever trained, with none the model does not start as the base.",
                key="lora.zero_init_b",
            )

    @property
    def scale(self) -> float:
        """Factor on the product."""
        return self.alpha / self.r

    def matches(self, path: str) -> bool:
        """Whether the layer at this path gets an adapter."""
        if _ends_with(path, ("lm_head",) if self.exclude_modules is None else self.exclude_modules):
            return False
        if self.target_modules is None:
            return True
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, path) is not None
        return _ends_with(path, self.target_modules)


def loraize(model: Any, config: LoraConfig, *, key: jax.Array) -> Any:
    """Give adapters to the layers that ``config`` chooses.

    Args:
        model: Any model whose linear layers are haliax ones, stored in-axes-first.
        config: Which, and how large.
        key: PRNG key; every layer draws from its own.

    Returns:
        The model with :class:`~levanter.layers.linear.LoraLinear` in their places.

    Raises:
        ConfigError: no layer is chosen; the message lists the layers there are.
    """
    seen: list[str] = []
    chosen: list[str] = []

    def adapt(path: tuple[Any, ...], node: Any) -> Any:
        if not isinstance(node, hnn.Linear):
            return node
        name = path_name(path)
        seen.append(name)
        if not config.matches(name):
            return node
        chosen.append(name)
        return _adapter(node, config, jax.random.fold_in(key, len(seen)))

    adapted = jax.tree_util.tree_map_with_path(adapt, model, is_leaf=lambda node: isinstance(node, hnn.Linear))
    if not chosen:
        raise ConfigError(
            f"no layer matches target_modules={config.target_modules!r}; expected one or more of {', '.join(seen)}.",
            key="lora.target_modules",
        )
    return adapted


def merge_lora_modules(model: Any) -> Any:
    """Fold every product into its weight: a model of plain layers with the outputs of the adapted one."""

    def merge(layer: LoraLinear) -> hnn.Linear:
        weight = layer.weight.array
        total = weight.astype(jnp.float32) + layer.delta().array
        return _plain(layer, NamedArray(total.astype(weight.dtype), layer.weight.axes))

    return _map_adapters(merge, model)


def unwrap_lora_modules(model: Any) -> Any:
    """Drop every adapter: the base model, bit for bit."""
    return _map_adapters(lambda layer: _plain(layer, layer.weight), model)


def is_lora_model(model: Any) -> bool:
    """Whether a model has adapters."""
    return any(_is_lora(node) for node in jax.tree.leaves(model, is_leaf=_is_lora))


def lora_trainable_params_filter(model: Any) -> Any:
    """Tree of booleans that is true for the adapters' arrays; what the trainer uses by itself.

    Raises:
        ConfigError: the model has no adapters.
    """
    if not is_lora_model(model):
        raise ConfigError("the model has no adapters; expected one made by loraize.", key="lora")
    return trainable_filter(model)


def _adapter(layer: hnn.Linear, config: LoraConfig, key: jax.Array) -> LoraLinear:
    """One layer's adapter; a leading layer axis of a stack is kept leading, with factors of its own per layer."""
    stack, ins, outs = split_axes(layer)
    Rank = Axis(LORA_RANK, config.r)
    dtype = layer.weight.array.dtype

    def draw(axes: tuple[Axis, ...], fan_in: int, zero: bool) -> NamedArray:
        shape = tuple(axis.size for axis in axes)
        if zero:
            return NamedArray(jnp.zeros(shape, dtype), axes)
        values = jax.random.truncated_normal(key, -3, 3, shape, jnp.float32) * fan_in**-0.5
        return NamedArray(values.astype(dtype), axes)

    fan_in = 1
    for axis in ins:
        fan_in *= axis.size
    a = draw((*stack, *ins, Rank), fan_in, config.a_init_mode == "zero")
    b = draw((*stack, Rank, *outs), config.r, config.zero_init_b)
    return LoraLinear(layer.weight, layer.bias, a, b, config.scale)


def split_axes(layer: hnn.Linear) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...]]:
    """Axes of a layer's weight: those of a stack around it, those of its input, those of its output."""
    named_ins = {axis.name for axis in _axes(layer.In)}
    named_outs = {axis.name for axis in _axes(layer.Out)}
    axes = layer.weight.axes
    ins = tuple(axis for axis in axes if axis.name in named_ins)
    outs = tuple(axis for axis in axes if axis.name in named_outs)
    return tuple(axis for axis in axes if axis.name not in named_ins | named_outs), ins, outs


def _plain(layer: LoraLinear, weight: NamedArray) -> hnn.Linear:
    a, b = ({axis.name for axis in factor.axes} for factor in (layer.lora_a, layer.lora_b))
    ins = tuple(axis for axis in weight.axes if axis.name in a - b)
    outs = tuple(axis for axis in weight.axes if axis.name in b - a)
    return hnn.Linear(weight, layer.bias, ins if len(ins) > 1 else ins[0], outs if len(outs) > 1 else outs[0])


def _map_adapters(fn: Callable[[LoraLinear], Any], model: Any) -> Any:
    return jax.tree.map(lambda node: fn(node) if _is_lora(node) else node, model, is_leaf=_is_lora)


def _is_lora(node: Any) -> bool:
    return isinstance(node, LoraLinear)


def _axes(spec: Any) -> tuple[Axis, ...]:
    return (spec,) if isinstance(spec, Axis) else tuple(spec)


def _ends_with(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)
