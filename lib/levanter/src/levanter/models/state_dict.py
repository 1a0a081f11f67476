r"""State-dict maps: where each Hugging Face tensor lives in a model, readable in both directions.

A map is a list of :class:`TensorSlot`. Import and export walk the same list, so they cannot drift apart, and a list
covers a model exactly when every parameter is named once.

Ours stacks what torch keeps apart (layers, experts) and stores matrices ``[in..., out...]``; torch stores ``[out, in]``
and sometimes fuses several of our leaves into one tensor. :class:`Layout` names the four cases.

Invariant: ``slot.write(leaves, slot.export(model))`` changes no bit.
"""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

STACK = "transformer.layers.stacked."
"""Path prefix of the parameters that have a leading layer axis."""
STRIP = 16
"""Rows transposed at a time: a cache line of float32 of each column, 6 times as fast as a whole matrix in NumPy."""


class Layout(enum.StrEnum):
    """How torch stores a tensor: as ours, flattened, Linear ``[out, in]``, a stack of those ``[..., out, in]``, GPT-2's
    Conv1D ``[in, out]``."""

    PLAIN = "plain"
    VECTOR = "vector"
    LINEAR = "linear"
    LINEAR_STACK = "linear_stack"
    CONV1D = "conv1d"


@dataclass(frozen=True)
class Leaf:
    """One of our arrays, or one slice of it.

    Attributes:
        path: Attribute path from the model, dots between names.
        index: Position on leading axes that torch has no axis for (layer, expert).
        in_axes: How many of the remaining axes are inputs, for the matrix layouts.
    """

    path: str
    index: tuple[int, ...] = ()
    in_axes: int = 1

    def array(self, model: Any) -> Any:
        """The whole raw array that holds this leaf."""
        node = model
        for name in self.path.split("."):
            node = getattr(node, name)
        return node.array

    def shape(self, model: Any) -> tuple[int, ...]:
        """Shape of the leaf, without the axes that ``index`` fixes."""
        return tuple(self.array(model).shape[len(self.index) :])


@dataclass(frozen=True)
class TensorSlot:
    """One torch tensor and the leaves it is made of.

    Attributes:
        name: Name in the state dict.
        leaves: Ours, in the order in which torch concatenates them.
        layout: How torch stores it.
        constant: Value of a tensor that torch keeps and we do not; written on export, checked on import when present.
            Its one leaf says which dtype it has.
        dtype: Dtype it has in files and in memory, whatever dtype the others are asked for; None follows them.

    Example:
        >>> TensorSlot("wte.weight", (Leaf("embeddings.token_embeddings.weight"),)).layout.value
        'plain'
    """

    name: str
    leaves: tuple[Leaf, ...]
    layout: Layout = Layout.PLAIN
    constant: float | None = None
    dtype: str | None = None

    def shape(self, model: Any) -> tuple[int, ...]:
        """Shape of the torch tensor."""
        if self.constant is not None:
            return ()
        shapes = [self._torch_shape(leaf, leaf.shape(model)) for leaf in self.leaves]
        if len(shapes) == 1:
            return shapes[0]
        axis = self._concat_axis()
        total = sum(shape[axis] for shape in shapes)
        return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])

    def export(self, model: Any) -> np.ndarray:
        """The tensor as torch stores it, on the host."""
        if self.constant is not None:
            return np.full((), self.constant, self.leaves[0].array(model).dtype)
        parts = []
        for leaf in self.leaves:
            own = np.asarray(jax.device_get(leaf.array(model)[leaf.index]))
            parts.append(self._to_torch(leaf, own))
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self._concat_axis())
        return np.ascontiguousarray(joined)

    def write(self, buffers: Mapping[str, np.ndarray], rows: np.ndarray, first: int = 0) -> None:
        """Copy rows of a torch tensor into our host arrays.

        Args:
            buffers: Whole arrays by leaf path, in C order; the slot's slices are overwritten.
            rows: As torch stores it, of :meth:`shape`, or some of its rows.
            first: Which row of the tensor ``rows`` starts at.
        """
        at = 0
        for leaf in self.leaves:
            target = buffers[leaf.path][(*leaf.index, ...)]  # a view even where the leaf is one number
            shape = self._torch_shape(leaf, target.shape) or (1,)
            size = shape[self._concat_axis()]
            if self._concat_axis() == 1:
                target.reshape(shape)[first : first + len(rows)] = rows[:, at : at + size]
            else:
                begin, end = max(first, at), min(first + len(rows), at + size)
                if begin < end:
                    self._write_leaf(target, shape, rows[begin - first : end - first], begin - at)
            at += size

    def _write_leaf(self, target: np.ndarray, shape: tuple[int, ...], rows: np.ndarray, first: int) -> None:
        """Rows ``first ..`` of one leaf's tensor of ``shape``, which is concatenated by rows."""
        if self.layout == Layout.LINEAR_STACK:
            target[first : first + len(rows)] = rows.swapaxes(-1, -2)
            return
        if self.layout != Layout.LINEAR:
            target.reshape(shape)[first : first + len(rows)] = rows
            return
        columns = target.reshape(shape[::-1])
        for strip in range(0, len(rows), STRIP):
            part = rows[strip : strip + STRIP]
            columns[:, first + strip : first + strip + len(part)] = part.T

    def _to_torch(self, leaf: Leaf, own: np.ndarray) -> np.ndarray:
        shape = self._torch_shape(leaf, own.shape)
        if self.layout == Layout.LINEAR_STACK:
            return own.swapaxes(-1, -2)
        return own.reshape(shape[::-1]).T if self.layout == Layout.LINEAR else own.reshape(shape)

    def _torch_shape(self, leaf: Leaf, own: tuple[int, ...]) -> tuple[int, ...]:
        if self.layout == Layout.PLAIN:
            return own
        if self.layout == Layout.VECTOR:
            return (math.prod(own),)
        if self.layout == Layout.LINEAR_STACK:
            return (*own[:-2], own[-1], own[-2])
        fan_in, fan_out = math.prod(own[: leaf.in_axes]), math.prod(own[leaf.in_axes :])
        return (fan_out, fan_in) if self.layout == Layout.LINEAR else (fan_in, fan_out)

    def _concat_axis(self) -> int:
        return 1 if self.layout == Layout.CONV1D else 0


