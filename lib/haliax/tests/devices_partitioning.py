"""Tests on 8 virtual CPU devices; run by test_partitioning.py in a process of its own."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.errors import ShardingError
from haliax.partitioning import (
    infer_resource_partitions,
    physical_axis_size,
    pspec_for,
    pspec_for_axis,
    round_axis_for_partitioning,
    set_mesh,
    shard_map,
    sharding_for_axis,
)
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

B, E, M, L, V = hax.make_axes(batch=8, embed=4, mlp=8, layer=3, vocab=16)
MAPPING = {"batch": "data", "mlp": "model", "vocab": ("data", "model")}


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


def specs(x):
    return x.array.sharding.spec


def padded(spec, rank):
    return tuple(spec) + (None,) * (rank - len(spec))


def test_eight_devices_are_here():
    assert jax.device_count() == 8


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shard_places_by_name_inside_and_outside_jit(kind):
    with set_mesh(mesh(kind)), hax.axis_mapping(MAPPING):
        x = hax.shard(hax.ones((B, M)))
        assert padded(specs(x), 2) == ("data", "model")
        y = jax.jit(lambda: hax.shard(hax.zeros((M, B))))()
        assert padded(specs(y), 2) == ("model", "data")
        z = hax.named_jit(lambda a: a + 1)(x)
        assert padded(specs(z), 2) == ("data", "model")


def test_without_mapping_or_mesh_nothing_happens():
    x = hax.ones(B)
    with pytest.warns(RuntimeWarning, match="no axis mapping"):
        assert hax.shard(x) is x
    with pytest.warns(RuntimeWarning, match="no mesh"):
        assert hax.shard(x, MAPPING) is x
    jax.jit(lambda a: hax.shard(a))(x)
    assert hax.auto_sharded(x) is x


def test_payloads_that_are_no_arrays_are_left_alone():
    hole = hax.NamedArray(None, ("batch",))
    with set_mesh(mesh()):
        tree = hax.shard({"a": hole, "raw": jnp.ones(8), "s": "text"}, MAPPING)
    assert tree["a"] is hole
    assert tree["s"] == "text"


def test_specs_sizes_and_rounding():
    assert pspec_for_axis((E, V), MAPPING) == P(None, ("data", "model"))
    with set_mesh(mesh()), hax.axis_mapping(MAPPING):
        assert physical_axis_size(V) == 8
        assert physical_axis_size(E) is None
        assert round_axis_for_partitioning(Axis("vocab", 13)).size == 16
        assert sharding_for_axis(B).spec == P("data")
    with pytest.raises(ShardingError, match="no mesh"):
        physical_axis_size(B, MAPPING)


def test_mistakes_are_explained():
    with set_mesh(mesh()):
        with pytest.raises(ShardingError, match="does not divide.*Pad it to 12"):
            hax.shard(hax.ones(Axis("batch", 10)), MAPPING)
        with pytest.raises(ShardingError, match="'row' and 'col' are both mapped"):
            hax.shard(hax.ones({"row": 4, "col": 4}), {"row": "data", "col": "data"})
        with pytest.raises(ShardingError, match="mesh axis 'oops' not found"):
            hax.shard(hax.ones({"row": 4}), {"row": "oops"})


def test_mappings_nest_and_the_new_one_wins():
    with hax.axis_mapping({"a": "data", "b": "data"}):
        with hax.axis_mapping({"a": "model"}, merge=True, c="model"):
            inside = dict(hax.partitioning.current_thread_local_mapping())
        with hax.axis_mapping({"a": "model"}):
            replaced = dict(hax.partitioning.current_thread_local_mapping())
    assert inside == {"a": "model", "b": "data", "c": "model"}
    assert replaced == {"a": "model"}


class Inner(eqx.Module):
    raw: jax.Array = hax.field(axis_names=("mlp", None))


class Module(eqx.Module):
    w: hax.NamedArray
    inner: Inner
    n: int
    s: jax.Array
    name: str = eqx.field(static=True)


def test_pspec_for_walks_modules():
    m = Module(hax.ones((B, M)), Inner(jnp.ones((8, 3))), 3, jnp.float32(1), "x")
    out = pspec_for(m, MAPPING)
    assert out.w == P("data", "model")
    assert out.inner.raw == P("model", None)
    assert out.n == P()
    assert out.s == P()
    assert pspec_for(hax.NamedArray(None, ("batch",)), MAPPING) == P("data")
    assert pspec_for(jnp.ones(3), MAPPING) == P(None)
    assert pspec_for(jnp.ones(3), MAPPING, preserve_existing_shardings=False) == P(None)
    with pytest.raises(ShardingError, match="No resource mapping found"):
        pspec_for(m)
    with pytest.raises(ValueError, match="axis_names"):
        hax.field(static=True, axis_names=("a",))
    with set_mesh(mesh()) as _:
        shardings = infer_resource_partitions(m, MAPPING)
    assert isinstance(shardings.w, NamedSharding)
    assert shardings.inner.raw.spec == P("model", None)


def test_classes_are_built_in_place():
    with set_mesh(mesh()), hax.axis_mapping(MAPPING):
        layer = hax.named_jit(hnn.Linear.init)(E, M, key=jax.random.key(0))
    assert padded(specs(layer.weight), 2) == ("model", None)


def test_fsdp_stores_and_computes_under_two_mappings():
    seen = []

    @hax.partitioning.fsdp({"embed": "data"}, {"batch": "data"})
    def f(w, x):
        seen.append(dict(hax.partitioning.current_thread_local_mapping()))
        return hax.dot(x, w, axis="embed")

    with set_mesh(mesh()):
        w = hax.ones({"embed": 8, "mlp": 8})
        out = f(w, hax.ones({"batch": 8, "embed": 8}))
    assert seen == [{"batch": "data"}]
    assert out.shape == {"batch": 8, "mlp": 8}
    assert float(out.array[0, 0]) == 8


class Attention(eqx.Module):
    qkv: hnn.Linear
    out: hnn.Linear
    norm: hnn.RmsNorm
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(*, key):
        H, D, T = hax.make_axes(heads=2, d=4, three=3)
        k = jax.random.split(key, 4)
        return Attention(
            hnn.Linear.init(E, (T, H, D), key=k[0]),
            hnn.Linear.init((H, D), E, key=k[1]),
            hnn.RmsNorm.init(E),
            hnn.Linear.init(E, M, key=k[2]),
            hnn.Linear.init(M, E, key=k[3]),
        )

    def __call__(self, x):
        q, k, v = self.qkv(self.norm(x)).unbind("three")
        k, v = k.rename({"pos": "kpos"}), v.rename({"pos": "kpos"})
        mask = hnn.causal_mask(x.resolve_axis("pos"), k.resolve_axis("kpos"))
        a = hnn.dot_product_attention("kpos", "d", q, k, v, mask=mask)
        x = x + self.out(a)
        return x + self.down(hnn.gelu(self.up(x)))


class Lm(eqx.Module):
    table: hnn.Embedding
    blocks: hnn.Stacked

    @staticmethod
    def init(*, key):
        k0, k1 = jax.random.split(key)
        keys = jax.random.split(k1, L.size)
        return Lm(
            hnn.Embedding.init(V, E, key=k0), hnn.Stacked.init(L, Attention, gradient_checkpointing=True)(key=keys)
        )

    def loss(self, ids):
        logits = self.table.unembed(self.blocks.fold(self.table.embed(ids)))
        return hnn.cross_entropy_loss(logits, V, hnn.one_hot(hax.roll(ids, -1, "pos"), V)).scalar()


@pytest.mark.parametrize("mapping", [{"batch": "data"}, {"batch": "data", "mlp": "model", "heads": "model"}])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_transformer_gives_the_same_loss_and_gradients_in_every_mesh_mode(kind, mapping):
    model = Lm.init(key=jax.random.key(0))
    ids = hax.random.randint(jax.random.key(1), (B, Axis("pos", 5)), 0, 16)
    expected, grads = eqx.filter_jit(eqx.filter_value_and_grad(lambda m, i: m.loss(i)))(model, ids)
    traces = []
    with set_mesh(mesh(kind)), hax.axis_mapping(mapping):

        @hax.named_jit
        def step(m, i):
            traces.append(1)
            return eqx.filter_value_and_grad(lambda m: m.loss(i))(m)

        sharded, where = hax.shard(model), hax.shard(ids)
        got, sharded_grads = step(sharded, where)
        step(sharded, where)
    assert len(traces) == 1
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(sharded_grads), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shard_map_sees_blocks_and_infers_specs(kind):
    with set_mesh(mesh(kind)), hax.axis_mapping({"batch": "data"}):
        x = hax.shard(hax.arange((B, E)))

        @shard_map
        def f(x):
            assert x.shape == {"batch": 2, "embed": 4}
            return x * 2

        out = f(x)
        assert padded(specs(out), 2) == ("data", None)
        np.testing.assert_array_equal(out.array, 2 * np.arange(32).reshape(8, 4))
        total = shard_map(lambda x: hax.named(jax.lax.psum(x.array.sum(0), "data"), "embed"))(x)
        np.testing.assert_array_equal(total.array, np.arange(32).reshape(8, 4).sum(0))


def test_explicit_meshes_gather_and_contract_with_named_output_sharding():
    with set_mesh(mesh(AxisType.Explicit)), hax.axis_mapping({"batch": "data", "mlp": "model"}):
        x, w = hax.shard(hax.ones((B, M))), hax.shard(hax.ones((M, E)))
        out = jax.jit(lambda a, b: hax.dot(a, b, axis=M))(x, w)
        assert padded(specs(out), 2) == ("data", None)
        table = hax.shard(hax.arange({"v": 16, "embed": 4}))
        ids = hax.shard(hax.arange((B,)))
        assert padded(specs(jax.jit(lambda t, i: t.take("v", i))(table, ids)), 2) == ("data", None)
        norm = hnn.LayerNorm.init(M)
        assert padded(specs(jax.jit(lambda a: norm(a))(x)), 2) == ("data", "model")


def test_legacy_mesh_contexts_still_count():
    with pytest.warns(DeprecationWarning), mesh(), hax.axis_mapping(MAPPING):
        assert padded(specs(hax.shard(hax.ones((B, M)))), 2) == ("data", "model")


def test_optimizer_steps_keep_parameters_in_place():
    mapping = {"batch": "data", "mlp": "model"}
    with set_mesh(mesh()), hax.axis_mapping(mapping):
        model = hax.named_jit(hnn.MLP.init, axis_resources=mapping)(E, E.alias("out"), M, 1, key=jax.random.key(0))

        @hax.named_jit
        def step(model, x):
            loss, grads = eqx.filter_value_and_grad(lambda m: hax.mean((m(x) - 1.0) ** 2).scalar())(model)
            return loss, eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))

        x = hax.shard(hax.random.normal(jax.random.key(1), (B, E)))
        losses = []
        for _ in range(10):
            loss, model = step(model, x)
            losses.append(float(loss))
    assert losses[-1] < losses[0]
    assert padded(specs(model.layers[0].weight), 2) == ("model", None)


def test_state_dicts_load_into_place():
    mapping = {"mlp": "model"}
    layer = hnn.Linear.init(E, M, key=jax.random.key(0))
    state = hax.state_dict.to_torch_compatible_state_dict(layer)
    with set_mesh(mesh()), hax.axis_mapping(mapping):
        back = hax.state_dict.from_state_dict(layer, {k: np.asarray(v) for k, v in state.items()})
    assert padded(specs(back.weight), 2) == ("model", None)
    np.testing.assert_array_equal(back.weight.array, layer.weight.array)


def test_sharding_table(capsys):
    text = hax.debug.explain_shardings({"w": hax.ones({"mlp": 7, "embed": 4})}, {"mlp": "model"}, mesh())
    assert "pad to 8" in text
    assert "64 B/device" in text
    with set_mesh(mesh()):
        hax.debug.visualize_shardings({"w": hax.shard(hax.ones((B, M)), MAPPING)})
    assert "batch(8)->data mlp(8)->model" in capsys.readouterr().out


@pytest.mark.parametrize("mapping", [None, {"in": "model", "out": "data"}])
def test_the_grouped_kernel_equals_ragged_dot_on_a_mesh(mapping):
    X, I, O = hax.make_axes(x=3, **{"in": 8, "out": 16})
    plain = hnn.MoELinear.init(X, I, O, key=jax.random.key(0))
    kernel = hnn.MoELinear.init(X, I, O, key=jax.random.key(0), use_gmm=True)
    rows = hax.random.normal(jax.random.key(1), (Axis("rows", 6), I))
    sizes = hax.named(np.array([2, 1, 3], np.int32), "x")
    with set_mesh(mesh()), hax.axis_mapping(mapping or {}):
        out = jax.jit(lambda m, r: m(r, sizes))(kernel, rows)
    np.testing.assert_allclose(np.asarray(out.array), np.asarray(plain(rows, sizes).array), rtol=1e-4, atol=1e-5)
