"""Linear layers, dense and mixture-of-experts."""

import dataclasses
import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp

import haliax.random as hrandom
from haliax._array.checks import note_promotion
from haliax._array.named import NamedArray, intern_names, require_named, wrap
from haliax._array.sharding import (
    auto_sharded,
    current_thread_local_mapping,
    out_sharding_for,
    pspec_for_names,
    resolve_mesh,
)
from haliax._axis.algebra import concat_axes
from haliax._axis.types import Axis, AxisSpec, axis_size, names_of, sized_axes
from haliax._ops.broadcast import aligned_to
from haliax._ops.creation import zeros
from haliax._ops.dot import dot
from haliax._ops.shape import transpose_to
from haliax._state_dict.protocol import ModuleWithStateDictSerialization
from haliax.errors import AxisNotFoundError, AxisSpecError
from haliax.jax_utils import named_call
from haliax.nn.dot_general import DotGeneralOp
from haliax.nn.mup import (
    HiddenLinearMup,
    InputLinearMup,
    LinearReparam,
    LinearStandardParam,
    OutputLinearMup,
    ReparamEnabled,
)
from haliax.nn.ragged_dot import ragged_dot


class Linear(ModuleWithStateDictSerialization, ReparamEnabled):
    """An affine map from the axes ``In`` to the axes ``Out``; all other axes of the input are batch axes.

    Attributes:
        weight: Array with axes Out + In (``out_first``) or In + Out.
        bias: Array with axes Out, or None.
        In: Axes that are contracted.
        Out: Axes of the result.
        dot_general: Replacement for `jax.lax.dot_general` (quantisation), or None.

    Example:
        >>> import jax, haliax as hax
        >>> In, Out = hax.Axis("in", 3), hax.Axis("out", 4)
        >>> layer = Linear.init(In, Out, key=jax.random.key(0))
        >>> layer(hax.ones((hax.Axis("batch", 2), In))).shape
        {'batch': 2, 'out': 4}
    """

    weight: NamedArray
    bias: NamedArray | None
    In: AxisSpec = eqx.field(static=True)
    Out: AxisSpec = eqx.field(static=True)
    dot_general: DotGeneralOp | None = None
    _reparam_cls: type[LinearReparam] = eqx.field(static=True, default=LinearStandardParam)

    @staticmethod
    def init(
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: Any,
        use_bias: bool = True,
        out_first: bool = True,
        dot_general: DotGeneralOp | None = None,
        init_scale: float = 1.0,
        reparam_cls: type[LinearReparam] = LinearStandardParam,
    ) -> "Linear":
        """Return a layer with weights from a normal distribution cut at 3 standard deviations, and bias 0.

        Args:
            In: Axes to contract.
            Out: Axes of the result; names must differ from those of ``In``.
            key: Random key.
            use_bias: Whether to add a bias.
            out_first: Store the weight as Out + In (as PyTorch does) instead of In + Out.
            dot_general: Replacement for `jax.lax.dot_general`.
            init_scale: Factor on the standard deviation, which is ``1 / sqrt(size(In))`` by default.
            reparam_cls: Parametrisation (standard or muP).

        Raises:
            AxisCollisionError: ``In`` and ``Out`` share a name.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> E, O = hax.make_axes(e=3, o=4)
            >>> Linear.init(E, (O, hax.Axis("d", 2)), key=jax.random.key(0)).weight.shape
            {'o': 4, 'd': 2, 'e': 3}
        """
        ins, outs = sized_axes(In, "Linear.init"), sized_axes(Out, "Linear.init")
        joint = concat_axes(outs, ins) if out_first else concat_axes(ins, outs)
        weight = hrandom.truncated_normal(key, joint, -3, 3) * (init_scale * reparam_cls.init_scale(In, Out))
        bias = zeros(Out) if use_bias else None
        return Linear(weight, bias, In, Out, dot_general, reparam_cls)

    @property
    def reparam(self) -> LinearReparam:
        """The parametrisation of this layer."""
        return self._reparam_cls(self.In, self.Out)

    @named_call
    def __call__(self, inputs: NamedArray, *, key: Any = None) -> NamedArray:
        """Apply the map; batch axes come first, then ``Out``.

        Raises:
            AxisNotFoundError: ``inputs`` lacks an axis of ``In``.
        """
        del key
        require_named("Linear", inputs, "inputs")
        missing = [n for n in names_of(self.In) if n not in inputs.names]
        if missing:
            raise AxisNotFoundError("Linear (axes of In)", missing, inputs.axes)
        weight = self.weight
        scale = self.reparam.active_scale
        if scale != 1.0:
            weight = weight * scale
        dot_general = jax.lax.dot_general if self.dot_general is None else self.dot_general
        out = dot(inputs, weight, axis=self.In, strict=True, dot_general=dot_general)
        if self.bias is not None:
            out = wrap(out.array + aligned_to(auto_sharded(self.bias), out.names), out.names)
            out = auto_sharded(out)
        note_promotion("Linear", inputs.dtype, out.dtype)
        return out

    @property
    def _out_first(self) -> bool:
        outs, ins = names_of(self.Out), names_of(self.In)
        present = [n for n in self.weight.names if n in outs or n in ins]
        return not present or not outs or present[0] in outs

    @property
    def out_first(self) -> bool:
        """Whether the weight is stored as Out + In."""
        return self._out_first

    def flatten_for_export(self) -> Self:
        """Return the layer with a 2-D weight (``__OUT__`` and ``__IN__``) and 1-D bias, scales folded in.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> E, O = hax.make_axes(e=3, o=4)
            >>> Linear.init(E, (O, hax.Axis("d", 2)), key=jax.random.key(0)).flatten_for_export().weight.shape
            {'__OUT__': 8, '__IN__': 3}
        """
        weight, bias = self.weight, self.bias
        scale = self.reparam.active_scale
        if weight is not None and weight.array is not None:
            weight = weight * scale if scale != 1.0 else weight
            out_first = self._out_first
            weight = weight.flatten_axes(tuple(names_of(self.Out)), "__OUT__")
            weight = weight.flatten_axes(tuple(names_of(self.In)), "__IN__")
            order = ("__OUT__", "__IN__") if out_first else ("__IN__", "__OUT__")
            weight = transpose_to(weight, (..., *order))
        if bias is not None and bias.array is not None:
            bias = bias.flatten_axes(tuple(names_of(self.Out)), "__OUT__")
        new_in, new_out = Axis("__IN__", axis_size(self.In)), Axis("__OUT__", axis_size(self.Out))
        return dataclasses.replace(
            self, weight=weight, bias=bias, In=new_in, Out=new_out, _reparam_cls=LinearStandardParam
        )

    def unflatten_from_export(self, template: Self) -> Self:
        """Undo `flatten_for_export`, given a layer with the wanted axes."""
        weight, bias = self.weight, self.bias
        scale = template.reparam.active_scale
        outs, ins = sized_axes(template.Out), sized_axes(template.In)
        if weight is not None and weight.array is not None:
            weight = weight.unflatten_axis("__OUT__", outs).unflatten_axis("__IN__", ins)
            weight = transpose_to(weight, tuple(template.weight.names))
            weight = weight / scale if scale != 1.0 else weight
        if bias is not None and bias.array is not None:
            bias = bias.unflatten_axis("__OUT__", outs)
        return dataclasses.replace(template, weight=weight, bias=bias)

    @staticmethod
    def input_reparam(use_mup: bool) -> type[LinearReparam]:
        """Return the parametrisation for an input layer."""
        return InputLinearMup if use_mup else LinearStandardParam

    @staticmethod
    def hidden_reparam(use_mup: bool) -> type[LinearReparam]:
        """Return the parametrisation for a hidden layer."""
        return HiddenLinearMup if use_mup else LinearStandardParam

    @staticmethod
    def output_reparam(use_mup: bool) -> type[LinearReparam]:
        """Return the parametrisation for an output layer."""
        return OutputLinearMup if use_mup else LinearStandardParam