def constant_slot(name: str, value: float, *, like: str) -> TensorSlot:
    """Slot of a scalar that is no parameter of ours, in the dtype of the array at path ``like``."""
    return TensorSlot(name, (Leaf(like),), constant=value)


def linear_slots(
    name: str, path: str, index: tuple[int, ...] = (), *, in_axes: int = 1, bias: bool
) -> list[TensorSlot]:
    """Slots of a Linear and its bias.

    Args:
        name: Torch name without ``.weight``.
        path: Ours without ``.weight``.
        index: Layer, and expert where there is one.
        in_axes: Input axes of our weight.
        bias: Whether there is one.
    """
    slots = [TensorSlot(f"{name}.weight", (Leaf(f"{path}.weight", index, in_axes),), Layout.LINEAR)]
    if bias:
        slots.append(vector_slot(f"{name}.bias", f"{path}.bias", index))
    return slots


def vector_slot(name: str, path: str, index: tuple[int, ...] = ()) -> TensorSlot:
    """Slot of a vector (norm weight, bias), flattened whatever our axes are."""
    return TensorSlot(name, (Leaf(path, index),), Layout.VECTOR)


def attention_slots(prefix: str, spec: Any, layer: int) -> list[TensorSlot]:
    """Slots of a block's attention under the names that Llama and its relatives share.

    Args:
        prefix: Torch prefix, ``model.layers.3.self_attn.``.
        spec: The :class:`~levanter.models.block.BlockSpec`.
        layer: Index of the layer.
    """
    ours = f"{STACK}self_attn."
    slots: list[TensorSlot] = []
    for name in ("q_proj", "k_proj", "v_proj"):
        slots += linear_slots(prefix + name, ours + name, (layer,), bias=spec.use_qkv_bias)
    slots += linear_slots(f"{prefix}o_proj", f"{ours}o_proj", (layer,), in_axes=2, bias=spec.use_output_bias)
    if spec.qk_norm != "none":
        slots += [vector_slot(f"{prefix}{n}.weight", f"{ours}{n}.weight", (layer,)) for n in ("q_norm", "k_norm")]
    if spec.use_sinks:
        slots.append(vector_slot(f"{prefix}sinks", f"{ours}sinks", (layer,)))
    return slots


def gated_mlp_slots(prefix: str, spec: Any, layer: int) -> list[TensorSlot]:
    """Slots of a gated MLP: ``mlp.gate_proj``, ``mlp.up_proj``, ``mlp.down_proj`` under ``prefix``."""
    slots: list[TensorSlot] = []
    for name in ("gate_proj", "up_proj", "down_proj"):
        slots += linear_slots(f"{prefix}mlp.{name}", f"{STACK}mlp.{name}", (layer,), bias=spec.mlp.use_bias)
    return slots


def decoder_map(
    config: Any,
    *,
    norms: Mapping[str, str],
    mlp_slots: Callable[[str, Any, int], Iterable[TensorSlot]] = gated_mlp_slots,
) -> list[TensorSlot]:
    """The map of a model that names things as Llama does.

    Args:
        config: A :class:`~levanter.models.decoder.DecoderConfig`.
        norms: The block's norms: our attribute to the torch name inside a layer.
        mlp_slots: ``(prefix of the layer, block spec, layer)`` to the slots of the MLP.

    Returns:
        Slots in export order: embedding, layers, final norm, embedding norm, head.
    """
    spec = config.block_spec()
    slots = [TensorSlot("model.embed_tokens.weight", (Leaf("embeddings.token_embeddings.weight"),))]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        slots += attention_slots(f"{prefix}self_attn.", spec, layer)
        slots += mlp_slots(prefix, spec, layer)
        for ours, torch_name in norms.items():
            slots.append(vector_slot(f"{prefix}{torch_name}.weight", f"{STACK}{ours}.weight", (layer,)))
    slots.append(vector_slot("model.norm.weight", "transformer.norm.weight"))
    if config.norms_embedding:
        slots.append(vector_slot("model.embed_norm.weight", "embeddings.norm.weight"))
    if not config.tie_word_embeddings:
        slots += linear_slots("lm_head", "lm_head", bias=False)
    return slots
