"""Elementwise functions: every one equals jax.numpy, broadcasting is by name and subset only."""

import haliax as hax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax._ops import elementwise
from haliax.errors import ArrayTypeError, AxisSizeMismatchError, AxisSpecError, BroadcastError

UNARY = """abs absolute angle arccos arccosh arcsin arcsinh arctan arctanh around cbrt ceil conj conjugate copy cos cosh
deg2rad degrees exp exp2 expm1 fabs floor i0 imag iscomplex isfinite isinf isnan isneginf isposinf isreal log
log10 log1p log2 logical_not nan_to_num negative positive rad2deg radians real reciprocal rint round sign
signbit sin sinc sinh sqrt square tan tanh trunc""".split()
INTEGER_UNARY = "bitwise_count bitwise_invert bitwise_not invert".split()
BINARY = """add arctan2 copysign divide equal float_power floor_divide fmax fmin fmod greater greater_equal heaviside
hypot less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply
nextafter not_equal power remainder subtract true_divide""".split()
INTEGER_BINARY = """bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm
left_shift right_shift""".split()

DATA = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)
INTS = np.arange(6, dtype=np.int32).reshape(2, 3)


def same(ours, theirs):
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("name", UNARY)
def test_unary_equals_jnp_and_keeps_axes(name):
    out = getattr(hax, name)(hax.named(DATA, ("a", "b")))
    same(out.array, getattr(jnp, name)(DATA))
    assert out.names == ("a", "b")
    same(getattr(hax, name)(DATA), getattr(jnp, name)(DATA))


@pytest.mark.parametrize("name", INTEGER_UNARY)
def test_integer_unary_equals_jnp(name):
    same(getattr(hax, name)(hax.named(INTS, ("a", "b"))).array, getattr(jnp, name)(INTS))


@pytest.mark.parametrize("name", BINARY + INTEGER_BINARY)
def test_binary_equals_jnp_by_name(name):
    left, right = (INTS, INTS[1] + 1) if name in INTEGER_BINARY else (DATA, DATA[1])
    fn, ref = getattr(hax, name), getattr(jnp, name)
    a, b = hax.named(left, ("a", "b")), hax.named(right, ("b",))
    same(fn(a, b).array, ref(left, right))
    same(fn(b, a).array, ref(right, left))
    assert fn(b, a).names == ("a", "b")
    transposed = hax.named(left.T, ("b", "a"))
    same(fn(a, transposed).array, ref(left, left))
    same(fn(left, left), ref(left, left))


def test_every_lifted_function_is_tested():
    lifted = {n for n in vars(elementwise) if not n.startswith("_") and callable(getattr(elementwise, n))}
    here = {
        *UNARY,
        *INTEGER_UNARY,
        *BINARY,
        *INTEGER_BINARY,
        "fix",
        "rsqrt",
        "ndim",
        "frexp",
        "modf",
        "divmod",
        "ldexp",
    }
    own = {n for n in lifted if getattr(vars(elementwise)[n], "__module__", "") in ("haliax", elementwise.__name__)}
    assert own <= here


def test_functions_with_several_results_give_tuples():
    x = hax.named(DATA, ("a", "b"))
    for fn, ref in ((hax.frexp, jnp.frexp), (hax.modf, jnp.modf)):
        for ours, theirs in zip(fn(x), ref(DATA), strict=True):
            same(ours.array, theirs)
            assert ours.names == x.names
    quotient, remainder = hax.divmod(x, 0.3)
    same(quotient.array, jnp.divmod(DATA, 0.3)[0])
    same(remainder.array, jnp.divmod(DATA, 0.3)[1])
    assert [type(v) for v in divmod(x, x)] == [hax.NamedArray, hax.NamedArray]
    assert hax.ndim(x) == 2
    same(hax.ldexp(x, hax.named(INTS, ("a", "b"))).array, np.ldexp(DATA, INTS))
    same(hax.fix(x - 0.5).array, np.trunc(DATA - 0.5))
    np.testing.assert_allclose(hax.rsqrt(x).array, 1 / np.sqrt(DATA), rtol=1e-6)


def test_operators_and_their_reflections():
    x = hax.named(INTS + 1, ("a", "b"))
    same((x + 1).array, INTS + 2)
    same((1 - x).array, -INTS)
    same((2**x).array, 2 ** (INTS + 1))
    same((x // 2).array, (INTS + 1) // 2)
    same((7 % x).array, 7 % (INTS + 1))
    same((x << 1).array, (INTS + 1) << 1)
    same((x & 1).array, (INTS + 1) & 1)
    same((1 | x).array, 1 | (INTS + 1))
    same((x ^ x).array, INTS * 0)
    same((-x).array, -(INTS + 1))
    same((~x).array, ~(INTS + 1))
    same(abs(-x).array, INTS + 1)
    same((x >= 3).array, INTS + 1 >= 3)
    same((3 > x).array, 3 > INTS + 1)
    same((x == (x + 0)).array, np.ones_like(INTS, bool))
    same((x / jnp.float32(2)).array, (INTS + 1) / 2)


def test_dtype_promotion_is_that_of_jax():
    half = hax.named(jnp.ones(2, jnp.bfloat16), "a")
    assert (half * 2.0).dtype == jnp.bfloat16
    assert (half * np.float32(2)).dtype == jnp.float32
    assert (hax.arange({"a": 2}) / hax.arange({"a": 2})).dtype == jnp.float32


def test_the_left_order_wins_a_tie_and_no_axes_never_decide():
    a, b = hax.ones({"x": 2, "y": 3}), hax.ones({"y": 3, "x": 2})
    assert (a + b).names == ("x", "y")
    assert (b + a).names == ("y", "x")
    assert (hax.named(1.0, ()) + b).names == ("y", "x")


def test_no_subset_is_an_error_that_shows_both_sides():
    with pytest.raises(BroadcastError, match="no subset relationship") as caught:
        hax.ones({"a": 2}) + hax.ones({"b": 3})
    assert "a: 2" in str(caught.value)
    assert "b: 3" in str(caught.value)
    assert "broadcast_axis" in str(caught.value)


def test_size_clashes_are_named_as_such_even_for_size_one():
    with pytest.raises(AxisSizeMismatchError, match="differs"):
        hax.ones({"a": 1}) + hax.ones({"a": 3})


def test_raw_arrays_with_dimensions_are_refused():
    with pytest.raises(AxisSpecError, match=r"hax\.named"):
        hax.ones({"a": 2}) + jnp.ones(2)
    assert isinstance(hax.named(1.0, ()) + jnp.ones(2), jnp.ndarray)
    with pytest.raises(ArrayTypeError):
        hax.ones({"a": 2}) + None
    with pytest.raises(ArrayTypeError):
        hax.add(hax.ones({"a": 2}), [1, 2])
