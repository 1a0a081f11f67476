"""Stacks of modules of raw arrays, built in one vectorised trace."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import equinox as eqx
import jax

from haliax._array.named import NamedArray
from haliax._axis.types import Axis
from haliax._ops.checkpoint import (
    ScanCheckpointPolicy,
    ScanCheckpointSpec,
    multilevel_scan,
    nested_length,
    tree_checkpoint_name,
)
from haliax._ops.loops import is_arrayish, is_named
from haliax._stacked import mark_stacked
from haliax._state_dict.protocol import (
    ModuleWithStateDictSerialization,
    StateDict,
    from_state_dict,
    replace_fields,
    to_state_dict,
)
from haliax._state_dict.stacking import stack_state_dict, unstack_state_dict
from haliax.errors import ArrayTypeError, AxisSpecError, ScanError

InAxes = int | Sequence[Any] | None


class ArrayStacked(ModuleWithStateDictSerialization):
    """Equal blocks of raw arrays (no NamedArrays), stacked along dimension 0 and run with `lax.scan`.

    Attributes:
        stacked: One module whose arrays have the extra leading dimension.
        num_layers: Number of blocks.
        gradient_checkpointing: What the backward pass keeps.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> class Scale(eqx.Module):
        ...     w: jax.Array
        ...     @staticmethod
        ...     def init(w): return Scale(w)
        ...     def __call__(self, x): return x * self.w
        >>> ArrayStacked.init(3, Scale)(jnp.array([1.0, 2.0, 3.0])).fold(jnp.ones(()))
        Array(6., dtype=float32)
    """

    stacked: Any
    num_layers: int = eqx.field(static=True)
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)

    @property
    def layer_axis(self) -> Axis:
        """The leading dimension of the stacked arrays, as an axis for `haliax.vmap`."""
        return Axis("layers", self.num_layers)

    @classmethod
    def init(
        cls, num_layers: int, module: Any, *, gradient_checkpointing: ScanCheckpointSpec = False
    ) -> Callable[..., Self]:
        """Return a function that builds the stack: array arguments are sliced along dimension 0, all else is shared.

        Raises (when called):
            ArrayTypeError: The module has NamedArray leaves ("does not support NamedArray leaves").
            ScanError: An array argument has another leading size.
        """
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)

        def build(*args: Any, **kwargs: Any) -> Self:
            dynamic, static = eqx.partition((args, kwargs), lambda x: is_arrayish(x) and x.ndim >= 1)
            _check_leading(dynamic, num_layers, "ArrayStacked.init")
            skeleton: list[Any] = []

            def one(arrays: Any) -> Any:
                one_args, one_kwargs = eqx.combine(arrays, static)
                block = module.init(*one_args, **one_kwargs)
                _reject_named(block)
                arrays_out, rest = eqx.partition(block, is_arrayish)
                skeleton[:] = [rest]
                return arrays_out

            stacked = jax.vmap(one, axis_size=num_layers)(dynamic)
            return cls(eqx.combine(stacked, skeleton[0]), num_layers, policy)

        return build

    def scan(self, init: Any, *args: Any, unroll: int | bool | None = None, **kwargs: Any) -> Any:
        """Call ``block(carry, *args, **kwargs) -> (carry, output)`` for each block; array arguments are sliced."""
        return self.scan_via(_call_block, unroll=unroll, in_axes=0)(init, *args, **kwargs)

    def fold(self, init: Any, *args: Any, unroll: int | bool | None = None, **kwargs: Any) -> Any:
        """Call ``block(carry, *args, **kwargs) -> carry`` for each block; array arguments are sliced."""
        return self.fold_via(_call_block, unroll=unroll, in_axes=0)(init, *args, **kwargs)

    def fold_via(
        self, fn: Callable[..., Any], *, unroll: int | bool | None = None, in_axes: InAxes = None
    ) -> Callable[..., Any]:
        """Return ``f(init, *args, **kwargs)`` that folds ``fn(block, carry, *args, **kwargs) -> carry``."""
        run = self.scan_via(lambda b, c, *a, **k: (fn(b, c, *a, **k), None), unroll=unroll, in_axes=in_axes)
        return lambda init, *args, **kwargs: run(init, *args, **kwargs)[0]

    def scan_via(
        self, fn: Callable[..., Any], *, unroll: int | bool | None = None, in_axes: InAxes = None
    ) -> Callable[..., Any]:
        """Return ``f(init, *args, **kwargs)`` that scans ``fn(block, carry, *args, **kwargs) -> (carry, output)``.

        Args:
            fn: Body.
            unroll: Blocks per step of the compiled loop.
            in_axes: Which dimension of array arguments to slice: an int for all, None for none, a tuple per positional
                argument, or (tuple, dict) for positional and keyword arguments.

        Raises:
            ScanError: The function returns no pair.
        """

        def run(init: Any, *args: Any, **kwargs: Any) -> Any:
            sliced, rest = _split_arguments(args, kwargs, in_axes, self.num_layers)
            arrays, static = eqx.partition(self.stacked, is_arrayish)
            carry_name, input_name = f"ArrayStacked[{self.num_layers}].carry", f"ArrayStacked[{self.num_layers}].inputs"
            dynamic, frozen = eqx.partition(init, _is_dynamic)
            policy = self.gradient_checkpointing
            tag = tree_checkpoint_name if policy.uses_names else lambda x, _: x

            def body(carry: Any, xs: Any) -> Any:
                carry = tag(carry, carry_name)
                block, moving = tag(xs, input_name)
                one_args, one_kwargs = eqx.combine(moving, rest)
                result = fn(eqx.combine(block, static), eqx.combine(carry, frozen), *one_args, **one_kwargs)
                if not isinstance(result, tuple) or len(result) != 2:
                    raise ScanError(
                        f"ArrayStacked: the body returned {type(result).__name__}; expected (carry, output)."
                    )
                return eqx.filter(result[0], _is_dynamic), result[1]

            step = policy.checkpoint(carry_name, input_name, body)
            xs = (arrays, sliced)
            if policy.nested is not False:
                outer = nested_length(self.num_layers, policy.nested)
                carry, ys = multilevel_scan(step, dynamic, xs, outer, self.num_layers, False, _unroll(unroll))
            else:
                carry, ys = jax.lax.scan(step, dynamic, xs, length=self.num_layers, unroll=_unroll(unroll))
            return eqx.combine(carry, frozen), ys

        return run

    def vmap_via(self, fn: Callable[..., Any], *, in_axes: InAxes = None, out_axes: int = 0) -> Callable[..., Any]:
        """Return ``f(*args, **kwargs)`` that applies ``fn(block, *args, **kwargs)`` to all blocks side by side."""

        def run(*args: Any, **kwargs: Any) -> Any:
            sliced, rest = _split_arguments(args, kwargs, in_axes, self.num_layers)
            arrays, static = eqx.partition(self.stacked, is_arrayish)

            def one(block: Any, moving: Any) -> Any:
                one_args, one_kwargs = eqx.combine(moving, rest)
                return fn(eqx.combine(block, static), *one_args, **one_kwargs)

            return jax.vmap(one, axis_size=self.num_layers, out_axes=out_axes)(arrays, sliced)

        return run

    def get_layer(self, index: int) -> Any:
        """Return one block."""
        return jax.tree_util.tree_map(lambda x: x[index] if is_arrayish(x) else x, self.stacked)

    def unstacked(self) -> Sequence[Any]:
        """Return the blocks one by one."""
        return tuple(self.get_layer(i) for i in range(self.num_layers))

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Return the arrays by key ``prefix.<i>.<rest>``."""
        return unstack_state_dict(to_state_dict(self.stacked, prefix), prefix, self.num_layers)

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> Self:
        """Return a copy with the arrays found below ``prefix.<i>``."""
        stacked = from_state_dict(
            self.stacked, stack_state_dict(state_dict, prefix, self.num_layers, strict=False), prefix
        )
        return replace_fields(self, {"stacked": stacked})


