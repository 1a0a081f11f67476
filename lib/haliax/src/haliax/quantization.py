"""Low-precision matrix multiplication for `haliax.nn.Linear`: FP8 with delayed scaling, and dynamic INT8.

A replacement for `lax.dot_general` may carry state (scales and histories). Such state is not trained: its "gradient" is
its next value. `partition_for_grad_overwrite` takes those out of a gradient tree before the optimiser sees it, and
`apply_updates` puts them in place.

Training step::

    grads = eqx.filter_grad(loss)(model)
    overwrites, grads = partition_for_grad_overwrite(grads)
    updates, opt_state = optimizer.update(grads, opt_state)
    model = apply_updates(model, updates, overwrites)

References:
    Micikevicius et al., FP8 formats for deep learning, arXiv:2209.05433.
"""

import dataclasses
import functools
import re
import warnings
from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from haliax._axis.types import axis_size
from haliax._ops.loops import vmap
from haliax._src.fp8 import compute_scale as compute_scale
from haliax._src.fp8 import in_qdq, out_qdq
from haliax._stacked import is_stacked, stacked_axis
from haliax._state_dict.protocol import ModuleWithStateDictSerialization, StateDict
from haliax.errors import HaliaxError
from haliax.nn.dot_general import DefaultDotGeneralOp, DotGeneralOp
from haliax.nn.linear import Linear

__all__ = [
    "DefaultDotGeneralOp",
    "DotGeneralOp",
    "Fp8DotGeneralOp",
    "Int8DotGeneralOp",
    "OverwriteWithGradient",
    "QuantizationConfig",
    "QuantizationConfigError",
    "apply_updates",
    "partition_for_grad_overwrite",
    "quantize_linear_layers",
]


class QuantizationConfigError(HaliaxError, AssertionError):
    """A quantisation config asks for two formats at once."""


class OverwriteWithGradient(eqx.Module):
    """Marks a module whose "gradient" is its next value."""


def partition_for_grad_overwrite(grad: Any) -> tuple[Any, Any]:
    """Split a gradient tree into (next values of `OverwriteWithGradient` modules, gradients for the optimiser)."""

    def is_overwrite(x: Any) -> bool:
        return isinstance(x, OverwriteWithGradient)

    overwrites = jax.tree_util.tree_map(lambda x: x if is_overwrite(x) else None, grad, is_leaf=is_overwrite)
    rest = jax.tree_util.tree_map(lambda x: None if is_overwrite(x) else x, grad, is_leaf=is_overwrite)
    return overwrites, rest


def apply_updates(tree: Any, updates: Any, overwrites: Any) -> Any:
    """Add ``updates`` to the parameters and put the next values of ``overwrites`` in place."""

    def is_overwrite(x: Any) -> bool:
        return isinstance(x, OverwriteWithGradient) or x is None

    def update(overwrite: Any, value: Any, change: Any) -> Any:
        if isinstance(overwrite, OverwriteWithGradient):
            return overwrite
        return eqx.apply_updates(value, change)

    return jax.tree_util.tree_map(lambda o, v, c: update(o, v, c), overwrites, tree, updates, is_leaf=is_overwrite)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def _dot_default_precision(lhs: Any, rhs: Any, numbers: Any, precision: Any, preferred: Any) -> Any:
    del precision, preferred
    return jax.lax.dot_general(lhs, rhs, numbers, precision=jax.lax.Precision.DEFAULT)


@_dot_default_precision.defjvp
def _dot_jvp(numbers: Any, precision: Any, preferred: Any, primals: Any, tangents: Any) -> Any:
    lhs, rhs = primals
    d_lhs, d_rhs = tangents
    out = jax.lax.dot_general(lhs, rhs, numbers, precision=jax.lax.Precision.DEFAULT)
    high = jax.lax.Precision.HIGHEST
    change = jax.lax.dot_general(lhs, d_rhs, numbers, precision=high) + jax.lax.dot_general(
        d_lhs, rhs, numbers, precision=high
    )
    return out, change


