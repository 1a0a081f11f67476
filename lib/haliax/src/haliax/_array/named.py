"""`NamedArray`: an array whose dimensions have names.

The problem: positional axes make a program's meaning depend on storage order, and names bolted on top usually cost
time at every operation. The idea: a NamedArray holds an array and a tuple of *names*, nothing else. Sizes live in the
array, where JAX keeps them already. As a pytree it has one child (the array) and its names as auxiliary data, so JAX's
caches compare a tuple of interned strings and never a size twice; unflattening validates nothing, and transformations
may put any payload in (None, a tracer, a ShapeDtypeStruct, a sentinel).

Invariants: names are unique; the number of names equals the rank of the payload whenever `NamedArray(...)` is called by
a person; instances are immutable.

This module knows no operation. Those live in `haliax._ops` and plug themselves in through `bind`, which keeps the
import graph ``axis -> array -> ops -> nn`` free of cycles.
"""

import functools
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np

from haliax._array import typing_spec
from haliax._array.checks import are_shape_checks_enabled
from haliax._axis import algebra
from haliax._axis.types import (
    Axis,
    AxisSelection,
    AxisSelector,
    is_single,
    names_of,
    pairs,
    reject_duplicates,
    selector,
)
from haliax.errors import (
    ArrayTypeError,
    AxisNotFoundError,
    AxisSizeMismatchError,
    AxisSpecError,
    format_axes,
)

_intern_names: dict[tuple[str, ...], tuple[str, ...]] = {}


