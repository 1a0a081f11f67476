"""Elementwise functions and operators, as tables over `jax.numpy`."""

from typing import Any

import jax
import jax.numpy as jnp

from haliax._array.lift import lift_binary, lift_operator, lift_unary
from haliax._array.named import NamedArray, bind, wrap
from haliax.errors import ArrayTypeError, format_axes

abs = lift_unary(jnp.abs)  # noqa: A001
absolute = lift_unary(jnp.absolute)
angle = lift_unary(jnp.angle)
arccos = lift_unary(jnp.arccos)
arccosh = lift_unary(jnp.arccosh)
arcsin = lift_unary(jnp.arcsin)
arcsinh = lift_unary(jnp.arcsinh)
arctan = lift_unary(jnp.arctan)
arctanh = lift_unary(jnp.arctanh)
around = lift_unary(jnp.around)
bitwise_count = lift_unary(jnp.bitwise_count)
bitwise_invert = lift_unary(jnp.bitwise_invert)
bitwise_not = lift_unary(jnp.bitwise_not)
cbrt = lift_unary(jnp.cbrt)
ceil = lift_unary(jnp.ceil)
conj = lift_unary(jnp.conj)
conjugate = lift_unary(jnp.conjugate)
copy = lift_unary(jnp.copy)
cos = lift_unary(jnp.cos)
cosh = lift_unary(jnp.cosh)
deg2rad = lift_unary(jnp.deg2rad)
degrees = lift_unary(jnp.degrees)
exp = lift_unary(jnp.exp)
exp2 = lift_unary(jnp.exp2)
expm1 = lift_unary(jnp.expm1)
fabs = lift_unary(jnp.fabs)
fix = lift_unary(jnp.trunc)
floor = lift_unary(jnp.floor)
i0 = lift_unary(jnp.i0)
imag = lift_unary(jnp.imag)
invert = lift_unary(jnp.invert)
iscomplex = lift_unary(jnp.iscomplex)
isfinite = lift_unary(jnp.isfinite)
isinf = lift_unary(jnp.isinf)
isnan = lift_unary(jnp.isnan)
isneginf = lift_unary(jnp.isneginf)
isposinf = lift_unary(jnp.isposinf)
isreal = lift_unary(jnp.isreal)
log = lift_unary(jnp.log)
log10 = lift_unary(jnp.log10)
log1p = lift_unary(jnp.log1p)
log2 = lift_unary(jnp.log2)
logical_not = lift_unary(jnp.logical_not)
nan_to_num = lift_unary(jnp.nan_to_num)
negative = lift_unary(jnp.negative)
positive = lift_unary(jnp.positive)
rad2deg = lift_unary(jnp.rad2deg)
radians = lift_unary(jnp.radians)
real = lift_unary(jnp.real)
reciprocal = lift_unary(jnp.reciprocal)
rint = lift_unary(jnp.rint)
round = lift_unary(jnp.round)  # noqa: A001
rsqrt = lift_unary(jax.lax.rsqrt)
sign = lift_unary(jnp.sign)
signbit = lift_unary(jnp.signbit)
sin = lift_unary(jnp.sin)
sinc = lift_unary(jnp.sinc)
sinh = lift_unary(jnp.sinh)
sqrt = lift_unary(jnp.sqrt)
square = lift_unary(jnp.square)
tan = lift_unary(jnp.tan)
tanh = lift_unary(jnp.tanh)
trunc = lift_unary(jnp.trunc)

add = lift_binary(jnp.add)
arctan2 = lift_binary(jnp.arctan2)
bitwise_and = lift_binary(jnp.bitwise_and)
bitwise_left_shift = lift_binary(jnp.bitwise_left_shift)
bitwise_or = lift_binary(jnp.bitwise_or)
bitwise_right_shift = lift_binary(jnp.bitwise_right_shift)
bitwise_xor = lift_binary(jnp.bitwise_xor)
copysign = lift_binary(jnp.copysign)
divide = lift_binary(jnp.divide)
equal = lift_binary(jnp.equal)
float_power = lift_binary(jnp.float_power)
floor_divide = lift_binary(jnp.floor_divide)
fmax = lift_binary(jnp.fmax)
fmin = lift_binary(jnp.fmin)
fmod = lift_binary(jnp.fmod)
gcd = lift_binary(jnp.gcd)
greater = lift_binary(jnp.greater)
greater_equal = lift_binary(jnp.greater_equal)
heaviside = lift_binary(jnp.heaviside)
hypot = lift_binary(jnp.hypot)
lcm = lift_binary(jnp.lcm)
ldexp = lift_binary(jnp.ldexp)
left_shift = lift_binary(jnp.left_shift)
less = lift_binary(jnp.less)
less_equal = lift_binary(jnp.less_equal)
logaddexp = lift_binary(jnp.logaddexp)
logaddexp2 = lift_binary(jnp.logaddexp2)
logical_and = lift_binary(jnp.logical_and)
logical_or = lift_binary(jnp.logical_or)
logical_xor = lift_binary(jnp.logical_xor)
maximum = lift_binary(jnp.maximum)
minimum = lift_binary(jnp.minimum)
mod = lift_binary(jnp.mod)
multiply = lift_binary(jnp.multiply)
nextafter = lift_binary(jnp.nextafter)
not_equal = lift_binary(jnp.not_equal)
power = lift_binary(jnp.power)
remainder = lift_binary(jnp.remainder)
right_shift = lift_binary(jnp.right_shift)
subtract = lift_binary(jnp.subtract)
true_divide = lift_binary(jnp.true_divide)


