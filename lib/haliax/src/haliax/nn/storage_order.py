"""A dot_general whose weight gradient comes out in the weight's storage order.

The transpose rule of `lax.dot_general` computes the gradient of an operand with free dimensions in an order of its own
and then transposes it. On CPU and for large weights that transpose is a pass over memory. Here the backward pass picks
the operand order for which no transpose is needed.
"""

import functools
from typing import Any

import jax

from haliax._ops.contract import DimensionNumbers, contract


def _labels(numbers: DimensionNumbers, left_rank: int, right_rank: int) -> tuple[tuple[str, ...], ...]:
    (left_contract, right_contract), (left_batch, right_batch) = numbers
    left = [f"l{i}" for i in range(left_rank)]
    right = [f"r{i}" for i in range(right_rank)]
    for k, (i, j) in enumerate(zip(left_batch, right_batch, strict=True)):
        left[i] = right[j] = f"b{k}"
    for k, (i, j) in enumerate(zip(left_contract, right_contract, strict=True)):
        left[i] = right[j] = f"c{k}"
    batch = [f"b{k}" for k in range(len(left_batch))]
    out = (*batch, *(n for n in left if n.startswith("l")), *(n for n in right if n.startswith("r")))
    return tuple(left), tuple(right), out


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _dot(lhs: Any, rhs: Any, numbers: Any, precision: Any, preferred: Any) -> Any:
    return jax.lax.dot_general(lhs, rhs, numbers, precision, preferred)


def _forward(lhs: Any, rhs: Any, numbers: Any, precision: Any, preferred: Any) -> Any:
    return _dot(lhs, rhs, numbers, precision, preferred), (lhs, rhs)


def _backward(numbers: Any, precision: Any, preferred: Any, residuals: Any, ct: Any) -> Any:
    lhs, rhs = residuals
    left, right, out = _labels(numbers, lhs.ndim, rhs.ndim)
    d_lhs = contract([ct, rhs], [out, right], left, precision=precision)
    d_rhs = contract([ct, lhs], [out, left], right, precision=precision)
    return d_lhs.astype(lhs.dtype), d_rhs.astype(rhs.dtype)


_dot.defvjp(_forward, _backward)


class StorageOrderDotGeneral:
    """A `DotGeneralOp` for `haliax.nn.Linear` whose weight gradient needs no transpose. Reverse mode only.

    Example:
        >>> import jax, haliax as hax, haliax.nn as hnn
        >>> In, Out = hax.make_axes(i=3, o=4)
        >>> layer = hnn.Linear.init(In, Out, key=jax.random.key(0), dot_general=hnn.StorageOrderDotGeneral())
        >>> jax.grad(lambda l: l(hax.ones(In)).sum().scalar())(layer).weight.shape
        {'o': 4, 'i': 3}
    """

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Contract ``lhs`` with ``rhs``; see `jax.lax.dot_general`."""
        if kwargs.get("out_sharding") is not None:
            return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type, **kwargs)
        numbers = tuple(tuple(tuple(d) for d in pair) for pair in dimension_numbers)
        return _dot(lhs, rhs, numbers, precision, preferred_element_type)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


jax.tree_util.register_static(StorageOrderDotGeneral)