class Fp8DotGeneralOp(OverwriteWithGradient):
    """FP8 with delayed scaling: operands go through e4m3, the output's gradient through e5m2.

    Scales come from the largest magnitudes of the last ``amax_history_length`` steps, so one step needs no pass over
    the data to find its scale.

    Attributes:
        input_scale, output_grad_scale, kernel_scale: Scales, shape (1,), float32.
        input_amax_history, output_grad_amax_history, kernel_amax_history: Magnitudes, shape (L,), float32.
        compute_dtype: Element type of the products; that of the operands unless given.

    Example:
        >>> import haliax as hax
        >>> import haliax.nn as hnn
        >>> import jax
        >>> E, O = hax.make_axes(e=3, o=4)
        >>> layer = hnn.Linear.init(E, O, key=jax.random.key(0), dot_general=Fp8DotGeneralOp.init())
        >>> layer(hax.ones(E)).shape
        {'o': 4}

    References:
        Micikevicius et al., arXiv:2209.05433, section 3.
    """

    input_scale: jax.Array
    output_grad_scale: jax.Array
    kernel_scale: jax.Array
    input_amax_history: jax.Array
    output_grad_amax_history: jax.Array
    kernel_amax_history: jax.Array
    compute_dtype: Any = eqx.field(static=True, default=None)

    @classmethod
    def init(cls, amax_history_length: int = 1024, compute_dtype: Any = None) -> Self:
        """Return an op with scales 1 and empty histories."""
        one, history = jnp.ones(1, jnp.float32), jnp.zeros(amax_history_length, jnp.float32)
        return cls(one, one, one, history, history, history, compute_dtype)

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Contract ``lhs`` (inputs) with ``rhs`` (kernel); the given precision and element type are not used."""
        del kwargs
        dtype = self.compute_dtype or jnp.result_type(lhs, rhs)
        lhs, rhs = jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype)
        x = in_qdq(dtype, lhs, self.input_scale, self.input_amax_history)
        k = in_qdq(dtype, rhs, self.kernel_scale, self.kernel_amax_history)
        y = _dot_default_precision(x, k, dimension_numbers, precision, preferred_element_type)
        return out_qdq(dtype, y, self.output_grad_scale, self.output_grad_amax_history)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _int8_dot(lhs: Any, rhs: Any, numbers: Any) -> Any:
    (left_contract, right_contract), (left_batch, right_batch) = numbers
    q_left, s_left = _int8(lhs, left_contract)
    q_right, s_right = _int8(rhs, right_contract)
    out = jax.lax.dot_general(q_left, q_right, numbers, preferred_element_type=jnp.int32)
    ones = jax.lax.dot_general(s_left, s_right, numbers)
    del left_batch, right_batch
    return (out.astype(jnp.float32) * ones).astype(jnp.result_type(lhs, rhs))


def _int8(x: Any, contract: Any) -> tuple[Any, Any]:
    """Quantise symmetrically with one scale per element outside of the contracted dimensions."""
    scale = jnp.max(jnp.abs(x), axis=tuple(contract), keepdims=True).astype(jnp.float32) / 127.0
    scale = jnp.where(scale == 0, 1.0, scale)
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8), scale


def _int8_forward(lhs: Any, rhs: Any, numbers: Any) -> Any:
    return _int8_dot(lhs, rhs, numbers), (lhs, rhs)


def _int8_backward(numbers: Any, residuals: Any, ct: Any) -> Any:
    _, pullback = jax.vjp(lambda a, b: jax.lax.dot_general(a, b, numbers), *residuals)
    return pullback(ct.astype(jnp.result_type(*residuals)))


_int8_dot.defvjp(_int8_forward, _int8_backward)


class Int8DotGeneralOp(OverwriteWithGradient, ModuleWithStateDictSerialization):
    """Dynamic symmetric INT8: both operands are quantised on the fly; gradients pass straight through.

    One scale per slice outside of the contracted dimensions, products summed in int32. There is no state.

    Example:
        >>> import haliax as hax
        >>> import haliax.nn as hnn
        >>> import jax
        >>> E, O = hax.make_axes(e=3, o=4)
        >>> layer = hnn.Linear.init(E, O, key=jax.random.key(0), dot_general=Int8DotGeneralOp.init())
        >>> layer(hax.ones(E)).shape
        {'o': 4}

    References:
        Jacob et al., arXiv:1712.05877, section 2.
    """

    @classmethod
    def init(cls) -> Self:
        """Return an op."""
        return cls()

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Contract ``lhs`` with ``rhs``; the given precision is not used."""
        del precision, kwargs
        numbers = tuple(tuple(tuple(d) for d in pair) for pair in dimension_numbers)
        out = _int8_dot(lhs, rhs, numbers)
        return out if preferred_element_type is None else out.astype(preferred_element_type)

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Return nothing: there is no state."""
        warnings.warn("Int8DotGeneralOp has no state; nothing is written for it.", stacklevel=2)
        return {}


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Which linear layers to quantise, and how.

    Attributes:
        targets: None for all; names of fields; or a regular expression matched against the dotted path.
        amax_history_length: Steps in the FP8 history.
        compute_dtype: Element type of FP8 products.
        fp8: Use FP8.
        int8: Use INT8.

    Raises:
        QuantizationConfigError: Both formats.

    Example:
        >>> QuantizationConfig(targets=["up"], fp8=True).matches("mlp.up")
        True
    """

    targets: Sequence[str] | str | None = None
    amax_history_length: int = 1024
    compute_dtype: Any = None
    fp8: bool = False
    int8: bool = False

    def __post_init__(self) -> None:
        if self.fp8 and self.int8:
            raise QuantizationConfigError("QuantizationConfig: fp8=True, int8=True; expected at most one of them.")

    def matches(self, path: str) -> bool:
        """Tell whether the layer at a dotted path is to be quantised."""
        if self.targets is None:
            return True
        if isinstance(self.targets, str):
            return re.match(self.targets, path) is not None
        return path.rpartition(".")[2] in self.targets