class MoELinear(eqx.Module):
    """One linear map per expert, applied to rows that are sorted by expert.

    Attributes:
        weight: Array with axes (Experts, In, Out), or (Experts, Out, In) when ``out_first``.
        bias: Array with axes (Experts, Out), added to the rows of each expert, or None.
        Experts: Axis of the experts.
        In: Axis that is contracted.
        Out: Axis of the result.
        use_gmm: Use the megablox kernel (interpreted outside of TPU) instead of `lax.ragged_dot`.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> E, O = hax.make_axes(e=3, o=4)
        >>> layer = MoELinear.init(hax.Axis("expert", 2), E, O, key=jax.random.key(0))
        >>> layer(hax.ones({"row": 5, "e": 3}), hax.named([2, 3], "expert")).shape
        {'row': 5, 'o': 4}
    """

    weight: NamedArray
    bias: NamedArray | None
    Experts: Axis = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    use_gmm: bool = eqx.field(static=True, default=False)

    @staticmethod
    def init(
        Experts: Axis,
        In: Axis,
        Out: Axis,
        *,
        key: Any,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
        use_gmm: bool = False,
    ) -> "MoELinear":
        """Return a layer initialised like `Linear`, with one map per expert."""
        pair = concat_axes((Out,), (In,)) if out_first else concat_axes((In,), (Out,))
        axes = concat_axes((Experts,), pair)
        weight = hrandom.truncated_normal(key, axes, -3, 3) * (init_scale / math.sqrt(In.size))
        bias = zeros((Out,)) if use_bias else None
        return MoELinear(weight, bias, Experts, In, Out, use_gmm)

    @property
    def out_first(self) -> bool:
        """Whether the weight is stored as (Experts, Out, In)."""
        return self.weight.names.index(self.Out.name) < self.weight.names.index(self.In.name)

    @named_call
    def __call__(self, inputs: NamedArray, group_sizes: NamedArray, *, key: Any = None) -> NamedArray:
        """Apply the map of expert e to the rows of its group.

        Args:
            inputs: Rows sorted by expert: axes ``In`` and exactly one other (the rows).
            group_sizes: Number of rows per expert, axis ``Experts``, int32; the sum is at most the number of rows.
            key: Unused.

        Returns:
            Array with ``In`` replaced by ``Out``; rows beyond the sum of the groups are 0 (plus bias).

        Raises:
            AxisNotFoundError: ``inputs`` lacks ``In``.
            AxisSpecError: ``inputs`` has other than two axes, or ``group_sizes`` not just ``Experts``.
        """
        del key
        require_named("MoELinear", inputs, "inputs")
        if self.In.name not in inputs.names:
            raise AxisNotFoundError("MoELinear (axis In)", [self.In.name], inputs.axes)
        if inputs.ndim != 2 or group_sizes.names != (self.Experts.name,):
            raise AxisSpecError(
                f"MoELinear: inputs {inputs.shape}, group_sizes {group_sizes.shape}; expected axes (rows, "
                f"{self.In.name}) "
                f"and ({self.Experts.name}). Flatten the other axes into one, sorted by expert."
            )
        (rows,) = (n for n in inputs.names if n != self.In.name)
        x = transpose_to(inputs, (rows, self.In.name)).array
        order = (self.Experts.name, self.In.name, self.Out.name)
        w = transpose_to(self.weight, order).array
        dtype = jnp.result_type(x, w)
        x, w, sizes = x.astype(dtype), w.astype(dtype), group_sizes.array.astype(jnp.int32)
        # ragged_dot has no derivative rule for explicit meshes yet, so there each device runs it on its own part.
        if self.use_gmm or out_sharding_for((rows, self.Out.name)) is not None:
            out = self._on_each_device(x, w, sizes, "megablox" if self.use_gmm else "xla")
        else:
            out = jax.lax.ragged_dot(x, w, sizes)
        result = wrap(out, intern_names((rows, self.Out.name)))
        if self.bias is not None:
            result = result + auto_sharded(self.bias)
        final = tuple(self.Out.name if n == self.In.name else n for n in inputs.names)
        return auto_sharded(transpose_to(result, final))

    def _on_each_device(self, x: Any, w: Any, sizes: Any, implementation: str) -> Any:
        """Run a grouped product; on a mesh each device computes its part of ``Out`` (rows are replicated)."""
        mapping, mesh = current_thread_local_mapping(), resolve_mesh()
        if mesh is None or mesh.empty:
            return ragged_dot(x, w, sizes, implementation=implementation)
        of_in, of_out = pspec_for_names((self.In.name,), mapping)[0], pspec_for_names((self.Out.name,), mapping)[0]

        def local(x: Any, w: Any, sizes: Any) -> Any:
            out = ragged_dot(x, w, sizes, implementation=implementation)
            return out if of_in is None else jax.lax.psum(out, of_in)

        P = jax.sharding.PartitionSpec
        specs = (P(None, of_in), P(None, of_in, of_out), P(None))
        if any(t == jax.sharding.AxisType.Explicit for t in mesh.axis_types):
            x, w, sizes = (jax.sharding.reshard(a, spec) for a, spec in zip((x, w, sizes), specs, strict=True))
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(None, of_out), check_vma=False)(x, w, sizes)
