"""The frozen base of a model with adapters: not in the checkpoints, but named by them.

A run that trains adapters saves the adapters, their optimizer state and a record of the base: where it came from and
the SHA-256 of its weights as they are in memory, whatever their layout. To resume, the base is made again from the
configuration; another one would give another model without a word, so its digest must be the recorded one. A record
without digest, which an older run of several processes left, is taken with a warning.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax

from levanter._checkpoint.layout import read_metadata
from levanter.checkpoint import load_checkpoint
from levanter.errors import CheckpointMismatchError
from levanter.trainable import TRAINABLE_FIELDS, is_buffer
from levanter.trainer_state import TrainerState
from levanter.tree_paths import tree_digest

logger = logging.getLogger(__name__)

RECORD = "base"
FROM_SEED = "the run's seed"
"""Source of a base that the run draws itself."""


@dataclass(frozen=True)
class BaseModel:
    """Where the frozen weights come from.

    Attributes:
        load: Gives a model of the run's structure, adapters included (their values are not read).
        source: What to call it in records and messages: a path.
    """

    load: Callable[[], Any]
    source: str


def split_base(model: Any) -> tuple[Any, Any]:
    """What a checkpoint holds of a model, and the rest: everything and nothing, unless it has adapters.

    Returns:
        ``(saved, base)``, both in the structure of ``model``, None where the other has the leaf; arrays and shapes both
        do.
    """
    if not any(map(_is_adapter, jax.tree.leaves(model, is_leaf=_is_adapter))):
        return model, jax.tree.map(lambda leaf: None, model)

    def mark(node: Any) -> Any:
        if not _is_adapter(node):
            return is_buffer(node)  # set by every step, so no part of what stays as it was
        names = type(node).trainable_fields
        return jax.tree_util.tree_map_with_path(lambda path, leaf: path[0].name in names, node)

    return eqx.partition(model, jax.tree.map(mark, model, is_leaf=lambda node: _is_adapter(node) or is_buffer(node)))


def saved_part(state: TrainerState) -> TrainerState:
    """The state as a checkpoint holds it."""
    return replace(state, model=split_base(state.model)[0])


def base_record(model: Any, source: str) -> dict[str, str]:
    """The entry of ``metadata.json`` that names the base; empty for a model without adapters.

    Every process of a run must call it: they read each other's parts.
    """
    base = split_base(model)[1]
    if not jax.tree.leaves(base):
        return {}
    return {"source": source, "sha256": tree_digest(base)}


def holds_base(path: str) -> bool:
    """Whether a checkpoint holds the whole model."""
    return RECORD not in read_metadata(path).extra


def load_state(state: TrainerState, path: str) -> TrainerState:
    """Another run's whole state, in the layout of ``state``, whose base it must share if it has one.

    Raises:
        CheckpointMismatchError: the checkpoint is of another model, optimizer or base.
    """
    if holds_base(path):
        return load_checkpoint(state, path)
    return rejoin(load_checkpoint(saved_part(state), path), state, path, state.model, "this run's own start")


def rejoin(state: TrainerState, template: TrainerState, path: str, model: Any, source: str) -> TrainerState:
    """A state read from ``path`` with the base of ``model``, laid out as ``template``.

    Raises:
        CheckpointMismatchError: it is not the base that the checkpoint names; both digests are given.
    """

    def place(shape: Any, value: Any) -> Any:
        return jax.device_put(value.astype(shape.dtype), getattr(shape, "sharding", None))

    base = jax.tree.map(place, split_base(template.model)[1], split_base(model)[1])
    joined = replace(state, model=eqx.combine(state.model, base))
    ours, theirs = base_record(joined.model, source), read_metadata(path).extra[RECORD]
    if not theirs["sha256"]:
        logger.warning("%s does not say which base its adapters belong to; taking the one from %s", path, source)
    elif ours["sha256"] != theirs["sha256"]:
        raise CheckpointMismatchError(
            path,
            "model, its frozen base",
            expected=f"sha256={ours['sha256']} (the base from {source})",
            found=f"adapters of sha256={theirs['sha256']} (the base from {theirs['source']})",
        )
    return joined


def _is_adapter(node: Any) -> bool:
    return hasattr(type(node), TRAINABLE_FIELDS)
