"""FP8 and INT8: state handling, accuracy, and selection of layers."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.quantization import (
    DefaultDotGeneralOp,
    DotGeneralOp,
    Fp8DotGeneralOp,
    Int8DotGeneralOp,
    QuantizationConfig,
    apply_updates,
    partition_for_grad_overwrite,
    quantize_linear_layers,
)

I, O, B = hax.make_axes(I=16, O=8, B=4)


def qdq(x, fp8, scale):
    limit = float(jnp.finfo(fp8).max)
    return jnp.clip(x / scale, -limit, limit).astype(fp8).astype(x.dtype) * scale


def next_scale(history, scale, fp8):
    amax = history.max()
    return np.where((amax > 0) & np.isfinite(amax), amax / float(jnp.finfo(fp8).max), scale)


def test_five_steps_equal_a_hand_written_simulation(key):
    layer = hnn.Linear.init(I, O, key=key, use_bias=False, dot_general=Fp8DotGeneralOp.init(4))
    w = np.asarray(layer.weight.array)
    scales = {k: np.ones(1, np.float32) for k in ("x", "w", "g")}
    history = {k: np.zeros(4, np.float32) for k in ("x", "w", "g")}
    e4, e5 = jnp.float8_e4m3fn, jnp.float8_e5m2
    for step in range(5):
        x = hax.random.normal(jax.random.key(step), (B, I))

        def loss(m, x=x):
            return (m(x) ** 2).sum().scalar()

        value, grads = eqx.filter_value_and_grad(loss)(layer)
        new = {k: next_scale(history[k], scales[k], e5 if k == "g" else e4).astype(np.float32) for k in scales}
        xq, wq = qdq(x.array, e4, new["x"]), qdq(jnp.asarray(w), e4, new["w"])
        y = np.asarray(xq) @ np.asarray(wq).T
        np.testing.assert_allclose(value, (y**2).sum(), rtol=1e-4)
        g = 2 * y
        gq = np.asarray(qdq(jnp.asarray(g), e5, new["g"]))
        for k, data in (("x", np.asarray(x.array)), ("w", w), ("g", g)):
            rolled = np.roll(history[k], -1)
            rolled[0] = np.abs(data).max()
            history[k], scales[k] = rolled, new[k]
        overwrites, grads = partition_for_grad_overwrite(grads)
        np.testing.assert_allclose(grads.weight.array, gq.T @ np.asarray(xq), rtol=1e-4, atol=1e-4)
        layer = apply_updates(layer, jax.tree.map(lambda v: -0.01 * v, grads), overwrites)
        w = w - 0.01 * np.asarray(grads.weight.array)
        op = layer.dot_general
        np.testing.assert_allclose(op.input_scale, scales["x"], rtol=1e-5)
        np.testing.assert_allclose(op.kernel_amax_history, history["w"], rtol=1e-5)
        np.testing.assert_allclose(op.output_grad_amax_history, history["g"], rtol=1e-4)
        np.testing.assert_allclose(layer.weight.array, w, rtol=1e-4, atol=1e-6)


def test_int8_is_close_and_passes_gradients_straight_through(key):
    plain = hnn.Linear.init(I, O, key=key)
    quantized = quantize_linear_layers(plain, QuantizationConfig(int8=True))
    x = hax.random.normal(key, (B, I))
    assert float(hax.max(hax.abs(quantized(x) - plain(x))).item()) < 0.05
    g = eqx.filter_grad(lambda m: m(x).sum().scalar())(quantized)
    h = eqx.filter_grad(lambda m: m(x).sum().scalar())(plain)
    np.testing.assert_allclose(g.weight.array, h.weight.array, rtol=1e-5)
    with pytest.warns(UserWarning, match="no state"):
        assert "dot_general" not in "".join(hax.state_dict.to_state_dict(quantized, "l"))


def test_targets_choose_layers(key):
    class M(eqx.Module):
        a: hnn.Linear
        layers: list

    make = lambda: hnn.Linear.init(I, O, key=key)  # noqa: E731
    model = M(make(), [make(), make()])

    def quantized(targets):
        out = quantize_linear_layers(model, QuantizationConfig(targets=targets, fp8=True))
        return [x.dot_general is not None for x in (out.a, *out.layers)]

    assert quantized(None) == [True, True, True]
    assert quantized(["a"]) == [True, False, False]
    assert quantized(r"layers\.0") == [False, True, False]
    with pytest.warns(UserWarning, match="neither"):
        assert quantize_linear_layers(model, QuantizationConfig()) is model
    with pytest.raises(AssertionError):
        QuantizationConfig(fp8=True, int8=True)


def test_stacked_layers_have_a_history_each(key):
    L = Axis("L", 3)

    class Block(eqx.Module):
        up: hnn.Linear

        @staticmethod
        def init(*, key):
            return Block(hnn.Linear.init(I, I.alias("I2"), key=key))

        def __call__(self, x):
            return self.up(x).rename({"I2": "I"})

    stack = hnn.Stacked.init(L, Block)(key=jax.random.split(key, 3))
    stack = quantize_linear_layers(stack, QuantizationConfig(fp8=True, amax_history_length=8))
    assert stack.stacked.up.dot_general.input_amax_history.shape == (3, 8)
    grads = eqx.filter_grad(lambda m: m.fold(hax.ones((B, I))).sum().scalar())(stack)
    overwrites, _ = partition_for_grad_overwrite(grads)
    assert overwrites.stacked.up.dot_general.kernel_amax_history.shape == (3, 8)
    assert float(overwrites.stacked.up.dot_general.kernel_amax_history[:, 0].min()) > 0


def test_the_protocol_has_a_default():
    assert isinstance(DotGeneralOp.default(), DefaultDotGeneralOp)
    assert isinstance(Int8DotGeneralOp.init(), DotGeneralOp)
