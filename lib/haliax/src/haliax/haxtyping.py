"""Annotations with names, and checks at call boundaries.

    f32["batch embed"]                  a float32 NamedArray with exactly these axes, in this order
    Float[NamedArray, "batch ..."]      any float, first axis batch
    Named[NamedArray, {"batch", ...}]   any dtype, batch somewhere

`checked` verifies such annotations when a function is called. A name that starts with ``?`` is a variable: it stands
for whatever axis is there, the same one everywhere in the signature. Sizes of equal names must agree across arguments.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import jax.numpy as jnp
import jaxtyping
import numpy as np

from haliax._array.typing_spec import NamedArrayAxes, annotate, dtype_matches
from haliax.core import NamedArray
from haliax.errors import ArrayTypeError, AxisSizeMismatchError, AxisSpecError, format_axes


class _DTypeFactory:
    """``f32["a b"]`` or ``f32[NamedArray, "a b"]``; with another base (a raw array type) jaxtyping's annotation."""

    def __init__(self, name: str, dtype: Any, raw: Any) -> None:
        self.name, self.dtype, self.raw = name, dtype, raw

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], type):
            base, spec = item
            return annotate(NamedArray, spec, self.dtype) if base is NamedArray else self.raw[base, spec]
        return annotate(NamedArray, item, self.dtype)

    def __repr__(self) -> str:
        return f"haliax.haxtyping.{self.name}"


f16 = _DTypeFactory("f16", jnp.float16, jaxtyping.Float16)
bf16 = _DTypeFactory("bf16", jnp.bfloat16, jaxtyping.BFloat16)
f32 = _DTypeFactory("f32", jnp.float32, jaxtyping.Float32)
f64 = _DTypeFactory("f64", jnp.float64, jaxtyping.Float64)
i8 = _DTypeFactory("i8", jnp.int8, jaxtyping.Int8)
i16 = _DTypeFactory("i16", jnp.int16, jaxtyping.Int16)
i32 = _DTypeFactory("i32", jnp.int32, jaxtyping.Int32)
i64 = _DTypeFactory("i64", jnp.int64, jaxtyping.Int64)
u8 = _DTypeFactory("u8", jnp.uint8, jaxtyping.UInt8)
u16 = _DTypeFactory("u16", jnp.uint16, jaxtyping.UInt16)
u32 = _DTypeFactory("u32", jnp.uint32, jaxtyping.UInt32)
u64 = _DTypeFactory("u64", jnp.uint64, jaxtyping.UInt64)
bool_ = _DTypeFactory("bool_", jnp.bool_, jaxtyping.Bool)
complex64 = _DTypeFactory("complex64", jnp.complex64, jaxtyping.Complex64)
complex128 = _DTypeFactory("complex128", jnp.complex128, jaxtyping.Complex128)
Float = _DTypeFactory("Float", np.floating, jaxtyping.Float)
Complex = _DTypeFactory("Complex", np.complexfloating, jaxtyping.Complex)
Int = _DTypeFactory("Int", np.signedinteger, jaxtyping.Int)
UInt = _DTypeFactory("UInt", np.unsignedinteger, jaxtyping.UInt)
Named = _DTypeFactory("Named", None, jaxtyping.Shaped)


class _Bindings:
    """What the variables and sizes of one call stand for."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.names: dict[str, str] = {}
        self.sizes: dict[str, tuple[int, str]] = {}
        self.seen: list[tuple[str, Any]] = []

    def check(self, label: str, value: Any, spec: NamedArrayAxes) -> None:
        """Verify one argument, and remember what its names and sizes say about the others."""
        if not isinstance(value, NamedArray):
            raise ArrayTypeError(f"{self.function}: {label} has type {type(value).__name__}; expected NamedArray.")
        if spec.dtype is not None and not dtype_matches(spec.dtype, value.dtype):
            wanted = getattr(spec.dtype, "__name__", str(spec.dtype))
            raise ArrayTypeError(f"{self.function}: {label} has dtype {value.dtype}; expected {wanted}.")
        self.match_names(label, value, spec)
        self.seen.append((label, value.axes))
        for axis in value.axes:
            size, _ = self.sizes.setdefault(axis.name, (axis.size, label))
            if size != axis.size:
                raise AxisSizeMismatchError(self.function, self.seen, "Make the sizes agree, or rename one axis.")

    def match_names(self, label: str, value: NamedArray, spec: NamedArrayAxes) -> None:
        """Match names against the annotation; a variable binds at its first occurrence."""
        names = list(value.names)
        if not spec.ordered:
            wanted = {self.names.get(n, n) for n in spec.before}
            fits = wanted <= set(names) if spec.subset else wanted == set(names)
            self.require(fits, label, value, spec)
            return
        n, m = len(spec.before), len(spec.after)
        self.require(len(names) >= n + m if spec.subset else len(names) == n, label, value, spec)
        actual = [*names[:n], *names[len(names) - m :]] if m else names[:n]
        for wanted_name, name in zip((*spec.before, *spec.after), actual, strict=True):
            if wanted_name.startswith("?"):
                bound = self.names.setdefault(wanted_name, name)
                self.require(bound == name, label, value, spec)
            else:
                self.require(wanted_name == name, label, value, spec)

    def require(self, fits: bool, label: str, value: NamedArray, spec: NamedArrayAxes) -> None:
        """Raise AxisSpecError with both sides unless the argument fits."""
        if fits:
            return
        parts = [*spec.before, *(["..."] if spec.subset else []), *spec.after]
        bound = "".join(f" ({k} is {v!r})" for k, v in self.names.items())
        style = " ".join(parts) if spec.ordered else "{" + ", ".join(parts) + "}"
        raise AxisSpecError(
            f"{self.function}: {label} has axes {format_axes(value.names, value.array.shape)}; expected "
            f"'{style}'{bound}. "
            "Rearrange or rename the argument."
        )


def _spec_of(annotation: Any) -> NamedArrayAxes | None:
    if get_origin(annotation) is Annotated:
        return next((m for m in get_args(annotation)[1:] if isinstance(m, NamedArrayAxes)), None)
    return None


def checked(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Verify the named annotations of a function at every call (under jit: once per trace).

    Raises (when the function is called):
        ArrayTypeError: An argument is no NamedArray or has the wrong dtype.
        AxisSpecError: Names do not fit, or a variable would stand for two names.
        AxisSizeMismatchError: One name has two sizes across arguments and result.

    Example:
        >>> import haliax as hax
        >>> @checked
        ... def swap(x: Named["?a ?b"]) -> Named["?b ?a"]:
        ...     return x.rearrange((x.axes[1], x.axes[0]))
        >>> swap(hax.zeros({"row": 2, "col": 3})).shape
        {'col': 3, 'row': 2}
    """
    signature = inspect.signature(fn)
    specs = {n: s for n, p in signature.parameters.items() if (s := _spec_of(p.annotation)) is not None}
    result = _spec_of(signature.return_annotation)
    name = getattr(fn, "__qualname__", "function")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bindings = _Bindings(name)
        for parameter, spec in specs.items():
            if bound.arguments.get(parameter) is not None:
                bindings.check(f"argument {parameter!r}", bound.arguments[parameter], spec)
        out = fn(*args, **kwargs)
        if result is not None:
            bindings.check("the result", out, result)
        return out

    return wrapped
