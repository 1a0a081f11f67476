"""Helpers around plain JAX: random keys, names for profilers, checkpoint names, multi-host synchronisation."""

import functools
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np

from haliax._array.compat import is_tracing
from haliax._array.named import NamedArray, format_axes
from haliax._axis.types import AxisSpec, sized_axes, to_jax_shape
from haliax._ops.checkpoint import multilevel_scan, tree_checkpoint_name
from haliax._ops.loops import is_arrayish
from haliax.errors import ArrayTypeError

__all__ = [
    "Static",
    "assert_equal",
    "broadcast_one_to_all",
    "broadcast_prefix",
    "combine",
    "ensure_scalar",
    "filter_checkpoint",
    "filter_eval_shape",
    "is_array",
    "is_in_jit",
    "is_jax_array_like",
    "is_on_mac_metal",
    "is_pallas_dslice",
    "is_scalarish",
    "maybe_rng_split",
    "multilevel_scan",
    "named_call",
    "shaped_rng_split",
    "sync_global_devices",
    "to_jax_shape",
    "tree_checkpoint_name",
]


_MULTIHOST = "haliax._adapters.multihost"  # loaded on demand: it pulls in far more than one process needs


class Static(eqx.Module):
    """A static value in a pytree."""

    value: Any = eqx.field(static=True)


def is_in_jit() -> bool:
    """Tell whether the caller is being traced by `jax.jit`. Allocates nothing.

    Example:
        >>> is_in_jit()
        False
    """
    return is_tracing()


def is_jax_array_like(x: Any) -> bool:
    """Tell whether ``x`` has a shape and a dtype.

    Example:
        >>> is_jax_array_like(jnp.ones(2)), is_jax_array_like(2)
        (True, False)
    """
    return hasattr(x, "shape") and hasattr(x, "dtype")


def is_pallas_dslice(x: Any) -> bool:
    """Tell whether ``x`` is a Pallas dynamic slice."""
    return type(x).__name__ == "Slice" and hasattr(x, "start") and hasattr(x, "size")


def is_scalarish(x: Any) -> bool:
    """Tell whether ``x`` is a number or has no dimensions.

    Example:
        >>> is_scalarish(1.5), is_scalarish(jnp.ones(2))
        (True, False)
    """
    if isinstance(x, NamedArray):
        return x.ndim == 0
    return isinstance(x, int | float | complex | np.generic) or getattr(x, "shape", None) == ()


def ensure_scalar(x: Any, *, name: str = "value") -> Any:
    """Return the raw scalar of a number, 0-d array or NamedArray without axes.

    Raises:
        ArrayTypeError: It has dimensions.

    Example:
        >>> import haliax as hax
        >>> ensure_scalar(hax.named(3, ())).item()
        3
    """
    if isinstance(x, NamedArray):
        if x.ndim:
            raise ArrayTypeError(
                f"{name}: has axes {format_axes(x.names)}; expected a scalar. Index or reduce it first."
            )
        return x.array
    if getattr(x, "ndim", 0):
        raise ArrayTypeError(f"{name}: has shape {x.shape}; expected a scalar. Index or reduce it first.")
    return x


def maybe_rng_split(key: Any, num: int = 2) -> Any:
    """Split a key into ``num``; None gives ``num`` Nones.

    Example:
        >>> maybe_rng_split(None, 3)
        [None, None, None]
    """
    if key is None:
        return [None] * num
    if num == 1:
        return jnp.reshape(key, (1, *key.shape))
    return jrandom.split(key, num)


def shaped_rng_split(key: Any, split_shape: int | Sequence[int] | AxisSpec = 2) -> Any:
    """Split a key into an array of keys of the given shape (sizes or axes; the result is raw).

    Example:
        >>> shaped_rng_split(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """
    if isinstance(split_shape, int):
        return jrandom.split(key, split_shape)
    if isinstance(split_shape, Sequence) and all(isinstance(s, int) for s in split_shape):
        shape: tuple[int, ...] = tuple(split_shape)  # type: ignore[arg-type]
    else:
        shape = tuple(a.size for a in sized_axes(split_shape, "shaped_rng_split"))
    return jrandom.split(key, shape) if shape else jrandom.split(key, 1)[0]


def named_call(f: Callable[..., Any] | None = None, name: str | None = None) -> Any:
    """Run ``f`` in a `jax.named_scope` so that profiles and HLO show its name (class name for ``__call__``).

    Example:
        >>> @named_call
        ... def double(x):
        ...     return 2 * x
        ...
        >>> double(2)
        4
    """
    if f is None:
        return functools.partial(named_call, name=name)

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        scope = name
        if scope is None:
            scope = f.__qualname__.replace(".__call__", "").replace("<locals>.", "").rpartition(".")[2]
            if f.__name__ == "__call__" and args:
                scope = type(args[0]).__name__
        with jax.named_scope(scope):
            return f(*args, **kwargs)

    return wrapped


def broadcast_prefix(prefix: Any, full: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Repeat the leaves of a prefix tree over the leaves of ``full`` below them.

    Example:
        >>> broadcast_prefix([1, 2], [{"a": 0, "b": 0}, 0])
        [{'a': 1, 'b': 1}, 2]
    """
    return jax.tree_util.tree_map(
        lambda p, sub: jax.tree_util.tree_map(lambda _: p, sub, is_leaf=is_leaf), prefix, full, is_leaf=is_leaf
    )


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Give every process the arrays of one (process 0 unless told otherwise)."""
    if jax.process_count() == 1:
        return in_tree
    from_here = jax.process_index() == 0 if is_source is None else is_source
    return import_module(_MULTIHOST).broadcast_one_to_all(in_tree, is_source=from_here)


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes hold equal arrays."""
    if jax.process_count() == 1:
        return
    import_module(_MULTIHOST).assert_equal(in_tree, fail_message)


def sync_global_devices(name: str) -> None:
    """Wait until every process is here."""
    if jax.process_count() == 1:
        return
    import_module(_MULTIHOST).sync_global_devices(name)


def is_on_mac_metal() -> bool:
    """Tell whether the default backend is Apple's."""
    return jax.devices()[0].platform.lower() == "metal"


filter_eval_shape = eqx.filter_eval_shape
filter_checkpoint = eqx.filter_checkpoint
combine = eqx.combine
is_array = is_arrayish
