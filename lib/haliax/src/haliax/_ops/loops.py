"""`scan`, `fold`, `map` and `vmap` over a named axis.

Inside the body the axis is gone from the arrays that have it; outside it is there. JAX adds and drops a positional
dimension 0; these functions add and drop the name, so that names and rank agree at every moment.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from haliax._array.named import NamedArray, intern_names, wrap
from haliax._array.sharding import current_thread_local_mapping, match_sharding, pspec_for_names, resolve_mesh
from haliax._axis.types import Axis, AxisSelector, names_of
from haliax._ops.checkpoint import (
    ScanCheckpointPolicy,
    ScanCheckpointSpec,
    multilevel_scan,
    nested_length,
    tree_checkpoint_name,
)
from haliax.errors import AxisCollisionError, AxisNotFoundError, ScanError, format_axes


def is_named(x: Any) -> bool:
    """Tell whether ``x`` is a NamedArray (for ``is_leaf=``)."""
    return isinstance(x, NamedArray)


def is_arrayish(x: Any) -> bool:
    """Tell whether ``x`` is a JAX or NumPy array, or a tracer."""
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def is_scanned_default(x: Any) -> bool:
    """The default of ``is_scanned``: NamedArrays, and raw arrays with at least one dimension."""
    return isinstance(x, NamedArray) or (is_arrayish(x) and x.ndim >= 1)


def drop_axis(x: NamedArray, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the raw array with ``name`` moved to dimension 0, and the names without it."""
    index = x.names.index(name)
    rest = intern_names(x.names[:index] + x.names[index + 1 :])
    return (x.array if index == 0 else jnp.moveaxis(x.array, index, 0)), rest


def prepend_axis(tree: Any, name: str, operation: str) -> Any:
    """Put ``name`` in front of the names of every NamedArray of a tree whose arrays have grown a dimension 0.

    Raises:
        AxisCollisionError: An array has the name already.
    """

    def add(leaf: Any) -> Any:
        if not isinstance(leaf, NamedArray):
            return leaf
        if name in leaf.names:
            raise AxisCollisionError(
                f"{operation}: a result already has the axis that the loop adds", [name], leaf.names
            )
        return wrap(leaf.array, intern_names((name, *leaf.names)))

    return jax.tree_util.tree_map(add, tree, is_leaf=is_named)


def _argument_names(fn: Any, num_positional: int, skip: int) -> list[str]:
    try:
        parameters = [
            p.name if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) else None
            for p in inspect.signature(fn).parameters.values()
        ][skip:]
    except (TypeError, ValueError):
        parameters = []
    return [
        (parameters[i] if i < len(parameters) and parameters[i] else None) or f"args[{i}]"
        for i in range(num_positional)
    ]


def _path_text(path: Sequence[Any], names: list[str]) -> str:
    group, key = path[0].idx, path[1]
    head = names[key.idx] if group == 0 else str(key.key)
    return head + jax.tree_util.keystr(tuple(path[2:]))


def _axis_of(axis: AxisSelector, found: list[tuple[str, Any]], operation: str) -> Axis:
    """Determine the size of ``axis`` and check that every scanned argument agrees."""
    name = names_of(axis)[0]
    size = axis.size if isinstance(axis, Axis) else None
    for _, leaf in found:
        if size is not None:
            break
        size = leaf.array.shape[leaf.names.index(name)] if isinstance(leaf, NamedArray) else leaf.shape[0]
    if size is None:
        raise AxisNotFoundError(f"{operation}: no argument has the axis, and it was given without a size", [name], ())
    for path, leaf in found:
        got = leaf.array.shape[leaf.names.index(name)] if isinstance(leaf, NamedArray) else leaf.shape[0]
        if got != size:
            shown = format_axes(leaf.names, leaf.array.shape) if isinstance(leaf, NamedArray) else tuple(leaf.shape)
            raise ScanError(
                f"{operation} over {name}({size}): {path} has leading dimension {got} (shape {shown}); expected "
                f"{size}. "
                "Name its dimensions, or exclude it with is_scanned."
            )
    return Axis(name, size)