def intern_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return one shared tuple per distinct sequence of names, so that comparisons hit the identity shortcut."""
    return _intern_names.setdefault(names, names)


@functools.lru_cache(maxsize=8192)
def _axes_for(names: tuple[str, ...], shape: tuple[int, ...]) -> tuple[Axis, ...]:
    return tuple(map(Axis, names, shape))


@final
class NamedArray:
    """An array with a name for each of its dimensions.

    Args:
        array: Anything with a shape (JAX or NumPy array, tracer, ShapeDtypeStruct), or a payload without one (None).
        axes: One entry per dimension: Axis, str, a sequence of both, or a mapping from name to size. A str may hold
            several names separated by spaces.

    Raises:
        AxisCollisionError: A name occurs twice.
        AxisSpecError: The number of names differs from the rank.
        AxisSizeMismatchError: A given size differs from the array's.

    Example:
        >>> x = NamedArray(jnp.zeros((2, 3)), ("batch", "embed"))
        >>> x.shape, x.axes[1]
        ({'batch': 2, 'embed': 3}, Axis(name='embed', size=3))
    """

    __slots__ = ("__weakref__", "array", "names")

    array: Any
    names: tuple[str, ...]

    # numpy must not treat a NamedArray as a scalar of dtype object: `np.ones(3) + named` defers to our __radd__.
    __array_ufunc__ = None
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any, axes: Any) -> None:
        found = tuple(_spaced(pairs(axes)))
        names = tuple(n for n, _ in found)
        reject_duplicates("NamedArray", names, axes)
        shape = getattr(array, "shape", None)
        if type(shape) is tuple and are_shape_checks_enabled():
            if len(shape) != len(names):
                raise AxisSpecError(
                    f"NamedArray: array has {len(shape)} dimensions of sizes {shape}, but {len(names)} axes were "
                    f"given: "
                    f"{format_axes(names, [s for _, s in found])}. Shape of underlying array and axes must agree; "
                    "give one axis per dimension (inside jax.vmap or lax.scan use hax.vmap and hax.scan)."
                )
            if any(s is not None and s != d for (_, s), d in zip(found, shape, strict=True)):
                raise AxisSizeMismatchError(
                    "NamedArray: shape of underlying array does not match the axes",
                    [("array", dict(zip(names, shape, strict=True))), ("axes", dict(found))],
                    "Give the array's own sizes, or names without sizes.",
                )
        _set_array(self, array)
        _set_names(self, intern_names(names))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"set NamedArray.{name}: instances are immutable. Build a new one, or use .at[...].set(...)."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"delete NamedArray.{name}: instances are immutable.")

    def __reduce__(self) -> Any:
        return (_new, (self.array, self.names))

    def __copy__(self) -> "NamedArray":
        return self

    def __class_getitem__(cls, item: Any) -> Any:
        return typing_spec.annotate(cls, item)

    # --- what is it -------------------------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes in storage order.

        Raises:
            AxisSpecError: The payload has another rank than there are names (inside `jax.vmap`, `lax.scan`).
        """
        shape = self.array.shape if self.array is not None else None
        if shape is None or len(shape) != len(self.names):
            raise AxisSpecError(
                f"NamedArray.axes: the payload ({type(self.array).__name__}, shape {shape}) does not have one "
                f"dimension "
                f"per name {format_axes(self.names)}. Use .names; inside jax.vmap or lax.scan use hax.vmap, hax.scan; "
                "for jax.jacfwd, jacrev and hessian use hax.jacobian."
            )
        return _axes_for(self.names, shape)

    @property
    def shape(self) -> dict[str, int]:
        """Name to size, in storage order."""
        return {a.name: a.size for a in self.axes}

    @property
    def dtype(self) -> Any:
        """Element type of the payload."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.names)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.array.size

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return self.array.nbytes

    @property
    def real(self) -> "NamedArray":
        """Real part."""
        return _new(self.array.real, self.names)

    @property
    def imag(self) -> "NamedArray":
        """Imaginary part."""
        return _new(self.array.imag, self.names)

    @property
    def sharding(self) -> Any:
        """Sharding of the payload."""
        return self.array.sharding

    def has_axis(self, axis: AxisSelection) -> bool:
        """Tell whether every selected axis is present (with equal size where one is given).

        Example:
            >>> x = NamedArray(jnp.arange(6).reshape(2, 3), ("a", "b"))
            >>> x.has_axis("a"), x.has_axis(("a", "c"))
            (True, False)
        """
        have = dict(zip(self.names, getattr(self.array, "shape", ()) or (None,) * len(self.names), strict=True))
        return all(n in have and (s is None or have[n] in (None, s)) for n, s in pairs(axis))

    def axis_indices(self, axis: AxisSelection) -> Any:
        """Return the position of an axis or None; for several axes a tuple of them.

        Raises:
            AxisSizeMismatchError: The name exists with another size.

        Example:
            >>> x = NamedArray(jnp.arange(6).reshape(2, 3), ("a", "b"))
            >>> x.axis_indices("b"), x.axis_indices(("b", "zz"))
            (1, (1, None))
        """
        out = []
        for name, size in pairs(axis):
            if name not in self.names:
                out.append(None)
                continue
            index = self.names.index(name)
            if size is not None and self.array is not None and self.array.shape[index] != size:
                raise AxisSizeMismatchError("axis_indices", [("array", self.axes), ("requested", axis)])
            out.append(index)
        return out[0] if is_single(axis) else tuple(out)

    _lookup_indices = axis_indices

    def axis_size(self, axis: AxisSelection) -> Any:
        """Return the size of an axis, or a tuple of sizes.

        Raises:
            AxisNotFoundError: An axis is absent.

        Example:
            >>> x = NamedArray(jnp.arange(6).reshape(2, 3), ("a", "b"))
            >>> x.axis_size("b"), x.axis_size(("b", "a"))
            (3, (3, 2))
        """
        found = algebra.resolve_axis(self.axes, axis if is_single(axis) else tuple(names_of(axis)))
        return found.size if isinstance(found, Axis) else tuple(a.size for a in found)

    def resolve_axis(self, axis: AxisSelection) -> Any:
        """Return the Axis of a name; a sequence gives a tuple, a mapping a dict.

        Raises:
            AxisNotFoundError: An axis is absent.

        Example:
            >>> x = NamedArray(jnp.arange(6).reshape(2, 3), ("a", "b"))
            >>> x.resolve_axis("b")
            Axis(name='b', size=3)
        """
        return algebra.resolve_axis(self.axes, axis)

    def matches_axes(self, spec: Any) -> bool:
        """Tell whether the axes fit a typing spec such as ``NamedArray["batch ... embed"]``.

        Example:
            >>> x = NamedArray(jnp.arange(6).reshape(2, 3), ("a", "b"))
            >>> x.matches_axes(NamedArray["a ..."]), x.matches_axes(NamedArray["b a"])
            (True, False)
        """
        return typing_spec.matches(spec, self.names, self.dtype)

    def _raw_scalar(self) -> Any:
        if self.names:
            raise AxisSpecError(
                f"scalar: array has axes {format_axes(self.names)}; expected none. Reduce it first, for example .sum()."
            )
        return self.array

    # --- conversion -------------------------------------------------------------------------------------------------

    def scalar(self) -> Any:
        """Return the raw 0-d array; the way to hand a loss to `jax.grad`.

        Raises:
            AxisSpecError: There are axes left.

        Example:
            >>> NamedArray(jnp.float32(2), ()).scalar().item()
            2.0
        """
        return self._raw_scalar()

    def item(self) -> Any:
        """Return the single element as a Python scalar."""
        return self.array.item()

    def tolist(self) -> Any:
        """Return nested lists in storage order."""
        return self.array.tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """Return the raw bytes in storage order."""
        return np.asarray(self.array).tobytes(order)  # type: ignore[arg-type]

    def astype(self, dtype: Any) -> "NamedArray":
        """Return the array with another element type."""
        return _new(self.array.astype(dtype), self.names)

    def block_until_ready(self) -> "NamedArray":
        """Wait until the payload is computed."""
        jax.block_until_ready(self.array)
        return self

    def __bool__(self) -> bool:
        return bool(self.array)

    def __int__(self) -> int:
        return int(self.array)

    def __float__(self) -> float:
        return float(self.array)

    def __complex__(self) -> complex:
        return complex(self.array)

    def __index__(self) -> int:
        return operator.index(self._raw_scalar())

    def __len__(self) -> int:
        raise ArrayTypeError(
            f"len: a NamedArray has no first axis (axes {format_axes(self.names)}). Use axis_size(name) or .size."
        )

    def __iter__(self) -> Any:
        raise ArrayTypeError(
            f"iterate: a NamedArray has no first axis (axes {format_axes(self.names)}). Use unbind(axis)."
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ArrayTypeError(
            f"convert to numpy: axes {format_axes(self.names)} would lose their names. Use .array to get the raw "
            f"array, "
            "or the function of the same name in haliax."
        )

    def __repr__(self) -> str:
        return f"NamedArray({self._summary()})"

    def __str__(self) -> str:
        if isinstance(self.array, jax.Array | np.ndarray) and not isinstance(self.array, jax.core.Tracer):
            return f"NamedArray({self._summary()}, {self.array})"
        return repr(self)

    def __pdoc__(self, **_: Any) -> Any:
        # Called by Equinox's pretty printer only, which is wadler_lindig: it is loaded by then.
        return sys.modules["wadler_lindig"].TextDoc(f"Named({self._summary()})")

    def __format__(self, spec: str) -> str:
        return format(self.array, spec) if spec and not self.names else str(self)

    def _summary(self) -> str:
        array = self.array
        shape = getattr(array, "shape", None)
        if type(shape) is not tuple or len(shape) != len(self.names):
            return f"{type(array).__name__}, {format_axes(self.names)}"
        kind = np.dtype(array.dtype).name if not jnp.issubdtype(array.dtype, jax.dtypes.extended) else str(array.dtype)
        text = f"{kind}{format_axes(self.names, shape)}"
        return f"Tracer<{text}>" if isinstance(array, jax.core.Tracer) else text

    if TYPE_CHECKING:
        at: Any
        __add__: Callable[..., Any]
        __radd__: Callable[..., Any]
        __sub__: Callable[..., Any]
        __rsub__: Callable[..., Any]
        __mul__: Callable[..., Any]
        __rmul__: Callable[..., Any]
        __truediv__: Callable[..., Any]
        __rtruediv__: Callable[..., Any]
        __floordiv__: Callable[..., Any]
        __rfloordiv__: Callable[..., Any]
        __mod__: Callable[..., Any]
        __rmod__: Callable[..., Any]
        __divmod__: Callable[..., Any]
        __rdivmod__: Callable[..., Any]
        __pow__: Callable[..., Any]
        __rpow__: Callable[..., Any]
        __and__: Callable[..., Any]
        __rand__: Callable[..., Any]
        __or__: Callable[..., Any]
        __ror__: Callable[..., Any]
        __xor__: Callable[..., Any]
        __rxor__: Callable[..., Any]
        __lshift__: Callable[..., Any]
        __rlshift__: Callable[..., Any]
        __rshift__: Callable[..., Any]
        __rrshift__: Callable[..., Any]
        __lt__: Callable[..., Any]
        __le__: Callable[..., Any]
        __gt__: Callable[..., Any]
        __ge__: Callable[..., Any]
        __neg__: Callable[..., "NamedArray"]
        __pos__: Callable[..., "NamedArray"]
        __abs__: Callable[..., "NamedArray"]
        __invert__: Callable[..., "NamedArray"]
        __round__: Callable[..., "NamedArray"]
        __getitem__: Callable[..., "NamedArray"]
        all: Callable[..., "NamedArray"]
        any: Callable[..., "NamedArray"]
        argmax: Callable[..., "NamedArray"]
        argmin: Callable[..., "NamedArray"]
        argsort: Callable[..., Any]
        broadcast_axis: Callable[..., "NamedArray"]
        broadcast_to: Callable[..., "NamedArray"]
        clip: Callable[..., "NamedArray"]
        conj: Callable[..., "NamedArray"]
        conjugate: Callable[..., "NamedArray"]
        copy: Callable[..., "NamedArray"]
        cumprod: Callable[..., "NamedArray"]
        cumsum: Callable[..., "NamedArray"]
        dot: Callable[..., "NamedArray"]
        flatten: Callable[..., "NamedArray"]
        flatten_axes: Callable[..., "NamedArray"]
        max: Callable[..., "NamedArray"]
        mean: Callable[..., "NamedArray"]
        min: Callable[..., "NamedArray"]
        prod: Callable[..., "NamedArray"]
        product: Callable[..., "NamedArray"]
        ptp: Callable[..., "NamedArray"]
        ravel: Callable[..., "NamedArray"]
        rearrange: Callable[..., "NamedArray"]
        rename: Callable[..., "NamedArray"]
        round: Callable[..., "NamedArray"]
        slice: Callable[..., "NamedArray"]
        sort: Callable[..., "NamedArray"]
        split: Callable[..., list["NamedArray"]]
        std: Callable[..., "NamedArray"]
        sum: Callable[..., "NamedArray"]
        take: Callable[..., "NamedArray"]
        trace: Callable[..., "NamedArray"]
        unbind: Callable[..., list["NamedArray"]]
        unflatten_axis: Callable[..., "NamedArray"]
        updated_slice: Callable[..., "NamedArray"]
        var: Callable[..., "NamedArray"]


_set_array: Callable[[NamedArray, Any], None] = NamedArray.__dict__["array"].__set__
_set_names: Callable[[NamedArray, tuple[str, ...]], None] = NamedArray.__dict__["names"].__set__
_alloc = object.__new__


def _new(array: Any, names: tuple[str, ...]) -> NamedArray:
    """Wrap without any check: the constructor of every operation, and of unflattening."""
    self = _alloc(NamedArray)
    _set_array(self, array)
    _set_names(self, names)
    return self


wrap = _new


def _unflatten(names: tuple[str, ...], children: Any) -> NamedArray:
    self = _alloc(NamedArray)
    _set_array(self, children[0])
    _set_names(self, names)
    return self


_KEY = jax.tree_util.GetAttrKey("array")

jax.tree_util.register_pytree_with_keys(
    NamedArray,
    lambda x: (((_KEY, x.array),), x.names),
    _unflatten,
    flatten_func=lambda x: ((x.array,), x.names),
)


def _spaced(found: Sequence[tuple[str, int | None]]) -> Any:
    for name, size in found:
        if size is None and " " in name:
            yield from ((part, None) for part in name.split())
        else:
            yield name, size


def bind(**methods: Any) -> None:
    """Plug operations in as methods of NamedArray (called once per module of `haliax._ops`)."""
    for name, method in methods.items():
        setattr(NamedArray, name, method)


def named(a: Any, axis: Any) -> NamedArray:
    """Name the dimensions of an array.

    Args:
        a: Anything `jnp.asarray` accepts.
        axis: One entry per dimension; a name without size takes the array's. ``"batch embed"`` names two dimensions.

    Raises:
        AxisSpecError, AxisSizeMismatchError, AxisCollisionError: The axes do not fit.

    Example:
        >>> named([[1, 2, 3], [4, 5, 6]], ("batch", Axis("embed", 3))).shape
        {'batch': 2, 'embed': 3}
    """
    if isinstance(a, NamedArray):
        raise ArrayTypeError(f"named: argument already has axes {format_axes(a.names)}. Use rename, or .array.")
    return NamedArray(jnp.asarray(a), axis)


def require_named(operation: str, a: Any, argument: str = "array") -> NamedArray:
    """Return ``a`` if it is a NamedArray, else raise ArrayTypeError.

    Raises:
        ArrayTypeError: It is none.
    """
    if isinstance(a, NamedArray):
        return a
    raise ArrayTypeError(
        f"{operation}: {argument} has type {type(a).__name__}; expected NamedArray. Wrap it with "
        f"hax.named(array, axes)."
    )


def raw(x: Any) -> Any:
    """Return the payload of a NamedArray, and anything else unchanged."""
    return x.array if isinstance(x, NamedArray) else x


def check_rank(operation: str, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Make sure that an array has one dimension per name.

    Transformations that change the rank behind the names' back (`jax.vmap`, `jax.lax.scan`, `jax.jacrev`) leave an
    array whose axes can only be guessed; working on would give wrong numbers under right names.

    Raises:
        AxisSpecError: It does not.
    """
    if len(names) != len(shape):
        raise AxisSpecError(
            f"{operation}: an array of {len(shape)} dimensions {tuple(shape)} has the names {format_axes(names)}; "
            "expected one name per dimension. jax.vmap, lax.scan and jax.jacrev change dimensions and know no names: "
            "use hax.vmap, hax.scan, hax.jacobian."
        )


def position(operation: str, array: NamedArray, axis: AxisSelector) -> int:
    """Return the position of one axis in ``array``, checking the size of a sized selector.

    Raises:
        AxisNotFoundError: It is absent.
        AxisSizeMismatchError: It has another size.
    """
    if not isinstance(axis, Axis | str):
        raise AxisSpecError(f"{operation}: axis has type {type(axis).__name__}; expected one Axis or str.")
    name = axis if isinstance(axis, str) else axis.name
    if name not in array.names:
        raise AxisNotFoundError(operation, [name], array.axes)
    shape = array.array.shape
    if len(shape) != len(array.names):
        check_rank(operation, array.names, shape)
    index = array.names.index(name)
    if isinstance(axis, Axis) and axis.size != shape[index]:
        raise AxisSizeMismatchError(operation, [("array", array.axes), ("requested", axis)])
    return index


def freeze(spec: Any) -> Any:
    """Return a hashable form of an axes argument, for use as a plan key."""
    if isinstance(spec, list):
        return tuple(spec)
    if isinstance(spec, Mapping):
        return tuple(selector(n, s) for n, s in pairs(spec))
    return spec
