"""Which parameters shrink: the weight-decay mask.

By default everything decays except norms, embeddings and biases, recognised by class name or path. The list of leaves
that do decay is logged as the hyper-parameter ``decayed_weights``, so nobody has to guess.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from levanter.tree_paths import map_named, owner_classes

_EXEMPT_CLASSES = ("LayerNorm", "RMSNorm", "RmsNorm", "Embedding")


def build_mask_fn(modules: str | Sequence[str] | None) -> Callable[[Any], Any]:
    """Build ``params -> tree of bool`` for optax.

    Args:
        modules: None for the default rule; a regular expression, or a list of substrings, that select what decays.
            Both are tried on the leaf's path and on ``Class.field``.

    Returns:
        A function from a parameter tree to a tree of booleans of the same outer structure.
    """

    def mask(params: Any) -> Any:
        classes = owner_classes(params)
        return map_named(lambda name, _: _decays(name, classes.get(name, ""), modules), params)

    return mask


def decayed_names(params: Any, modules: str | Sequence[str] | None) -> list[str]:
    """List the leaf names that decay, sorted."""
    classes = owner_classes(params)
    names: list[str] = []
    map_named(lambda name, _: names.append(name) if _decays(name, classes.get(name, ""), modules) else None, params)
    return sorted(names)


def _decays(name: str, classes: str, modules: str | Sequence[str] | None) -> bool:
    if modules is None:
        return not (name.endswith("bias") or any(c in classes or c in name for c in _EXEMPT_CLASSES))
    if isinstance(modules, str):
        return bool(re.search(modules, name) or re.search(modules, classes))
    return any(part in name or part in classes for part in modules)
