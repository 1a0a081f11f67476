"""Watching norms of gradients, parameters, updates and optimizer state.

Everything is reduced inside the compiled step, under a condition on the step number, so that a step that is not watched
pays nothing and a watched one pays one pass over the arrays.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray

from levanter.errors import ConfigError
from levanter.tree_paths import named_leaves, raw_array

TARGETS = ("grads", "params", "updates", "opt_state")
_PREFIX = {"grads": "grad", "params": "params", "updates": "updates", "opt_state": "opt_state"}
NUM_BINS = 31
LAYER_AXES = ("layers", "layer")


@dataclass(frozen=True)
class WatchConfig:
    """What to watch.

    Attributes:
        watch_targets: Any of ``grads``, ``params``, ``updates``, ``opt_state``.
        include_norms: Norm of the whole target.
        include_per_parameter_norms: Norm of each array.
        include_histograms: Histogram of each array, 31 bins.
        split_scan_layers: Report stacked arrays layer by layer.
        interval: Updates between reports; 0 watches nothing.
    """

    watch_targets: list[str] = field(default_factory=lambda: ["grads", "params"])
    include_norms: bool = True
    include_per_parameter_norms: bool = True
    include_histograms: bool = False
    split_scan_layers: bool = True
    interval: int = 10

    def __post_init__(self) -> None:
        unknown = sorted(set(self.watch_targets) - set(TARGETS))
        if unknown or self.interval < 0:
            raise ConfigError(
                f"watch_targets={self.watch_targets}, interval={self.interval}; expected targets from "
                f"{', '.join(TARGETS)} and an interval >= 0.",
                key="trainer.watch",
            )

    @property
    def is_enabled(self) -> bool:
        """Whether anything is watched."""
        return (
            bool(self.watch_targets)
            and self.interval > 0
            and (self.include_norms or self.include_per_parameter_norms or self.include_histograms)
        )


def watch_values(config: WatchConfig, targets: dict[str, Any], step: jax.Array) -> dict[str, jax.Array]:
    """Reduce the targets, inside the compiled step.

    Args:
        config: What to watch.
        targets: Tree by target name.
        step: Updates done after this step.

    Returns:
        Flat values: ``<prefix>/norm/<path>`` scalars or per-layer vectors, ``.../hist/<path>`` counts and edges. All
        zeros on steps that are not watched.
    """

    def compute() -> dict[str, jax.Array]:
        values: dict[str, jax.Array] = {}
        for target in config.watch_targets:
            values.update(_reduce(config, _PREFIX[target], targets[target]))
        return values

    shapes = jax.eval_shape(compute)
    return jax.lax.cond(
        step % config.interval == 0,
        compute,
        lambda: {name: jnp.zeros(s.shape, s.dtype) for name, s in shapes.items()},
    )


def unpack_watched(config: WatchConfig, values: dict[str, Any]) -> dict[str, float]:
    """Turn fetched values into loggable scalars, stacked layers as ``path.<i>.rest``."""
    result: dict[str, float] = {}
    for name, value in values.items():
        array = np.asarray(value)
        if array.ndim == 0:
            result[name] = float(array)
        elif "/hist/" in name:
            result.update({f"{name}/{i}": float(v) for i, v in enumerate(array)})
        elif config.split_scan_layers:
            head, _, tail = name.partition("stacked.")
            result.update({f"{head}{i}.{tail}": float(v) for i, v in enumerate(array)})
        else:
            result[name] = float(np.sqrt(np.sum(np.square(array))))
    return result


def _reduce(config: WatchConfig, prefix: str, tree: Any) -> dict[str, jax.Array]:
    values: dict[str, jax.Array] = {}
    total = jnp.zeros((), jnp.float32)
    for name, leaf in named_leaves(tree):
        array = raw_array(leaf)
        if not hasattr(array, "dtype") or not jnp.issubdtype(array.dtype, jnp.floating):
            continue
        stacked = isinstance(leaf, NamedArray) and leaf.axes and leaf.axes[0].name in LAYER_AXES
        square = jnp.square(array.astype(jnp.float32))
        per_layer = jnp.sum(square, axis=tuple(range(1, array.ndim))) if stacked else jnp.sum(square)
        total = total + jnp.sum(per_layer)
        if config.include_per_parameter_norms:
            values[f"{prefix}/norm/{name}"] = jnp.sqrt(per_layer)
        if config.include_histograms:
            counts, edges = jnp.histogram(array.astype(jnp.float32), bins=NUM_BINS)
            values[f"{prefix}/hist/{name}/counts"] = counts.astype(jnp.float32)
            values[f"{prefix}/hist/{name}/edges"] = edges
    if config.include_norms:
        values[f"{prefix}/norm/total"] = jnp.sqrt(total)
    return values