class _Inputs:
    """Arguments of a loop, split into what is mapped and what is closed over."""

    def __init__(
        self, fn: Any, axis: AxisSelector, args: Any, kwargs: Any, predicate: Any, operation: str, skip: int
    ) -> None:
        flat, self.treedef = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_named)
        name = names_of(axis)[0]
        arguments = _argument_names(fn, len(args), skip)
        self.leaves = [leaf for _, leaf in flat]
        self.mapped = [predicate(leaf) and not (is_named(leaf) and name not in leaf.names) for leaf in self.leaves]
        self.mapped = [
            m and not (is_named(x) and x.array is None) for m, x in zip(self.mapped, self.leaves, strict=True)
        ]
        found = [(_path_text(p, arguments), x) for (p, x), m in zip(flat, self.mapped, strict=True) if m]
        self.axis = _axis_of(axis, found, operation)
        self.names: list[tuple[str, ...] | None] = []
        self.arrays: list[Any] = []
        for leaf, mapped in zip(self.leaves, self.mapped, strict=True):
            if mapped and isinstance(leaf, NamedArray):
                array, rest = drop_axis(leaf, name)
                self.arrays.append(array)
                self.names.append(rest)
            elif mapped:
                self.arrays.append(leaf)
                self.names.append(None)

    def rebuild(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = list(self.leaves)
        rebuilt = iter(zip(arrays, self.names, strict=True))
        for i, mapped in enumerate(self.mapped):
            if mapped:
                array, names = next(rebuilt)
                leaves[i] = array if names is None else wrap(array, names)
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


def _align_carry(new: Any, old: Any) -> Any:
    """Give the NamedArrays of a new carry the axis order of the old one."""

    def fix(n: Any, o: Any) -> Any:
        if isinstance(n, NamedArray) and not n.names and not isinstance(o, NamedArray):
            return n.array  # a raw scalar went in; adding a NamedArray without axes to it must not change its kind
        if isinstance(o, NamedArray) and not o.names and is_arrayish(n) and n.ndim == 0:
            return wrap(n, o.names)
        if isinstance(n, NamedArray) and isinstance(o, NamedArray) and n.names != o.names:
            if set(n.names) != set(o.names):
                raise ScanError(
                    f"scan: the carry went in with axes {format_axes(o.names)} and came out with "
                    f"{format_axes(n.names)}; "
                    "expected the same axes. Broadcast the initial carry, or reduce the result."
                )
            n = wrap(jnp.transpose(n.array, [n.names.index(x) for x in o.names]), o.names)
        if isinstance(n, NamedArray) and isinstance(o, NamedArray) and is_arrayish(o.array) and is_arrayish(n.array):
            return wrap(match_sharding(n.array, o.array), n.names)
        return n

    same = jax.tree_util.tree_structure(new, is_leaf=is_named) == jax.tree_util.tree_structure(old, is_leaf=is_named)
    return jax.tree_util.tree_map(fix, new, old, is_leaf=is_named) if same else new


def _is_dynamic(x: Any) -> bool:
    return is_arrayish(x) or isinstance(x, int | float | complex) or hasattr(x, "__jax_array__")


def scan(
    f: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Callable[[Any], bool] = is_scanned_default,
) -> Callable[..., Any]:
    """Run ``f`` once per element of ``axis``, threading a carry and collecting outputs.

    Args:
        f: ``f(carry, *args, **kwargs) -> (carry, y)``.
        axis: Axis to scan over; arguments that have it are sliced, all others are passed whole. Raw arrays with at
            least one dimension are sliced along dimension 0.
        remat: What to keep for the backward pass; see `ScanCheckpointPolicy`.
        reverse: Run from the last element.
        unroll: Iterations per step of the compiled loop.
        is_scanned: Which leaves of the arguments may be sliced.

    Returns:
        ``scanned(init, *args, **kwargs) -> (carry, ys)``; the ys have ``axis`` in front.

    Raises:
        ScanError: An argument has another leading size (the message gives its path), or the carry changes its axes.

    Example:
        >>> import haliax as hax
        >>> T = Axis("t", 3)
        >>> total, partial = hax.scan(lambda c, x: (c + x, c), T)(0, hax.arange(T))
        >>> int(total), partial.tolist()
        (3, [0, 0, 1])
    """
    policy = ScanCheckpointPolicy.make(remat)

    def scanned(init: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        inputs = _Inputs(f, axis, args, kwargs, is_scanned, "scan", 1)
        name = inputs.axis.name
        carry_name, input_name = f"scan({name})__carry", f"scan({name})__input"
        dynamic, static = eqx.partition(init, _is_dynamic)
        # A tagged input is a new value to JAX: without a policy that reads the tags, the loop would store a copy of
        # every scanned weight for the backward pass instead of reading the original.
        tag = tree_checkpoint_name if policy.uses_names else lambda x, _: x

        def body(carry: Any, xs: Sequence[Any]) -> tuple[Any, Any]:
            carry = tag(carry, carry_name)
            call_args, call_kwargs = inputs.rebuild(tag(list(xs), input_name))
            with jax.named_scope(f"scan({name})"):
                result = f(eqx.combine(carry, static), *call_args, **call_kwargs)
            if not isinstance(result, tuple) or len(result) != 2:
                raise ScanError(f"scan: the body returned {type(result).__name__}; expected a pair (carry, output).")
            new = _align_carry(result[0], init)
            return eqx.filter(new, _is_dynamic), result[1]

        step = policy.checkpoint(carry_name, input_name, body)
        length = inputs.axis.size
        if policy.nested is not False:
            outer = nested_length(length, policy.nested)
            carry, ys = multilevel_scan(step, dynamic, inputs.arrays, outer, length, reverse, unroll)
        else:
            carry, ys = jax.lax.scan(step, dynamic, inputs.arrays, length=length, reverse=reverse, unroll=unroll)
        return eqx.combine(carry, static), prepend_axis(ys, name, "scan")

    return scanned


def fold(
    fn: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Callable[[Any], bool] = is_scanned_default,
) -> Callable[..., Any]:
    """Like `scan` for a body that returns the carry only: ``fold(fn, axis)(init, *args) -> carry``.

    Example:
        >>> import haliax as hax
        >>> int(hax.fold(lambda c, x: c + x, "t")(0, hax.arange(Axis("t", 4))))
        6
    """

    @functools.wraps(fn)
    def body(carry: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        return fn(carry, *args, **kwargs), None

    scanned = scan(body, axis, remat=remat, reverse=reverse, unroll=unroll, is_scanned=is_scanned)
    return lambda init, *args, **kwargs: scanned(init, *args, **kwargs)[0]


def map(  # noqa: A001
    fn: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_mapped: Callable[[Any], bool] = is_scanned_default,
) -> Callable[..., Any]:
    """Apply ``fn`` to each element of ``axis`` in turn (a loop, unlike `vmap`): ``map(fn, axis)(*xs) -> ys``.

    Example:
        >>> import haliax as hax
        >>> map(lambda row: row.sum(), "a")(hax.named([[1, 2], [3, 4]], "a b")).tolist()
        [3, 7]
    """

    @functools.wraps(fn)
    def body(_: Any, *args: Any, **kwargs: Any) -> tuple[None, Any]:
        return None, fn(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = _Inputs(fn, axis, args, kwargs, is_mapped, "map", 0)
        scanned = scan(body, inputs.axis, remat=remat, reverse=reverse, unroll=unroll, is_scanned=is_mapped)
        return scanned(None, *args, **kwargs)[1]

    return call


# --- vmap -------------------------------------------------------------------------------------------------------------


def _spec_leaves(spec: Any, argument: Any, default: Any) -> list[Any]:
    """Broadcast a prefix tree of map specs over the leaves of ``argument``."""
    leaves = jax.tree_util.tree_leaves(argument, is_leaf=lambda x: is_named(x))
    if spec is ...:
        return [default(leaf) for leaf in leaves]
    if spec is None or isinstance(spec, int) or callable(spec):
        return [spec(leaf) if callable(spec) else spec for leaf in leaves]
    out: list[Any] = []
    flat_spec, treedef = jax.tree_util.tree_flatten(spec, is_leaf=lambda x: x is None)
    for one, sub in zip(flat_spec, treedef.flatten_up_to(argument), strict=True):
        out.extend(_spec_leaves(one, sub, default))
    return out


def _default_spec(default: Any) -> Callable[[Any], Any]:
    if callable(default) and not isinstance(default, int):
        return lambda leaf: 0 if default(leaf) is True else default(leaf) or None
    if default is ...:
        return lambda leaf: 0 if (is_named(leaf) or (is_arrayish(leaf) and leaf.ndim >= 1)) else None
    return lambda leaf: default if (is_named(leaf) or is_arrayish(leaf)) else None


def vmap(
    fn: Callable[..., Any],
    axis: AxisSelector | Sequence[AxisSelector],
    *,
    default: Any = ...,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Vectorise ``fn`` over a named axis (or several; the last is the innermost).

    Args:
        fn: Function or class. Inside, mapped NamedArrays lack the axis.
        axis: Axis or axes; a bare name takes its size from the arguments.
        default: Which dimension of raw arrays to map: an int, None for none, or a function of the leaf. Unless given,
            raw arrays with at least one dimension are mapped on dimension 0.
        args: Map specs per positional argument (prefix trees of int, None or function); the rest uses ``default``.
        kwargs: Map specs per keyword argument.

    Returns:
        The vectorised function; NamedArrays among its results have the axis in front, results that are no arrays come
        back as they are.

    Raises:
        AxisNotFoundError: A bare name that no argument has.
        ScanError: An argument has another size along the axis.

    Example:
        >>> import haliax as hax
        >>> x = hax.arange({"batch": 2, "pos": 3})
        >>> hax.vmap(lambda row: row.sum("pos"), "batch")(x).tolist()
        [3, 12]
    """
    if not isinstance(axis, Axis | str):
        axes = list(axis)
        if not axes:
            return fn
        for one in reversed(axes):
            fn = vmap(fn, one, default=default, args=args, kwargs=kwargs)
        return fn
    single: AxisSelector = axis
    specs, keyword_specs = tuple(args), dict(kwargs or {})

    @functools.wraps(fn)
    def wrapped(*call_args: Any, **call_kwargs: Any) -> Any:
        return _vmap_call(fn, single, _default_spec(default), specs, keyword_specs, call_args, call_kwargs)

    return wrapped


def _vmap_call(
    fn: Any, axis: AxisSelector, default: Any, specs: Any, keyword_specs: Any, call_args: Any, call_kwargs: Any
) -> Any:
    name = names_of(axis)[0]
    flat, treedef = jax.tree_util.tree_flatten_with_path((call_args, call_kwargs), is_leaf=is_named)
    wanted: list[Any] = []
    for i, a in enumerate(call_args):
        wanted.extend(_spec_leaves(specs[i] if i < len(specs) else ..., a, default))
    for key in sorted(call_kwargs):
        wanted.extend(_spec_leaves(keyword_specs.get(key, ...), call_kwargs[key], default))
    arguments = _argument_names(fn, len(call_args), 0)
    mapped: list[tuple[int, Any]] = []
    found: list[tuple[str, Any]] = []
    for i, ((path, leaf), spec) in enumerate(zip(flat, wanted, strict=True)):
        if isinstance(leaf, NamedArray):
            if name in leaf.names and leaf.array is not None:
                mapped.append((i, leaf.names.index(name)))
                found.append((_path_text(path, arguments), leaf))
        elif spec is not None and is_arrayish(leaf) and leaf.ndim:
            mapped.append((i, int(spec)))
            found.append((_path_text(path, arguments), leaf if spec == 0 else jnp.moveaxis(leaf, int(spec), 0)))
    real = _axis_of(axis, found, "vmap")
    leaves = [leaf for _, leaf in flat]
    statics: list[Any] = []

    def inner(arrays: Sequence[Any]) -> list[Any]:
        rebuilt = list(leaves)
        for (i, dim), array in zip(mapped, arrays, strict=True):
            leaf = leaves[i]
            if isinstance(leaf, NamedArray):
                rebuilt[i] = wrap(array, intern_names(leaf.names[:dim] + leaf.names[dim + 1 :]))
            else:
                rebuilt[i] = array
        inner_args, inner_kwargs = jax.tree_util.tree_unflatten(treedef, rebuilt)
        out_leaves, out_tree = jax.tree_util.tree_flatten(fn(*inner_args, **inner_kwargs), is_leaf=is_named)
        dynamic = [leaf for leaf in out_leaves if is_named(leaf) or is_arrayish(leaf)]
        statics[:] = [out_tree, [None if is_named(x) or is_arrayish(x) else (x,) for x in out_leaves]]
        return dynamic

    raw_leaves = [leaves[i].array if is_named(leaves[i]) else leaves[i] for i, _ in mapped]
    dims = [dim for _, dim in mapped]
    physical = (current_thread_local_mapping() or {}).get(name)
    mesh = resolve_mesh() if physical is not None else None
    extra: dict[str, Any] = {}
    if mesh is not None and not mesh.empty and all(t == jax.sharding.AxisType.Auto for t in mesh.axis_types):
        entry = pspec_for_names((name,), current_thread_local_mapping())[0]
        extra["spmd_axis_name"] = entry
    out = jax.vmap(inner, in_axes=(dims,), axis_size=real.size, **extra)(raw_leaves)
    out_tree, static_leaves = statics
    dynamic = iter(prepend_axis(out, name, "vmap"))
    return jax.tree_util.tree_unflatten(out_tree, [next(dynamic) if s is None else s[0] for s in static_leaves])
