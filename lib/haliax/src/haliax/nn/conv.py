"""Convolutions over named axes; the layout of the input does not matter."""

import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp

import haliax.random as hrandom
from haliax._array.named import NamedArray, intern_names, require_named, wrap
from haliax._array.plan import permute_to
from haliax._array.sharding import auto_sharded, out_sharding_for, reshaped
from haliax._axis.types import Axis, AxisSelection, names_of
from haliax._ops.broadcast import aligned_to
from haliax._ops.shape import transpose_to
from haliax.errors import AxisCollisionError, AxisNotFoundError, AxisSpecError
from haliax.jax_utils import named_call

PaddingLike = int | str | tuple[tuple[int, int], ...] | list[tuple[int, int]] | tuple[int, ...]


def _per_axis(value: Any, count: int, what: str) -> tuple[int, ...]:
    out = (value,) * count if isinstance(value, int) else tuple(value)
    if len(out) != count:
        raise AxisSpecError(f"Conv: {what}={value} has {len(out)} entries; expected {count}, one per spatial axis.")
    return out


def _padding(padding: Any, count: int) -> Any:
    if isinstance(padding, str):
        return padding
    pads = (padding,) * count if isinstance(padding, int) else tuple(padding)
    return tuple((p, p) if isinstance(p, int) else tuple(p) for p in pads)


class _ConvBase(eqx.Module):
    """Fields shared by `Conv` and `ConvTranspose`."""

    Spatial: tuple[str, ...] = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    weight: NamedArray
    bias: NamedArray | None
    kernel_size: tuple[int, ...] = eqx.field(static=True)
    stride: tuple[int, ...] = eqx.field(static=True)
    padding: Any = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    def _check(self, x: NamedArray) -> None:
        require_named(type(self).__name__, x, "inputs")
        missing = [n for n in (self.In.name, *self.Spatial) if n not in x.names]
        if missing:
            raise AxisNotFoundError(type(self).__name__, missing, x.axes)
        if self.Out.name in x.names and self.Out.name != self.In.name:
            raise AxisCollisionError(type(self).__name__, [self.Out.name], x.axes)
        x.resolve_axis(self.In)

    def _apply(self, x: NamedArray, run: Any) -> NamedArray:
        """Bring ``x`` to (batch, In, *Spatial), convolve, and restore its layout."""
        core = (self.In.name, *self.Spatial)
        batch = tuple(n for n in x.names if n not in core)
        raw = permute_to(x, (*batch, *core))
        shape = raw.shape
        # Several batch axes become one, which is sharded like the first of them; spatial axes stay whole.
        first, whole = batch[0] if batch else "", ("",) * len(self.Spatial)
        flat = reshaped(raw, (math.prod(shape[: len(batch)]), *shape[len(batch) :]), (first, self.In.name, *whole))
        out = run(flat, out_sharding_for((first, self.Out.name, *whole)))
        names = (*batch, self.Out.name, *self.Spatial)
        out = reshaped(out, (*shape[: len(batch)], *out.shape[1:]), names)
        result = wrap(out, intern_names(names))
        order = tuple(self.Out.name if n == self.In.name else n for n in x.names)
        result = transpose_to(result, order)
        if self.bias is not None:
            result = wrap(result.array + aligned_to(self.bias, result.names), result.names)
        return auto_sharded(result)

    def _kernel(self, order: tuple[str, ...]) -> Any:
        return permute_to(self.weight, order)


