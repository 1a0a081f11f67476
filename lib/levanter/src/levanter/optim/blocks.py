r"""Large matrices in blocks, for optimizers whose cost grows with the cube of a dimension.

A dimension longer than the block size is cut into the fewest equal parts that fit, the last padded with zeros. The
matrices of one array, ``[S..., I, O]``, become one batch of blocks ``[N, BI, BO]``, ``N`` counting stack and cuts,
and everything downstream is a batch of small matrices.

State arrays carry the axis names of their parameter, so that the mapping which spreads the parameter over devices
spreads them too: over the blocks where their number divides well, each device then owning whole blocks, and over the
sides of the blocks where there are few.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.optim.matrices import MatrixView, widen


@dataclass(frozen=True)
class BlockGrid:
    """How the matrices of one array are cut.

    Attributes:
        view: The array as matrices.
        counts: Blocks along fan-in and fan-out.
        sizes: Rows and columns of a block.

    Example:
        >>> from levanter.optim.matrices import MatrixView, widen
        >>> grid = block_grid(MatrixView((300, 10), ("a", "b"), (), (0,), (1,)), 256)
        >>> grid.counts, grid.sizes, grid.num_blocks
        ((2, 1), (150, 10), 2)
    """

    view: MatrixView
    counts: tuple[int, int]
    sizes: tuple[int, int]

    @property
    def num_blocks(self) -> int:
        """N: blocks of all matrices of the stack."""
        return math.prod(self.view.stack_shape) * self.counts[0] * self.counts[1]

    def split(self, x: jax.Array) -> jax.Array:
        """Cut an array of the view's shape into ``[N, BI, BO]``, in float32 or wider."""
        x_SIO = widen(self.view.matrices(x))
        (ki, ko), (bi, bo) = self.counts, self.sizes
        stack = self.view.stack_shape
        padding = [(0, 0)] * len(stack) + [(0, ki * bi - self.view.fan_in), (0, ko * bo - self.view.fan_out)]
        cut = jnp.pad(x_SIO, padding).reshape(*stack, ki, bi, ko, bo)
        return jnp.swapaxes(cut, -3, -2).reshape(-1, bi, bo)

    def join(self, blocks: jax.Array) -> jax.Array:
        """Undo :meth:`split`."""
        (ki, ko), (bi, bo) = self.counts, self.sizes
        cut = blocks.reshape(*self.view.stack_shape, ki, ko, bi, bo)
        whole = jnp.swapaxes(cut, -3, -2).reshape(*self.view.stack_shape, ki * bi, ko * bo)
        return self.view.restore(whole[..., : self.view.fan_in, : self.view.fan_out])

    def name(self, value: jax.Array) -> NamedArray:
        """Name a state array ``[N, ...]`` with the axis names of the parameter."""
        rows, columns = self.view.row_name, self.view.column_name
        sides = value.shape[1:]
        if not sides or _two_power(self.num_blocks) >= _two_power(sides[0]):
            names = [rows, columns, "block"]
        else:
            names = ["blocks", rows, columns]
        names = [name if name not in names[:i] else f"{name}_{i}" for i, name in enumerate(names)]
        return NamedArray(value, tuple(Axis(n, s) for n, s in zip(names, value.shape, strict=False)))


def block_grid(view: MatrixView, block_size: int | None) -> BlockGrid:
    """Cut the matrices of a view into blocks of at most ``block_size``; None keeps them whole."""

    def cut(size: int) -> tuple[int, int]:
        count = 1 if block_size is None else math.ceil(size / block_size)
        return count, math.ceil(size / count)

    (ki, bi), (ko, bo) = cut(view.fan_in), cut(view.fan_out)
    return BlockGrid(view, (ki, ko), (bi, bo))


def _two_power(size: int) -> int:
    """Largest power of two that divides ``size``: over how many devices it can be spread."""
    return size & -size
