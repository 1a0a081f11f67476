"""Stacked, BlockSeq and ArrayStacked do the same thing."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import ArrayTypeError, AxisSpecError, ScanError, StateDictError
from haliax.tree_util import scan_aware_tree_map

Block, E = hax.make_axes(Block=4, E=3)


class Layer(eqx.Module):
    w: hax.NamedArray
    scale: float = eqx.field(static=True)

    @staticmethod
    def init(w, scale=1.0):
        return Layer(w, scale)

    def __call__(self, x, bias=None, *, key=None):
        out = hax.sin(x * self.w * self.scale)
        if bias is not None:
            out = out + bias
        return out if key is None else out + jax.random.uniform(key)


class Pair(Layer):
    @staticmethod
    def init(w, scale=1.0):
        return Pair(w, scale)

    def __call__(self, x, bias=None):
        out = Layer.__call__(self, x, bias)
        return out, out.sum()


W = hax.arange((Block, E), dtype=float) / 7
X = hax.ones(E)


def both(module, **kw):
    return [cls.init(Block, module, **kw)(W, scale=2.0) for cls in (hnn.Stacked, hnn.BlockSeq)]


@pytest.mark.parametrize("policy", [False, True, "recompute", "save_dots"])
def test_fold_agrees_with_keys_and_arguments_per_layer(policy):
    keys = jax.random.split(jax.random.key(0), 4)
    bias = hax.arange((E, Block), dtype=float)
    a, b = (m.fold(X, bias, key=keys) for m in both(Layer, gradient_checkpointing=policy))
    np.testing.assert_allclose(a.array, b.array, rtol=1e-5)


def test_scan_agrees():
    (ca, ya), (cb, yb) = (m.scan(X) for m in both(Pair))
    np.testing.assert_allclose(ca.array, cb.array, rtol=1e-5)
    assert ya.names == yb.names == ("Block",)
    np.testing.assert_allclose(ya.array, yb.array, rtol=1e-5)
    with pytest.raises(ScanError, match="pair"):
        both(Layer)[1].scan(X)
    with pytest.raises(ScanError, match="pair"):
        both(Layer)[0].scan(X)


def test_via_variants_slice_arguments_alike():
    bias = hax.arange((Block, E), dtype=float)

    def fn(block, carry, b):
        assert b.names == ("E",)
        return block(carry) + b

    a, b = (m.fold_via(fn)(X, bias) for m in both(Layer))
    np.testing.assert_allclose(a.array, b.array, rtol=1e-5)
    a, b = (m.scan_via(lambda blk, c, v: (blk(c) + v, c))(X, bias)[1] for m in both(Layer))
    np.testing.assert_allclose(a.array, b.array, rtol=1e-5)
    a, b = (m.vmap_via(lambda blk, x, v: blk(x) + v)(X, bias) for m in both(Layer))
    assert a.names == b.names == ("Block", "E")
    np.testing.assert_allclose(a.array, b.array, rtol=1e-5)


def test_unroll_is_checked_and_changes_nothing():
    stack = both(Layer)[0]
    for unroll in (None, 1, 2, True, False):
        np.testing.assert_allclose(stack.fold(X, unroll=unroll).array, stack.fold(X).array, rtol=1e-6)
    with pytest.raises(AxisSpecError):
        stack.fold(X, unroll=0)


def test_layers_can_be_taken_out():
    stack, seq = both(Layer)
    for a, b in zip(stack.unstacked(), seq.unstacked(), strict=True):
        np.testing.assert_array_equal(a.w.array, b.w.array)
        assert a.scale == b.scale == 2.0
    assert stack.get_layer(2).w.names == ("E",)
    assert hnn.Layers is hnn.Stacked


def test_gradients_agree():
    def loss(m):
        return m.fold(X).sum().scalar()

    a, b = (eqx.filter_grad(loss)(m) for m in both(Layer))
    stacked = np.stack([np.asarray(layer.w.array) for layer in b.blocks])
    np.testing.assert_allclose(a.stacked.w.array, stacked, rtol=1e-5)


def test_state_dicts_agree_and_round_trip():
    stack, seq = both(Layer)
    a, b = hax.state_dict.to_state_dict(stack, "h"), hax.state_dict.to_state_dict(seq, "h")
    assert sorted(a) == sorted(b) == [f"h.{i}.w" for i in range(4)]
    for k in a:
        np.testing.assert_array_equal(a[k], b[k])
    back = hax.state_dict.from_state_dict(jax.tree.map(jnp.zeros_like, stack), a, "h")
    np.testing.assert_array_equal(back.stacked.w.array, W.array)
    assert sorted(hax.state_dict.to_state_dict(stack)) == [f"{i}.w" for i in range(4)]
    del a["h.2.w"]
    with pytest.raises(StateDictError, match=r"missing layers \[2\]"):
        hax.state_dict.from_state_dict(stack, a, "h")


def test_scan_aware_tree_map_sees_single_layers():
    stack = both(Layer)[0]
    seen = []

    def fn(leaf):
        seen.append(leaf.names)
        return leaf * 2

    out = scan_aware_tree_map(fn, {"a": stack, "b": X})
    assert seen == [("E",), ("E",)]
    np.testing.assert_array_equal(out["a"].stacked.w.array, 2 * W.array)


def test_scan_aware_tree_map_looks_into_array_stacks():
    stack = hnn.ArrayStacked.init(4, Raw)(jnp.ones((4, 3)))
    seen = []
    out = scan_aware_tree_map(lambda leaf: seen.append(leaf.shape) or leaf * 2, stack)
    assert seen == [(3,)]
    np.testing.assert_array_equal(out.stacked.w, 2 * np.ones((4, 3)))


class Raw(eqx.Module):
    w: jax.Array

    @staticmethod
    def init(w):
        return Raw(w)

    def __call__(self, x, b=0.0):
        return jnp.sin(x * self.w + b)


def test_array_stacked_runs_raw_modules():
    w = jnp.arange(12.0).reshape(4, 3) / 7
    stack = hnn.ArrayStacked.init(4, Raw)(w)
    expected = jnp.ones(3)
    for i in range(4):
        expected = jnp.sin(expected * w[i])
    np.testing.assert_allclose(stack.fold(jnp.ones(3)), expected, rtol=1e-5)
    np.testing.assert_array_equal(stack.get_layer(1).w, w[1])
    assert len(stack.unstacked()) == 4
    _, ys = stack.scan_via(lambda m, c, b: (m(c, b), c), in_axes=(1,))(jnp.ones(3), jnp.ones((3, 4)))
    assert ys.shape == (4, 3)
    assert stack.vmap_via(lambda m, x: m(x))(jnp.ones(3)).shape == (4, 3)
    for policy in (True, "recompute", "nested"):
        checked = hnn.ArrayStacked.init(4, Raw, gradient_checkpointing=policy)(w)
        grads = eqx.filter_grad(lambda m: m.fold(jnp.ones(3)).sum())(checked)
        reference = eqx.filter_grad(lambda m: m.fold(jnp.ones(3)).sum())(stack)
        np.testing.assert_allclose(grads.stacked.w, reference.stacked.w, rtol=1e-5, atol=1e-6)
    state = hax.state_dict.to_state_dict(stack, "layers")
    assert sorted(state) == [f"layers.{i}.w" for i in range(4)]
    np.testing.assert_array_equal(hax.state_dict.from_state_dict(stack, state, "layers").stacked.w, w)


def test_array_stacked_refuses_named_arrays_and_bad_axes():
    with pytest.raises(ArrayTypeError, match="does not support NamedArray leaves"):
        hnn.ArrayStacked.init(4, Layer)(W)
    with pytest.raises(ScanError, match="leading dimension 3"):
        hnn.ArrayStacked.init(4, Raw)(jnp.ones((3, 2)))
    stack = hnn.ArrayStacked.init(4, Raw)(jnp.ones((4, 3)))
    with pytest.raises(AxisSpecError):
        stack.scan_via(lambda m, c, b: (c, None), in_axes=(0, 0))(jnp.ones(3), jnp.ones(4))


def test_stacked_linear_inside_named_jit():
    keys = jax.random.split(jax.random.key(0), 4)
    stack = hax.named_jit(lambda k: hnn.Stacked.init(Block, hnn.Linear)(E, Axis("E2", 3), key=k))(keys)
    assert stack.stacked.weight.names == ("Block", "E2", "E")
    assert stack.stacked.out_first