def ndim(a: Any) -> int:
    """Return the number of axes of a NamedArray, or of dimensions of a raw array.

    Example:
        >>> import haliax as hax
        >>> ndim(hax.ones({"a": 2, "b": 3}))
        2
    """
    return a.ndim if isinstance(a, NamedArray) else jnp.ndim(a)


def frexp(a: Any) -> tuple[Any, Any]:
    """Split into mantissa and exponent: a pair of arrays with the axes of ``a``.

    Example:
        >>> import haliax as hax
        >>> mantissa, exponent = frexp(hax.named([8.0], "a"))
        >>> mantissa.tolist(), exponent.tolist()
        ([0.5], [4])
    """
    if not isinstance(a, NamedArray):
        return tuple(jnp.frexp(a))  # type: ignore[return-value]
    mantissa, exponent = jnp.frexp(a.array)
    return wrap(mantissa, a.names), wrap(exponent, a.names)


def modf(a: Any) -> tuple[Any, Any]:
    """Split into fractional and whole part: a pair of arrays with the axes of ``a``.

    Example:
        >>> import haliax as hax
        >>> fraction, whole = modf(hax.named([1.5], "a"))
        >>> fraction.tolist(), whole.tolist()
        ([0.5], [1.0])
    """
    if not isinstance(a, NamedArray):
        return tuple(jnp.modf(a))  # type: ignore[return-value]
    fraction, whole = jnp.modf(a.array)
    return wrap(fraction, a.names), wrap(whole, a.names)


def divmod(a: Any, b: Any) -> tuple[Any, Any]:  # noqa: A001
    """Return (``floor_divide(a, b)``, ``remainder(a, b)``).

    Example:
        >>> import haliax as hax
        >>> quotient, rest = divmod(hax.named([7, 8], "a"), 3)
        >>> quotient.tolist(), rest.tolist()
        ([2, 2], [1, 2])
    """
    return floor_divide(a, b), remainder(a, b)


def _compare(op: Any, when_missing: bool) -> Any:
    def method(self: NamedArray, other: Any) -> Any:
        if other is None:
            return not when_missing
        if isinstance(other, NamedArray) and (self.array is None or other.array is None):
            same = self.array is None and other.array is None and self.names == other.names
            return same if when_missing else not same
        if type(other) is NamedArray or isinstance(other, int | float | bool | complex) or hasattr(other, "dtype"):
            return op(self, other)
        return NotImplemented

    return method


def _no_matmul(self: NamedArray, other: Any) -> Any:
    raise _MatmulError(self)


class _MatmulError(ArrayTypeError, ValueError):
    def __init__(self, array: NamedArray) -> None:
        super().__init__(
            f"matmul: @ does not say which axes of {format_axes(array.names)} to contract. Use hax.dot(a, b, axis=...)."
        )


def _ufunc(op: Any) -> tuple[Any, Any]:
    return lift_operator(op), lift_operator(op, swap=True)


_BINARY = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "truediv": true_divide,
    "floordiv": floor_divide,
    "mod": mod,
    "divmod": divmod,
    "pow": power,
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
    "lshift": left_shift,
    "rshift": right_shift,
}

for _name, _op in _BINARY.items():
    _forward, _reflected = _ufunc(_op)
    bind(**{f"__{_name}__": _forward, f"__r{_name}__": _reflected})

bind(
    __eq__=_compare(equal, True),
    __ne__=_compare(not_equal, False),
    __lt__=lift_operator(less),
    __le__=lift_operator(less_equal),
    __gt__=lift_operator(greater),
    __ge__=lift_operator(greater_equal),
    __neg__=negative,
    __pos__=positive,
    __abs__=abs,
    __invert__=invert,
    __round__=round,
    __matmul__=_no_matmul,
    __rmatmul__=_no_matmul,
    conj=conj,
    conjugate=conjugate,
    copy=copy,
    round=round,
)
