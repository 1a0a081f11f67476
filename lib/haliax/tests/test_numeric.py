"""Numerical functions, linear algebra and derivatives by name, against NumPy on positional arrays."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, linalg
from haliax.errors import ArrayTypeError, AxisCollisionError, AxisNotFoundError, AxisSizeMismatchError, AxisSpecError

RNG = np.random.default_rng(0)
BATCH, I, J, K = 2, 3, 3, 4
RAW = RNG.normal(size=(I, BATCH, J)).astype(np.float32)  # the batch stands in the middle: order must not matter
X = hax.named(RAW, "i batch j")
MATRICES = np.swapaxes(RAW, 0, 1)
SPD = MATRICES @ np.swapaxes(MATRICES, 1, 2) + 3 * np.eye(3, dtype=np.float32)
S = hax.named(SPD, "batch i j")
TALL = RNG.normal(size=(BATCH, K, J)).astype(np.float32)
T = hax.named(TALL, "batch k j")


def close(ours, expected, **kwargs):
    np.testing.assert_allclose(np.asarray(ours.array), expected, rtol=1e-3, atol=1e-4, **kwargs)


def test_square_matrices():
    assert linalg.det(X, "i", "j").names == ("batch",)
    close(linalg.det(X, "i", "j"), np.linalg.det(MATRICES))
    assert linalg.inv(S, "i", "j").names == ("batch", "j", "i")
    close(linalg.inv(S, "i", "j"), np.linalg.inv(SPD))
    close(linalg.cholesky(S, "i", "j"), np.linalg.cholesky(SPD))
    sign, logarithm = linalg.slogdet(X, "i", "j")
    expected = np.linalg.slogdet(MATRICES)
    close(sign, expected[0])
    close(logarithm, expected[1])


def test_decompositions_give_the_matrix_back():
    values, vectors = linalg.eigh(S, "i", "j", "eig")
    close(values, np.linalg.eigvalsh(SPD))
    close(linalg.eigvalsh(S, "i", "j", "eig"), np.linalg.eigvalsh(SPD))
    back = hax.dot(vectors * values, vectors.rename({"i": "j"}), axis="eig", out_axes=("batch", "i", "j"))
    close(back, SPD)
    u, s, vh = linalg.svd(T, "k", "j", "r")
    close(s, np.linalg.svd(TALL, compute_uv=False))
    close(hax.dot(u * s, vh, axis="r", out_axes=("batch", "k", "j")), TALL)
    q, r = linalg.qr(T, "k", "j", "r")
    close(hax.dot(q, r, axis="r", out_axes=("batch", "k", "j")), TALL)
    close(hax.dot(q, q.rename({"r": "s"}), axis="k"), np.broadcast_to(np.eye(3), (2, 3, 3)))


def test_systems_and_norms():
    b = hax.named(RNG.normal(size=(3, 5)).astype(np.float32), "i rhs")
    x = linalg.solve(S, b, "i", "j")
    assert set(x.names) == {"batch", "rhs", "j"}
    close(hax.dot(S, x, axis="j", out_axes=("batch", "i", "rhs")), np.broadcast_to(b.array, (2, 3, 5)))
    y = hax.named(RNG.normal(size=(4,)).astype(np.float32), "k")
    close(linalg.lstsq(T, y, "k", "j"), [np.linalg.lstsq(m, y.array, rcond=None)[0] for m in TALL])
    close(linalg.pinv(T, "k", "j"), np.linalg.pinv(TALL))
    close(linalg.norm(X, "j"), np.linalg.norm(RAW, axis=2))
    close(linalg.norm(X, "j", 1), np.linalg.norm(RAW, 1, axis=2))
    close(linalg.norm(X, ("i", "j"), "nuc"), np.linalg.norm(RAW, "nuc", axis=(0, 2)))
    close(linalg.norm(X), np.sqrt((RAW**2).sum()))


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (lambda: linalg.det(T, "k", "j"), AxisSpecError),
        (lambda: linalg.inv(X, "i", "zz"), AxisNotFoundError),
        (lambda: linalg.solve(S, hax.ones(Axis("k", 3)), "i", "j"), AxisNotFoundError),
        (lambda: linalg.norm(X, ("i", "j", "batch"), 2), AxisSpecError),
        (lambda: hax.diag(X, "i", "j"), AxisCollisionError),
        (lambda: hax.cov(X, "i", "zz", "i2"), AxisNotFoundError),
        (lambda: hax.trapezoid(X, "i", x=hax.ones(Axis("j", 3))), AxisSpecError),
        (lambda: hax.convolve(X, X, "i"), AxisSpecError),
        (lambda: hax.put_along_axis(X, hax.zeros({"i": 1}, dtype=jnp.int32), 0, "i"), AxisSpecError),
        (
            lambda: hax.put_along_axis(X, hax.zeros({"i": 1, "batch": 9, "j": 3}, jnp.int32), 0, "i"),
            AxisSizeMismatchError,
        ),
        (lambda: hax.argwhere(X, size=Axis("n", 3), new_axis="n"), AxisCollisionError),
        (lambda: hax.jacobian(lambda x: x)("no array"), ArrayTypeError),
        (lambda: hax.jacobian(lambda x: x, out_prefix="")(X), AxisCollisionError),
    ],
)
def test_bad_input_is_named(mistake, error):
    with pytest.raises(error):
        mistake()


def test_statistics_and_differences():
    samples = RNG.normal(size=(4, 7)).astype(np.float32)
    x = hax.named(samples, "var obs")
    close(hax.cov(x, "var", "obs", "var2"), np.cov(samples))
    close(hax.cov(x.rearrange(("obs", "var")), "var", "obs", "var2", ddof=0), np.cov(samples, ddof=0))
    close(hax.corrcoef(x, "var", "obs", "var2"), np.corrcoef(samples))
    batched = hax.cov(hax.stack("b", [x, 2 * x]), "var", "obs", "var2")
    close(batched["b", 1], 4 * np.cov(samples))
    close(hax.gradient(x, "obs", 0.5), np.gradient(samples, 0.5, axis=1))
    close(hax.trapezoid(x, "obs", dx=2.0), np.trapezoid(samples, dx=2.0, axis=1))
    where = np.sort(RNG.normal(size=7)).astype(np.float32)
    close(hax.trapezoid(x, "obs", hax.named(where, "obs")), np.trapezoid(samples, where, axis=1))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolution(mode):
    signal, kernel = RNG.normal(size=(3, 6)).astype(np.float32), np.array([1.0, -2.0, 0.5], np.float32)
    expected = np.stack([np.convolve(row, kernel, mode) for row in signal])
    ours = hax.convolve(hax.named(signal.T, "t c"), hax.named(kernel, "k"), "t", mode)
    assert ours.names == ("t", "c")
    close(ours, expected.T)


def test_building_and_scattering():
    a, b = hax.named([1.0, 2.0], "a"), hax.named([3.0, 4.0, 5.0], "b")
    close(hax.outer(a, b), np.outer([1, 2], [3, 4, 5]))
    close(hax.diag(hax.named([[1.0, 2.0], [3.0, 4.0]], "a b"), "a", "a2"), [[[1, 0], [0, 3]], [[2, 0], [0, 4]]])
    found = hax.argwhere(X > 1, size=Axis("n", 18), new_axis="axis", fill_value=-1)
    expected = np.argwhere(RAW > 1)
    np.testing.assert_array_equal(np.asarray(found.array)[: len(expected)], expected)
    base, index = np.zeros((2, 4)), np.array([[3, 0], [1, 2]])
    expected = base.copy()
    np.put_along_axis(expected, index, np.array([[5.0], [6.0]]), axis=1)
    ours = hax.put_along_axis(hax.named(base, "r c"), hax.named(index.T, "c r"), hax.named([5.0, 6.0], "r"), "c")
    close(ours, expected)


def test_jacobians_have_the_axes_of_both_sides():
    x = hax.named(RNG.normal(size=(2, 3)).astype(np.float32), "a b")
    w = hax.named(RNG.normal(size=(3, 4)).astype(np.float32), "b c")
    expected = jax.jacrev(lambda r: jnp.tanh(r @ w.array))(x.array)
    for mode in ("rev", "fwd"):
        table = hax.jacobian(lambda x: hax.tanh(hax.dot(x, w, axis="b")), mode=mode)(x)
        assert table.names == ("out_a", "c", "a", "b")
        close(table, expected)
    by_weight = hax.jacobian(lambda x, w: hax.dot(x, w, axis="b"), argnums=1, out_prefix="d")(x, w)
    assert by_weight.names == ("a", "dc", "b", "c")


def test_jacobians_of_modules_and_raw_arrays():
    layer = hnn.Linear.init(Axis("b", 3), Axis("c", 2), key=jax.random.key(0))
    x = hax.ones(Axis("b", 3))
    table = hax.jacobian(lambda m: m(x))(layer)
    assert table.weight.names == ("out_c", "c", "b")
    close(table.bias, np.eye(2))
    mlp = hnn.MLP.init(Axis("b", 3), Axis("c", 2), 4, 1, key=jax.random.key(0))
    assert hax.jacobian(lambda m: m(x))(mlp).layers[0].weight.names == ("c", "mlp", "b")
    assert hax.jacobian(lambda r: x * r)(jnp.float32(2.0)).shape == (3,)
    pair = hax.jacobian(lambda x: {"sum": x.sum(), "raw": x.array * 2})(x)
    assert pair["sum"].names == ("b",)
    assert pair["raw"].shape == (3, 3)


def test_hessians():
    x = hax.named(RNG.normal(size=(3,)).astype(np.float32), "a")
    table = jax.jit(hax.hessian(lambda x, p: (x**p).sum()))(x, 4)
    assert table.names == ("out_a", "a")
    close(table, np.diag(12 * np.asarray(x.array) ** 2))


def test_positional_jacobians_are_explained():
    table = jax.jacrev(lambda x: x * x)(hax.ones(Axis("a", 3)))
    with pytest.raises(AxisSpecError, match=r"hax\.jacobian"):
        table.array.axes  # noqa: B018


def test_promotion_is_reported_on_request_only():
    E = Axis("embed", 4)
    x = hax.ones(E, dtype=jnp.bfloat16)
    layers = hnn.RmsNorm.init(E), hnn.LayerNorm.init(E), hnn.Linear.init(E, Axis("o", 2), key=jax.random.key(0))
    for layer in layers:
        layer(x)  # silent: warnings are errors in this suite
        with hax.debug.warn_on_promotion(), pytest.warns(hax.debug.PromotionWarning, match="bfloat16 became float32"):
            layer(x)
        half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), layer, is_leaf=eqx.is_array)
        with hax.debug.warn_on_promotion():
            assert half(x).dtype == jnp.bfloat16
            layer(x.astype(jnp.float32))
