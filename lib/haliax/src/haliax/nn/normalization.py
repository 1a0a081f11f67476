"""Normalisation layers, softmax and friends."""

import dataclasses
from typing import Any, Self

import equinox as eqx
import jax
import jax.nn as jnn
import jax.numpy as jnp

from haliax._array.checks import note_promotion
from haliax._array.lift import lift_axiswise, lift_reduction, reduced, where_mask
from haliax._array.named import NamedArray, position, require_named, wrap
from haliax._array.sharding import auto_sharded
from haliax._axis.types import AxisSelection, AxisSpec, sized_axes
from haliax._ops.broadcast import aligned_to
from haliax._ops.creation import ones, zeros
from haliax._state_dict.protocol import ModuleWithStateDictSerialization
from haliax.errors import AxisNotFoundError


class LayerNormBase(ModuleWithStateDictSerialization):
    """Fields and construction shared by `LayerNorm` and `RmsNorm`.

    Attributes:
        axis: Axis or axes to normalise over.
        weight: Scale with those axes, or None.
        bias: Offset with those axes, or None.
        eps: Added to the variance.
        dtype: Element type of the statistics, or None.
    """

    axis: AxisSpec = eqx.field(static=True)
    weight: NamedArray | None
    bias: NamedArray | None
    eps: float = eqx.field(default=1e-5, static=True)
    dtype: Any = eqx.field(default=None, static=True)

    @classmethod
    def init(
        cls, axis: AxisSpec, eps: float = 1e-5, *, use_weight: bool = True, use_bias: bool = True, dtype: Any = None
    ) -> Self:
        """Return a layer with weight 1 and bias 0.

        Args:
            axis: Axis or axes to normalise over.
            eps: Added to the variance before the root, ``> 0``.
            use_weight: Whether to scale.
            use_bias: Whether to shift.
            dtype: Element type in which to compute the statistics.
        """
        return cls(axis, ones(axis) if use_weight else None, zeros(axis) if use_bias else None, eps, dtype)

    def flatten_for_export(self) -> Self:
        """Return the layer with weight and bias as 1-D arrays, as PyTorch stores them."""
        axes = sized_axes(self.axis, "norm")
        if len(axes) <= 1:
            return self
        return dataclasses.replace(
            self,
            weight=None if self.weight is None else self.weight.flatten("__OUT"),
            bias=None if self.bias is None else self.bias.flatten("__OUT"),
        )

    def unflatten_from_export(self, template: Self) -> Self:
        """Undo `flatten_for_export`, given a layer with the wanted axes."""
        axes = sized_axes(template.axis, "norm")
        if len(axes) <= 1:
            return self
        return dataclasses.replace(
            template,
            weight=None if self.weight is None else self.weight.unflatten_axis("__OUT", axes),
            bias=None if self.bias is None else self.bias.unflatten_axis("__OUT", axes),
        )


def _scale_and_shift(layer: LayerNormBase, out: Any, names: tuple[str, ...]) -> NamedArray:
    given, weight, bias = out.dtype, layer.weight, layer.bias
    if weight is not None:
        out = aligned_to(auto_sharded(weight), names) * out
    if bias is not None:
        out = out + aligned_to(auto_sharded(bias), names)
    note_promotion(type(layer).__name__, given, out.dtype)
    return wrap(out, names)


def _positions(layer: LayerNormBase, x: NamedArray) -> tuple[int, ...]:
    require_named(type(layer).__name__, x, "x")
    return tuple(position(type(layer).__name__, x, a) for a in sized_axes(layer.axis, "norm"))


class LayerNorm(LayerNormBase):
    """Subtract the mean, divide by the standard deviation, scale and shift.

    Statistics are computed in ``dtype`` (the input's unless given; pass float32 for half-precision inputs), and the
    normalised value is cast back to the input's dtype before scaling.

    Example:
        >>> import haliax as hax
        >>> E = hax.Axis("embed", 4)
        >>> LayerNorm.init(E)(hax.arange(E, dtype=float)).sum().item()
        0.0

    References:
        Ba, Kiros and Hinton, arXiv:1607.06450, section 3.
    """

    def __call__(self, x: NamedArray) -> NamedArray:
        """Normalise ``x`` over the layer's axes.

        Raises:
            AxisNotFoundError: ``x`` lacks one of them.
        """
        positions = _positions(self, x)
        original = x.array
        value = original if self.dtype is None else original.astype(self.dtype)
        mean = jnp.mean(value, axis=positions, keepdims=True)
        centred = value - mean
        variance = jnp.mean(jnp.square(centred), axis=positions, keepdims=True)
        out = (centred * jax.lax.rsqrt(variance + self.eps)).astype(original.dtype)
        return _scale_and_shift(self, out, x.names)


class RmsNorm(LayerNormBase):
    """Divide by the root mean square, then scale (and shift).

    The mean square is computed in ``dtype`` (float32 unless given), and the normalised value is cast back to the
    input's dtype before scaling.

    Example:
        >>> import haliax as hax
        >>> E = hax.Axis("embed", 2)
        >>> RmsNorm.init(E, eps=0.0)(hax.named([3.0, 3.0], "embed")).tolist()
        [1.0, 1.0]

    References:
        Zhang and Sennrich, arXiv:1910.07467, section 4.
    """

    def __call__(self, x: NamedArray) -> NamedArray:
        """Normalise ``x`` over the layer's axes.

        Raises:
            AxisNotFoundError: ``x`` lacks one of them.
        """
        positions = _positions(self, x)
        original = x.array
        value = original.astype(jnp.float32 if self.dtype is None else self.dtype)
        square = jnp.mean(jnp.square(value), axis=positions, keepdims=True)
        out = (value * jax.lax.rsqrt(square + self.eps)).astype(original.dtype)
        return _scale_and_shift(self, out, x.names)


logsumexp = lift_reduction(jax.scipy.special.logsumexp)
softmax = lift_axiswise(jnn.softmax, single_axis_only=False)
log_softmax = lift_axiswise(jnn.log_softmax, single_axis_only=False)


def standardize(
    x: NamedArray,
    axis: AxisSelection,
    *,
    mean: NamedArray | None = None,
    variance: NamedArray | None = None,
    epsilon: float = 1e-5,
    where: NamedArray | None = None,
) -> NamedArray:
    """Return ``(x - mean) / sqrt(variance + epsilon)`` over ``axis``; statistics that are not given are computed.

    Raises:
        AxisNotFoundError: ``axis`` is absent.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([1.0, 3.0], "a")
        >>> standardize(x, "a", epsilon=0.0).tolist()
        [-1.0, 1.0]
    """
    require_named("standardize", x)
    if not x.has_axis(axis):
        raise AxisNotFoundError("standardize", [str(axis)], x.axes)
    mask = None if where is None else where_mask("standardize", x, where)
    average = mean if mean is not None else reduced("mean", _masked(jnp.mean, mask), x, axis)
    if variance is None:
        variance = reduced("var", _masked(jnp.var, mask), x, axis)
    return (x - average) * wrap(jax.lax.rsqrt(variance.array + epsilon), variance.names)


def _masked(fn: Any, mask: Any) -> Any:
    return fn if mask is None else lambda a, axis: fn(a, axis=axis, where=jnp.broadcast_to(mask, a.shape))
