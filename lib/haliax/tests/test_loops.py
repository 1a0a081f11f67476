"""scan, fold, map, vmap over names, and what the backward pass keeps."""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, ScanCheckpointPolicy
from haliax.errors import AxisCollisionError, AxisNotFoundError, ScanError
from haliax.jax_utils import tree_checkpoint_name

T, E, B = hax.make_axes(T=4, E=3, B=2)


def test_scan_slices_what_has_the_axis_and_closes_over_the_rest():
    x, w = hax.arange((E, T), dtype=float), hax.ones(E)

    def f(c, x, w, scale, *, flag):
        assert flag == "static"
        assert x.names == ("E",)
        return c + x * w * scale, (c, 1.0)

    carry, (ys, ones) = hax.scan(f, T)(hax.zeros(E), x, w, 2.0, flag="static")
    np.testing.assert_allclose(carry.array, 2 * np.asarray(x.array).sum(1))
    assert ys.names == ("T", "E")
    assert ones.shape == (4,)


def test_raw_arrays_scan_dimension_zero_and_scalars_do_not():
    carry, ys = hax.scan(lambda c, a, s: (c + a.sum() * s, a), "T")(0.0, jnp.ones((4, 2)), jnp.float32(3))
    assert carry == 24
    assert ys.shape == (4, 2)


def test_reverse_unroll_and_fold():
    x = hax.arange(T)
    for unroll in (1, 2, True):
        _, ys = hax.scan(lambda c, v: (c + v, c), T, reverse=True, unroll=unroll)(0, x)
        assert ys.tolist() == [6, 5, 3, 0]
    assert hax.fold(lambda c, v: c + v, "T")(0, x) == 6
    assert hax.map(lambda v: v * 2, T)(x).tolist() == [0, 2, 4, 6]
    assert hax.map(lambda v: v * 2, "T")(x).tolist() == [0, 2, 4, 6]


def test_a_carry_in_another_order_is_put_right():
    def f(c, _):
        return c.rearrange(("E", "B")), None

    out, _ = hax.scan(f, T)(hax.zeros((B, E)), hax.arange(T))
    assert out.names == ("B", "E")
    with pytest.raises(ScanError, match="the carry"):
        hax.scan(lambda c, _: (c.sum("E"), None), T)(hax.zeros((B, E)), hax.arange(T))


def test_static_parts_of_a_carry_survive():
    class State(eqx.Module):
        value: hax.NamedArray
        tag: str

    out, _ = hax.scan(lambda s, v: (State(s.value + v, s.tag), None), T)(State(hax.zeros(()), "name"), hax.arange(T))
    assert out.tag == "name"
    assert out.value.item() == 6


def test_errors_name_the_argument():
    class Foo(eqx.Module):
        my_array: jax.Array

    def f(c, x, y, foo):
        return c, None

    with pytest.raises(ValueError, match="y has leading dimension 1"):
        hax.scan(f, T)(0, hax.arange(T), jnp.ones((1, 2)), Foo(jnp.ones(4)))
    with pytest.raises(ValueError, match=r"foo\.my_array has leading dimension 3"):
        hax.scan(f, T)(0, hax.arange(T), jnp.ones((4, 2)), Foo(jnp.ones(3)))
    with pytest.raises(AxisCollisionError, match="already has the axis"):
        hax.scan(lambda c, x: (c, hax.ones(T)), T)(0, hax.arange(T))
    with pytest.raises(AxisNotFoundError, match="without a size"):
        hax.scan(lambda c, x: (c, None), "T")(0, hax.ones(E))
    with pytest.raises(ScanError, match="pair"):
        hax.fold(lambda c, x: c, T) and hax.scan(lambda c, x: c, T)(0, hax.arange(T))


def residual_shapes(policy):
    Block, En = Axis("Block", 4), Axis("E", 10)

    def body(x, w):
        s = tree_checkpoint_name(hax.sin(x + w), "sin")
        return x + tree_checkpoint_name(hax.cos(s + x), "cos")

    def loss(x, w):
        return hax.fold(body, Block, remat=policy)(x, w).sum().scalar()

    _, pullback = jax.eval_shape(lambda x, w: jax.vjp(loss, x, w), hax.zeros(En), hax.zeros((Block, En)))
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(pullback)]
    return sorted(s for s in shapes if len(s) == 2)


