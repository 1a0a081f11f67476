r"""Which parameters are matrices, and how each is read as one.

Optimizers that act on whole matrices (Muon, AdamH, SOAP, Kron, Scion, Adam-mini) need to know, for every array, which
of its dimensions are stacked copies, which are the fan-in and which the fan-out. The answer comes from the layer that
owns the array, never from its rank: a query projection stored as ``(layers, embed, heads, head_size)`` is one
``embed x (heads * head_size)`` matrix per layer, whatever the storage order.

    haliax ``Linear``      fan-in = the axes of ``In``, fan-out = the axes of ``Out``, everything else is a stack
    haliax ``MoELinear``   the same, with the experts in the stack
    a raw array            the last two dimensions are ``(fan_in, fan_out)``, the dimensions before them a stack
    a named table          (embeddings, on request) first axis x the rest

Shape suffixes: S stack (any number of dimensions), I fan-in, O fan-out.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from haliax.util import ensure_tuple

from levanter.tree_paths import is_named, map_named, owner_classes, path_name, raw_array

_LINEAR = (hnn.Linear, hnn.MoELinear)
_TABLE = re.compile(r"(^|\.)(\w+_)?embed(ding)?s?(\.|$)", re.IGNORECASE)
_HEAD = re.compile(r"(^|\.)(lm_head|output_proj)(\.|$)")


class Kind(StrEnum):
    """What a parameter is to an optimizer that treats matrices differently."""

    MATRIX = "matrix"
    HEAD = "head"
    TABLE = "table"
    VECTOR = "vector"


@dataclass(frozen=True)
class MatrixView:
    """How one array is read as a stack of matrices.

    Attributes:
        shape: Shape of the array.
        names: Axis name of each dimension, None where it has none.
        stack: Dimensions that count copies.
        rows: Dimensions of the fan-in.
        columns: Dimensions of the fan-out.
        name: Leaf name of the array.

    Example:
        >>> view = MatrixView((2, 3, 4, 5), ("layers", "embed", "heads", "head_size"), (0,), (1,), (2, 3))
        >>> view.fan_in, view.fan_out
        (3, 20)
    """

    shape: tuple[int, ...]
    names: tuple[str | None, ...]
    stack: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    name: str = ""

    @property
    def fan_in(self) -> int:
        """Rows of each matrix."""
        return math.prod(self.shape[d] for d in self.rows)

    @property
    def fan_out(self) -> int:
        """Columns of each matrix."""
        return math.prod(self.shape[d] for d in self.columns)

    @property
    def stack_shape(self) -> tuple[int, ...]:
        """Sizes of the stack dimensions."""
        return tuple(self.shape[d] for d in self.stack)

    def matrices(self, x: jax.Array) -> jax.Array:
        """Read ``x`` as ``[S..., I, O]``."""
        turned = x.transpose(*self.stack, *self.rows, *self.columns)
        return turned.reshape(*self.stack_shape, self.fan_in, self.fan_out)

    def restore(self, x_SIO: jax.Array) -> jax.Array:
        """Undo :meth:`matrices`."""
        order = (*self.stack, *self.rows, *self.columns)
        turned = x_SIO.reshape([self.shape[d] for d in order])
        return turned.transpose(*[order.index(d) for d in range(len(order))])

    def norm(self, x: jax.Array) -> jax.Array:
        """Frobenius norm of every matrix, in float32 or wider, shaped to multiply ``x``."""
        return jnp.sqrt(self.sum(jnp.square(widen(x))))

    def sum(self, x: jax.Array) -> jax.Array:
        """Sum over every matrix, shaped to broadcast against ``x``."""
        return jnp.sum(x, axis=(*self.rows, *self.columns), keepdims=True)

    def state(self, value: jax.Array, *dims: str | None) -> NamedArray | jax.Array:
        """Name an array that belongs to this one, so that it is laid out over devices as its parameter is.

        Args:
            value: Array ``[S..., ...]``.
            *dims: Name of every dimension after the stack; None for a dimension that stays whole.
        """
        names = [self.names[d] or f"stack{d}" for d in self.stack]
        names += [name or f"whole{i}" for i, name in enumerate(dims)]
        unique = [name if name not in names[:i] else f"{name}_{i}" for i, name in enumerate(names)]
        return NamedArray(value, tuple(Axis(n, s) for n, s in zip(unique, value.shape, strict=True)))

    @property
    def row_name(self) -> str:
        """Axis name that the fan-in is laid out by."""
        return self._first_name(self.rows, "rows")

    @property
    def column_name(self) -> str:
        """Axis name that the fan-out is laid out by."""
        return self._first_name(self.columns, "columns")

    def _first_name(self, dims: tuple[int, ...], default: str) -> str:
        return next((name for d in dims if (name := self.names[d]) is not None), default)


def widen(x: jax.Array) -> jax.Array:
    """``x`` in float32, or in its own dtype where that is wider: sums and factorisations are never done in bfloat16.

    Example:
        >>> widen(jnp.zeros(2, jnp.bfloat16)).dtype.name
        'float32'
    """
    return x.astype(wide_dtype(x.dtype))


def wide_dtype(dtype: Any) -> jnp.dtype:
    """The dtype of :func:`widen`: float32, or ``dtype`` where that is wider."""
    return jnp.promote_types(dtype, jnp.float32)


def matrix_views(params: Any, *, tables: bool = False) -> dict[str, MatrixView]:
    """Find every matrix of a model.

    Args:
        params: Parameters, or any tree with their structure; masked nodes are passed over.
        tables: Count embedding tables as matrices: vocabulary x embedding.

    Returns:
        View by leaf name, the names of :func:`levanter.tree_paths.named_leaves`.

    Example:
        >>> matrix_views({"w": jnp.zeros((2, 3, 4)), "gain": jnp.zeros(4)})["w"].stack_shape
        (2,)
    """
    views: dict[str, MatrixView] = {}
    classes = owner_classes(params) if tables else {}
    for name, node in _owners(params):
        if isinstance(node, _LINEAR):
            if is_named(node.weight) and _has_array(node.weight):
                full = f"{name}.weight" if name else "weight"
                views[full] = _layer_view(node, full)
        elif is_named(node):
            if _has_array(node) and len(node.axes) == 2 and "Embedding" in classes.get(name, ""):
                views[name] = MatrixView(node.array.shape, tuple(a.name for a in node.axes), (), (0,), (1,), name)
        elif getattr(node, "ndim", 0) >= 2:
            last = node.ndim - 1
            stack = tuple(range(last - 1))
            views[name] = MatrixView(node.shape, (None,) * node.ndim, stack, (last - 1,), (last,), name)
    return views


def parameter_kinds(params: Any, *, adam_modules: str | Sequence[str] | None = None) -> dict[str, Kind]:
    """Sort every leaf into matrix, head, table or vector.

    Args:
        params: Parameters.
        adam_modules: Further leaves that count as vectors: a regular expression, or a list of substrings, tried on the
            leaf's name. Matrices that start at zero (a LoRA factor, a zero-initialised gate) belong here under
            norm-preserving optimizers, which cannot move them; names with ``lora_`` always do.
    """
    views = matrix_views(params)
    classes = owner_classes(params)
    kinds: dict[str, Kind] = {}

    def visit(name: str, leaf: Any) -> None:
        if name not in views or "lora_" in name or _selected(name, adam_modules):
            kinds[name] = Kind.TABLE if "Embedding" in classes.get(name, "") else Kind.VECTOR
        elif _HEAD.search(name):
            kinds[name] = Kind.HEAD
        else:
            kinds[name] = Kind.TABLE if _TABLE.search(name) else Kind.MATRIX

    map_arrays(visit, params)
    return kinds


def label_tree(params: Any, labels: Callable[[str], str]) -> Any:
    """A tree of labels for :func:`optax.partition`, one per NamedArray or raw array."""
    return map_arrays(lambda name, leaf: labels(name), params)


def map_matrices(fn: Callable[..., Any], views: dict[str, MatrixView], tree: Any, *rest: Any) -> Any:
    """Map ``fn(view, array, *arrays)`` over the leaves that have a view and keep the others of ``tree``.

    ``fn`` sees raw arrays; what it returns replaces the array of the leaf, names kept.
    """

    def apply(name: str, leaf: Any, *others: Any) -> Any:
        if name not in views:
            return leaf
        value = fn(views[name], raw_array(leaf), *[raw_array(other) for other in others])
        return NamedArray(value, leaf.axes) if is_named(leaf) else value

    return map_arrays(apply, tree, *rest)


def map_arrays(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """:func:`levanter.tree_paths.map_named` over the leaves that hold an array; named leaves that hold none (weights
    frozen beside an adapter) pass unchanged."""
    return map_named(lambda name, leaf, *others: fn(name, leaf, *others) if _has_array(leaf) else leaf, tree, *rest)


def _has_array(leaf: Any) -> bool:
    return leaf is not None and raw_array(leaf) is not None


def _owners(params: Any) -> Iterator[tuple[str, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda n: isinstance(n, _LINEAR) or is_named(n))
    for path, node in flat:
        yield path_name(path), node


def _layer_view(layer: Any, name: str) -> MatrixView:
    names = tuple(axis.name for axis in layer.weight.axes)
    fan_in = {axis if isinstance(axis, str) else axis.name for axis in ensure_tuple(layer.In)}
    fan_out = {axis if isinstance(axis, str) else axis.name for axis in ensure_tuple(layer.Out)}
    dims = range(len(names))
    return MatrixView(
        tuple(layer.weight.array.shape),
        names,
        tuple(d for d in dims if names[d] not in fan_in | fan_out),
        tuple(d for d in dims if names[d] in fan_in),
        tuple(d for d in dims if names[d] in fan_out),
        name,
    )


def _selected(name: str, modules: str | Sequence[str] | None) -> bool:
    if modules is None:
        return False
    if isinstance(modules, str):
        return bool(re.search(modules, name))
    return any(part in name for part in modules)