mark_stacked(ArrayStacked, "layer_axis")


def _call_block(block: Any, *args: Any, **kwargs: Any) -> Any:
    return block(*args, **kwargs)


def _is_dynamic(x: Any) -> bool:
    return is_arrayish(x) or isinstance(x, int | float | complex)


def _unroll(unroll: int | bool | None) -> int | bool:
    if unroll is None or isinstance(unroll, bool):
        return 1 if unroll is None else unroll
    if unroll < 1:
        raise AxisSpecError(f"unroll={unroll}; expected a bool or an integer >= 1.")
    return unroll


def _reject_named(block: Any) -> None:
    if any(isinstance(x, NamedArray) for x in jax.tree_util.tree_leaves(block, is_leaf=is_named)):
        raise ArrayTypeError(f"ArrayStacked does not support NamedArray leaves ({type(block).__name__}); use Stacked.")


def _check_leading(tree: Any, num_layers: int, operation: str) -> None:
    for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if x.shape[0] != num_layers:
            raise ScanError(
                f"{operation}: argument {jax.tree_util.keystr(path)} has leading dimension {x.shape[0]}; "
                f"expected {num_layers}."
            )


def _axes_per_leaf(args: Any, kwargs: Any, in_axes: InAxes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if in_axes is None or isinstance(in_axes, int):
        return (in_axes,) * len(args), dict.fromkeys(kwargs, in_axes)
    in_axes = tuple(in_axes)
    if len(in_axes) == 2 and isinstance(in_axes[0], tuple) and isinstance(in_axes[1], dict):
        positional, keyword = in_axes
    else:
        positional, keyword = in_axes, {}
    if len(positional) != len(args) or not set(keyword) <= set(kwargs):
        raise AxisSpecError(
            f"ArrayStacked: in_axes={in_axes} does not fit {len(args)} positional and {sorted(kwargs)} keyword "
            f"arguments."
        )
    if not all(a is None or isinstance(a, int) for a in (*positional, *keyword.values())):
        raise AxisSpecError(f"ArrayStacked: in_axes={in_axes}; expected an int or None per argument.")
    return tuple(positional), {k: keyword.get(k) for k in kwargs}


def _split_arguments(args: Any, kwargs: Any, in_axes: InAxes, num_layers: int) -> tuple[Any, Any]:
    """Return (arrays to slice, with the sliced dimension first; everything else)."""
    positional, keyword = _axes_per_leaf(args, kwargs, in_axes)

    def pick(tree: Any, axis: int | None) -> Any:
        def leaf(x: Any) -> Any:
            if axis is None or not is_arrayish(x) or x.ndim == 0:
                return None
            return jax.numpy.moveaxis(x, axis, 0)

        return jax.tree_util.tree_map(leaf, tree)

    sliced = (
        tuple(pick(a, i) for a, i in zip(args, positional, strict=True)),
        {k: pick(v, keyword[k]) for k, v in kwargs.items()},
    )
    _check_leading(sliced, num_layers, "ArrayStacked")
    rest = jax.tree_util.tree_map(
        lambda s, x: x if s is None else None, sliced, (args, kwargs), is_leaf=lambda s: s is None
    )
    return sliced, rest
