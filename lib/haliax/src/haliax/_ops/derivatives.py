"""`jacobian` and `hessian`: derivatives of arrays by arrays, whose axes are those of both.

`jax.jacrev` over a NamedArray gives an array with more dimensions than names, because a pytree's structure says nothing
about the axes that differentiation adds. Here the names of the result are worked out: first the axes of the output,
then those of the input; an output axis that the input has too gets a prefix.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from haliax._array.named import NamedArray, intern_names, wrap
from haliax._axis.types import reject_duplicates
from haliax.errors import ArrayTypeError


def _is_named(x: Any) -> bool:
    return isinstance(x, NamedArray)


def _is_differentiable(leaf: Any) -> bool:
    array = leaf.array if _is_named(leaf) else leaf
    return isinstance(array, float | complex) or jnp.issubdtype(getattr(array, "dtype", jnp.int32), jnp.inexact)


class _Positional:
    """``fn`` as a function of the raw differentiable leaves of one argument; everything else is closed over."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: int) -> None:
        self.fn, self.args, self.kwargs, self.argnums = fn, args, kwargs, argnums
        self.leaves, self.treedef = jax.tree_util.tree_flatten(args[argnums], is_leaf=_is_named)
        self.places = [i for i, leaf in enumerate(self.leaves) if _is_differentiable(leaf)]
        self.out_treedef: Any = None
        self.out_names: list[tuple[str, ...] | None] = []

    def raws(self) -> list[Any]:
        chosen = [self.leaves[i] for i in self.places]
        return [x.array if _is_named(x) else x for x in chosen]

    def __call__(self, arrays: list[Any]) -> list[Any]:
        leaves = list(self.leaves)
        for i, a in zip(self.places, arrays, strict=True):
            leaves[i] = wrap(a, leaves[i].names) if _is_named(leaves[i]) else a
        argument = jax.tree_util.tree_unflatten(self.treedef, leaves)
        out = self.fn(*self.args[: self.argnums], argument, *self.args[self.argnums + 1 :], **self.kwargs)
        flat, self.out_treedef = jax.tree_util.tree_flatten(out, is_leaf=_is_named)
        self.out_names = [x.names if _is_named(x) else None for x in flat]
        return [x.array if _is_named(x) else x for x in flat]

    def named(self, row: list[Any], out_names: tuple[str, ...] | None, prefix: str) -> Any:
        """Return the derivatives of one output as a tree like the argument, None elsewhere."""
        leaves: list[Any] = [None] * len(self.leaves)
        for i, x in zip(self.places, row, strict=True):
            leaf = self.leaves[i]
            if out_names is not None and _is_named(leaf):
                names = (*(prefix + n if n in leaf.names else n for n in out_names), *leaf.names)
                reject_duplicates("jacobian", names, names)
                x = wrap(x, intern_names(names))
            leaves[i] = x
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


def jacobian(
    fn: Callable[..., Any],
    argnums: int = 0,
    *,
    out_prefix: str = "out_",
    mode: Literal["rev", "fwd"] = "rev",
) -> Callable[..., Any]:
    """Differentiate every element of the result of ``fn`` by every element of one argument.

    Args:
        fn: Function of NamedArrays, raw arrays or trees of them; so may be its result.
        argnums: Position of the argument to differentiate by.
        out_prefix: Put in front of the name of an output axis that the input has too.
        mode: "rev" for few outputs, "fwd" for few inputs.

    Returns:
        A function with the arguments of ``fn``. Its result is a NamedArray with the axes of the output, then those of
        the input; for trees, a tree like the output's of trees like the argument's (None where the argument has no
        floating-point array). A raw array on either side makes the entry raw.

    Raises:
        AxisCollisionError: A prefixed name exists already; choose another ``out_prefix``.
        ArrayTypeError: The argument holds no floating-point array.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([1.0, 2.0], "i")
        >>> jacobian(lambda x: x * x)(x).axes
        (Axis(name='out_i', size=2), Axis(name='i', size=2))
        >>> jacobian(lambda x: x * x)(x).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    transform = {"rev": jax.jacrev, "fwd": jax.jacfwd}[mode]

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        positional = _Positional(fn, args, kwargs, argnums)
        if not positional.places:
            raise ArrayTypeError(
                f"jacobian: argument {argnums} is a {type(args[argnums]).__name__} without floating-point arrays."
            )
        table = transform(positional)(positional.raws())
        rows = [
            positional.named(row, names, out_prefix) for row, names in zip(table, positional.out_names, strict=True)
        ]
        return jax.tree_util.tree_unflatten(positional.out_treedef, rows)

    return differentiated


def hessian(fn: Callable[..., Any], argnums: int = 0, *, out_prefix: str = "out_") -> Callable[..., Any]:
    """Differentiate a scalar function twice by one argument, forward over reverse.

    Args:
        fn: Function whose result is a raw scalar or a NamedArray without axes.
        argnums: Position of the argument, a NamedArray.
        out_prefix: Put in front of the names of the first copy of the axes.

    Returns:
        A function whose result has the axes of the argument twice, first prefixed, then as they are.

    Raises:
        AxisCollisionError: A prefixed name exists already; choose another ``out_prefix``.

    Example:
        >>> import haliax as hax
        >>> x = hax.named([1.0, 2.0], "i")
        >>> hessian(lambda x: (x * x * x).sum())(x).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """

    def scalar(*args: Any, **kwargs: Any) -> Any:
        out = fn(*args, **kwargs)
        return out.scalar() if _is_named(out) else out

    return jacobian(jax.grad(scalar, argnums=argnums), argnums, out_prefix=out_prefix, mode="fwd")