class Conv(_ConvBase):
    """Convolution (cross-correlation, as deep learning has it) over the axes ``Spatial``.

    Attributes:
        weight: Array with axes (Out, In / groups, *Spatial), the latter with the kernel's sizes.
        bias: Array with axis Out, or None.

    Example:
        >>> import jax, haliax as hax
        >>> conv = Conv.init("x", hax.Axis("in", 2), hax.Axis("out", 3), 3, padding=1, key=jax.random.key(0))
        >>> conv(hax.ones({"batch": 4, "x": 5, "in": 2})).shape
        {'batch': 4, 'x': 5, 'out': 3}
    """

    @classmethod
    def init(
        cls,
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] = 1,
        padding: PaddingLike = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        use_bias: bool = True,
        key: Any,
    ) -> Self:
        """Return a layer with weights and bias uniform in +-1/sqrt(fan in).

        Args:
            Spatial: Axes to convolve over.
            In: Input channels.
            Out: Output channels; takes the place of ``In``.
            kernel_size: Size per spatial axis.
            stride: Step per spatial axis.
            padding: "SAME", "VALID", or elements on both sides per spatial axis.
            dilation: Distance of kernel elements per spatial axis.
            groups: Groups of channels; divides both ``In`` and ``Out``.
            use_bias: Whether to add a bias.
            key: Random key.

        Raises:
            AxisSpecError: ``groups`` does not divide the channels.
        """
        names = names_of(Spatial)
        kernel = _per_axis(kernel_size, len(names), "kernel_size")
        if groups < 1 or In.size % groups or Out.size % groups:
            raise AxisSpecError(f"Conv: groups={groups} does not divide {In} and {Out}.")
        limit = 1 / math.sqrt(math.prod(kernel) * In.size // groups)
        weight_key, bias_key = jax.random.split(key)
        axes = (Out, In.resize(In.size // groups), *(Axis(n, k) for n, k in zip(names, kernel, strict=True)))
        weight = hrandom.uniform(weight_key, axes, minval=-limit, maxval=limit)
        bias = hrandom.uniform(bias_key, Out, minval=-limit, maxval=limit) if use_bias else None
        n = len(names)
        return cls(
            names,
            In,
            Out,
            weight,
            bias,
            kernel,
            _per_axis(stride, n, "stride"),
            _padding(padding, n),
            _per_axis(dilation, n, "dilation"),
            groups,
        )

    @named_call
    def __call__(self, inputs: NamedArray, *, key: Any = None) -> NamedArray:
        """Convolve; axes other than ``In`` and the spatial ones are batch axes.

        Raises:
            AxisNotFoundError: ``In`` or a spatial axis is absent.
            AxisCollisionError: ``Out`` is already there.
        """
        del key
        self._check(inputs)
        kernel = self._kernel((self.Out.name, self.In.name, *self.Spatial))

        def run(x: Any, target: Any) -> Any:
            return jax.lax.conv_general_dilated(
                x,
                kernel.astype(jnp.result_type(x, kernel)),
                window_strides=self.stride,
                padding=self.padding,
                rhs_dilation=self.dilation,
                feature_group_count=self.groups,
                out_sharding=target,
            )

        return self._apply(inputs, run)


class ConvTranspose(_ConvBase):
    """Transposed convolution: the gradient of `Conv` with respect to its input.

    Attributes:
        weight: Array with axes (Out, In / groups, *Spatial).
        bias: Array with axis Out, or None.
        output_padding: Further elements at the end of each spatial axis.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> T, I, O = hax.make_axes(t=4, i=2, o=3)
        >>> ConvTranspose.init(T, I, O, 2, stride=2, key=jax.random.key(0))(hax.ones((T, I))).shape
        {'t': 8, 'o': 3}

    References:
        Dumoulin and Visin, arXiv:1603.07285, chapter 4.
    """

    output_padding: tuple[int, ...] = eqx.field(static=True, default=())

    @classmethod
    def init(
        cls,
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] = 1,
        padding: PaddingLike = 0,
        output_padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        use_bias: bool = True,
        key: Any,
    ) -> Self:
        """Return a layer with weights and bias uniform in +-1/sqrt(fan in); see `Conv.init`.

        Raises:
            AxisSpecError: ``output_padding`` is not smaller than the stride.
        """
        base = Conv.init(
            Spatial,
            In,
            Out,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            use_bias=use_bias,
            key=key,
        )
        extra = _per_axis(output_padding, len(base.Spatial), "output_padding")
        if any(e >= s for e, s in zip(extra, base.stride, strict=True)):
            raise AxisSpecError(f"ConvTranspose: output_padding={extra} must be smaller than stride={base.stride}.")
        return cls(
            base.Spatial,
            In,
            Out,
            base.weight,
            base.bias,
            base.kernel_size,
            base.stride,
            base.padding,
            base.dilation,
            groups,
            extra,
        )

    @named_call
    def __call__(self, inputs: NamedArray, *, key: Any = None) -> NamedArray:
        """Apply the transposed convolution; see `Conv.__call__`."""
        del key
        self._check(inputs)
        kernel = self._kernel((self.Out.name, self.In.name, *self.Spatial))
        if isinstance(self.padding, str):
            reach = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            same = self.padding.upper() == "SAME"
            pads = [(r // 2, r - r // 2) if same else (0, 0) for r in reach]
        else:
            pads = list(self.padding)
        full = [
            (d * (k - 1) - lo, d * (k - 1) - hi + o)
            for k, d, (lo, hi), o in zip(self.kernel_size, self.dilation, pads, self.output_padding, strict=True)
        ]

        def run(x: Any, target: Any) -> Any:
            return jax.lax.conv_general_dilated(
                x,
                kernel.astype(jnp.result_type(x, kernel)),
                window_strides=(1,) * len(self.Spatial),
                padding=full,
                lhs_dilation=self.stride,
                rhs_dilation=self.dilation,
                feature_group_count=self.groups,
                out_sharding=target,
            )

        return self._apply(inputs, run)
