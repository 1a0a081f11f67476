"""Stacks of layers: one compiled block run many times, or a plain sequence with the same interface.

A model with 48 equal blocks should compile one block. `Stacked` keeps the parameters of all blocks in one module whose
arrays have an extra axis, and runs it with `haliax.scan`; `BlockSeq` keeps a list and runs a Python loop. Both take the
same arguments, so switching is one word.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import equinox as eqx
import jax

from haliax._array.named import NamedArray, wrap
from haliax._axis.types import Axis
from haliax._ops.checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec, tree_checkpoint_name
from haliax._ops.joining import stack
from haliax._ops.loops import fold, is_arrayish, is_named, scan, vmap
from haliax._stacked import mark_stacked
from haliax._state_dict.protocol import (
    ModuleWithStateDictSerialization,
    StateDict,
    from_state_dict,
    to_state_dict,
)
from haliax._state_dict.stacking import stack_state_dict, unstack_state_dict
from haliax.errors import AxisSpecError, ScanError


class BlockFoldable(Protocol):
    """What `Stacked` and `BlockSeq` have in common."""

    Block: Axis

    @classmethod
    def init(cls, Block: Axis, module: Any, *, gradient_checkpointing: ScanCheckpointSpec = False) -> Any:
        """Return a function that builds the stack from the arguments of ``module.init``."""

    def scan(self, init: Any, *extra_args: Any, unroll: int | bool | None = None, **extra_kwargs: Any) -> Any:
        """Thread a carry through the blocks and collect their outputs."""

    def fold(self, init: Any, *args: Any, unroll: int | bool | None = None, **kwargs: Any) -> Any:
        """Thread a carry through the blocks."""

    def unstacked(self) -> Sequence[Any]:
        """Return the blocks one by one."""


def _unroll(unroll: int | bool | None) -> int | bool:
    if unroll is None:
        return 1
    if isinstance(unroll, bool):
        return unroll
    if unroll < 1:
        raise AxisSpecError(f"unroll={unroll}; expected a bool or an integer >= 1.")
    return unroll


def _slice_leaf(x: Any, Block: Axis, index: int) -> Any:
    if isinstance(x, NamedArray):
        if Block.name not in x.names or x.array is None:
            return x
        position = x.names.index(Block.name)
        array = jax.lax.index_in_dim(x.array, index, axis=position, keepdims=False)
        return wrap(array, x.names[:position] + x.names[position + 1 :])
    if is_arrayish(x) and x.ndim >= 1 and x.shape[0] == Block.size:
        return x[index]
    return x


def _slice_tree(tree: Any, Block: Axis, index: int) -> Any:
    return jax.tree_util.tree_map(lambda x: _slice_leaf(x, Block, index), tree, is_leaf=is_named)


class Stacked(ModuleWithStateDictSerialization):
    """Equal blocks whose parameters are stacked along ``Block``, run with `haliax.scan`.

    Attributes:
        stacked: One module whose arrays have the extra axis.
        Block: Axis of the blocks.
        gradient_checkpointing: What the backward pass keeps; see `ScanCheckpointPolicy`.

    Example:
        >>> import jax, haliax as hax
        >>> E, Layers = hax.Axis("e", 4), hax.Axis("layers", 3)
        >>> keys = jax.random.split(jax.random.key(0), 3)
        >>> stack = Stacked.init(Layers, hax.nn.Linear)(E, E.alias("e2"), key=keys)
        >>> stack.stacked.weight.shape
        {'layers': 3, 'e2': 4, 'e': 4}
    """

    stacked: Any
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Block: Axis,
        module: Any,
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        prevent_cse: bool | None = None,
    ) -> Callable[..., Self]:
        """Return a function that builds the stack.

        Its arguments go to ``module.init``: NamedArrays with ``Block`` and raw arrays (by dimension 0) are sliced per
        block, all else is shared.

        Args:
            Block: Axis of the blocks.
            module: Class with ``init``.
            gradient_checkpointing: Policy or its short form.
            prevent_cse: Overrides the policy's field.
        """
        policy = _policy(gradient_checkpointing, prevent_cse)

        def build(*args: Any, **kwargs: Any) -> Self:
            return cls(vmap(module.init, Block)(*args, **kwargs), Block, policy)

        return build

    def scan(self, init: Any, *extra_args: Any, unroll: int | bool | None = None, **extra_kwargs: Any) -> Any:
        """Call ``block(carry, *args, **kwargs) -> (carry, output)`` for each block.

        Args:
            init: Initial carry.
            *extra_args: Arguments; those with ``Block`` (raw arrays: dimension 0) are sliced per block.
            unroll: Blocks per step of the compiled loop; True unrolls all.
            **extra_kwargs: Like ``extra_args``.

        Returns:
            The final carry, and the outputs with ``Block`` in front.
        """
        return self.scan_via(_call_block, unroll=unroll)(init, *extra_args, **extra_kwargs)

    def fold(self, init: Any, *args: Any, unroll: int | bool | None = None, **kwargs: Any) -> Any:
        """Call ``block(carry, *args, **kwargs) -> carry`` for each block; see `scan`."""
        return self.fold_via(_call_block, unroll=unroll)(init, *args, **kwargs)

    def fold_via(self, fn: Callable[..., Any], *, unroll: int | bool | None = None) -> Callable[..., Any]:
        """Return ``f(init, *args, **kwargs)`` that folds ``fn(block, carry, *args, **kwargs) -> carry``.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> from haliax.nn import Linear
            >>> Layer, E = hax.make_axes(layer=2, e=3)
            >>> stack = Stacked.init(Layer, Linear)(E, E.alias("e2"), key=jax.random.split(jax.random.key(0), 2))
            >>> body = lambda layer, x: layer(x).rename({"e2": "e"})
            >>> stack.fold_via(body)(hax.ones(E)).shape
            {'e': 3}
        """

        def do(carry: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
            return fn(block, carry, *args, **kwargs)

        run = fold(do, self.Block, remat=self.gradient_checkpointing, unroll=_unroll(unroll))
        return lambda init, *args, **kwargs: run(init, self.stacked, *args, **kwargs)

    def scan_via(self, fn: Callable[..., Any], *, unroll: int | bool | None = None) -> Callable[..., Any]:
        """Return ``f(init, *args, **kwargs)`` that scans ``fn(block, carry, *args, **kwargs) -> (carry, output)``."""

        def do(carry: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
            return fn(block, carry, *args, **kwargs)

        run = scan(do, self.Block, remat=self.gradient_checkpointing, unroll=_unroll(unroll))
        return lambda init, *args, **kwargs: run(init, self.stacked, *args, **kwargs)

    def vmap_via(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``f(*args, **kwargs)`` that applies ``fn(block, *args, **kwargs)`` to all blocks side by side.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> from haliax.nn import Linear
            >>> Layer, E = hax.make_axes(layer=2, e=3)
            >>> stack = Stacked.init(Layer, Linear)(E, E.alias("e2"), key=jax.random.split(jax.random.key(0), 2))
            >>> stack.vmap_via(lambda layer, x: layer(x))(hax.ones(E)).shape
            {'layer': 2, 'e2': 3}
        """
        run = vmap(fn, self.Block)
        return lambda *args, **kwargs: run(self.stacked, *args, **kwargs)

    def vmap(self, *args: Any, **kwargs: Any) -> Any:
        """Apply all blocks side by side to the arguments (no carry)."""
        return self.vmap_via(_call_block)(*args, **kwargs)

    def unstacked(self) -> Sequence[Any]:
        """Return the blocks one by one; leaves without ``Block`` are repeated.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> from haliax.nn import Linear
            >>> Layer, E = hax.make_axes(layer=2, e=3)
            >>> stack = Stacked.init(Layer, Linear)(E, E.alias("e2"), key=jax.random.split(jax.random.key(0), 2))
            >>> len(stack.unstacked())
            2
        """
        return tuple(self.get_layer(i) for i in range(self.Block.size))

    def get_layer(self, index: int) -> Any:
        """Return one block.

        Example:
            >>> import haliax as hax
            >>> import jax
            >>> from haliax.nn import Linear
            >>> Layer, E = hax.make_axes(layer=2, e=3)
            >>> stack = Stacked.init(Layer, Linear)(E, E.alias("e2"), key=jax.random.split(jax.random.key(0), 2))
            >>> stack.get_layer(1).weight.names
            ('e2', 'e')
        """
        return _slice_tree(self.stacked, self.Block, index)

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Return the arrays by key ``prefix.<i>.<rest>``."""
        return unstack_state_dict(
            to_state_dict(_block_first(self.stacked, self.Block), prefix), prefix, self.Block.size
        )

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> Self:
        """Return a copy with the arrays found below ``prefix.<i>``."""
        stacked_dict = stack_state_dict(state_dict, prefix, self.Block.size, strict=False)
        first = _block_first(self.stacked, self.Block)
        return dataclasses.replace(self, stacked=from_state_dict(first, stacked_dict, prefix))


Layers = Stacked
mark_stacked(Stacked, "Block")


def _block_first(module: Any, Block: Axis) -> Any:
    def move(x: Any) -> Any:
        if isinstance(x, NamedArray) and Block.name in x.names and x.names[0] != Block.name and x.array is not None:
            return x.rearrange((Block.name, ...))
        return x

    return jax.tree_util.tree_map(move, module, is_leaf=is_named)


def _call_block(block: Any, *args: Any, **kwargs: Any) -> Any:
    return block(*args, **kwargs)


def _policy(spec: ScanCheckpointSpec, prevent_cse: bool | None) -> ScanCheckpointPolicy:
    policy = ScanCheckpointPolicy.make(spec)
    return policy if prevent_cse is None else dataclasses.replace(policy, prevent_cse=prevent_cse)


class BlockSeq(ModuleWithStateDictSerialization):
    """Blocks in a list, run by a Python loop: they may differ, and compile time grows with their number.

    Attributes:
        blocks: The blocks.
        Block: Axis of the blocks.
        gradient_checkpointing: What the backward pass keeps; see `ScanCheckpointPolicy`.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> from haliax.nn import Linear
        >>> Layer, E = hax.make_axes(layer=2, e=3)
        >>> blocks = BlockSeq.init(Layer, Linear)(E, E.alias("e2"), key=jax.random.split(jax.random.key(0), 2))
        >>> [type(block).__name__ for block in blocks.blocks]
        ['Linear', 'Linear']
    """

    blocks: Sequence[Any]
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Block: Axis,
        module: Any,
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        prevent_cse: bool | None = None,
    ) -> Callable[..., Self]:
        """Return a function that builds the sequence; arguments are sliced as in `Stacked.init`."""
        policy = _policy(gradient_checkpointing, prevent_cse)

        def build(*args: Any, **kwargs: Any) -> Self:
            blocks = []
            for i in range(Block.size):
                one_args, one_kwargs = _slice_tree((args, kwargs), Block, i)
                blocks.append(module.init(*one_args, **one_kwargs))
            return cls(blocks, Block, policy)

        return build

    def scan(self, init: Any, *extra_args: Any, unroll: int | bool | None = None, **extra_kwargs: Any) -> Any:
        """Call ``block(carry, *args, **kwargs) -> (carry, output)`` for each block; see `Stacked.scan`.

        Raises:
            ScanError: A block returns something other than a pair.
        """
        return self.scan_via(_call_block, unroll=unroll)(init, *extra_args, **extra_kwargs)

    def fold(self, init: Any, *args: Any, unroll: int | bool | None = None, **kwargs: Any) -> Any:
        """Call ``block(carry, *args, **kwargs) -> carry`` for each block."""
        return self.fold_via(_call_block, unroll=unroll)(init, *args, **kwargs)

    def fold_via(self, fn: Callable[..., Any], *, unroll: int | bool | None = None) -> Callable[..., Any]:
        """Return ``f(init, *args, **kwargs)`` that folds ``fn(block, carry, *args, **kwargs) -> carry``."""
        _unroll(unroll)

        def run(init: Any, *args: Any, **kwargs: Any) -> Any:
            carry = init
            for i, block in enumerate(self.blocks):
                carry = tree_checkpoint_name(carry, self._name(block, "carry"))
                one_args, one_kwargs = _slice_tree((args, kwargs), self.Block, i)
                carry = self._checkpointed(fn, block)(block, carry, *one_args, **one_kwargs)
            return carry

        return run

    def scan_via(self, fn: Callable[..., Any], *, unroll: int | bool | None = None) -> Callable[..., Any]:
        """Return ``f(init, *args, **kwargs)`` that scans ``fn(block, carry, *args, **kwargs) -> (carry, output)``.

        Raises:
            ScanError: The function returns no pair.
        """
        _unroll(unroll)

        def run(init: Any, *args: Any, **kwargs: Any) -> Any:
            carry, outputs = init, []
            for i, block in enumerate(self.blocks):
                carry = tree_checkpoint_name(carry, self._name(block, "carry"))
                one_args, one_kwargs = _slice_tree((args, kwargs), self.Block, i)
                result = self._checkpointed(fn, block)(block, carry, *one_args, **one_kwargs)
                if not isinstance(result, tuple) or len(result) != 2:
                    raise ScanError(
                        f"BlockSeq.scan: block {i} returned {type(result).__name__}; expected a pair (carry, output)."
                    )
                carry = result[0]
                outputs.append(tree_checkpoint_name(result[1], self._name(block, "outputs")))
            return carry, _stack_trees(outputs, self.Block)

        return run

    def vmap_via(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``f(*args, **kwargs)`` that applies ``fn(block, *args, **kwargs)`` to each block and stacks."""

        def run(*args: Any, **kwargs: Any) -> Any:
            outputs = []
            for i, block in enumerate(self.blocks):
                one_args, one_kwargs = _slice_tree((args, kwargs), self.Block, i)
                outputs.append(fn(block, *one_args, **one_kwargs))
            return _stack_trees(outputs, self.Block)

        return run

    def unstacked(self) -> Sequence[Any]:
        """Return the blocks."""
        return self.blocks

    def get_layer(self, index: int) -> Any:
        """Return one block."""
        return self.blocks[index]

    def _name(self, block: Any, what: str) -> str:
        return f"BlockSeq[{self.Block}, {type(block).__name__}].{what}"

    def _checkpointed(self, fn: Callable[..., Any], block: Any) -> Callable[..., Any]:
        return self.gradient_checkpointing.checkpoint(self._name(block, "carry"), self._name(block, "inputs"), fn)

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"blocks": None}


def _stack_trees(trees: Sequence[Any], Block: Axis) -> Any:
    def join(*leaves: Any) -> Any:
        if isinstance(leaves[0], NamedArray):
            return stack(Block, leaves)
        return jax.numpy.stack(leaves) if is_arrayish(leaves[0]) else leaves[0]

    return jax.tree_util.tree_map(join, *trees, is_leaf=is_named)


_stack_state_dict = stack_state_dict
_unstack_state_dict = unstack_state_dict
