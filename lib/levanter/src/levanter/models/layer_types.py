r"""What differs from layer to layer of one model, and how it rides along a scan.

A stack of layers is one compiled body. Windows, rotations and score scales that differ are arrays with one entry a
layer, scanned beside the parameters; what all layers share stays a constant of the program. Unrolled stacks get plain
numbers, which kernels that need fixed windows can use.

References:
    Alternating local and global attention: Beltagy et al., Longformer, arXiv:2004.05150; Gemma 2, arXiv:2408.00118.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from levanter.errors import ConfigError
from levanter.layers.attention_mask import AttentionMask
from levanter.layers.rotary import RotaryConfig, rotary_tables
from levanter.models.block import LayerInputs

NO_WINDOW = 2**30
"""Window of a layer without one, where other layers have one: longer than any sequence."""


class LayerType(NamedTuple):
    """What one layer does differently from its neighbours.

    Attributes:
        window: Keys a query sees backwards, itself included; None for all.
        rope: Rotation; None for none.
        score_scale: Extra factor on the attention scores.
    """

    window: int | None = None
    rope: RotaryConfig | None = None
    score_scale: float = 1.0


def alternating_layers(
    kinds: Sequence[str], *, num_layers: int, window: int | None, rope: RotaryConfig, local_rope: RotaryConfig
) -> list[LayerType]:
    """Layers of a model whose kinds alternate.

    Args:
        kinds: ``sliding_attention`` or ``full_attention`` for every layer.
        num_layers: How many there must be.
        window: Keys that a sliding layer sees.
        rope: Rotation of full layers.
        local_rope: Rotation of sliding layers.

    Raises:
        ConfigError: another number of entries, another kind, or sliding layers without a window.

    Example:
        >>> rope = RotaryConfig()
        >>> kinds = ["sliding_attention", "full_attention"]
        >>> [x.window for x in alternating_layers(kinds, num_layers=2, window=8, rope=rope, local_rope=rope)]
        [8, None]
    """
    types = {"sliding_attention": LayerType(window, local_rope), "full_attention": LayerType(None, rope)}
    if len(kinds) != num_layers or not set(kinds) <= set(types):
        raise ConfigError(
            f"{len(kinds)} entries {sorted(set(kinds))}, num_layers={num_layers}; expected one of "
            "sliding_attention and full_attention for each layer.",
            key="model.layer_types",
        )
    if window is None and "sliding_attention" in kinds:
        raise ConfigError("None with sliding layers; expected a number of keys.", key="model.sliding_window")
    return [types[kind] for kind in kinds]


def plan_layers(
    types: Sequence[LayerType], head_size: int, positions: jax.Array
) -> tuple[dict[str, Any], Callable[[dict[str, Any], AttentionMask | None], LayerInputs]]:
    """What differs by layer, as arrays to scan over and a function from one layer's slice to its inputs.

    Args:
        types: One entry a layer.
        head_size: Size of a head.
        positions: ``[P]`` or ``[B, P]``.

    Returns:
        ``(xs, inputs)`` where ``inputs(x, mask)`` adds the layer's window to the mask and picks its rotation.

    Example:
        >>> xs, inputs = plan_layers([LayerType(window=4), LayerType()], 8, jnp.arange(3))
        >>> xs["window"].tolist() == [4, NO_WINDOW], inputs({"window": 4}, None).mask.lookback
        (True, 4)
    """
    windows = [layer.window for layer in types]
    ropes = list(dict.fromkeys(layer.rope for layer in types))
    scales = [layer.score_scale for layer in types]
    tables: list[Any] = [None if rope is None else _tables(rope, head_size, positions) for rope in ropes]
    if None in ropes and len(ropes) > 1:
        cos, sin = next(table for table in tables if table is not None)
        tables = [(jnp.ones_like(cos), jnp.zeros_like(sin)) if table is None else table for table in tables]
    xs: dict[str, Any] = {}
    if len(set(windows)) > 1:
        xs["window"] = np.asarray([window or NO_WINDOW for window in windows], np.int32)
    if len(ropes) > 1:
        xs["rope"] = np.asarray([ropes.index(layer.rope) for layer in types], np.int32)
    if set(scales) != {1.0}:
        xs["score_scale"] = np.asarray(scales, np.float32)

    def inputs(x: dict[str, Any], mask: AttentionMask | None) -> LayerInputs:
        window = _window(x.get("window", windows[0]))
        if window is not None:
            mask = (AttentionMask() if mask is None else mask).with_lookback(window)
        rope: Any = tables[0]
        if "rope" in x:
            rope = tuple(jnp.stack([table[part] for table in tables])[x["rope"]] for part in (0, 1))
        return LayerInputs(mask, rope, x.get("score_scale"))

    return xs, inputs


def _tables(rope: RotaryConfig, head_size: int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tables broadcastable to ``[B, H, P, D]``."""
    cos, sin = rotary_tables(rope, head_size, positions)
    return (cos, sin) if positions.ndim == 1 else (cos[:, None], sin[:, None])


def _window(value: Any) -> Any:
    """A window as the mask wants it: None, an int while concrete, an array when scanned."""
    if value is None or isinstance(value, jax.core.Tracer):
        return value
    return None if int(value) == NO_WINDOW else int(value)
