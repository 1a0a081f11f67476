"""`named_jit`: `jax.jit` for functions of arbitrary pytrees whose results are placed by name.

Arrays among the arguments are traced, everything else (functions, strings, Python numbers) is static. The idea that
keeps dispatch near `jax.jit`: flatten once in C++, hand the flat arrays to one jitted function together with a hashable
description of the rest, and let that function's *output pytree* carry static results. Results are placed by constraints
inside the one trace, so there is no second trace to find out what they are, and no cache beside JAX's own. The axis
mapping in force is a JAX user context, hence part of JAX's key.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from haliax._array.named import NamedArray
from haliax._array.sharding import (
    FrozenMapping,
    ResourceMapping,
    auto_sharded,
    mapping_scope,
    resolve_mesh,
    shard_named,
)
from haliax.errors import ArrayTypeError


@functools.cache
def _array_types() -> frozenset[type]:
    """Return the concrete classes of arrays. Asking JAX starts its backend, so nobody asks at import."""
    return frozenset({type(jax.numpy.zeros(())), np.ndarray})


class _Box:
    """A static result: no children, the value as auxiliary data of the output tree."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Identity:
    """Compares by equality where the value allows it, else by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and (self.value is other.value or _same(self.value, other.value))


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # a foreign __eq__ may raise anything; then the values are different
        return False


jax.tree_util.register_pytree_node(_Box, lambda b: ((), _Identity(b.value)), lambda aux, _: _Box(aux.value))


class _Spec:
    """The static part of a call: tree structure, static leaves, which leaves are donated."""

    __slots__ = ("_hash", "donated", "statics", "treedef")

    def __init__(self, treedef: Any, statics: tuple[Any, ...], donated: tuple[bool, ...] | None) -> None:
        self.treedef, self.statics, self.donated = treedef, statics, donated
        self._hash = hash((treedef, _hash_statics(statics), donated))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Spec)
            and self.treedef == other.treedef
            and self.donated == other.donated
            and len(self.statics) == len(other.statics)
            and all(type(a) is type(b) and a == b for a, b in zip(self.statics, other.statics, strict=True))
        )

    def rebuild(self, kept: Any, donated: Any) -> Any:
        """Return the tree for these arrays."""
        if not self.statics:
            leaves = kept
        else:
            from_kept, from_donated = iter(kept), iter(donated)
            take = {_KEPT: from_kept, _DONATED: from_donated}
            leaves = [next(take[s]) if s is _KEPT or s is _DONATED else s.value for s in self.statics]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


class _Marker:
    """Says that a leaf is an array, and in which argument it travels."""


class _StaticLeaf:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StaticLeaf) and type(self.value) is type(other.value) and self.value == other.value


_KEPT, _DONATED = _Marker(), _Marker()


def _hash_statics(statics: tuple[Any, ...]) -> int:
    try:
        return hash(statics)
    except TypeError:
        bad = next(s.value for s in statics if isinstance(s, _StaticLeaf) and not _hashable(s.value))
        raise ArrayTypeError(
            f"named_jit: an argument holds a {type(bad).__name__}, which is neither an array nor hashable; "
            f"expected arrays, "
            "or static values that can be hashed. Convert it (lists of numbers to arrays), or close over it."
        ) from None


def _hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _is_dynamic(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct) or (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )


def _box_statics(out: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: x if _is_dynamic(x) else _Box(x), out)


def _unbox(out: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: x.value if isinstance(x, _Box) else x, out, is_leaf=_is_box)


def _is_box(x: Any) -> bool:
    return isinstance(x, _Box)


def _place(tree: Any, mapping: ResourceMapping | None) -> Any:
    if mapping is None:
        return auto_sharded(tree)
    mesh = resolve_mesh()
    if mesh is None or mesh.empty:
        return tree
    return jax.tree_util.tree_map(
        lambda leaf: shard_named(leaf, mapping, mesh) if isinstance(leaf, NamedArray) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, NamedArray),
    )


class NamedJit:
    """A compiled function; made by `named_jit`."""

    def __init__(
        self, fn: Callable[..., Any], axis: Any, ins: Any, outs: Any, donate: Any, options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, fn)
        self.__wrapped__ = fn
        self._axis = None if axis is None else FrozenMapping(axis)
        self._in = None if ins is None else FrozenMapping(ins)
        self._out = None if outs is None else FrozenMapping(outs)
        self._donate_args, self._donate_kwargs = donate
        self._donates = bool(self._donate_args) or bool(self._donate_kwargs)
        self._fn_leaves = isinstance(fn, eqx.Module)
        self._has_boxes = _BoxFlag()
        self._jitted: Any = jax.jit(
            self._make_body(), static_argnums=0, donate_argnums=(2,) if self._donates else (), **options
        )

    def _make_body(self) -> Callable[..., Any]:
        fn, axis, outs, is_module, boxes = self.__wrapped__, self._axis, self._out, self._fn_leaves, self._has_boxes

        def body(spec: _Spec, kept: Any, donated: Any) -> Any:
            tree = spec.rebuild(kept, donated)
            target = tree[2] if is_module else fn
            with mapping_scope(axis):
                out = _place(target(*tree[0], **tree[1]), outs)
            boxed = _box_statics(out)
            if any(_is_box(x) for x in jax.tree_util.tree_leaves(boxed, is_leaf=_is_box)):
                boxes.seen = True
            return boxed

        body.__name__ = getattr(fn, "__name__", type(fn).__name__)
        body.__qualname__ = getattr(fn, "__qualname__", body.__name__)
        return body

    def _prepare(self, args: Any, kwargs: Any) -> tuple[_Spec, Any, Any]:
        tree = (args, kwargs, self.__wrapped__) if self._fn_leaves else (args, kwargs)
        if self._in is not None:
            tree = _place(tree, self._in)
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        if not self._donates and _array_types().issuperset(map(type, leaves)):
            return _Spec(treedef, (), None), leaves, ()
        donated_mask = self._donated(args, kwargs, len(leaves)) if self._donates else [False] * len(leaves)
        kept, donated, statics = [], [], []
        for leaf, give in zip(leaves, donated_mask, strict=True):
            if not _is_dynamic(leaf):
                statics.append(_StaticLeaf(leaf))
            elif give:
                donated.append(leaf)
                statics.append(_DONATED)
            else:
                kept.append(leaf)
                statics.append(_KEPT)
        return _Spec(treedef, tuple(statics), None), kept, donated

    def _donated(self, args: Any, kwargs: Any, total: int) -> list[bool]:
        mask: list[bool] = []
        spec = self._donate_args
        per_argument = [spec] * len(args) if isinstance(spec, bool) else list(spec or ())
        per_argument += [False] * (len(args) - len(per_argument))
        for give, a in zip(per_argument, args, strict=True):
            mask.extend(_prefix_mask(give, a))
        keyword = self._donate_kwargs
        for key in sorted(kwargs):
            give = keyword if isinstance(keyword, bool) else (keyword or {}).get(key, False)
            mask.extend(_prefix_mask(give, kwargs[key]))
        return mask + [False] * (total - len(mask))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self._jitted(*self._prepare(args, kwargs))
        return _unbox(out) if self._has_boxes.seen else out

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace and lower for these arguments (ShapeDtypeStructs will do); returns a `jax.stages.Lowered`."""
        return self._jitted.lower(*self._prepare(args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace for these arguments; returns a `jax.stages.Traced`."""
        return self._jitted.trace(*self._prepare(args, kwargs))

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result with ShapeDtypeStructs for arrays, computing nothing."""
        spec, kept, donated = self._prepare(args, kwargs)
        return _unbox(jax.eval_shape(functools.partial(self._jitted, spec), kept, donated))

    def clear_cache(self) -> None:
        """Forget all compilations."""
        self._jitted.clear_cache()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else jax.tree_util.Partial(self, instance)


class _BoxFlag:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = False


def _prefix_mask(give: Any, tree: Any) -> list[bool]:
    leaves = jax.tree_util.tree_leaves(tree)
    if isinstance(give, bool):
        return [give] * len(leaves)
    flat, treedef = jax.tree_util.tree_flatten(give)
    out: list[bool] = []
    for one, sub in zip(flat, treedef.flatten_up_to(tree), strict=True):
        out.extend([bool(one)] * len(jax.tree_util.tree_leaves(sub)))
    return out


def named_jit(
    fn: Callable[..., Any] | None = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    **jit_kwargs: Any,
) -> Any:
    """Compile a function of arbitrary pytrees; its NamedArrays are placed by their names.

    Args:
        fn: Function, bound method, class (compiled, placed construction) or callable module; a decorator without it.
        axis_resources: Axis mapping in force while tracing, and for the results; that of the caller unless given.
        in_axis_resources: Mapping by which arguments are placed; they stay where they are unless given.
        out_axis_resources: Mapping by which results are placed, if other than ``axis_resources``.
        donate_args: Whose buffers may be re-used: a bool, or per positional argument a bool or prefix tree of bools.
        donate_kwargs: Likewise for keyword arguments: a bool or {name: bool or prefix tree}.
        **jit_kwargs: Passed to `jax.jit`.

    Returns:
        A callable with ``.lower``, ``.trace`` and ``.eval_shape``. Results may hold static values.

    Raises:
        ArrayTypeError: An argument holds something that is neither an array nor hashable.

    Example:
        >>> import haliax as hax
        >>> double = named_jit(lambda x, how: (x * 2, how))
        >>> y, how = double(hax.ones({"a": 2}), "fast")
        >>> y.tolist(), how
        ([2.0, 2.0], 'fast')
    """
    if fn is None:
        return functools.partial(
            named_jit,
            axis_resources=axis_resources,
            in_axis_resources=in_axis_resources,
            out_axis_resources=out_axis_resources,
            donate_args=donate_args,
            donate_kwargs=donate_kwargs,
            **jit_kwargs,
        )
    outs = out_axis_resources if out_axis_resources is not None else axis_resources
    return NamedJit(fn, axis_resources, in_axis_resources, outs, (donate_args, donate_kwargs), jit_kwargs)