def _dotted(path: Sequence[Any]) -> str:
    parts = []
    for key in path:
        parts.append(str(getattr(key, "name", getattr(key, "idx", getattr(key, "key", key)))))
    return ".".join(parts)


def quantize_linear_layers(tree: Any, config: QuantizationConfig) -> Any:
    """Replace ``dot_general`` in the linear layers that ``config`` selects; inside stacks each layer has its own state.

    Args:
        tree: Module.
        config: What and how; without a format nothing happens (and a warning says so).

    Example:
        >>> import haliax as hax
        >>> import haliax.nn as hnn
        >>> import jax
        >>> E, O = hax.make_axes(e=3, o=4)
        >>> layer = hnn.Linear.init(E, O, key=jax.random.key(0))
        >>> type(quantize_linear_layers(layer, QuantizationConfig(fp8=True)).dot_general).__name__
        'Fp8DotGeneralOp'
    """
    if not (config.fp8 or config.int8):
        warnings.warn("quantize_linear_layers: neither fp8 nor int8 is set; nothing is quantised.", stacklevel=2)
        return tree

    def make() -> Any:
        if config.fp8:
            return Fp8DotGeneralOp.init(config.amax_history_length, config.compute_dtype)
        return Int8DotGeneralOp.init()

    return _quantize(tree, config, make, "")


def _quantize(tree: Any, config: QuantizationConfig, make: Any, prefix: str) -> Any:
    def is_leaf(x: Any) -> bool:
        return isinstance(x, Linear) or is_stacked(x)

    def visit(path: Sequence[Any], node: Any) -> Any:
        here = ".".join(p for p in (prefix, _dotted(path)) if p)
        if is_stacked(node):
            axis = stacked_axis(node)
            inner = _quantize(
                node.stacked, config, lambda: vmap(lambda _: make(), axis)(jnp.zeros(axis_size(axis))), here
            )
            return eqx.tree_at(lambda m: m.stacked, node, inner)
        if isinstance(node, Linear) and config.matches(here):
            return dataclasses.replace(node, dot_general=make())
        return node

    return jax.tree_util.tree_map_with_path(visit, tree, is_leaf=is_leaf)