@pytest.mark.parametrize(
    ("policy", "saved"),
    [
        (False, 2),
        ("save_all", None),
        (True, 2),
        ("recompute", None),
        (ScanCheckpointPolicy(save_carries=True), None),
        (ScanCheckpointPolicy(save_block_internals=["cos"]), None),
        (ScanCheckpointPolicy(save_block_internals=["sin"]), None),
        (ScanCheckpointPolicy(nested=2), None),
        ("save_dots", None),
    ],
)
def test_policies_differ_in_memory_and_agree_in_gradient(policy, saved):
    del saved
    Block = Axis("Block", 4)

    def body(x, w):
        s = tree_checkpoint_name(hax.sin(x + w), "sin")
        return x + tree_checkpoint_name(hax.cos(s + x), "cos")

    def loss(x, w, p):
        return hax.fold(body, Block, remat=p)(x, w).sum().scalar()

    x, w = hax.arange(E, dtype=float), hax.arange((Block, E), dtype=float) / 10
    expected = jax.grad(loss, argnums=(0, 1))(x, w, False)
    got = jax.grad(loss, argnums=(0, 1))(x, w, policy)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def saved_stacks(policy):
    """Count the (Block, E) arrays that the forward loop stores, the scanned input aside."""
    Block, En = Axis("Block", 4), Axis("E", 10)

    def body(x, w):
        s = tree_checkpoint_name(hax.sin(x + w), "sin")
        return tree_checkpoint_name(hax.cos(s + x), "cos") + x

    def loss(x, w):
        return hax.fold(body, Block, remat=policy)(x, w).sum().scalar()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(hax.zeros(En), hax.zeros((Block, En)))
    forward = next(e for e in jaxpr.jaxpr.eqns if e.primitive.name == "scan")
    return [tuple(v.aval.shape) for v in forward.outvars if v.aval.shape[:1] == (4,)]


def test_a_policy_that_keeps_less_stores_less():
    everything, carries = saved_stacks(False), saved_stacks(ScanCheckpointPolicy(save_carries=True))
    with_sin = saved_stacks(ScanCheckpointPolicy(save_carries=True, save_block_internals=["sin"]))
    assert carries == [(4, 10)]
    assert saved_stacks(True) == [(4, 10)]
    assert with_sin == [(4, 10), (4, 10)]
    assert len(everything) >= 2


def test_dots_are_kept_on_request():
    Block, In, Out = Axis("Block", 3), Axis("i", 4), Axis("o", 5)

    def body(x, w, v):
        h = hax.dot(x, w, axis=In)
        return hax.dot(hax.sin(h), v, axis=Out)

    def stored(policy):
        def loss(x, w, v):
            return hax.fold(body, Block, remat=policy)(x, w, v).sum().scalar()

        shapes = hax.zeros((Axis("b", 2), In)), hax.zeros((Block, In, Out)), hax.zeros((Block, Out, In))
        jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=1))(*shapes)
        forward = next(e for e in jaxpr.jaxpr.eqns if e.primitive.name == "scan")
        return [tuple(v.aval.shape) for v in forward.outvars]

    assert (3, 2, 5) in stored("save_dots")
    assert (3, 2, 5) not in stored(ScanCheckpointPolicy(save_carries=True))


def test_policy_names():
    make = ScanCheckpointPolicy.from_bool_or_str
    assert make(True).simple
    assert make(False).disable
    assert make("offload").save_carries == "offload"
    assert make("full") == make("recompute")
    assert make("nested").nested is True
    with pytest.raises(ScanError, match="expected"):
        make("sometimes")
    with pytest.raises(ValueError, match="offload"):
        ScanCheckpointPolicy(save_carries="offload", save_block_internals=True).checkpoint("a", "b", lambda x: x)(1.0)


def test_offloading_shows_in_the_jaxpr():
    def loss(x, w):
        return hax.fold(lambda c, v: hax.sin(c * v), T, remat="offload")(x, w).sum().scalar()

    text = str(jax.make_jaxpr(jax.grad(loss))(hax.ones(E), hax.ones((T, E))))
    assert "host" in text


def test_vmap_hides_the_axis_and_prepends_it():
    x = hax.arange((B, T, E))
    out = hax.vmap(lambda r, w: (r.sum("T") * w, "static", r.ndim), "B")(x, hax.ones(E))
    assert out[0].names == ("B", "E")
    assert out[1] == "static"
    assert out[2] == 2
    assert hax.vmap(lambda r: r.sum("T"), ("E", "B"))(x).names == ("E", "B")
    assert hax.vmap(lambda r: r, B)(jnp.ones((2, 5))).shape == (2, 5)


def test_vmap_specs():
    f = hax.vmap(lambda a, b: a + b, B, default=None)
    assert f(jnp.ones(3), jnp.ones(3)).shape == (2, 3)
    g = hax.vmap(lambda a, b: a + b, B, args=(None, 0))
    assert g(jnp.ones(3), jnp.ones((2, 3))).shape == (2, 3)
    h = hax.vmap(lambda a, *, b: a + b, B, kwargs={"b": 1})
    assert h(jnp.ones((2, 3)), b=jnp.ones((3, 2))).shape == (2, 3)
    with pytest.raises(AxisNotFoundError):
        hax.vmap(lambda v: v, "zz")(hax.ones(E))
    with pytest.raises(ScanError, match="v has leading dimension 3"):
        hax.vmap(lambda v: v, B)(jnp.ones(3))


def test_vmap_of_a_class_builds_a_stacked_module():
    class Block(eqx.Module):
        w: hax.NamedArray
        flag: bool
        fn: object = eqx.field(static=True)

        @staticmethod
        def init(key, axis, flag):
            return Block(hax.random.normal(key, axis), flag, jnp.sin)

    out = hax.vmap(Block.init, T)(jax.random.split(jax.random.key(0), 4), E, True)
    assert out.w.names == ("T", "E")
    assert out.flag is True
    assert out.fn is jnp.sin
